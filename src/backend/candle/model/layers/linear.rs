//! A projection without bias.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::backend::candle::kernels::{Matrix, matmul, quantise_activations};

/// `y = x Wᵀ` for `x` `[rows, input]` and weights `[output, input]` as they are stored.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Linear {
    matrices: Arc<[Matrix]>,
    /// Whether activations are rounded to eight bits where they meet eight-bit weights, as serves with such units do.
    rounding: bool,
}

impl Linear {
    pub(in crate::backend::candle) fn new(weight: Matrix, rounding: bool) -> Self {
        Self { rounding: rounding && weight.is_eight_bit(), matrices: Arc::new([weight]) }
    }

    /// Several projections of the same input as one: their outputs stand side by side.
    pub(in crate::backend::candle) fn joined<const N: usize>(parts: [Self; N]) -> Self {
        Self {
            matrices: parts.iter().flat_map(|part| part.matrices.iter().cloned()).collect(),
            rounding: parts.iter().any(|part| part.rounding),
        }
    }

    /// Whether all of the weights are stored in eight bits.
    pub(in crate::backend::candle) fn is_eight_bit(&self) -> bool {
        self.matrices.iter().all(Matrix::is_eight_bit)
    }

    /// The weights, for products that are computed together with others.
    pub(in crate::backend::candle) fn matrices(&self) -> Arc<[Matrix]> {
        Arc::clone(&self.matrices)
    }

    /// The activations as all of these weights meet them, for such products.
    pub(in crate::backend::candle) fn rounded(&self, x: &Tensor) -> Result<Tensor> {
        if self.rounding { quantise_activations(x) } else { Ok(x.clone()) }
    }

    /// `[rows, input]` to `[rows, output]`.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.rounding {
            return matmul(x, Arc::clone(&self.matrices));
        }
        let rounded = quantise_activations(x)?;
        // Neighbours of other storage meet the activations as they are.
        let alike = self.matrices.chunk_by(|a, b| a.is_eight_bit() == b.is_eight_bit());
        let outputs = alike.map(|matrices| {
            let eight_bit = matrices.first().is_some_and(Matrix::is_eight_bit);
            matmul(if eight_bit { &rounded } else { x }, matrices.into())
        });
        Tensor::cat(&outputs.collect::<Result<Vec<_>>>()?, 1)
    }
}
