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

    /// `[rows, input]` to `[rows, output]`.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        matmul(x, Arc::clone(&self.matrices))
    }
}
