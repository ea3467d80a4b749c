//! The stack of a decoder-only model: embedding, layers that mix tokens and feed forward, final norm, output.
//!
//! Llama, Qwen3, Qwen3-MoE and Qwen3.5/3.6 are this stack with different knobs ([`DecoderConfig`]).

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};

use super::config::{DecoderConfig, FeedForwardKind, MixerKind};
use super::layers::{Attention, Embedding, GatedDeltaNet, Linear, Mlp, RmsNorm, RopeTable, SparseMoe};
use super::phases::{Phase, phases};
use super::shards::Shard;
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::cache::state::LayerState;
use crate::backend::candle::kernels::{AttentionMap, Turns};
use crate::backend::candle::parallel::Communicator;
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
    mixer_norm: RmsNorm,
    mixer: Mixer,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    GatedDelta(GatedDeltaNet),
}

/// What a layer remembers of the sequences.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) enum LayerMemory {
    KeysAndValues(LayerCache),
    State(LayerState),
}

/// What all layers of a step share.
struct Step<'a> {
    slots: &'a [u32],
    turns: Arc<Turns>,
    map: Arc<AttentionMap>,
    phases: Vec<Phase>,
    comm: &'a dyn Communicator,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Sparse(SparseMoe),
}

impl Decoder {
    /// Takes a rank's part of the model from `weights`, which `config` describes (see [`DecoderConfig::of_a_rank`]).
    pub(in crate::backend::candle) fn load(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        shard: Shard,
        device: &Device,
    ) -> std::result::Result<Self, LoadError> {
        let prefix = config.prefix;
        let embedding =
            weights.embedding(&format!("{prefix}.embed_tokens.weight"), config.vocab, config.hidden, shard)?;
        let norm = |name: &str| weights.norm(name, config.hidden, config.norm);
        let layer = |index| {
            let prefix = format!("{prefix}.layers.{index}");
            Ok(Layer {
                mixer_norm: norm(&format!("{prefix}.input_layernorm.weight"))?,
                mixer: Mixer::load(config, weights, &prefix, index)?,
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
    pub(in crate::backend::candle) fn forward(
        &self,
        plan: &StepPlan,
        memories: &[LayerMemory],
        comm: &dyn Communicator,
    ) -> Result<Option<Tensor>> {
        let (x, added) = self.run_layers(plan, memories, comm, |_, _| Ok(()))?;
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

    /// What each layer gives for every row of a step, `[rows, hidden]`.
    #[cfg(test)]
    pub(in crate::backend::candle) fn layer_outputs(
        &self,
        plan: &StepPlan,
        memories: &[LayerMemory],
        comm: &dyn Communicator,
    ) -> Result<Vec<Tensor>> {
        let mut outputs = Vec::new();
        self.run_layers(plan, memories, comm, |x, added| {
            outputs.push((x + added)?);
            Ok(())
        })?;
        Ok(outputs)
    }

    /// All rows of a step through all layers: the stream of sums, and what the last layer adds to it. `after` is shown the same
    /// behind each layer.
    fn run_layers(
        &self,
        plan: &StepPlan,
        memories: &[LayerMemory],
        comm: &dyn Communicator,
        mut after: impl FnMut(&Tensor, &Tensor) -> Result<()>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let mut x = comm.all_reduce_sum(&self.embedding.forward(&plan.tokens, &self.device)?)?;
        let step = Step {
            slots: &plan.slots,
            turns: Arc::new(self.rope.at(&plan.positions)),
            map: Arc::new(AttentionMap::new(plan)),
            phases: phases(&plan.spans),
            comm,
        };
        let mut added = None;
        for (layer, memory) in self.layers.iter().zip(memories) {
            let (sum, next) = layer.forward(&x, added.as_ref(), memory, &step)?;
            after(&sum, &next)?;
            (x, added) = (sum, Some(next));
        }
        Ok((x, added))
    }

    /// `[rows, hidden]` of fin to the logits of this rank's part of the vocabulary, `[rows, vocab / world]`.
    pub(in crate::backend::candle) fn logits(&self, fin: &Tensor) -> Result<Tensor> {
        self.output.forward(fin)
    }
}

impl Layer {
    /// `x` is the stream of sums, `added` what the layer before adds to it: this layer's first norm takes that in. Gives the same
    /// for the next one.
    fn forward(
        &self,
        x: &Tensor,
        added: Option<&Tensor>,
        memory: &LayerMemory,
        step: &Step<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (x, normed) = match added {
            None => (x.clone(), self.mixer_norm.forward(x)?),
            Some(added) => self.mixer_norm.forward_sum(x, added)?,
        };
        // Each rank has the part of the sum that its heads, or its part of the width, give.
        let mixed = step.comm.all_reduce_sum(&self.mixer.forward(&normed, memory, step)?)?;
        let (x, normed) = self.feed_forward_norm.forward_sum(&x, &mixed)?;
        let added = step.comm.all_reduce_sum(&self.feed_forward.forward(&normed)?)?;
        Ok((x, added))
    }
}

impl Mixer {
    fn load(
        config: &DecoderConfig,
        weights: &dyn WeightSource,
        prefix: &str,
        index: usize,
    ) -> std::result::Result<Self, LoadError> {
        Ok(match config.mixer(index) {
            MixerKind::Attention(shape) => {
                let turned = config.rope.dim();
                Self::Attention(Attention::load(weights, &format!("{prefix}.self_attn"), shape, turned)?)
            }
            MixerKind::GatedDelta(shape) => {
                Self::GatedDelta(GatedDeltaNet::load(weights, &format!("{prefix}.linear_attn"), shape, config.norm)?)
            }
        })
    }

    fn forward(&self, x: &Tensor, memory: &LayerMemory, step: &Step<'_>) -> Result<Tensor> {
        match (self, memory) {
            (Self::Attention(attention), LayerMemory::KeysAndValues(cache)) => {
                attention.forward(x, &step.turns, cache, step.slots, &step.map)
            }
            (Self::GatedDelta(recurrence), LayerMemory::State(state)) => recurrence.forward(x, state, &step.phases),
            _ => bail!("a layer was given another kind's memory"),
        }
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
