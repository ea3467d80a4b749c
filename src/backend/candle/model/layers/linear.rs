//! A projection without bias.

use candle_core::{Result, Tensor};

/// `y = x Wᵀ` for `x` `[rows, input]`, `W` `[output, input]`, both f32.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Linear {
    weight: Tensor,
}

impl Linear {
    pub(in crate::backend::candle) fn new(weight: Tensor) -> Self {
        Self { weight }
    }

    /// `[rows, input]` to `[rows, output]`.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight.t()?)
    }
}
