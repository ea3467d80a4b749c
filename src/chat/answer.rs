//! The assembly of one answer: ids in, deltas and a message out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::output::{OutputFormat, OutputParser};
use super::stop::StopFilter;
use super::tokenizer::Tokenizer;
use crate::openai::{Delta, FinishReason, Message};

/// An answer under way.
pub struct Answer {
    detokenizer: Detokenizer,
    format: OutputFormat,
    stop: StopFilter,
    /// Bytes of text that the stop filter has got, and let through.
    read: usize,
    shown: usize,
    /// Where in the text markers start that came as tokens, and were not let through yet.
    markers: VecDeque<usize>,
    parser: Box<dyn OutputParser>,
}

/// What an id added.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerPiece {
    /// Additions to the message, often none.
    pub deltas: Vec<Delta>,
    /// True once a stop string has appeared, or the only call that the request allows is complete: the answer is over,
    /// whatever else the model would say.
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
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        format: OutputFormat,
        stops: Vec<String>,
        parser: Box<dyn OutputParser>,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer),
            format,
            stop: StopFilter::new(stops),
            read: 0,
            shown: 0,
            markers: VecDeque::new(),
            parser,
        }
    }

    /// Adds an id of the answer. Not to be called with the id that ended it: that one has no text.
    pub fn push(&mut self, id: u32) -> AnswerPiece {
        let text = self.detokenizer.push(id);
        if let Some(before) = self.format.marker(id).and_then(|marker| text.strip_suffix(marker.text())) {
            self.markers.push_back(self.read + before.len());
        }
        self.read += text.len();
        let shown = self.stop.push(&text);
        let deltas = self.parse(&shown);
        AnswerPiece { deltas, stopped: self.stop.stopped() || self.parser.is_done() }
    }

    /// Gives the parser what the stop filter has let through.
    fn parse(&mut self, shown: &str) -> Vec<Delta> {
        let start = self.shown;
        self.shown += shown.len();
        let mut tokens = Vec::new();
        while let Some(at) = self.markers.pop_front_if(|at| *at < self.shown) {
            tokens.push(at - start);
        }
        self.parser.push(shown, &tokens)
    }

    /// Ends the answer: the last deltas, the whole message, and the reason in OpenAI's words.
    #[must_use]
    pub fn finish(mut self, end: AnswerEnd) -> (Vec<Delta>, Message, FinishReason) {
        let rest = self.detokenizer.finish();
        let mut shown = self.stop.push(&rest);
        shown.push_str(&self.stop.finish());
        let mut deltas = self.parse(&shown);
        let stopped = self.stop.stopped() || self.parser.is_done();
        // The model ends its turn by an end id alone.
        let (last, message) = self.parser.finish(stopped || end == AnswerEnd::Length);
        deltas.extend(last);
        let reason = match end {
            AnswerEnd::Length if !stopped => FinishReason::Length,
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
    use crate::chat::output::PlainText;
    use crate::chat::tokenizer::tests::fixture;

    fn run(text: &str, stops: &[&str], end: AnswerEnd) -> (String, Message, FinishReason) {
        let stops = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut answer = Answer::new(Arc::new(fixture()), OutputFormat::default(), stops, Box::<PlainText>::default());
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
