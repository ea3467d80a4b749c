//! A projection without bias.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::backend::candle::kernels::{Matrix, matmul};

/// `y = x Wᵀ` for `x` `[rows, input]` and weights `[output, input]` as they are stored.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Linear {
    matrices: Arc<[Matrix]>,
}

impl Linear {
    pub(in crate::backend::candle) fn new(weight: Matrix) -> Self {
        Self { matrices: Arc::new([weight]) }
    }

    /// Several projections of the same input as one: their outputs stand side by side.
    pub(in crate::backend::candle) fn joined<const N: usize>(parts: [Self; N]) -> Self {
        Self { matrices: parts.iter().flat_map(|part| part.matrices.iter().cloned()).collect() }
    }

    /// The weights, for products that are computed together with others.
    pub(in crate::backend::candle) fn matrices(&self) -> Arc<[Matrix]> {
        Arc::clone(&self.matrices)
    }

    /// `[rows, input]` to `[rows, output]`.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        matmul(x, Arc::clone(&self.matrices))
    }
}
