//! Root-mean-square normalisation.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::backend::candle::kernels::{add_rms_norm, rms_norm};

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct RmsNorm {
    weight: Arc<[f32]>,
    eps: f32,
}

impl RmsNorm {
    pub(in crate::backend::candle) fn new(weight: Vec<f32>, eps: f32) -> Self {
        Self { weight: weight.into(), eps }
    }

    /// The weight, for steps that normalise as part of something else.
    pub(in crate::backend::candle) fn weight(&self) -> Arc<[f32]> {
        Arc::clone(&self.weight)
    }

    /// `[rows, n]` to the same.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }

    /// The sum of two `[rows, n]`, and its normalisation.
    pub(in crate::backend::candle) fn forward_sum(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        add_rms_norm(x, y, &self.weight, self.eps)
    }
}
