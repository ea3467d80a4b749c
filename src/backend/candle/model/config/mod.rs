//! What a model is made of: one description, whichever form its configuration has.
//!
//! `json` reads `config.json` and `gguf` the metadata of a GGUF file. Both give a [`DecoderConfig`] whose values have
//! been checked against each other, so that no later arithmetic on sizes can fail.

mod gguf;
mod json;

use candle_core::DType;
use serde_json::Value;

use super::layers::{AttentionShape, DeltaShape, MoeShape, RopeTable};
use super::shards::Units;
use crate::backend::candle::cache::kv::KvShape;
use crate::backend::candle::weights::{GgufHeads, LoadError};
use crate::checkpoint::Checkpoint;

/// The architectures that this engine computes, as `config.json` and GGUF files name them.
const SUPPORTED: &str = "llama, qwen3, qwen3_moe and qwen3_5_moe as folders, llama as GGUF";
/// More layers than any known model has: a larger number is a damaged file.
const MAX_LAYERS: usize = 1024;
/// Larger than any size in any known model (a vocabulary, a context): a larger number is a damaged file, and would
/// otherwise be asked of the allocator.
const MAX_SIZE: usize = 1 << 24;

/// More experts than any known model has, for the same reason.
const MAX_EXPERTS: usize = 4096;

/// Experts over all layers, likewise: each is a few tensors to look for.
const MAX_EXPERTS_IN_ALL: usize = 1 << 18;

/// The knobs of the decoder stack.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::backend::candle) struct DecoderConfig {
    /// `llama`, `qwen3`, `qwen3_moe` or `qwen3_5_moe`.
    pub(in crate::backend::candle) architecture: String,
    /// What the names of the decoder's tensors begin with.
    pub(in crate::backend::candle) prefix: &'static str,
    pub(in crate::backend::candle) vocab: usize,
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) layers: usize,
    /// Width of a dense feed-forward block; 0 where there is none.
    pub(in crate::backend::candle) intermediate: usize,
    pub(in crate::backend::candle) norm: NormRule,
    pub(in crate::backend::candle) attention: AttentionShape,
    pub(in crate::backend::candle) rope: RopeTable,
    /// Layers that mix tokens by a linear recurrence in place of attention, where the model has such.
    pub(in crate::backend::candle) linear: Option<LinearLayers>,
    /// Longest sequence the model was made for.
    pub(in crate::backend::candle) context: usize,
    /// Whether the output projection is the embedding table.
    pub(in crate::backend::candle) tied: bool,
    pub(in crate::backend::candle) moe: Option<MoeLayers>,
}

/// How a model's root-mean-square norms are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend::candle) struct NormRule {
    pub(in crate::backend::candle) eps: f32,
    /// Added to every stored weight: 1 where a model stores the difference from 1.
    pub(in crate::backend::candle) offset: f32,
}

/// Which layers are linear, and their sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::candle) struct LinearLayers {
    pub(in crate::backend::candle) shape: DeltaShape,
    /// For each layer, whether it is one.
    is_linear: Vec<bool>,
}

/// Which layers are mixtures, and of what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::candle) struct MoeLayers {
    shape: MoeShape,
    /// Every n-th layer is sparse (1: all).
    step: usize,
    /// Layers that are dense all the same.
    dense: Vec<usize>,
}

/// How one layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::backend::candle) enum MixerKind {
    Attention(AttentionShape),
    GatedDelta(DeltaShape),
}

/// One layer's feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) enum FeedForwardKind {
    Dense { intermediate: usize },
    Sparse(MoeShape),
}

impl DecoderConfig {
    /// Reads a checkpoint's configuration.
    ///
    /// # Errors
    /// When the architecture is not supported, or a value is missing, out of range or asks for something that is not
    /// computed here.
    pub(in crate::backend::candle) fn read(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        match checkpoint {
            Checkpoint::Folder(folder) => Self::read_json(folder.config()),
            Checkpoint::Gguf(file) => {
                let config = Self::from_gguf(file)?;
                config.check()?;
                Ok(config)
            }
        }
    }

    /// Reads a `config.json`, as [`DecoderConfig::read`].
    pub(in crate::backend::candle) fn read_json(json: &Value) -> Result<Self, LoadError> {
        let config = Self::from_json(json)?;
        config.check()?;
        Ok(config)
    }

    /// How a layer mixes tokens.
    pub(in crate::backend::candle) fn mixer(&self, layer: usize) -> MixerKind {
        match &self.linear {
            Some(linear) if linear.is_linear.get(layer) == Some(&true) => MixerKind::GatedDelta(linear.shape),
            _ => MixerKind::Attention(self.attention),
        }
    }

    /// The feed-forward block of a layer.
    pub(in crate::backend::candle) fn feed_forward(&self, layer: usize) -> FeedForwardKind {
        match &self.moe {
            Some(moe) if !moe.dense.contains(&layer) && (layer + 1).is_multiple_of(moe.step) => {
                FeedForwardKind::Sparse(moe.shape)
            }
            _ => FeedForwardKind::Dense { intermediate: self.intermediate },
        }
    }

    /// Sizes of the key/value cache: layers with attention alone have one.
    pub(in crate::backend::candle) fn kv(&self, dtype: DType) -> KvShape {
        let layers = self.layers - self.linear_layers();
        KvShape { layers, kv_heads: self.attention.kv_heads, head_dim: self.attention.head_dim, dtype }
    }

    /// Bytes that the linear layers of one sequence remember, whatever its length.
    pub(in crate::backend::candle) fn state_bytes(&self) -> usize {
        self.linear.as_ref().map_or(0, |linear| self.linear_layers() * linear.shape.state_bytes())
    }

    /// One rank's part of the model: fewer heads, narrower blocks, a part of the vocabulary.
    ///
    /// # Errors
    /// When heads do not divide over the ranks.
    pub(in crate::backend::candle) fn of_a_rank(&self, world: usize) -> Result<Self, LoadError> {
        let a_rank = |units: Units| {
            let refuse = |reason| LoadError::Start(format!("the model does not split over {world} ranks: {reason}"));
            units.a_rank(world).map_err(refuse)
        };
        let divided = |count, what| a_rank(Units::own(count, what));
        let attention = AttentionShape {
            heads: divided(self.attention.heads, "query heads")?,
            kv_heads: a_rank(Units::shared(self.attention.kv_heads, "key heads"))?,
            ..self.attention
        };
        let mut linear = self.linear.clone();
        if let Some(LinearLayers { shape, .. }) = &mut linear {
            shape.key_heads = divided(shape.key_heads, "linear key heads")?;
            shape.value_heads = divided(shape.value_heads, "linear value heads")?;
        }
        let mut moe = self.moe.clone();
        if let Some(MoeLayers { shape, .. }) = &mut moe {
            shape.intermediate = divided(shape.intermediate, "values of an expert's width")?;
            if let Some(width) = &mut shape.shared {
                *width = divided(*width, "values of the shared expert's width")?;
            }
        }
        let intermediate = divided(self.intermediate, "values of a feed-forward block's width")?;
        Ok(Self {
            vocab: divided(self.vocab, "vocabulary entries")?,
            attention,
            linear,
            moe,
            intermediate,
            ..self.clone()
        })
    }

    /// Head counts, for reading GGUF files.
    pub(in crate::backend::candle) fn gguf_heads(&self) -> GgufHeads {
        GgufHeads { query: self.attention.heads, key: self.attention.kv_heads }
    }

    /// How many layers are linear.
    pub(in crate::backend::candle) fn linear_layers(&self) -> usize {
        self.linear.as_ref().map_or(0, |linear| linear.is_linear.iter().filter(|is| **is).count())
    }

    /// Relations between the values, so that no later arithmetic can fail.
    fn check(&self) -> Result<(), LoadError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        let wrong = |reason: String| Err(LoadError::Config(reason));
        if self.vocab == 0 {
            return wrong("the vocabulary's size is missing or absurd".into());
        }
        if self.layers > MAX_LAYERS {
            return wrong(format!("{} layers", self.layers));
        }
        if heads.saturating_mul(head_dim) > MAX_SIZE {
            return wrong(format!("{heads} heads of {head_dim} values"));
        }
        if !self.rope.is_sound() {
            return wrong("the rotation's speeds (rope_theta, rope_scaling) are no positive numbers".into());
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return wrong(format!("a head of {head_dim} values cannot be turned in halves"));
        }
        if self.rope.dim() == 0 || self.rope.dim() > head_dim {
            return wrong(format!("{} of a head's {head_dim} values cannot be turned", self.rope.dim()));
        }
        if !heads.is_multiple_of(kv_heads) {
            return wrong(format!("{heads} query heads do not divide over {kv_heads} key heads"));
        }
        if !self.norm.eps.is_finite() || self.norm.eps < 0.0 {
            return wrong(format!("the norm's epsilon is {}", self.norm.eps));
        }
        let moe_shape = self.moe.as_ref().map(|moe| moe.shape);
        if let Some(shape) = moe_shape.filter(|shape| shape.per_token > shape.experts) {
            return wrong(format!("{} of {} experts a token", shape.per_token, shape.experts));
        }
        if let Some(shape) = moe_shape.filter(|shape| {
            shape.experts > MAX_EXPERTS || shape.experts.saturating_mul(self.layers) > MAX_EXPERTS_IN_ALL
        }) {
            return wrong(format!("{} experts in each of {} layers", shape.experts, self.layers));
        }
        if let Some(LinearLayers { shape, is_linear }) = &self.linear {
            let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = *shape;
            let (keys, values) = (key_heads.saturating_mul(key_dim), value_heads.saturating_mul(value_dim));
            if keys.max(values).max(key_dim.saturating_mul(value_dim)) > MAX_SIZE {
                return wrong(format!(
                    "linear heads of {key_dim} by {value_dim} values, {key_heads} and {value_heads} of them"
                ));
            }
            if is_linear.len() != self.layers {
                return wrong(format!("layer_types names {} layers of {}", is_linear.len(), self.layers));
            }
            if !shape.value_heads.is_multiple_of(shape.key_heads) {
                let DeltaShape { value_heads, key_heads, .. } = shape;
                return wrong(format!("{value_heads} linear value heads do not divide over {key_heads} key heads"));
            }
        }
        Ok(())
    }
}

/// A number from a file as a size: above 0 and not absurd.
fn size(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|n| (1..=MAX_SIZE).contains(n))
}
