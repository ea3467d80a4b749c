//! A linear recurrence with a gated delta rule (Gated DeltaNet): what a sequence remembers is one matrix a head, whatever its
//! length.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::Linear;
use crate::backend::candle::cache::state::LayerState;
use crate::backend::candle::kernels::{
    self, CONV_TOKENS, ConvWeights, DeltaParams, causal_conv, conv_tails, gated_delta, gated_norm,
};
use crate::backend::candle::model::config::NormRule;
use crate::backend::candle::model::phases::Phase;
use crate::backend::candle::weights::{LoadError, WeightSource};

/// Sizes of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct DeltaShape {
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) key_heads: usize,
    /// A multiple of `key_heads`: neighbouring value heads share a key head.
    pub(in crate::backend::candle) value_heads: usize,
    pub(in crate::backend::candle) key_dim: usize,
    pub(in crate::backend::candle) value_dim: usize,
}

impl DeltaShape {
    /// Values of all key heads.
    pub(in crate::backend::candle) fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of all value heads.
    pub(in crate::backend::candle) fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub(in crate::backend::candle) fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Bytes that one sequence takes: a matrix for each value head and the convolution's last inputs, all in f32.
    pub(in crate::backend::candle) fn state_bytes(self) -> usize {
        let (slots, heads, vectors, keys, lanes) = self.kernel().states(1);
        let (_, tokens, channels) = conv_tails(slots, self.channels());
        size_of::<f32>() * slots * (heads * vectors * keys * lanes + tokens * channels)
    }

    /// The same sizes, as the recurrence wants them.
    pub(in crate::backend::candle) fn kernel(self) -> kernels::DeltaShape {
        let Self { key_heads, value_heads, key_dim, value_dim, .. } = self;
        kernels::DeltaShape { key_heads, value_heads, key_dim, value_dim }
    }
}

/// One layer's weights.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct GatedDeltaNet {
    /// Queries, keys and values, then the output's gates, then `a` and `b`, side by side.
    inputs: Linear,
    convolution: Arc<ConvWeights>,
    recurrence: Arc<DeltaParams>,
    norm: Arc<[f32]>,
    eps: f32,
    output: Linear,
    shape: DeltaShape,
}

impl GatedDeltaNet {
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        shape: DeltaShape,
        rule: NormRule,
    ) -> std::result::Result<Self, LoadError> {
        let DeltaShape { hidden, value_heads, value_dim, .. } = shape;
        let unfit = |name: &str| LoadError::Config(format!("{prefix}.{name} does not fit {shape:?}"));
        let linear = |name: &str, output, input| weights.linear(&format!("{prefix}.{name}.weight"), output, input);
        let values = |name: &str, len| weights.values(&format!("{prefix}.{name}"), len);
        // Depthwise: one filter a channel.
        let mut filters = vec![0_f32; shape.channels() * CONV_TOKENS];
        let stored = weights.stack(&format!("{prefix}.conv1d.weight"), shape.channels(), 1, CONV_TOKENS)?;
        for (filter, values) in stored.iter().zip(filters.chunks_exact_mut(CONV_TOKENS)) {
            filter.decode_row(0, values);
        }
        Ok(Self {
            inputs: Linear::joined([
                linear("in_proj_qkv", shape.channels(), hidden)?,
                linear("in_proj_z", shape.values(), hidden)?,
                linear("in_proj_a", value_heads, hidden)?,
                linear("in_proj_b", value_heads, hidden)?,
            ]),
            convolution: Arc::new(ConvWeights::new(&filters, shape.channels()).ok_or_else(|| unfit("conv1d"))?),
            recurrence: Arc::new(
                DeltaParams::new(shape.kernel(), &values("A_log", value_heads)?, &values("dt_bias", value_heads)?)
                    .ok_or_else(|| unfit("A_log"))?,
            ),
            // The one norm of these models whose weight is stored as it is.
            norm: values("norm.weight", value_dim)?.into(),
            eps: rule.eps,
            output: linear("out_proj", hidden, shape.values())?,
            shape,
        })
    }

    /// `[rows, hidden]` to the same; the states of the rows' sequences move on.
    pub(in crate::backend::candle) fn forward(
        &self,
        x: &Tensor,
        state: &LayerState,
        phases: &[Phase],
    ) -> Result<Tensor> {
        let (channels, values, heads) = (self.shape.channels(), self.shape.values(), self.shape.value_heads);
        let inputs = self.inputs.forward(x)?;
        let gates = inputs.narrow(1, channels + values, 2 * heads)?;
        let raw = inputs.narrow(1, 0, channels)?;
        let mix = |Phase { rows, spans, saves }: &Phase| {
            let (raw, gates) = (raw.narrow(0, rows.start, rows.len())?, gates.narrow(0, rows.start, rows.len())?);
            let convolved = causal_conv(&raw, &self.convolution, &state.tails, spans)?;
            let mixed = gated_delta(&convolved, &gates, &self.recurrence, &state.matrices, spans)?;
            state.copy(saves)?;
            Ok(mixed)
        };
        let mixed = match phases {
            [phase] => mix(phase)?,
            phases => Tensor::cat(&phases.iter().map(mix).collect::<Result<Vec<_>>>()?, 0)?,
        };
        let normed = gated_norm(&mixed, &inputs.narrow(1, channels, values)?, &self.norm, self.eps)?;
        self.output.forward(&normed)
    }
}
