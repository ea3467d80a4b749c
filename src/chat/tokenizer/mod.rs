//! Text to ids and back, by the checkpoint's tokenizer.

mod gguf;
mod spelling;

use std::panic::catch_unwind;
use std::path::PathBuf;

use serde::Deserialize;
use tokenizers::Model;

use self::spelling::Spelling;
use super::request::RequestError;
use crate::checkpoint::Checkpoint;
use crate::guide::{Token, Vocabulary};

/// A checkpoint's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Bytes of the longest token, as the vocabulary spells it: at least those of its text.
    longest: usize,
    spelling: Spelling,
}

/// Why a checkpoint's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is none.
    #[error("no tokenizer at {}: download tokenizer.json into the model folder", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It does not parse.
    #[error("the tokenizer of {} cannot be read: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The added tokens of a `tokenizer.json`, as it declares them.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl AddedTokens {
    /// Checks that each token has the id that the file declares, and has it to itself.
    ///
    /// The library does not go by the declared ids: it gives the next free one to a token that the vocabulary lacks. A
    /// file that leaves a hole before its added tokens would be read without a word, and all its prompts be of wrong ids.
    fn check(&self, inner: &tokenizers::Tokenizer) -> Result<(), String> {
        for AddedToken { id, content } in &self.added_tokens {
            let got = inner.token_to_id(content);
            if got != Some(*id) {
                let got = got.map_or("none".to_owned(), |got| got.to_string());
                return Err(format!(
                    "it declares the id {id} for {content:?}, which becomes {got} after the tokens before it; {REPAIR}"
                ));
            }
            if let Some(other) = inner.get_model().id_to_token(*id).filter(|other| other != content) {
                return Err(format!("the id {id} is both {content:?}'s and {other:?}'s; {REPAIR}"));
            }
        }
        Ok(())
    }
}

const REPAIR: &str = "take tokenizer.json from the model's own release";

impl Tokenizer {
    /// Reads `tokenizer.json`, or the vocabulary in a GGUF file's metadata.
    ///
    /// # Errors
    /// When it is missing, does not parse, is of a kind that is not known here, or gives its added tokens other ids than it
    /// declares.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, TokenizerError> {
        let (path, json) = match checkpoint {
            Checkpoint::Folder(folder) => {
                let path = folder.tokenizer_file();
                let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
                    std::io::ErrorKind::NotFound => TokenizerError::Missing { path: path.clone() },
                    _ => TokenizerError::Invalid { path: path.clone(), reason: source.to_string() },
                })?;
                (path, bytes)
            }
            Checkpoint::Gguf(file) => {
                let path = file.path().to_path_buf();
                let json = gguf::tokenizer_json(file)
                    .map_err(|reason| TokenizerError::Invalid { path: path.clone(), reason })?;
                (path, json.to_string().into_bytes())
            }
        };
        let invalid = |reason: String| TokenizerError::Invalid { path: path.clone(), reason };
        let added: AddedTokens = serde_json::from_slice(&json).map_err(|e| invalid(e.to_string()))?;
        // The library asserts some relations that a damaged file can break; at start that must be an error like others.
        let inner = catch_unwind(|| tokenizers::Tokenizer::from_bytes(json))
            .map_err(|_| invalid("it contradicts itself".into()))?;
        let mut inner = inner.map_err(|e| invalid(e.to_string()))?;
        added.check(&inner).map_err(invalid)?;
        // Some files carry the settings of their training: a prompt must be neither cut nor padded.
        inner.with_truncation(None).map_err(|e| invalid(e.to_string()))?;
        inner.with_padding(None);
        Ok(Self::new(inner))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let longest = inner.get_vocab(true).keys().map(String::len).max().unwrap_or(1).max(1);
        Self { longest, spelling: Spelling::of(&inner), inner }
    }

    /// The fewest tokens that a text of this many bytes can have.
    #[must_use]
    pub fn fewest_tokens(&self, bytes: usize) -> usize {
        bytes / self.longest
    }

    /// The ids of a rendered prompt. Added tokens in the text are recognised; nothing is added to it.
    ///
    /// # Errors
    /// When the tokenizer has no ids for the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RequestError> {
        let encoding = self.inner.encode_fast(text, false);
        Ok(encoding.map_err(|e| RequestError::new(format!("the prompt cannot be tokenised: {e}")))?.get_ids().to_vec())
    }

    /// The text of ids. Control tokens (added tokens marked special) are left out, other added tokens stay; unknown ids
    /// are skipped; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        // Fails only in decoders that themselves refuse, which the byte-level ones never do.
        self.inner.decode(ids, true).unwrap_or_default()
    }

    /// Whether an id has no text: a control token, or an id that is not in the vocabulary.
    #[must_use]
    pub fn is_silent(&self, id: u32) -> bool {
        match self.inner.id_to_token(id) {
            None => true,
            Some(token) => self.inner.get_added_vocabulary().is_special_token(&token),
        }
    }

    /// The bytes of one id, part of a character or not; a control token's are those of its name. `None` for ids that are
    /// not in the vocabulary.
    ///
    /// A piece that begins with a space keeps it, also where [`Tokenizer::decode`] leaves it out at the start of a text.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.spelling.bytes(&self.inner, id)
    }

    /// All ids, for guides. Control tokens, and others that look like marks (`<think>`), are no text there: a form that has text
    /// in it must not be broken by one.
    #[must_use]
    pub fn vocabulary(&self, end_ids: Vec<u32>) -> Vocabulary {
        let ids = self.inner.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let is_mark = |token: &str| token.len() > 2 && token.starts_with('<') && token.ends_with('>');
        let token = |id: u32| match added.get(&id) {
            Some(token) if token.special || is_mark(&token.content) => Token::Control(token.content.clone()),
            _ => self.bytes(id).map_or(Token::Unused, Token::Text),
        };
        Vocabulary { tokens: (0..ids).map(token).collect(), end_ids }
    }

    /// The id of a token, by its exact text.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

#[cfg(test)]
pub(in crate::chat) mod tests {
    use super::*;

    /// The byte-level tokenizer of the fixtures.
    pub(in crate::chat) fn fixture() -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama");
        Tokenizer::open(&Checkpoint::open(path.as_ref()).unwrap()).unwrap()
    }

    /// A tokenizer that falls back to bytes.
    pub(in crate::chat) fn sentence_piece() -> Tokenizer {
        let json = gguf::tests::sentence_piece_json().to_string();
        Tokenizer::new(tokenizers::Tokenizer::from_bytes(json).unwrap())
    }

    #[test]
    fn encodes_bytes_and_added_tokens_and_decodes_without_control_tokens() {
        let tokenizer = fixture();
        let ids = tokenizer.encode("<|im_start|>hé<think>ok</think><|im_end|>").unwrap();
        assert_eq!(ids[0], tokenizer.id("<|im_start|>").unwrap());
        assert_eq!(tokenizer.decode(&ids), "hé<think>ok</think>");
        assert_eq!(tokenizer.decode(&[u32::MAX]), "");
    }

    #[test]
    fn added_tokens_that_would_get_other_ids_are_refused() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama/tokenizer.json");
        let good: serde_json::Value = serde_json::from_slice(&std::fs::read(source).unwrap()).unwrap();
        let refusal = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut json = good.clone();
            change(&mut json);
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("config.json"), "{}").unwrap();
            std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
            Tokenizer::open(&Checkpoint::open(dir.path()).unwrap()).unwrap_err().to_string()
        };
        let lacking = |json: &mut serde_json::Value, token: &str| {
            json["model"]["vocab"].as_object_mut().unwrap().remove(token);
        };
        let message = refusal(&|json| lacking(json, "<think>"));
        assert!(message.contains(r#"declares the id 257 for "<think>", which becomes 383"#), "{message}");
        let message = refusal(&|json| json["added_tokens"][0]["id"] = 300.into());
        assert!(message.contains(r#"declares the id 300 for "<|im_start|>", which becomes 256"#), "{message}");
        // The vocabulary is one short, so the next free id is the last token's own.
        let message = refusal(&|json| {
            lacking(json, "<think>");
            json["added_tokens"] = serde_json::json!([good["added_tokens"][1]]);
            json["added_tokens"][0]["id"] = 383.into();
        });
        assert!(message.contains(r#"the id 383 is both "<think>"'s and "<|endoftext|>"'s"#), "{message}");
    }
}
