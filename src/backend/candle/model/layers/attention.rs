//! Causal self-attention with grouped key heads.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::Linear;
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::kernels::{
    AttentionMap, HeadNorms, HeadPreparation, Turns, paged_attention, prepare_heads, sigmoid_gate,
};
use crate::backend::candle::model::config::NormRule;
use crate::backend::candle::weights::{LoadError, WeightSource};

/// Sizes of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend::candle) struct AttentionShape {
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) heads: usize,
    pub(in crate::backend::candle) kv_heads: usize,
    pub(in crate::backend::candle) head_dim: usize,
    /// How each head's queries and keys are normalised before they are turned, where they are (Qwen3).
    pub(in crate::backend::candle) head_norm: Option<NormRule>,
    /// Whether each query head has a gate on what it attends to (Qwen3.5).
    pub(in crate::backend::candle) gated: bool,
}

/// Projections of one layer.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Attention {
    /// Queries, keys and values side by side, and behind them the gates, where there are such.
    inputs: Linear,
    output: Linear,
    heads: HeadPreparation,
    gated: bool,
}

impl Attention {
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        shape: AttentionShape,
        turned: usize,
    ) -> std::result::Result<Self, LoadError> {
        let (hidden, dim) = (shape.hidden, shape.head_dim);
        let norm = |name: &str, rule| weights.norm(&format!("{prefix}.{name}.weight"), dim, rule);
        let linear = |name: &str, output| weights.linear(&format!("{prefix}.{name}.weight"), output, hidden);
        let keys = linear("k_proj", shape.kv_heads * dim)?;
        let values = linear("v_proj", shape.kv_heads * dim)?;
        let inputs = if shape.gated {
            // Stored head by head: its queries, then its gates.
            let name = format!("{prefix}.q_proj.weight");
            let unfit =
                || LoadError::Config(format!("{name} does not hold queries and gates of {} heads", shape.heads));
            let both = weights.matrix(&name, 2 * shape.heads * dim, hidden)?;
            let [queries, gates] = both.alternating(dim).ok_or_else(unfit)?;
            let (queries, gates) = (weights.linear_of(&name, queries)?, weights.linear_of(&name, gates)?);
            Linear::joined([queries, keys, values, gates])
        } else {
            Linear::joined([linear("q_proj", shape.heads * dim)?, keys, values])
        };
        Ok(Self {
            inputs,
            gated: shape.gated,
            output: weights.linear(&format!("{prefix}.o_proj.weight"), hidden, shape.heads * dim)?,
            heads: HeadPreparation {
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                dim,
                turned,
                norms: match shape.head_norm {
                    Some(rule) => Some(HeadNorms {
                        queries: norm("q_norm", rule)?.weight(),
                        keys: norm("k_norm", rule)?.weight(),
                        eps: rule.eps,
                    }),
                    None => None,
                },
            },
        })
    }

    /// `[rows, hidden]` to the same; writes the rows' keys and values to `slots` of the cache first.
    pub(in crate::backend::candle) fn forward(
        &self,
        x: &Tensor,
        turns: &Arc<Turns>,
        cache: &LayerCache,
        slots: &[u32],
        map: &Arc<AttentionMap>,
    ) -> Result<Tensor> {
        let HeadPreparation { heads, kv_heads, dim, .. } = self.heads;
        let inputs = prepare_heads(&self.inputs.forward(x)?, turns, &self.heads)?;
        cache.write(slots, &inputs, heads, kv_heads)?;
        let attended = paged_attention(&inputs, cache, map, (heads, dim), 1.0 / (dim as f32).sqrt())?;
        if !self.gated {
            return self.output.forward(&attended);
        }
        let gates = inputs.narrow(1, (heads + 2 * kv_heads) * dim, heads * dim)?;
        self.output.forward(&sigmoid_gate(&attended, &gates)?)
    }
}
