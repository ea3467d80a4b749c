//! The parser as a whole: cases from the field, sglang's, and properties of any text.

mod calls;
mod field_cases;
mod properties;
mod sglang_cases;
mod thoughts;

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::assembly::append;
use super::*;
use crate::chat::answer::{Answer, AnswerEnd};
use crate::chat::tokenizer::tests::fixture;
use crate::openai::FinishReason;

/// What a model writes, and about what.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) text: String,
    pub(super) tools: Value,
    pub(super) form: ToolCallParser,
    pub(super) in_thought: bool,
    pub(super) single: bool,
    pub(super) cut: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub(super) message: Message,
    pub(super) finish_reason: FinishReason,
}

impl Scene {
    pub(super) fn new(text: &str, tools: Value) -> Self {
        let (text, form) = (text.to_owned(), ToolCallParser::Qwen3Coder);
        Self { text, tools, form, in_thought: false, single: false, cut: false }
    }

    pub(super) fn in_thought(self) -> Self {
        Self { in_thought: true, ..self }
    }

    pub(super) fn cut(self) -> Self {
        Self { cut: true, ..self }
    }

    pub(super) fn hermes(self) -> Self {
        Self { form: ToolCallParser::Hermes, ..self }
    }

    fn request(&self) -> ChatRequest {
        let tools = self.tools.as_array().is_some_and(|tools| !tools.is_empty()).then(|| self.tools.clone());
        ChatRequest { tools, single_call: self.single, ..ChatRequest::default() }
    }

    /// By the text alone, in these pieces.
    pub(super) fn in_pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Outcome {
        let format =
            OutputFormat { reasoning: Some(ReasoningParser::Qwen3), tool_calls: Some(self.form), tokens: Vec::new() };
        let mut parser = format.parser(&self.request(), self.in_thought);
        let mut deltas = Vec::new();
        for piece in pieces {
            deltas.extend(parser.push(piece, &[]));
            if parser.is_done() {
                break;
            }
        }
        let (last, message) = parser.finish(self.cut);
        deltas.extend(last);
        let finish_reason = match (self.cut, &message.tool_calls) {
            (true, _) => FinishReason::Length,
            (false, Some(_)) => FinishReason::ToolCalls,
            (false, None) => FinishReason::Stop,
        };
        outcome(deltas, message, finish_reason)
    }

    pub(super) fn whole(&self) -> Outcome {
        self.in_pieces([self.text.as_str()])
    }

    pub(super) fn per_char(&self) -> Outcome {
        self.in_pieces(self.text.split_inclusive(|_| true))
    }

    pub(super) fn random(&self, seed: u64) -> Outcome {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut rest = self.text.as_str();
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let length = random.random_range(3..=9);
            let end = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
            let (piece, more) = rest.split_at(end);
            pieces.push(piece);
            rest = more;
        }
        self.in_pieces(pieces)
    }

    /// By the ids of a tokenizer that has markers as tokens.
    pub(super) fn by_tokens(&self) -> Outcome {
        let tokenizer = Arc::new(fixture());
        let ids = tokenizer.encode(&self.text).unwrap();
        self.by_ids(tokenizer, &ids)
    }

    /// By ids.
    pub(super) fn by_ids(&self, tokenizer: Arc<Tokenizer>, ids: &[u32]) -> Outcome {
        let format = OutputFormat::new(Some(ReasoningParser::Qwen3), Some(self.form), &tokenizer);
        let parser = format.parser(&self.request(), self.in_thought);
        let mut answer = Answer::new(tokenizer, format, Vec::new(), parser);
        let mut deltas = Vec::new();
        for id in ids {
            let piece = answer.push(*id);
            deltas.extend(piece.deltas);
            if piece.stopped {
                break;
            }
        }
        let (last, message, reason) = answer.finish(if self.cut { AnswerEnd::Length } else { AnswerEnd::Stop });
        deltas.extend(last);
        outcome(deltas, message, reason)
    }

    /// In every way; all must agree.
    pub(super) fn run(&self) -> Outcome {
        let whole = self.whole();
        assert_eq!(self.per_char(), whole, "letter by letter: {self:?}");
        for seed in 0..20 {
            assert_eq!(self.random(seed), whole, "in pieces, seed {seed}: {self:?}");
        }
        assert_eq!(self.by_tokens(), whole, "token by token: {self:?}");
        whole
    }
}

/// Checks what must always hold. Ids of calls are random, so they are checked and then made alike.
fn outcome(deltas: Vec<Delta>, mut message: Message, finish_reason: FinishReason) -> Outcome {
    let mut streamed = Message { role: "assistant".into(), ..Message::default() };
    for delta in &deltas {
        assert!(!delta.is_empty(), "{deltas:?}");
        append(&mut streamed, delta);
    }
    assert_eq!(streamed, message, "the deltas are another message: {deltas:?}");
    assert_ne!(message.content.as_deref(), Some(""));
    assert_ne!(message.reasoning_content.as_deref(), Some(""));
    let mut ids = std::collections::HashSet::new();
    for call in message.tool_calls.iter_mut().flatten() {
        let digits = call.id.strip_prefix("call_").unwrap();
        assert!(digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
        assert!(ids.insert(std::mem::take(&mut call.id)));
        assert_eq!(call.kind, "function");
        let arguments: Value = serde_json::from_str(&call.function.arguments).unwrap();
        assert!(arguments.is_object(), "{arguments}");
    }
    Outcome { message, finish_reason }
}

impl Outcome {
    pub(super) fn content(&self) -> Option<&str> {
        self.message.content.as_deref()
    }

    pub(super) fn thought(&self) -> Option<&str> {
        self.message.reasoning_content.as_deref()
    }

    /// Names and arguments.
    pub(super) fn calls(&self) -> Vec<(&str, &str)> {
        let calls = self.message.tool_calls.iter().flatten();
        calls.map(|call| (call.function.name.as_str(), call.function.arguments.as_str())).collect()
    }
}

/// Tools by name and schema of their parameters.
pub(super) fn tools(tools: &[(&str, Value)]) -> Value {
    let tool = |(name, properties): &(&str, Value)| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    tools.iter().map(tool).collect()
}
