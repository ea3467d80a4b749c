//! Configuration from a `config.json`.

use serde_json::Value;

use super::{DecoderConfig, LinearLayers, MoeLayers, NormRule, SUPPORTED, size};
use crate::backend::candle::kernels::CONV_TOKENS;
use crate::backend::candle::model::layers::{AttentionShape, DeltaShape, MoeShape, RopeTable};
use crate::backend::candle::weights::LoadError;

impl DecoderConfig {
    pub(super) fn from_json(json: &Value) -> Result<Self, LoadError> {
        // A model that sees and hears keeps its language part apart; older files call that part a model of its own.
        let text = json.get("text_config").filter(|text| text.is_object()).unwrap_or(json);
        let (outer, config) = (Json(json), Json(text));
        let architecture = outer.text("model_type")?;
        let family = match architecture {
            "llama" => Family::Llama,
            "qwen3" => Family::Qwen3,
            "qwen3_moe" => Family::Qwen3Moe,
            "qwen3_5_moe" | "qwen3_5_moe_text" => Family::Qwen35Moe,
            other => {
                return Err(LoadError::Architecture { found: other.into(), supported: SUPPORTED });
            }
        };
        for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            if config.flag(key) {
                return Err(LoadError::Unsupported(format!("{key} = true")));
            }
        }
        config.only("hidden_act", &["silu"])?;
        let hybrid = family == Family::Qwen35Moe;
        let hidden = config.count("hidden_size")?;
        let heads = config.count("num_attention_heads")?;
        let layers = config.count("num_hidden_layers")?;
        let head_dim = config.optional_count("head_dim")?.unwrap_or(hidden / heads);
        let norm = NormRule {
            eps: config.number("rms_norm_eps")? as f32,
            // Qwen3.5 and 3.6 store their norms' weights as differences from 1.
            offset: if hybrid { 1.0 } else { 0.0 },
        };
        Ok(Self {
            architecture: architecture.trim_end_matches("_text").into(),
            // The language part alone is named as other models are.
            prefix: if architecture == "qwen3_5_moe" { "model.language_model" } else { "model" },
            vocab: config.count("vocab_size")?,
            hidden,
            layers,
            intermediate: if hybrid { 0 } else { config.count("intermediate_size")? },
            norm,
            attention: AttentionShape {
                hidden,
                heads,
                kv_heads: config.optional_count("num_key_value_heads")?.unwrap_or(heads),
                head_dim,
                head_norm: (family != Family::Llama).then_some(norm),
                // A missing key means that the gate is there, as in the family's own code.
                gated: hybrid && text.get("attn_output_gate").and_then(Value::as_bool).unwrap_or(true),
            },
            // What the family's own code takes where its files do not say.
            rope: config.rope(head_dim, if hybrid { 0.25 } else { 1.0 })?,
            linear: if hybrid { Some(config.linear(layers)?) } else { None },
            context: config.count("max_position_embeddings")?,
            tied: outer.flag("tie_word_embeddings") || config.flag("tie_word_embeddings"),
            moe: config.moe(family)?,
        })
    }
}

/// What the supported architectures differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen3,
    Qwen3Moe,
    Qwen35Moe,
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

    /// The value of a key, where it is there, must be one of these.
    fn only(self, key: &str, known: &[&str]) -> Result<(), LoadError> {
        match self.0.get(key).and_then(Value::as_str).filter(|value| !known.contains(value)) {
            Some(other) => Err(LoadError::Unsupported(format!("{key} = {other:?}"))),
            None => Ok(()),
        }
    }

    fn moe(self, family: Family) -> Result<Option<MoeLayers>, LoadError> {
        if !matches!(family, Family::Qwen3Moe | Family::Qwen35Moe) {
            return Ok(None);
        }
        let hybrid = family == Family::Qwen35Moe;
        let step = self.optional_count("decoder_sparse_step")?.unwrap_or(1);
        let dense = self.0.get("mlp_only_layers").map(indices).unwrap_or_default();
        if hybrid && (step != 1 || !dense.is_empty()) {
            return Err(LoadError::Unsupported("layers without experts in a hybrid model".into()));
        }
        Ok(Some(MoeLayers {
            shape: MoeShape {
                experts: self.count("num_experts")?,
                per_token: self.count("num_experts_per_tok")?,
                intermediate: self.count("moe_intermediate_size")?,
                // Qwen3.5's files do not say it: always on.
                normalise: hybrid || self.flag("norm_topk_prob"),
                shared: if hybrid { Some(self.count("shared_expert_intermediate_size")?) } else { None },
            },
            step,
            dense,
        }))
    }

    /// The linear layers of a hybrid model.
    fn linear(self, layers: usize) -> Result<LinearLayers, LoadError> {
        // "swish" and "silu" are one function.
        self.only("output_gate_type", &["silu", "swish"])?;
        self.only("mamba_ssm_dtype", &["float32"])?;
        let width = self.count("linear_conv_kernel_dim")?;
        if width != CONV_TOKENS {
            return Err(LoadError::Unsupported(format!("linear_conv_kernel_dim = {width}")));
        }
        let is_linear = match self.0.get("layer_types").and_then(Value::as_array) {
            Some(types) => types
                .iter()
                .map(|kind| match kind.as_str() {
                    Some("linear_attention") => Ok(true),
                    Some("full_attention") => Ok(false),
                    _ => Err(LoadError::Unsupported(format!("a layer of type {kind}"))),
                })
                .collect::<Result<_, _>>()?,
            None => {
                let interval = self.count("full_attention_interval")?;
                (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect()
            }
        };
        Ok(LinearLayers {
            shape: DeltaShape {
                hidden: self.count("hidden_size")?,
                key_heads: self.count("linear_num_key_heads")?,
                value_heads: self.count("linear_num_value_heads")?,
                key_dim: self.count("linear_key_head_dim")?,
                value_dim: self.count("linear_value_head_dim")?,
            },
            is_linear,
        })
    }

    /// Rotation speeds: `rope_theta` and `rope_scaling`, which newer files gather under `rope_parameters`.
    fn rope(self, head_dim: usize, default_part: f64) -> Result<RopeTable, LoadError> {
        let gathered = self.0.get("rope_parameters").filter(|value| !value.is_null());
        if gathered.is_some_and(|value| !value.is_object()) {
            return Err(Self::wrong("rope_parameters", "an object"));
        }
        let theta = match gathered.unwrap_or(self.0).get("rope_theta").or_else(|| self.0.get("rope_theta")) {
            None => 10_000.0,
            Some(theta) => theta.as_f64().ok_or_else(|| Self::wrong("rope_theta", "a number"))?,
        };
        let part =
            gathered.unwrap_or(self.0).get("partial_rotary_factor").or_else(|| self.0.get("partial_rotary_factor"));
        let turned = match part {
            None | Some(Value::Null) => (head_dim as f64 * default_part) as usize / 2 * 2,
            Some(part) => match part.as_f64() {
                Some(part) if part > 0.0 && part <= 1.0 => (head_dim as f64 * part) as usize / 2 * 2,
                _ => return Err(Self::wrong("partial_rotary_factor", "a share")),
            },
        };
        let table = RopeTable::new(turned, theta as f32);
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
    use crate::backend::candle::model::config::FeedForwardKind;
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
            ("partial_rotary_factor", json!(2), "partial_rotary_factor"),
            ("rope_parameters", json!("x"), "rope_parameters"),
            ("rope_theta", json!(0), "the rotation's speeds"),
            ("rope_theta", json!(-5), "the rotation's speeds"),
            ("num_attention_heads", json!(1 << 24), "a head of 0 values"),
            ("head_dim", json!(1 << 23), "heads of 8388608 values"),
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
