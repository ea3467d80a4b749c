//! The assembly of one answer: ids in, deltas and a message out.

use std::fmt;
use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::parser::OutputParser;
use super::stop::StopFilter;
use super::tokenizer::Tokenizer;
use crate::openai::{Delta, FinishReason, Message};

/// An answer under way.
pub struct Answer {
    detokenizer: Detokenizer,
    stop: StopFilter,
    parser: Box<dyn OutputParser>,
}

/// What an id added.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerPiece {
    /// Additions to the message, often none.
    pub deltas: Vec<Delta>,
    /// True once a stop string has appeared: the answer is over, whatever else the model would say.
    pub stopped: bool,
}

/// Who ended an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerEnd {
    /// The model, by an end id, or a stop string.
    Stop,
    /// The token budget or the context.
    Length,
}

impl Answer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>, parser: Box<dyn OutputParser>) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer), stop: StopFilter::new(stops), parser }
    }

    /// Adds an id of the answer. Not to be called with the id that ended it: that one has no text.
    pub fn push(&mut self, id: u32) -> AnswerPiece {
        let text = self.detokenizer.push(id);
        let shown = self.stop.push(&text);
        AnswerPiece { deltas: self.parser.push(&shown), stopped: self.stop.stopped() }
    }

    /// Ends the answer: the last deltas, the whole message, and the reason in OpenAI's words.
    #[must_use]
    pub fn finish(mut self, end: AnswerEnd) -> (Vec<Delta>, Message, FinishReason) {
        let rest = self.detokenizer.finish();
        let mut shown = self.stop.push(&rest);
        shown.push_str(&self.stop.finish());
        let mut deltas = self.parser.push(&shown);
        let (last, message) = self.parser.finish();
        deltas.extend(last);
        let reason = match end {
            AnswerEnd::Length if !self.stop.stopped() => FinishReason::Length,
            _ if message.tool_calls.is_some() => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        (deltas, message, reason)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("detokenizer", &self.detokenizer)
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::parser::PlainText;
    use crate::chat::tokenizer::tests::fixture;

    fn run(text: &str, stops: &[&str], end: AnswerEnd) -> (String, Message, FinishReason) {
        let stops = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut answer = Answer::new(Arc::new(fixture()), stops, Box::<PlainText>::default());
        let mut streamed = String::new();
        let mut add = |deltas: Vec<Delta>| deltas.into_iter().for_each(|d| streamed.push_str(&d.content.unwrap()));
        for byte in text.bytes() {
            let piece = answer.push(byte.into());
            add(piece.deltas);
            if piece.stopped {
                break;
            }
        }
        let (deltas, message, reason) = answer.finish(end);
        add(deltas);
        (streamed, message, reason)
    }

    #[test]
    fn streamed_pieces_are_the_message() {
        let (streamed, message, reason) = run("héllo €", &[], AnswerEnd::Stop);
        assert_eq!((streamed.as_str(), reason), ("héllo €", FinishReason::Stop));
        assert_eq!(message.content.as_deref(), Some("héllo €"));
    }

    #[test]
    fn a_stop_string_outranks_a_budget_that_ends_at_the_same_token() {
        let (streamed, message, reason) = run("one. two", &["."], AnswerEnd::Length);
        assert_eq!((streamed.as_str(), reason), ("one", FinishReason::Stop));
        assert_eq!(message.content.as_deref(), Some("one"));
        assert_eq!(run("one", &["."], AnswerEnd::Length).2, FinishReason::Length);
    }
}
