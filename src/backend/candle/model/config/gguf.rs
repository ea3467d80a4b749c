//! Configuration from the metadata of a GGUF file of the llama family.

use super::{DecoderConfig, NormRule, SUPPORTED, size};
use crate::backend::candle::model::layers::{AttentionShape, RopeTable};
use crate::backend::candle::weights::LoadError;
use crate::checkpoint::gguf::{GgufFile, GgufValue};

impl DecoderConfig {
    pub(super) fn from_gguf(file: &GgufFile) -> Result<Self, LoadError> {
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
            prefix: "model",
            vocab: size(vocab).unwrap_or_default(),
            hidden,
            layers: count("block_count")?,
            intermediate: count("feed_forward_length")?,
            norm: NormRule { eps: norm_eps as f32, offset: 0.0 },
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
                gated: false,
            },
            rope,
            linear: None,
            context: count("context_length")?,
            tied: file.tensor("output.weight").is_none(),
            moe: None,
        })
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
