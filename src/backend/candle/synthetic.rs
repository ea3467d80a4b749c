//! A model by its shape alone, for benchmarks.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::weights::LoadError;

/// What can be made: the configurations that are compiled in.
const SHAPES: [(&str, &str); 1] = [("qwen3.6-35b-a3b", include_str!("../../../models/qwen3.6-35b-a3b.config.json"))];

/// A real model's shape, whole or with fewer layers and experts: `qwen3.6-35b-a3b:layers=2,experts=64`.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticModel {
    /// As it was asked for.
    text: String,
    config: Value,
}

impl SyntheticModel {
    /// Its `config.json`.
    pub(super) fn config(&self) -> &Value {
        &self.config
    }
}

impl fmt::Display for SyntheticModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SyntheticModel {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        let wrong = |reason: String| LoadError::Start(format!("{reason}; write NAME or NAME:layers=N,experts=M"));
        let (name, changes) = text.split_once(':').unwrap_or((text, ""));
        let (_, config) = SHAPES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let known: Vec<&str> = SHAPES.iter().map(|(name, _)| *name).collect();
            wrong(format!("there is no shape of a model {name:?}, only of {}", known.join(", ")))
        })?;
        let mut config: Value = serde_json::from_str(config).map_err(|e| wrong(e.to_string()))?;
        for change in changes.split(',').filter(|change| !change.is_empty()) {
            let count = change.split_once('=').and_then(|(key, count)| Some((key, count.parse::<u64>().ok()?)));
            let text = &mut config["text_config"];
            match count {
                Some(("layers", layers @ 1..)) => {
                    text["num_hidden_layers"] = layers.into();
                    // The last layer is one with full attention, however few there are: 2 are one of each kind.
                    let interval = text["full_attention_interval"].as_u64().unwrap_or(1);
                    text["full_attention_interval"] = interval.min(layers).into();
                }
                Some(("experts", experts @ 1..)) => {
                    text["num_experts"] = experts.into();
                    let per_token = text["num_experts_per_tok"].as_u64().unwrap_or(1);
                    text["num_experts_per_tok"] = per_token.min(experts).into();
                }
                _ => return Err(wrong(format!("{change:?} is no change of a shape"))),
            }
        }
        Ok(Self { text: text.to_owned(), config })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_whole_or_smaller() {
        let count = |text: &str, key: &str| {
            text.parse::<SyntheticModel>().unwrap().config()["text_config"][key].as_u64().unwrap()
        };
        assert_eq!(count("qwen3.6-35b-a3b", "num_hidden_layers"), 40);
        assert_eq!(count("qwen3.6-35b-a3b:layers=2", "full_attention_interval"), 2);
        assert_eq!(count("qwen3.6-35b-a3b:layers=8,experts=4", "full_attention_interval"), 4);
        assert_eq!(count("qwen3.6-35b-a3b:layers=8,experts=4", "num_experts_per_tok"), 4);
    }

    #[test]
    fn what_is_no_shape_is_named() {
        for (text, named) in [
            ("gpt-5", "\"gpt-5\", only of qwen3.6-35b-a3b"),
            ("qwen3.6-35b-a3b:layers=0", "\"layers=0\""),
            ("qwen3.6-35b-a3b:layers=-1", "\"layers=-1\""),
            ("qwen3.6-35b-a3b:heads=3", "\"heads=3\""),
            ("qwen3.6-35b-a3b:layers", "\"layers\""),
        ] {
            let message = text.parse::<SyntheticModel>().unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
