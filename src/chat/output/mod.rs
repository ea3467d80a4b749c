//! From the text that a model writes to the parts of a message: thoughts, content, tool calls.
//!
//! In: text piece by piece, with the places where a marker came as a token of its own. Out: deltas, and in the end the
//! message that they add up to. One parser serves streamed and whole answers, and what it makes of a text does not depend
//! on how the text was cut into pieces. Three things must never happen here: a thought in the content, arguments that are
//! no JSON, and a delta that would have to be taken back.
//!
//! Markers are told from text that merely spells them by their token, where the tokenizer has one: a model that writes
//! about `</think>` spells it, one that ends its thought writes the token. Tokenizers without such tokens leave only the
//! text to go by. One exception: a function's header with the name of a tool of the request starts a call however it came,
//! because models are known to leave out `<tool_call>` before it.

mod assembly;
mod call;
mod callable;
mod calls;
mod hermes;
mod json;
mod plain;
mod qwen3_coder;
mod schema;
mod thoughts;
mod written;

use std::sync::Arc;

pub(super) use self::callable::callable;
use self::calls::CallRules;
pub use self::plain::PlainText;
use self::schema::ToolSchemas;
use self::thoughts::{MarkedText, ThoughtRules};
use super::Prompt;
use super::request::ChatRequest;
use super::tokenizer::Tokenizer;
use crate::guide::Thought;
use crate::openai::{Delta, Message};
use crate::spec::{ReasoningParser, ToolCallParser};

/// Reads a model's text as it comes and tells content, thoughts and tool calls apart.
///
/// The deltas that it gives, put together, are the message that it gives in the end.
pub trait OutputParser: Send {
    /// Adds text; gives what it adds to the message. `tokens` are the byte offsets in `text` where a marker starts that
    /// came as one token.
    fn push(&mut self, text: &str, tokens: &[usize]) -> Vec<Delta>;

    /// True once nothing that follows could be part of the answer.
    fn is_done(&self) -> bool {
        false
    }

    /// Ends the text; gives what was held back, and the whole message. `cut` says that the model had not ended its turn:
    /// what is unfinished then is worth nothing.
    fn finish(self: Box<Self>, cut: bool) -> (Vec<Delta>, Message);
}

/// The markers that thoughts and calls are told by, where they are single tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Think,
    ThinkEnd,
    ToolCall,
}

impl Marker {
    const ALL: [Self; 3] = [Self::Think, Self::ThinkEnd, Self::ToolCall];

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::ThinkEnd => "</think>",
            Self::ToolCall => "<tool_call>",
        }
    }
}

/// How a served model writes thoughts and calls.
#[derive(Debug, Clone, Default)]
pub(super) struct OutputFormat {
    reasoning: Option<ReasoningParser>,
    tool_calls: Option<ToolCallParser>,
    /// The markers that are single tokens with a text.
    tokens: Vec<(u32, Marker)>,
}

impl OutputFormat {
    pub(super) fn new(
        reasoning: Option<ReasoningParser>,
        tool_calls: Option<ToolCallParser>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let token = |marker: Marker| {
            let id = tokenizer.id(marker.text()).filter(|id| !tokenizer.is_silent(*id))?;
            Some((id, marker))
        };
        Self { reasoning, tool_calls, tokens: Marker::ALL.into_iter().filter_map(token).collect() }
    }

    /// The marker that an id is.
    pub(super) fn marker(&self, id: u32) -> Option<Marker> {
        self.tokens.iter().find(|(token, _)| *token == id).map(|(_, marker)| *marker)
    }

    fn has_token(&self, wanted: Marker) -> bool {
        self.tokens.iter().any(|(_, marker)| *marker == wanted)
    }

    /// How the model writes calls, where that is known.
    pub(super) fn call_form(&self) -> Option<ToolCallParser> {
        self.tool_calls
    }

    /// What an answer to this prompt may think before its form begins.
    pub(super) fn thought(&self, prompt: &Prompt) -> Thought {
        match self.reasoning {
            None => Thought::None,
            Some(ReasoningParser::Qwen3) if prompt.in_thought => Thought::Open,
            // The template has closed it: thinking is off.
            Some(ReasoningParser::Qwen3) if prompt.text.trim_end().ends_with(Marker::ThinkEnd.text()) => Thought::None,
            Some(ReasoningParser::Qwen3) => Thought::Possible,
        }
    }

    /// Whether an answer to this prompt starts inside a thought.
    pub(super) fn opens_thought(&self, prompt: &str) -> bool {
        self.reasoning.is_some() && prompt.trim_end().ends_with(Marker::Think.text())
    }

    /// The parser of an answer; `in_thought` says that the prompt opened a thought.
    pub(super) fn parser(&self, request: &ChatRequest, in_thought: bool) -> Box<dyn OutputParser> {
        let calls = match (self.tool_calls, &request.tools) {
            (Some(form), Some(tools)) => Some(CallRules {
                form,
                tools: Arc::new(ToolSchemas::of(tools)),
                call_token: self.has_token(Marker::ToolCall),
                think_token: self.has_token(Marker::ThinkEnd),
                single: request.single_call,
            }),
            _ => None,
        };
        if self.reasoning.is_none() && calls.is_none() {
            return Box::new(PlainText::default());
        }
        let thoughts = self.reasoning.map(|ReasoningParser::Qwen3| ThoughtRules {
            opener_token: self.has_token(Marker::Think),
            closer_token: self.has_token(Marker::ThinkEnd),
        });
        Box::new(MarkedText::new(thoughts, calls, in_thought))
    }
}

#[cfg(test)]
mod tests;
