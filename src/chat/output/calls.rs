//! Finds tool calls in the text of an answer.

use std::sync::Arc;

use super::call::{Call, CallReader, End, Reading};
use super::schema::ToolSchemas;
use super::written::{Tag, Written, tag};
use super::{hermes, qwen3_coder};
use crate::spec::ToolCallParser;

const CALL: &str = "<tool_call>";
const FUNCTION: &str = "<function=";
const THOUGHT_END: &str = "</think>";

/// What the text of an answer turns out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Text for the reader.
    Text(String),
    /// A whole call.
    Call(Call),
    /// An unfinished call, of which nothing is shown.
    Dropped,
    /// In a thought: its closer, and all behind it. Nothing follows.
    ThoughtEnd(Written),
}

/// How calls are looked for.
#[derive(Debug, Clone)]
pub(super) struct CallRules {
    /// The form in which the model writes calls.
    pub(super) form: ToolCallParser,
    /// The request's tools.
    pub(super) tools: Arc<ToolSchemas>,
    /// Whether the tokenizer has `<tool_call>` as one token. An opener that is spelled in letters then is text, unless a
    /// tool of the request follows.
    pub(super) call_token: bool,
    /// As `call_token`, of `</think>`.
    pub(super) think_token: bool,
    /// At most one call; whatever follows it is no part of the answer.
    pub(super) single: bool,
}

/// The search, which holds back text that may be the start of a call, and a call until its end: one that is cut must not
/// have been streamed.
pub(super) struct Calls {
    rules: CallRules,
    in_thought: bool,
    buffer: Written,
    /// The call at the start of the buffer.
    reader: Option<Box<dyn CallReader>>,
    /// How often calls were found.
    calls: usize,
}

impl Calls {
    pub(super) fn new(rules: CallRules, in_thought: bool) -> Self {
        Self { rules, in_thought, buffer: Written::default(), reader: None, calls: 0 }
    }

    /// Whether the answer has all the calls that it may have. In a thought they may turn out to be none.
    pub(super) fn is_full(&self) -> bool {
        self.rules.single && self.calls > 0 && !self.in_thought
    }

    /// The unfinished call, if the text is in one.
    pub(super) fn unfinished(&self) -> Option<&Written> {
        self.reader.is_some().then_some(&self.buffer)
    }

    pub(super) fn push(&mut self, written: &Written) -> Vec<Found> {
        self.buffer.append(written);
        self.run(None)
    }

    pub(super) fn finish(&mut self, end: End) -> Vec<Found> {
        self.run(Some(end))
    }

    fn run(&mut self, end: Option<End>) -> Vec<Found> {
        let mut found = Vec::new();
        loop {
            if self.is_full() {
                self.buffer = Written::default();
                return found;
            }
            let going_on = match self.reader.take() {
                Some(reader) => self.read(reader, end, &mut found),
                None => self.search(end, &mut found),
            };
            if !going_on {
                return found;
            }
        }
    }

    /// Takes text off the buffer.
    fn text(&mut self, bytes: usize, found: &mut Vec<Found>) {
        if bytes == 0 {
            return;
        }
        let text = self.buffer.take(bytes).text().to_owned();
        match found.last_mut() {
            Some(Found::Text(before)) => before.push_str(&text),
            _ => found.push(Found::Text(text)),
        }
    }

    /// Reads on in a call. False where the text is used up.
    fn read(&mut self, mut reader: Box<dyn CallReader>, end: Option<End>, found: &mut Vec<Found>) -> bool {
        match reader.read(self.buffer.text(), end, &self.rules.tools) {
            Reading::More => {
                self.reader = Some(reader);
                return false;
            }
            Reading::Calls(calls, used) => {
                let most = if self.rules.single { 1 } else { usize::MAX };
                self.calls += 1;
                found.extend(calls.into_iter().take(most).map(Found::Call));
                self.buffer.take(used);
            }
            Reading::Text(used) => self.text(used, found),
            Reading::Dropped(used) => {
                self.buffer.take(used);
                found.push(Found::Dropped);
            }
        }
        true
    }

    /// Looks for the next opener. False where the text is used up.
    fn search(&mut self, end: Option<End>, found: &mut Vec<Found>) -> bool {
        let mut from = 0;
        while let Some(at) = self.buffer.text()[from..].find('<').map(|at| from + at) {
            let here = &self.buffer.text()[at..];
            let mut started = false;
            let mut is = |wanted: &str| match tag(here, wanted) {
                Tag::Whole => true,
                Tag::Started => {
                    started = true;
                    false
                }
                Tag::Absent => false,
            };
            let coder = self.rules.form == ToolCallParser::Qwen3Coder;
            let certain = !self.rules.call_token || self.buffer.is_token(at);
            let closes = self.in_thought && (!self.rules.think_token || self.buffer.is_token(at));
            if self.in_thought && is(THOUGHT_END) && closes {
                self.text(at, found);
                self.buffer.take(THOUGHT_END.len());
                found.push(Found::ThoughtEnd(self.buffer.take_all()));
                return false;
            }
            let opener = is(CALL);
            if (opener && (certain || coder)) || (coder && is(FUNCTION)) {
                self.text(at, found);
                self.reader = Some(match self.rules.form {
                    ToolCallParser::Qwen3Coder => {
                        Box::new(qwen3_coder::Reader::new(opener && certain, self.in_thought))
                    }
                    ToolCallParser::Hermes => Box::<hermes::Reader>::default(),
                });
                return true;
            }
            if started && end.is_none() {
                self.text(at, found);
                return false;
            }
            from = at + 1;
        }
        self.text(self.buffer.text().len(), found);
        false
    }
}
