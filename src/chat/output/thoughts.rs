//! Where an answer's thought ends, and with it the text that is no one's to read.

use super::OutputParser;
use super::assembly::Assembly;
use super::call::End;
use super::calls::{CallRules, Calls, Found};
use super::written::{Tag, Written, tag};
use crate::openai::{Delta, Message};

const OPENER: &str = "<think>";
const CLOSER: &str = "</think>";
const CALL: &str = "<tool_call>";

/// How thoughts are marked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThoughtRules {
    /// Whether the tokenizer has `<think>` as one token; one that is spelled in letters then is text.
    pub(super) opener_token: bool,
    /// As `opener_token`, of `</think>`.
    pub(super) closer_token: bool,
}

/// The text of a model that thinks, calls tools, or both.
///
/// A thought is opened by the prompt, or by the first word of the answer. It ends at its first closer, whatever tags the
/// answer then shows. A model may also forget the closer and call a tool: a call of a tool that the request has ends the
/// thought, unless a closer follows the call after all, for then it was only thought of. So a call in a thought waits for
/// the end of the answer.
pub(super) struct MarkedText {
    thoughts: Option<ThoughtRules>,
    calls: Option<CallRules>,
    phase: Phase,
    message: Assembly,
}

enum Phase {
    /// Before the first word; `open` says that the prompt opened a thought.
    Start { open: bool, text: Written },
    /// In a thought, at text of which it is not certain that it belongs there.
    Thought { text: Written },
    /// In a thought, at what may be calls: all text from the opener on, and what was found in it.
    CallInThought { text: Written, calls: Box<Calls>, found: Vec<Found> },
    /// Behind the thought, with tools.
    Answer(Box<Calls>),
    /// Behind the thought, without tools.
    Content,
}

impl MarkedText {
    pub(super) fn new(thoughts: Option<ThoughtRules>, calls: Option<CallRules>, in_thought: bool) -> Self {
        let start = Phase::Start { open: in_thought, text: Written::default() };
        let mut parser = Self { thoughts, calls, phase: start, message: Assembly::default() };
        if thoughts.is_none() {
            parser.phase = parser.answer();
        }
        parser
    }

    fn answer(&self) -> Phase {
        match &self.calls {
            Some(rules) => Phase::Answer(Box::new(Calls::new(rules.clone(), false))),
            None => Phase::Content,
        }
    }

    /// Reads text in the present phase; gives what is left for the next one.
    fn read(&mut self, written: Written) -> Option<Written> {
        match std::mem::replace(&mut self.phase, Phase::Content) {
            Phase::Start { open, mut text } => {
                text.append(&written);
                self.start(open, text, false)
            }
            Phase::Thought { mut text } => {
                text.append(&written);
                self.thought(text, false)
            }
            Phase::CallInThought { mut text, mut calls, found } => {
                text.append(&written);
                let more = calls.push(&written);
                self.call_in_thought(text, calls, found, more)
            }
            Phase::Answer(mut calls) => {
                let found = calls.push(&written);
                self.phase = Phase::Answer(calls);
                self.add(found);
                None
            }
            Phase::Content => {
                self.message.content(written.text());
                None
            }
        }
    }

    /// The first word: an opener, even where the prompt has one already, starts a thought. A closer there ends one.
    fn start(&mut self, open: bool, mut text: Written, ended: bool) -> Option<Written> {
        let first = text.text().len() - text.text().trim_start().len();
        let here = &text.text()[first..];
        let token = text.is_token(first);
        let rules = self.thoughts;
        let by = |needs: fn(&ThoughtRules) -> bool| rules.is_some_and(|rules| token || !needs(&rules));
        let opener = if by(|rules| rules.opener_token) { tag(here, OPENER) } else { Tag::Absent };
        let closer = if by(|rules| rules.closer_token) { tag(here, CLOSER) } else { Tag::Absent };
        // A token's text may come in pieces, where a stop string held some of it back; and nothing tells a token yet.
        let waits = here.is_empty() || opener == Tag::Started || (closer == Tag::Started && !open);
        if waits && !ended {
            self.phase = Phase::Start { open, text };
            return None;
        }
        if opener == Tag::Whole {
            text.take(first + OPENER.len());
        }
        if open || opener == Tag::Whole {
            self.phase = Phase::Thought { text: Written::default() };
            return Some(text);
        }
        if closer == Tag::Whole {
            text.take(first + CLOSER.len());
            self.message.end_thought();
        }
        self.phase = self.answer();
        Some(text)
    }

    /// In a thought: looks for its closer, and for calls.
    fn thought(&mut self, mut text: Written, ended: bool) -> Option<Written> {
        let closer_token = self.thoughts.is_some_and(|rules| rules.closer_token);
        let call_token = self.calls.as_ref().map(|rules| rules.call_token);
        let mut from = 0;
        while let Some(at) = text.text()[from..].find('<').map(|at| from + at) {
            let here = &text.text()[at..];
            let by = |needs_token: bool| !needs_token || text.is_token(at);
            let closer = if by(closer_token) { tag(here, CLOSER) } else { Tag::Absent };
            let call = if call_token.is_some_and(by) { tag(here, CALL) } else { Tag::Absent };
            if closer == Tag::Whole {
                self.message.thought(text.take(at).text());
                text.take(CLOSER.len());
                return Some(self.end_thought(text));
            }
            if let (Tag::Whole, Some(rules)) = (call, &self.calls) {
                let calls = Box::new(Calls::new(rules.clone(), true));
                self.message.thought(text.take(at).text());
                self.phase = Phase::CallInThought { text: Written::default(), calls, found: Vec::new() };
                return Some(text);
            }
            if (closer == Tag::Started || call == Tag::Started) && !ended {
                self.message.thought(text.take(at).text());
                self.phase = Phase::Thought { text };
                return None;
            }
            from = at + 1;
        }
        self.message.thought(text.text());
        self.phase = Phase::Thought { text: Written::default() };
        None
    }

    fn end_thought(&mut self, rest: Written) -> Written {
        self.message.end_thought();
        self.phase = self.answer();
        rest
    }

    /// In a thought, at a call: goes on while it may be one.
    fn call_in_thought(
        &mut self,
        mut text: Written,
        calls: Box<Calls>,
        mut found: Vec<Found>,
        more: Vec<Found>,
    ) -> Option<Written> {
        found.extend(more);
        if let Some(Found::ThoughtEnd(_)) = found.last() {
            let Some(Found::ThoughtEnd(rest)) = found.pop() else { return None };
            let thought = text.text().len() - rest.text().len() - CLOSER.len();
            self.message.thought(text.take(thought).text());
            return Some(self.end_thought(rest));
        }
        if self.is_call(&found) == Some(false) {
            // Talk of calls: the thought goes on behind the opener.
            self.message.thought(text.take(CALL.len()).text());
            self.phase = Phase::Thought { text: Written::default() };
            return Some(text);
        }
        self.phase = Phase::CallInThought { text, calls, found };
        None
    }

    /// Whether what was found in a thought starts with a call of a tool that the request has. `None` where nothing was.
    fn is_call(&self, found: &[Found]) -> Option<bool> {
        let tools = self.calls.as_ref().map(|rules| &rules.tools);
        let known = |name: &str| tools.is_some_and(|tools| tools.get(name).is_some());
        let first = found.iter().find(|found| **found != Found::Dropped);
        first.map(|first| matches!(first, Found::Call(call) if known(&call.name)))
    }

    /// Ends the present phase; gives what is left for the next one.
    fn end(&mut self, end: End) -> Option<Written> {
        match std::mem::replace(&mut self.phase, Phase::Content) {
            Phase::Start { text, .. } if text.is_empty() => None,
            Phase::Start { open, text } => self.start(open, text, true),
            Phase::Thought { text } => self.thought(text, true).or_else(|| {
                self.phase = Phase::Content;
                None
            }),
            Phase::CallInThought { mut text, mut calls, mut found } => {
                // A closer behind an unfinished call: that was only thought of.
                if let Some(closer) = calls.unfinished().and_then(|call| self.closer_in(call)) {
                    let behind = calls.unfinished().map_or(0, |call| call.text().len()) - closer;
                    self.message.thought(text.take(text.text().len() - behind).text());
                    text.take(CLOSER.len());
                    return Some(self.end_thought(text));
                }
                found.extend(calls.finish(end));
                match self.is_call(&found) {
                    Some(true) => {
                        self.message.end_thought();
                        if self.calls.as_ref().is_some_and(|rules| rules.single) {
                            let first = found.iter().position(|found| matches!(found, Found::Call(_)));
                            found.truncate(first.map_or(0, |first| first + 1));
                        }
                        self.add(found);
                        None
                    }
                    Some(false) => {
                        self.message.thought(text.take(CALL.len()).text());
                        self.phase = Phase::Thought { text: Written::default() };
                        Some(text)
                    }
                    // An unfinished call.
                    None => None,
                }
            }
            Phase::Answer(mut calls) => {
                let found = calls.finish(end);
                self.add(found);
                None
            }
            Phase::Content => None,
        }
    }

    /// The place of the thought's closer in an unfinished call.
    fn closer_in(&self, call: &Written) -> Option<usize> {
        let needs_token = self.thoughts.is_some_and(|rules| rules.closer_token);
        call.text().match_indices(CLOSER).map(|(at, _)| at).find(|at| !needs_token || call.is_token(*at))
    }

    fn add(&mut self, found: Vec<Found>) {
        for found in found {
            match found {
                Found::Text(text) => self.message.content(&text),
                Found::Call(call) => self.message.call(call),
                Found::Dropped => self.message.dropped_call(),
                // Not looked for behind a thought.
                Found::ThoughtEnd(_) => {}
            }
        }
    }
}

impl OutputParser for MarkedText {
    fn push(&mut self, text: &str, tokens: &[usize]) -> Vec<Delta> {
        let mut written = Written::default();
        written.push(text, tokens);
        let mut left = (!written.is_empty()).then_some(written);
        while let Some(written) = left {
            left = self.read(written);
        }
        self.message.take_deltas()
    }

    fn is_done(&self) -> bool {
        matches!(&self.phase, Phase::Answer(calls) if calls.is_full())
    }

    fn finish(mut self: Box<Self>, cut: bool) -> (Vec<Delta>, Message) {
        let end = if cut { End::Cut } else { End::Model };
        // What one phase leaves is read by the next, which then ends too.
        while let Some(written) = self.end(end) {
            let mut left = Some(written);
            while let Some(written) = left {
                left = self.read(written);
            }
        }
        self.message.finish()
    }
}
