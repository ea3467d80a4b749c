//! What an operator points `--checkpoint` at: a Hugging Face folder or one GGUF file.
//!
//! In: a path. Out: the pieces that the other rooms read from it (configuration, tokenizer source, chat template, end
//! ids, weight files, [`Checkpoint::model_root`]). Nothing here knows a tensor library or a tokenizer library, and no
//! content of a file may panic: a damaged checkpoint is an error that names the file.

mod bytes;
pub mod gguf;
mod model_root;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub use bytes::SharedBytes;
use gguf::{GgufError, GgufFile};

/// A model on disk.
#[derive(Debug, Clone)]
pub enum Checkpoint {
    /// A folder with `config.json`, `*.safetensors` and tokenizer files.
    Folder(Arc<Folder>),
    /// One file with everything inside.
    Gguf(Arc<GgufFile>),
}

/// A Hugging Face model folder whose JSON files have been read.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    config: Value,
    generation_config: Option<Value>,
    tokenizer_config: Option<Value>,
}

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing is there.
    #[error("no checkpoint at {}: give --checkpoint a model folder (with config.json) or a .gguf file", path.display())]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The path is neither form of checkpoint.
    #[error("{} is no checkpoint: {found}; give a folder with config.json or a .gguf file", path.display())]
    Unrecognised {
        /// The path given.
        path: PathBuf,
        /// What is there instead.
        found: &'static str,
    },
    /// A file of the checkpoint cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A JSON file of the checkpoint does not parse.
    #[error("{} is not valid JSON ({source}); download the checkpoint again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where parsing stopped.
        source: serde_json::Error,
    },
    /// The GGUF file is damaged or of an unknown version.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong inside.
        source: GgufError,
    },
}

/// The conversation template of a checkpoint, with the texts it may insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSource {
    /// Jinja text.
    pub template: String,
    /// Text of the beginning-of-sequence token, where there is one.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token, where there is one.
    pub eos_token: Option<String>,
}

impl Checkpoint {
    /// Opens a checkpoint: reads its JSON files, or maps the GGUF file and reads its header. No weights are read.
    ///
    /// # Errors
    /// When nothing is there, or what is there cannot be read as a checkpoint.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let kind = fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CheckpointError::NotFound { path: path.into() },
            _ => CheckpointError::Read { path: path.into(), source },
        })?;
        if kind.is_file() {
            if path.extension().is_none_or(|e| !e.eq_ignore_ascii_case("gguf")) {
                return Err(CheckpointError::Unrecognised {
                    path: path.into(),
                    found: "a file that does not end in .gguf",
                });
            }
            let file = GgufFile::open(path).map_err(|source| match source {
                GgufError::Io(source) => CheckpointError::Read { path: path.into(), source },
                source => CheckpointError::Gguf { path: path.into(), source },
            })?;
            return Ok(Self::Gguf(Arc::new(file)));
        }
        let Some(config) = read_json(&path.join("config.json"))? else {
            return Err(CheckpointError::Unrecognised { path: path.into(), found: "a folder without config.json" });
        };
        Ok(Self::Folder(Arc::new(Folder {
            config,
            generation_config: read_json(&path.join("generation_config.json"))?,
            tokenizer_config: read_json(&path.join("tokenizer_config.json"))?,
            path: path.into(),
        })))
    }

    /// The folder, or the GGUF file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => &folder.path,
            Self::Gguf(file) => file.path(),
        }
    }

    /// 64 hex digits that name this checkpoint in a hello and in every commitment.
    ///
    /// SHA-256 over the bytes of `config.json` (or `{}` where there is none), then, for each `*.safetensors` of the
    /// folder in the order of their paths, the file name and the decimal byte size. A GGUF checkpoint follows the same
    /// rule with itself as the one weight file. Sizes stand for contents: the root tells releases apart, it does not
    /// detect a changed weight (the proof does).
    ///
    /// # Errors
    /// When the folder cannot be listed or a file's size cannot be read.
    pub fn model_root(&self) -> Result<String, CheckpointError> {
        match self {
            Self::Folder(folder) => model_root::of_folder(&folder.path),
            Self::Gguf(file) => model_root::of_files(b"{}", [file.path()]),
        }
    }

    /// The ids that end a turn: the union of what the checkpoint's files name, sorted.
    #[must_use]
    pub fn end_ids(&self) -> Vec<u32> {
        let mut ids = match self {
            Self::Folder(folder) => {
                [Some(&folder.config), folder.config.get("text_config"), folder.generation_config.as_ref()]
                    .into_iter()
                    .flatten()
                    .filter_map(|config| config.get("eos_token_id"))
                    .flat_map(token_ids)
                    .collect::<Vec<_>>()
            }
            Self::Gguf(file) => ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
                .into_iter()
                .filter_map(|key| file.u64(key))
                .filter_map(|id| u32::try_from(id).ok())
                .collect(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The chat template, or `None` where the checkpoint holds none.
    ///
    /// # Errors
    /// When a template file exists and cannot be read.
    pub fn template(&self) -> Result<Option<TemplateSource>, CheckpointError> {
        match self {
            Self::Folder(folder) => folder.template(),
            Self::Gguf(file) => {
                let text = |key| {
                    let id = usize::try_from(file.u64(key)?).ok()?;
                    file.strings("tokenizer.ggml.tokens")?.get(id).map(|s| (*s).to_owned())
                };
                Ok(file.str("tokenizer.chat_template").map(|template| TemplateSource {
                    template: template.to_owned(),
                    bos_token: text("tokenizer.ggml.bos_token_id"),
                    eos_token: text("tokenizer.ggml.eos_token_id"),
                }))
            }
        }
    }
}

impl Folder {
    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Where the tokenizer is expected.
    #[must_use]
    pub fn tokenizer_file(&self) -> PathBuf {
        self.path.join("tokenizer.json")
    }

    fn template(&self) -> Result<Option<TemplateSource>, CheckpointError> {
        let config = self.tokenizer_config.as_ref();
        // Newer releases ship the template as a file of its own; it wins over the embedded one.
        let path = self.path.join("chat_template.jinja");
        let file = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(CheckpointError::Read { path, source }),
        };
        let embedded = || config.and_then(|c| c.get("chat_template")).and_then(embedded_template);
        let special = |key: &str| {
            let token = config?.get(key)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            Some(text.to_owned())
        };
        Ok(file.or_else(embedded).map(|template| TemplateSource {
            template,
            bos_token: special("bos_token"),
            eos_token: special("eos_token"),
        }))
    }
}

/// A template in `tokenizer_config.json`: a text, or a list of named texts of which `default` is the one for chat.
fn embedded_template(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let default = value.as_array()?.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"))?;
    Some(default.get("template")?.as_str()?.to_owned())
}

/// An `eos_token_id`: one number or a list of them. Anything else names no id.
fn token_ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

/// A JSON file; `None` where it is missing.
fn read_json(path: &Path) -> Result<Option<Value>, CheckpointError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(CheckpointError::Read { path: path.into(), source });
        }
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(source) => Err(CheckpointError::Json { path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn end_ids_are_the_union_of_all_files() {
        let dir = folder(&[
            ("config.json", r#"{"eos_token_id": 7, "text_config": {"eos_token_id": 9}}"#),
            ("generation_config.json", r#"{"eos_token_id": [5, 7]}"#),
        ]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().end_ids(), [5, 7, 9]);
    }

    #[test]
    fn the_template_file_wins_over_the_embedded_one() {
        let config = ("config.json", "{}");
        let embedded = (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
                "eos_token": {"content": "<e>"}, "bos_token": null}"#,
        );
        let dir = folder(&[config, embedded]);
        let found = Checkpoint::open(dir.path()).unwrap().template().unwrap().unwrap();
        assert_eq!((found.template.as_str(), found.eos_token.as_deref(), found.bos_token), ("D", Some("<e>"), None));
        let dir = folder(&[config, embedded, ("chat_template.jinja", "F")]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().template().unwrap().unwrap().template, "F");
    }

    #[test]
    fn what_is_no_checkpoint_says_so() {
        let dir = folder(&[("notes.txt", "hello")]);
        let message = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
        assert!(message(dir.path()).contains("without config.json"));
        assert!(message(&dir.path().join("notes.txt")).contains("does not end in .gguf"));
        assert!(message(&dir.path().join("gone")).starts_with("no checkpoint at"));
        let dir = folder(&[("config.json", "{\"a\":")]);
        assert!(message(dir.path()).contains("not valid JSON"));
    }
}
