//! Between messages and tokens.
//!
//! In: a buyer's messages; out: prompt ids, by the checkpoint's own template and tokenizer. In: generated ids; out: an
//! OpenAI-shaped message, also piece by piece. Knows nothing of sockets, backends or proofs. Two things must never happen
//! here: half a character in a piece, and pieces that do not add up to the message.

mod answer;
mod detokenizer;
mod parser;
mod request;
mod stop;
mod template;
mod tokenizer;

use std::sync::Arc;

pub use self::answer::{Answer, AnswerEnd, AnswerPiece};
pub use self::parser::{OutputParser, PlainText};
pub use self::request::{ChatRequest, RequestError};
pub use self::template::{ChatTemplate, TemplateError};
pub use self::tokenizer::{Tokenizer, TokenizerError};

use crate::checkpoint::{Checkpoint, CheckpointError};

/// The text side of a checkpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatModel {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
}

/// Why a checkpoint cannot chat.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// A file of the checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer is missing or broken.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template is missing or broken.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What the template made of the messages.
    pub text: String,
    /// Its tokens, control tokens in the text included: what a commitment names.
    pub ids: Vec<u32>,
}

impl ChatModel {
    /// Reads tokenizer and template of a checkpoint.
    ///
    /// # Errors
    /// When either is missing or does not parse.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, ChatError> {
        let tokenizer = Tokenizer::open(checkpoint)?;
        let template =
            checkpoint.template()?.ok_or_else(|| TemplateError::Missing { path: checkpoint.path().into() })?;
        Ok(Self { tokenizer: Arc::new(tokenizer), template: Arc::new(ChatTemplate::new(&template)?) })
    }

    /// Renders a request's messages and encodes the whole text.
    ///
    /// A control token that a buyer wrote into a message becomes that control token: prompt ids are committed, and this
    /// is what serves do by default.
    ///
    /// # Errors
    /// When the template refuses the messages: the buyer's fault.
    pub fn prompt(&self, request: &ChatRequest) -> Result<Prompt, RequestError> {
        let text = self.template.render(request)?;
        let ids = self.tokenizer.encode(&text)?;
        Ok(Prompt { text, ids })
    }

    /// Starts the assembly of an answer.
    #[must_use]
    pub fn answer(&self, request: &ChatRequest) -> Answer {
        Answer::new(Arc::clone(&self.tokenizer), request.stop.clone(), Box::new(PlainText::default()))
    }

    /// The tokenizer itself.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}
