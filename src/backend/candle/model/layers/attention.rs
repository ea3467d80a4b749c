//! Causal self-attention with grouped key heads.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::{Linear, RmsNorm, Rotation};
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::kernels::{AttentionMap, paged_attention};
use crate::backend::candle::weights::{LoadError, WeightSource};

/// Sizes of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend::candle) struct AttentionShape {
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) heads: usize,
    pub(in crate::backend::candle) kv_heads: usize,
    pub(in crate::backend::candle) head_dim: usize,
    /// `Some(eps)`: each head's queries and keys are normalised before they are turned (Qwen3).
    pub(in crate::backend::candle) head_norm: Option<f32>,
}

/// Projections of one layer.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Attention {
    /// Queries, keys and values side by side.
    inputs: Linear,
    output: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    shape: AttentionShape,
}

impl Attention {
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        shape: AttentionShape,
    ) -> std::result::Result<Self, LoadError> {
        let (hidden, dim) = (shape.hidden, shape.head_dim);
        let norm = |name: &str, eps| weights.norm(&format!("{prefix}.{name}.weight"), dim, eps);
        Ok(Self {
            inputs: Linear::joined([
                weights.linear(&format!("{prefix}.q_proj.weight"), shape.heads * dim, hidden)?,
                weights.linear(&format!("{prefix}.k_proj.weight"), shape.kv_heads * dim, hidden)?,
                weights.linear(&format!("{prefix}.v_proj.weight"), shape.kv_heads * dim, hidden)?,
            ]),
            output: weights.linear(&format!("{prefix}.o_proj.weight"), hidden, shape.heads * dim)?,
            norms: match shape.head_norm {
                Some(eps) => Some((norm("q_norm", eps)?, norm("k_norm", eps)?)),
                None => None,
            },
            shape,
        })
    }

    /// `[rows, hidden]` to the same; writes the rows' keys and values to `slots` of the cache first.
    pub(in crate::backend::candle) fn forward(
        &self,
        x: &Tensor,
        rotation: &Rotation,
        cache: &LayerCache,
        slots: &[u32],
        map: &Arc<AttentionMap>,
    ) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let inputs = self.inputs.forward(x)?.reshape((rows, heads + 2 * kv_heads, head_dim))?;
        let mut queries = inputs.narrow(1, 0, heads)?;
        let mut keys = inputs.narrow(1, heads, kv_heads)?;
        let values = inputs.narrow(1, heads + kv_heads, kv_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            queries = query_norm.forward(&queries)?;
            keys = key_norm.forward(&keys)?;
        }
        cache.write(slots, &rotation.apply(&keys)?, &values)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let attended = paged_attention(&rotation.apply(&queries)?, cache, map, scale)?;
        self.output.forward(&attended)
    }
}
