//! The gated feed-forward block of llama-like models.

use candle_core::{Result, Tensor};

use super::Linear;
use crate::backend::candle::kernels::swiglu;
use crate::backend::candle::weights::{LoadError, WeightSource};

/// `down(silu(gate x) * up x)`.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Mlp {
    /// Gate and up side by side.
    pub(super) inputs: Linear,
    pub(super) down: Linear,
}

impl Mlp {
    /// From weights whose rows are the gate's, then the up projection's, and the down projection's.
    pub(super) fn new(inputs: Linear, down: Linear) -> Self {
        Self { inputs, down }
    }

    /// The three projections under `prefix` (`...gate_proj.weight` and so on).
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        hidden: usize,
        intermediate: usize,
    ) -> std::result::Result<Self, LoadError> {
        Ok(Self {
            inputs: Linear::joined([
                weights.linear(&format!("{prefix}.gate_proj.weight"), intermediate, hidden)?,
                weights.linear(&format!("{prefix}.up_proj.weight"), intermediate, hidden)?,
            ]),
            down: weights.linear(&format!("{prefix}.down_proj.weight"), hidden, intermediate)?,
        })
    }

    /// `[rows, hidden]` to the same.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gated = swiglu(&self.inputs.forward(x)?)?;
        self.down.forward(&gated)
    }
}
