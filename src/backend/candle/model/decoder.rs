//! The stack of a decoder-only transformer: embedding, layers of attention and feed-forward, final norm, output.
//!
//! Llama, Qwen3 and Qwen3-MoE are this stack with different knobs ([`DecoderConfig`]).

use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::config::{DecoderConfig, FeedForwardKind};
use super::layers::{Attention, Embedding, Linear, Mlp, RmsNorm, RopeTable, SparseMoe};
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::kernels::AttentionMap;
use crate::backend::candle::plan::StepPlan;
use crate::backend::candle::weights::{LoadError, WeightSource};

/// A loaded model.
#[derive(Debug)]
pub(in crate::backend::candle) struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    output: Linear,
    rope: RopeTable,
    device: Device,
}

#[derive(Debug)]
struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Sparse(SparseMoe),
}

impl Decoder {
    /// Takes the model's parts from `weights`.
    pub(in crate::backend::candle) fn load(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        device: &Device,
    ) -> std::result::Result<Self, LoadError> {
        let prefix = config.prefix;
        let embedding = weights.embedding(&format!("{prefix}.embed_tokens.weight"), config.vocab, config.hidden)?;
        let norm = |name: &str| weights.norm(name, config.hidden, config.norm);
        let layer = |index| {
            let prefix = format!("{prefix}.layers.{index}");
            Ok(Layer {
                attention_norm: norm(&format!("{prefix}.input_layernorm.weight"))?,
                attention: Attention::load(
                    weights,
                    &format!("{prefix}.self_attn"),
                    config.attention,
                    config.rope.dim(),
                )?,
                feed_forward_norm: norm(&format!("{prefix}.post_attention_layernorm.weight"))?,
                feed_forward: FeedForward::load(config, weights, &format!("{prefix}.mlp"), index)?,
            })
        };
        let layers = (0..config.layers).map(layer).collect::<std::result::Result<_, LoadError>>()?;
        let output = if config.tied && !weights.contains("lm_head.weight") {
            embedding.as_output()
        } else {
            weights.linear("lm_head.weight", config.vocab, config.hidden)?
        };
        Ok(Self {
            norm: norm(&format!("{prefix}.norm.weight"))?,
            embedding,
            layers,
            output,
            rope: config.rope.clone(),
            device: device.clone(),
        })
    }

    /// Runs a step and gives fin of its output rows, `[outputs, hidden]` f32; `None` where no row is wanted.
    ///
    /// Only those rows go through the final norm: the others have done their work once their keys and values stand in
    /// the cache.
    pub(in crate::backend::candle) fn forward(&self, plan: &StepPlan, caches: &[LayerCache]) -> Result<Option<Tensor>> {
        let mut x = self.embedding.forward(&plan.tokens, &self.device)?;
        let turns = Arc::new(self.rope.at(&plan.positions));
        let map = Arc::new(AttentionMap::new(plan));
        // What the layer before has added and the next one's norm has still to take in.
        let mut added: Option<Tensor> = None;
        for (layer, cache) in self.layers.iter().zip(caches) {
            let normed = match added {
                None => layer.attention_norm.forward(&x)?,
                Some(y) => {
                    let (sum, normed) = layer.attention_norm.forward_sum(&x, &y)?;
                    x = sum;
                    normed
                }
            };
            let attended = layer.attention.forward(&normed, &turns, cache, &plan.slots, &map)?;
            let (sum, normed) = layer.feed_forward_norm.forward_sum(&x, &attended)?;
            x = sum;
            added = Some(layer.feed_forward.forward(&normed)?);
        }
        let rows: Vec<u32> = plan.outputs.iter().map(|output| output.row as u32).collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let rows = Tensor::new(rows, &self.device)?;
        let x = x.index_select(&rows, 0)?;
        let fin = match added {
            None => self.norm.forward(&x)?,
            Some(y) => self.norm.forward_sum(&x, &y.index_select(&rows, 0)?)?.1,
        };
        Ok(Some(fin))
    }

    /// `[rows, hidden]` of fin to logits `[rows, vocab]`.
    pub(in crate::backend::candle) fn logits(&self, fin: &Tensor) -> Result<Tensor> {
        self.output.forward(fin)
    }
}

impl FeedForward {
    fn load(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        prefix: &str,
        layer: usize,
    ) -> std::result::Result<Self, LoadError> {
        Ok(match config.feed_forward(layer) {
            FeedForwardKind::Dense { intermediate } => {
                Self::Dense(Mlp::load(weights, prefix, config.hidden, intermediate)?)
            }
            FeedForwardKind::Sparse(shape) => Self::Sparse(SparseMoe::load(weights, prefix, config.hidden, shape)?),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Sparse(moe) => moe.forward(x),
        }
    }
}
