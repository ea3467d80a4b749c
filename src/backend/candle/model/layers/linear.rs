//! A projection without bias.

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Module, Result, Tensor};

/// `y = x Wᵀ` for `x` `[rows, input]`, `W` `[output, input]`.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) enum Linear {
    /// f32 weights.
    Dense(Tensor),
    /// Quantised weights: activations are quantised by the product itself, a block at a time.
    Quantised(QMatMul),
}

impl Linear {
    pub(in crate::backend::candle) fn dense(weight: Tensor) -> Self {
        Self::Dense(weight)
    }

    pub(in crate::backend::candle) fn quantised(weight: QTensor) -> Result<Self> {
        Ok(Self::Quantised(QMatMul::from_qtensor(weight)?))
    }

    /// `[rows, input]` to `[rows, output]`.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => x.matmul(&weight.t()?),
            Self::Quantised(weight) => weight.forward(x),
        }
    }
}
