//! What a serve should serve, read off the checkpoint that lies here: its configuration alone, for any architecture.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SglangError;
use crate::checkpoint::Checkpoint;

/// The model that serves are expected to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedModel {
    /// As its checkpoint names it.
    pub architecture: String,
    /// Values of a row.
    pub hidden: usize,
    /// Ids are below this.
    pub vocab: usize,
    /// Longest sequence that the checkpoint was made for, tokens.
    pub context: usize,
}

impl ServedModel {
    /// Reads a checkpoint's configuration.
    ///
    /// # Errors
    /// When a number of it is missing or none.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, SglangError> {
        match checkpoint {
            Checkpoint::Folder(folder) => {
                let config = folder.config();
                // Models with pictures keep the language model's numbers apart.
                let parts = [config.get("text_config"), Some(config)];
                let number = |key: &'static str| {
                    let found = parts.iter().flatten().find_map(|part| part.get(key)?.as_u64());
                    found.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).ok_or(SglangError::Config(key))
                };
                Ok(Self {
                    architecture: config.get("model_type").and_then(Value::as_str).unwrap_or("unknown").to_owned(),
                    hidden: number("hidden_size")?,
                    vocab: number("vocab_size")?,
                    context: number("max_position_embeddings")?,
                })
            }
            Checkpoint::Gguf(file) => {
                let architecture = file.str("general.architecture").unwrap_or("unknown").to_owned();
                let number = |key: &'static str| {
                    let found = file.u64(&format!("{architecture}.{key}"));
                    found.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).ok_or(SglangError::Config(key))
                };
                let vocab = file.array("tokenizer.ggml.tokens").map(<[_]>::len);
                Ok(Self {
                    hidden: number("embedding_length")?,
                    vocab: vocab.filter(|n| *n > 0).ok_or(SglangError::Config("tokenizer.ggml.tokens"))?,
                    context: number("context_length")?,
                    architecture,
                })
            }
        }
    }
}
