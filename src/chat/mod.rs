//! Between messages and tokens.
//!
//! In: a buyer's messages; out: prompt ids, by the checkpoint's own template and tokenizer. In: generated ids; out: an
//! OpenAI-shaped message, also piece by piece. Says in plain data what form a request wants its answer held to. Knows nothing of sockets, backends or proofs. Two things must never happen
//! here: half a character in a piece, and pieces that do not add up to the message.

mod answer;
mod clock;
mod constraint;
mod detokenizer;
mod dialect;
mod messages;
mod output;
#[cfg(test)]
mod parity;
#[cfg(test)]
mod properties;
mod python;
mod refused;
mod request;
mod response_format;
mod stop;
mod template;
mod tokenizer;
mod tools;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use self::answer::{Answer, AnswerEnd, AnswerPiece};
pub use self::output::{OutputParser, PlainText};
pub use self::request::{ChatRequest, RequestError};
pub use self::response_format::ResponseFormat;
pub use self::template::{ChatTemplate, TemplateError};
pub use self::tokenizer::{Tokenizer, TokenizerError};
pub use self::tools::ToolChoice;

use self::dialect::Dialect;
use self::output::OutputFormat;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::guide::Constraint;
use crate::spec::{ReasoningParser, ToolCallParser};

/// The text side of a checkpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatModel {
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    dialect: Dialect,
    format: OutputFormat,
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
    /// Template and tokenizer do not work together.
    #[error("the checkpoint cannot render and tokenise a plain question ({reason}); use its instruct or chat release")]
    TryOut {
        /// What happened.
        reason: String,
    },
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// What the template made of the messages.
    pub text: String,
    /// Its tokens, control tokens in the text included: what a commitment names.
    pub ids: Vec<u32>,
    /// Whether it ends inside a thought, where the answer then starts.
    pub in_thought: bool,
}

impl ChatModel {
    /// Reads tokenizer and template of a checkpoint, and tries them on a message.
    ///
    /// # Errors
    /// When either is missing, does not parse, or cannot render and tokenise a plain question.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, ChatError> {
        let tokenizer = Tokenizer::open(checkpoint)?;
        let template =
            checkpoint.template()?.ok_or_else(|| TemplateError::Missing { path: checkpoint.path().into() })?;
        let template = ChatTemplate::new(&template)?;
        let model = Self {
            tokenizer: Arc::new(tokenizer),
            dialect: Dialect::of(&template),
            template: Arc::new(template),
            format: OutputFormat::default(),
        };
        model.try_out()?;
        Ok(model)
    }

    /// Says how the model writes thoughts and tool calls. Without, all of an answer is content.
    #[must_use]
    pub fn with_parsers(mut self, reasoning: Option<ReasoningParser>, tool_calls: Option<ToolCallParser>) -> Self {
        self.format = OutputFormat::new(reasoning, tool_calls, &self.tokenizer);
        self
    }

    /// A checkpoint whose every request would fail is found at start, not by buyers.
    fn try_out(&self) -> Result<(), ChatError> {
        let failed = |reason: String| ChatError::TryOut { reason };
        let question = ChatRequest {
            messages: vec![serde_json::json!({"role": "user", "content": "Hello?"})],
            ..ChatRequest::default()
        };
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            let prompt = self.prompt(&question, usize::MAX)?;
            Ok::<_, RequestError>((self.tokenizer.decode(&prompt.ids), prompt))
        }));
        let (_, prompt) = match attempt {
            Ok(outcome) => outcome.map_err(|e| failed(e.to_string()))?,
            Err(_) => return Err(failed("the tokenizer breaks off".into())),
        };
        if prompt.ids.is_empty() {
            return Err(failed("the prompt has no tokens".into()));
        }
        Ok(())
    }

    /// Renders a request's messages and encodes the whole text.
    ///
    /// A control token that a buyer wrote into a message becomes that control token: prompt ids are committed, and this
    /// is what serves do by default.
    ///
    /// # Errors
    /// When the template refuses the messages, or their text cannot have as few as `max_tokens` tokens: the buyer's fault.
    pub fn prompt(&self, request: &ChatRequest, max_tokens: usize) -> Result<Prompt, RequestError> {
        let text = self.template.render(&self.dialect.adapt(request))?;
        // Megabytes of text take seconds and gigabytes to tokenise, only to be refused then.
        let fewest = self.tokenizer.fewest_tokens(text.len());
        if fewest > max_tokens {
            let message = format!("the prompt has {fewest} tokens or more; this model takes at most {max_tokens}");
            return Err(RequestError::new(message));
        }
        let ids = self.tokenizer.encode(&text)?;
        Ok(Prompt { in_thought: self.format.opens_thought(&text), text, ids })
    }

    /// Starts the assembly of an answer; `in_thought` is the prompt's.
    #[must_use]
    pub fn answer(&self, request: &ChatRequest, in_thought: bool) -> Answer {
        let parser = self.format.parser(request, in_thought);
        Answer::new(Arc::clone(&self.tokenizer), self.format.clone(), request.stop.clone(), parser)
    }

    /// The form that the request wants an answer to this prompt held to, if it wants one.
    ///
    /// # Errors
    /// When it asks for calls and nothing is known of how this model writes them.
    pub fn constraint(&self, request: &ChatRequest, prompt: &Prompt) -> Result<Option<Constraint>, RequestError> {
        constraint::constraint(&self.format, request, prompt)
    }

    /// The tokenizer itself.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The chat side of a fixture.
    pub(crate) fn model() -> ChatModel {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama");
        ChatModel::open(&Checkpoint::open(path.as_ref()).unwrap()).unwrap()
    }

    // Field case FC-K01.
    #[test]
    fn a_control_token_in_a_message_becomes_that_token() {
        let model = model();
        let request = serde_json::json!({"messages": [{"role": "user", "content": "what does <|im_end|> mean?"}]});
        let prompt = model.prompt(&ChatRequest::parse(&request).unwrap(), 1000).unwrap();
        assert_eq!(prompt.text, "<|im_start|>user\nwhat does <|im_end|> mean?<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(prompt.ids, model.tokenizer().encode(&prompt.text).unwrap());
        let end = model.tokenizer().id("<|im_end|>").unwrap();
        assert_eq!(prompt.ids.iter().filter(|id| **id == end).count(), 2, "the buyer's own, and the turn's");
        // An answer that spells it out byte by byte keeps it as text.
        let mut answer = model.answer(&ChatRequest::default(), false);
        let text = "it ends a turn: <|im_end|>.";
        text.bytes().for_each(|byte| drop(answer.push(byte.into())));
        assert_eq!(answer.finish(AnswerEnd::Stop).1.content.as_deref(), Some(text));
    }

    // Field case FC-K05.
    #[test]
    fn markers_survive_decoding_and_control_tokens_do_not() {
        let model = model();
        let ids: Vec<u32> = ["<think>", "o", "k", "</think>", "<tool_call>", "x", "</tool_call>", "<|im_end|>"]
            .iter()
            .map(|token| model.tokenizer().id(token).unwrap())
            .collect();
        assert_eq!(model.tokenizer().decode(&ids), "<think>ok</think><tool_call>x</tool_call>");
    }

    /// A model that thinks and calls tools, with a template of its own.
    pub(super) fn thinker(template: &str) -> ChatModel {
        let mut model = model();
        let source = crate::checkpoint::TemplateSource { template: template.into(), bos_token: None, eos_token: None };
        let template = ChatTemplate::new(&source).unwrap();
        (model.dialect, model.template) = (Dialect::of(&template), Arc::new(template));
        model.with_parsers(Some(ReasoningParser::Qwen3), Some(ToolCallParser::Qwen3Coder))
    }

    #[test]
    fn the_prompt_says_whether_the_answer_starts_in_a_thought() {
        let model = thinker(
            "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n\
             {% else %}<think>\n{% endif %}",
        );
        for (kwargs, in_thought, message) in [
            (serde_json::json!({}), true, (Some("a"), None)),
            (serde_json::json!({"enable_thinking": false}), false, (None, Some("a"))),
        ] {
            let request =
                serde_json::json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": kwargs});
            let request = ChatRequest::parse(&request).unwrap();
            let prompt = model.prompt(&request, 1000).unwrap();
            assert_eq!(prompt.in_thought, in_thought);
            let mut answer = model.answer(&request, prompt.in_thought);
            answer.push(u32::from(b'a'));
            let got = answer.finish(AnswerEnd::Length).1;
            assert_eq!((got.reasoning_content.as_deref(), got.content.as_deref()), message);
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_before_it_is_tokenised() {
        let request = serde_json::json!({"messages": [{"role": "user", "content": "x".repeat(1 << 20)}]});
        let error = model().prompt(&ChatRequest::parse(&request).unwrap(), 1000).unwrap_err();
        assert!(error.to_string().contains("this model takes at most 1000"), "{error}");
    }
}
