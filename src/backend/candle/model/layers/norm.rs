//! Root-mean-square normalisation.

use candle_core::{Result, Tensor};
use candle_nn::ops::rms_norm;

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    pub(in crate::backend::candle) fn new(weight: Tensor, eps: f32) -> Self {
        Self { weight, eps }
    }

    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(&x.contiguous()?, &self.weight, self.eps)
    }
}
