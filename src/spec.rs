//! Model specs: what the network promises of a served model. One TOML file each in `models/`, compiled in.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::proof::PRIME;

/// The name of the model that `engy-miner demo` runs.
pub const DEMO_MODEL: &str = "smollm2-135m-instruct";

const COMPILED_IN: [&str; 2] =
    [include_str!("../models/qwen3.6-35b-a3b.toml"), include_str!("../models/smollm2-135m-instruct.toml")];

/// A served model's limits, parsers and proof parameters.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The name buyers ask for.
    pub name: String,
    /// Longest prompt and answer together, tokens.
    pub context: usize,
    /// Longest prompt, tokens.
    pub max_input_tokens: usize,
    /// Longest answer, tokens.
    pub max_output_tokens: usize,
    /// Longest time for a request, seconds.
    pub max_request_s: f64,
    /// How the model writes tool calls, in the words of sglang's flag of this name; `None` where it makes none.
    #[serde(default)]
    pub tool_call_parser: Option<ToolCallParser>,
    /// How the model marks its thoughts, in the words of sglang's flag; `None` where it has none.
    #[serde(default)]
    pub reasoning_parser: Option<ReasoningParser>,
    /// Values of a row of its hidden states, where the spec says: another width is another model.
    #[serde(default)]
    pub hidden: Option<usize>,
    /// How its answers are proven and judged.
    pub toploc: ToplocSpec,
}

/// A form of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallParser {
    /// `<tool_call><function=name><parameter=key>value...`
    Qwen3Coder,
    /// `<tool_call>{"name": "name", "arguments": {...}}</tool_call>`
    #[serde(rename = "qwen25", alias = "hermes")]
    Hermes,
}

/// A form of marked thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningParser {
    /// `<think>...</think>`
    Qwen3,
}

/// Proof parameters and acceptance policy.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToplocSpec {
    /// Points a proof (top-k).
    pub k: usize,
    /// Exponent mismatches that a batch may show and still pass.
    pub v: usize,
    /// Share of an answer's batches that must pass.
    pub p: f64,
}

/// What is wrong with a spec, or with the name of one.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No such spec.
    #[error("no spec for the model {name:?}: known are {known}; give --spec FILE for another one")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are, comma-separated.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read the model spec {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file does not parse, or a value is out of range.
    #[error("the model spec {origin} is wrong: {reason}")]
    Invalid {
        /// Which spec.
        origin: String,
        /// What is wrong and where.
        reason: String,
    },
}

impl ModelSpec {
    /// The compiled-in spec of a model.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn named(name: &str) -> Result<Self, SpecError> {
        let mut known = Vec::new();
        for text in COMPILED_IN {
            let spec = Self::parse(text, "compiled in")?;
            if spec.name == name {
                return Ok(spec);
            }
            known.push(spec.name);
        }
        Err(SpecError::Unknown { name: name.into(), known: known.join(", ") })
    }

    /// A spec from a file of the same form.
    ///
    /// # Errors
    /// When it cannot be read or does not parse.
    pub fn from_file(path: &Path) -> Result<Self, SpecError> {
        let text = std::fs::read_to_string(path).map_err(|source| SpecError::Read { path: path.into(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Self, SpecError> {
        let invalid = |reason: String| SpecError::Invalid { origin: origin.into(), reason };
        let spec: Self = toml::from_str(text).map_err(|e| invalid(e.message().to_owned()))?;
        if spec.name.is_empty() {
            return Err(invalid("name is empty".into()));
        }
        let positive = [spec.context, spec.max_input_tokens, spec.max_output_tokens, spec.toploc.k];
        if positive.contains(&0) || !spec.max_request_s.is_finite() || !(0.001..=1e9).contains(&spec.max_request_s) {
            return Err(invalid("limits and toploc.k must be above 0".into()));
        }
        if spec.toploc.k > PRIME as usize {
            return Err(invalid(format!("toploc.k must be at most {PRIME}, the points that a proof can tell apart")));
        }
        if !(0.0..=1.0).contains(&spec.toploc.p) || spec.toploc.v > spec.toploc.k {
            return Err(invalid("toploc.p must be within 0 to 1, and toploc.v at most toploc.k".into()));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_served_model_has_the_promised_limits() {
        let spec = ModelSpec::named("qwen3.6-35b-a3b").unwrap();
        assert_eq!((spec.context, spec.max_input_tokens, spec.max_output_tokens), (262_144, 229_376, 32_768));
        assert_eq!(spec.max_request_s, 1800.0);
        assert_eq!(spec.toploc, ToplocSpec { k: 128, v: 40, p: 0.99 });
        assert_eq!(spec.tool_call_parser, Some(ToolCallParser::Qwen3Coder));
        assert_eq!(spec.reasoning_parser, Some(ReasoningParser::Qwen3));
        assert!(ModelSpec::named(DEMO_MODEL).is_ok());
    }

    #[test]
    fn an_unknown_model_names_the_known_ones() {
        let message = ModelSpec::named("gpt-5").unwrap_err().to_string();
        assert!(message.contains("qwen3.6-35b-a3b, smollm2-135m-instruct"), "{message}");
    }

    #[test]
    fn a_wrong_value_or_key_is_refused() {
        let good = COMPILED_IN[1];
        assert!(ModelSpec::parse(&good.replace("p = 0.99", "p = 1.5"), "t").is_err());
        assert!(ModelSpec::parse(&good.replace("context = 8192", "context = 0"), "t").is_err());
        assert!(ModelSpec::parse(&good.replace("k = 128 ", "k = 65498 "), "t").is_err());
        assert!(ModelSpec::parse(&format!("colour = \"red\"\n{good}"), "t").is_err());
    }
}
