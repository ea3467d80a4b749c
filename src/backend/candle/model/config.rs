//! What a model is made of, read from `config.json` or from GGUF metadata.

use candle_core::DType;
use serde_json::Value;

use super::layers::{AttentionShape, MoeShape, RopeTable};
use crate::backend::candle::cache::kv::KvShape;
use crate::backend::candle::weights::LoadError;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::{GgufFile, GgufValue};

/// The architectures that this engine computes, as `config.json` and GGUF files name them.
const SUPPORTED: &str = "llama, qwen3 and qwen3_moe as folders, llama as GGUF";
/// More layers than any known model has: a larger number is a damaged file.
const MAX_LAYERS: usize = 1024;
/// Larger than any size in any known model (a vocabulary, a context): a larger number is a damaged file, and would
/// otherwise be asked of the allocator.
const MAX_SIZE: usize = 1 << 24;

/// The knobs of the decoder stack.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::backend::candle) struct DecoderConfig {
    /// `llama`, `qwen3` or `qwen3_moe`.
    pub(in crate::backend::candle) architecture: String,
    pub(in crate::backend::candle) vocab: usize,
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) layers: usize,
    /// Width of a dense feed-forward block.
    pub(in crate::backend::candle) intermediate: usize,
    pub(in crate::backend::candle) norm_eps: f32,
    pub(in crate::backend::candle) attention: AttentionShape,
    pub(in crate::backend::candle) rope: RopeTable,
    /// Longest sequence the model was made for.
    pub(in crate::backend::candle) context: usize,
    /// Whether the output projection is the embedding table.
    pub(in crate::backend::candle) tied: bool,
    pub(in crate::backend::candle) moe: Option<MoeLayers>,
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
        let config = match checkpoint {
            Checkpoint::Folder(folder) => Self::from_json(folder.config())?,
            Checkpoint::Gguf(file) => Self::from_gguf(file)?,
        };
        config.check()?;
        Ok(config)
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

    /// Sizes of the key/value cache.
    pub(in crate::backend::candle) fn kv(&self, dtype: DType) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.attention.kv_heads, head_dim: self.attention.head_dim, dtype }
    }

    fn from_json(json: &Value) -> Result<Self, LoadError> {
        let config = Json(json);
        let architecture = config.text("model_type")?;
        let (qwen3, sparse) = match architecture {
            "llama" => (false, false),
            "qwen3" => (true, false),
            "qwen3_moe" => (true, true),
            other => {
                return Err(LoadError::Architecture { found: other.into(), supported: SUPPORTED });
            }
        };
        for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            if config.flag(key) {
                return Err(LoadError::Unsupported(format!("{key} = true")));
            }
        }
        if let Some(other) = json.get("hidden_act").and_then(Value::as_str).filter(|act| *act != "silu") {
            return Err(LoadError::Unsupported(format!("the activation {other:?}")));
        }
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let head_dim = config.optional_count("head_dim")?.unwrap_or(hidden / heads);
        let norm_eps = config.number("rms_norm_eps")? as f32;
        let moe = if sparse {
            Some(MoeLayers {
                shape: MoeShape {
                    experts: config.count("num_experts")?,
                    per_token: config.count("num_experts_per_tok")?,
                    intermediate: config.count("moe_intermediate_size")?,
                    normalise: config.flag("norm_topk_prob"),
                },
                step: config.optional_count("decoder_sparse_step")?.unwrap_or(1),
                dense: json.get("mlp_only_layers").map(indices).unwrap_or_default(),
            })
        } else {
            None
        };
        Ok(Self {
            architecture: architecture.into(),
            vocab: config.count("vocab_size")?,
            hidden,
            layers: config.count("num_hidden_layers")?,
            intermediate: config.count("intermediate_size")?,
            norm_eps,
            attention: AttentionShape {
                hidden,
                heads,
                kv_heads: config.optional_count("num_key_value_heads")?.unwrap_or(heads),
                head_dim,
                head_norm: qwen3.then_some(norm_eps),
            },
            rope: config.rope(head_dim)?,
            context: config.count("max_position_embeddings")?,
            tied: config.flag("tie_word_embeddings"),
            moe,
        })
    }

    fn from_gguf(file: &GgufFile) -> Result<Self, LoadError> {
        let architecture = file.str("general.architecture").unwrap_or_default();
        if architecture != "llama" {
            return Err(LoadError::Architecture { found: architecture.into(), supported: SUPPORTED });
        }
        let key = |name: &str| format!("{architecture}.{name}");
        let count = |name: &str| {
            let value = file.u64(&key(name)).and_then(size);
            value.ok_or_else(|| LoadError::Config(format!("{} is missing or no size", key(name))))
        };
        if let Some(kind) = file.str(&key("rope.scaling.type")).filter(|kind| *kind != "none") {
            return Err(LoadError::Unsupported(format!("rope scaling of type {kind:?}")));
        }
        if file.u64(&key("expert_count")).is_some_and(|experts| experts > 0) {
            return Err(LoadError::Unsupported("experts in a GGUF file".into()));
        }
        let hidden = count("embedding_length")?;
        let heads = count("attention.head_count")?;
        let head_dim = if file.value(&key("attention.key_length")).is_some() {
            count("attention.key_length")?
        } else {
            hidden / heads
        };
        if file.u64(&key("rope.dimension_count")).is_some_and(|turned| turned != head_dim as u64) {
            return Err(LoadError::Unsupported("rotation of a part of each head".into()));
        }
        let theta = file.f64(&key("rope.freq_base")).unwrap_or(10_000.0);
        let rope = RopeTable::new(head_dim, theta as f32);
        let rope = match rope_factors(file)? {
            None => rope,
            Some(factors) => rope
                .divided_by(&factors)
                .ok_or_else(|| LoadError::Config("rope_freqs.weight has another length than half a head".into()))?,
        };
        let norm_eps = file
            .f64(&key("attention.layer_norm_rms_epsilon"))
            .ok_or_else(|| LoadError::Config(format!("{} is missing", key("attention.layer_norm_rms_epsilon"))))?;
        let tokens = || Some(file.array("tokenizer.ggml.tokens")?.len() as u64);
        let vocab = file.u64(&key("vocab_size")).or_else(tokens).unwrap_or_default();
        Ok(Self {
            architecture: architecture.into(),
            vocab: size(vocab).unwrap_or_default(),
            hidden,
            layers: count("block_count")?,
            intermediate: count("feed_forward_length")?,
            norm_eps: norm_eps as f32,
            attention: AttentionShape {
                hidden,
                heads,
                kv_heads: match file.value(&key("attention.head_count_kv")) {
                    None => heads,
                    Some(GgufValue::Array(_)) => {
                        return Err(LoadError::Unsupported("key heads that differ by layer".into()));
                    }
                    Some(_) => count("attention.head_count_kv")?,
                },
                head_dim,
                head_norm: None,
            },
            rope,
            context: count("context_length")?,
            tied: file.tensor("output.weight").is_none(),
            moe: None,
        })
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
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return wrong(format!("a head of {head_dim} values cannot be turned in halves"));
        }
        if !heads.is_multiple_of(kv_heads) {
            return wrong(format!("{heads} query heads do not divide over {kv_heads} key heads"));
        }
        if !self.norm_eps.is_finite() || self.norm_eps < 0.0 {
            return wrong(format!("the norm's epsilon is {}", self.norm_eps));
        }
        let moe_shape = self.moe.as_ref().map(|moe| moe.shape);
        if let Some(shape) = moe_shape.filter(|shape| shape.per_token > shape.experts) {
            return wrong(format!("{} of {} experts a token", shape.per_token, shape.experts));
        }
        Ok(())
    }
}

/// Llama 3's rotation factors, which its GGUF files hold as a tensor instead of a formula.
fn rope_factors(file: &GgufFile) -> Result<Option<Vec<f32>>, LoadError> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = file.tensor(NAME) else {
        return Ok(None);
    };
    let (0, [length]) = (tensor.dtype, tensor.shape.as_slice()) else {
        return Err(LoadError::Config(format!("{NAME} is no vector of F32")));
    };
    let bytes = file.bytes(tensor, length.saturating_mul(4)).map_err(|source| LoadError::Gguf {
        path: file.path().into(),
        name: NAME.into(),
        source,
    })?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

/// A number from a file as a size: above 0 and not absurd.
fn size(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|n| (1..=MAX_SIZE).contains(n))
}

fn indices(value: &Value) -> Vec<usize> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_u64).filter_map(|n| usize::try_from(n).ok()).collect()
}

/// A `config.json` with errors that name the key.
#[derive(Clone, Copy)]
struct Json<'a>(&'a Value);

impl<'a> Json<'a> {
    fn text(self, key: &str) -> Result<&'a str, LoadError> {
        self.0.get(key).and_then(Value::as_str).ok_or_else(|| Self::wrong(key, "a text"))
    }

    fn count(self, key: &str) -> Result<usize, LoadError> {
        self.optional_count(key)?.ok_or_else(|| Self::wrong(key, "a size"))
    }

    fn optional_count(self, key: &str) -> Result<Option<usize>, LoadError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().and_then(size).map(Some).ok_or_else(|| Self::wrong(key, "a size")),
        }
    }

    fn number(self, key: &str) -> Result<f64, LoadError> {
        self.0.get(key).and_then(Value::as_f64).ok_or_else(|| Self::wrong(key, "a number"))
    }

    fn flag(self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Rotation speeds: `rope_theta` and `rope_scaling`, which newer files gather under `rope_parameters`.
    fn rope(self, head_dim: usize) -> Result<RopeTable, LoadError> {
        let gathered = self.0.get("rope_parameters").filter(|v| v.is_object());
        let theta = match gathered.unwrap_or(self.0).get("rope_theta").or_else(|| self.0.get("rope_theta")) {
            None => 10_000.0,
            Some(theta) => theta.as_f64().ok_or_else(|| Self::wrong("rope_theta", "a number"))?,
        };
        let table = RopeTable::new(head_dim, theta as f32);
        let Some(scaling) = gathered.or_else(|| self.0.get("rope_scaling").filter(|v| v.is_object())) else {
            return Ok(table);
        };
        let kind =
            scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str).unwrap_or("default");
        let scaling = Json(scaling);
        match kind {
            "default" => Ok(table),
            "llama3" => Ok(table.llama3(
                scaling.number("factor")? as f32,
                scaling.number("low_freq_factor")? as f32,
                scaling.number("high_freq_factor")? as f32,
                scaling.number("original_max_position_embeddings")? as f32,
            )),
            other => Err(LoadError::Unsupported(format!("rope scaling of type {other:?}"))),
        }
    }

    fn wrong(key: &str, wanted: &str) -> LoadError {
        LoadError::Config(format!("config.json: {key} is missing or is not {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
               "num_hidden_layers": 2, "intermediate_size": 144, "rms_norm_eps": 1e-5, "vocab_size": 384,
               "max_position_embeddings": 1024, "tie_word_embeddings": true})
    }

    fn read(json: &Value) -> Result<DecoderConfig, LoadError> {
        let config = DecoderConfig::from_json(json)?;
        config.check().map(|()| config)
    }

    #[test]
    fn sparse_layers_follow_step_and_exceptions() {
        let mut json = llama();
        json["model_type"] = "qwen3_moe".into();
        for (key, n) in [("num_experts", 8), ("num_experts_per_tok", 2), ("moe_intermediate_size", 48)] {
            json[key] = n.into();
        }
        json["num_hidden_layers"] = 6.into();
        json["decoder_sparse_step"] = 2.into();
        json["mlp_only_layers"] = json!([3]);
        let config = read(&json).unwrap();
        let sparse: Vec<bool> =
            (0..6).map(|layer| matches!(config.feed_forward(layer), FeedForwardKind::Sparse(_))).collect();
        assert_eq!(sparse, [false, true, false, false, false, true]);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (key, value, named) in [
            ("model_type", json!("mamba"), "mamba"),
            ("attention_bias", json!(true), "attention_bias"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("rope_scaling", json!({"rope_type": "yarn"}), "yarn"),
            ("num_key_value_heads", json!(3), "8 query heads do not divide over 3"),
            ("num_attention_heads", json!(0), "num_attention_heads"),
            ("head_dim", json!(7), "7 values"),
            ("hidden_size", json!(-1), "hidden_size"),
            ("hidden_size", json!(1_u64 << 60), "hidden_size"),
        ] {
            let mut json = llama();
            json[key] = value;
            let message = read(&json).unwrap_err().to_string();
            assert!(message.contains(named), "{key}: {message}");
        }
    }
}
