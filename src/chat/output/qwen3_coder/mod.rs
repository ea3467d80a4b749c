//! Calls in the form of Qwen3-Coder, Qwen3.5 and Qwen3.6:
//!
//! ```text
//! <tool_call>
//! <function=name>
//! <parameter=key>
//! value
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Values are not escaped, so a value may hold any of these tags, and models leave out closers. What is structure is
//! decided by what stands around a tag; see [`value`]. Where that decision was wrong, the text runs out inside a value,
//! and the call is read once more with looser rules.

mod value;

use super::call::{Call, CallReader, End, Reading};
use super::json;
use super::schema::{self, ToolSchemas};
use super::written::{Tag, tag};
use value::{Ending, Layout, Value};

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const THOUGHT_END: &str = "</think>";

/// Bytes of the longest name of a tool or a parameter. OpenAI allows 64.
const LONGEST_NAME: usize = 256;
/// Bytes of white space between two tags. Behind more of it, a tag does not count as followed by the next.
const WIDEST_GAP: usize = 256;

/// Reads one call from its opener on.
#[derive(Debug)]
pub(super) struct Reader {
    /// Whether the opener is certain. Else only a tool of the request makes it a call.
    certain: bool,
    /// Whether the call stands in a thought, whose closer then ends it.
    in_thought: bool,
    /// Whether tags are structure that, by what stands around them, may also be text.
    loose: bool,
    /// What was read so far ends here.
    at: usize,
    state: State,
    name: String,
    /// Whether other text than parameters stands behind the name.
    stray: bool,
    /// Keys and the JSON text of their values.
    parameters: Vec<(String, String)>,
}

#[derive(Debug)]
enum State {
    /// Before the function's name.
    Opener,
    /// After the name of an opener that is not certain: a call goes on with a parameter or ends at once.
    Doubtful,
    /// Between parameters.
    Between,
    /// In the value of the last key.
    Value(String, Value),
    /// Behind the function's closer.
    Closed,
}

impl Reader {
    pub(super) fn new(certain: bool, in_thought: bool) -> Self {
        Self {
            certain,
            in_thought,
            loose: false,
            at: 0,
            state: State::Opener,
            name: String::new(),
            stray: false,
            parameters: Vec::new(),
        }
    }

    fn name_is_known(&self, tools: &ToolSchemas) -> bool {
        tools.get(&self.name).is_some()
    }

    /// The call, of which `used` bytes were read.
    fn call(&mut self, used: usize) -> Reading {
        let mut arguments = vec!["{".to_owned()];
        for (at, (key, value)) in std::mem::take(&mut self.parameters).into_iter().enumerate() {
            let mut fragment = if at == 0 { String::new() } else { ", ".to_owned() };
            json::write_text(&key, &mut fragment);
            fragment.push_str(": ");
            fragment.push_str(&value);
            arguments.push(fragment);
        }
        arguments.push("}".to_owned());
        Reading::Calls(vec![Call { name: std::mem::take(&mut self.name), arguments }], used)
    }

    /// What becomes of a call whose function's closer never comes.
    fn unclosed(&mut self, text: &str, end: End, tools: &ToolSchemas) -> Reading {
        match end {
            End::Cut => Reading::Dropped(text.len()),
            // The model ended its turn: it only left out what closes the call.
            End::Model if !self.parameters.is_empty() => self.call(text.len()),
            End::Model if self.name_is_known(tools) && !self.stray => self.call(text.len()),
            End::Model => Reading::Text(opener(text)),
        }
    }

    /// Ends the value that is being read.
    fn set(&mut self, tools: &ToolSchemas, key: String, text: &str) {
        let value = match tools.get(&self.name) {
            Some(tool) => tool.value(&key, text),
            None => schema::untyped(text),
        };
        json::set(&mut self.parameters, key, value);
    }

    /// `None` where the state has changed and reading goes on.
    fn step(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Option<Reading> {
        match &mut self.state {
            State::Opener => self.opener(text, end, tools),
            State::Doubtful => {
                match (first_behind(text, self.at, &[PARAMETER, FUNCTION_END]).0, end) {
                    (First::Tag(_), _) => self.state = State::Between,
                    (First::Started, None) => return Some(Reading::More),
                    _ => return Some(Reading::Text(opener(text))),
                }
                None
            }
            State::Between => self.between(text, end, tools),
            State::Value(..) => self.value(text, end, tools),
            State::Closed => match (first_behind(text, self.at, &[CALL_END]), end) {
                ((First::Tag(_), at), _) => Some(self.call(at + CALL_END.len())),
                ((First::Started, _), None) => Some(Reading::More),
                ((First::Started, _), Some(_)) => Some(self.call(text.len())),
                ((First::Other, _), _) => Some(self.call(self.at)),
            },
        }
    }

    fn opener(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Option<Reading> {
        let start = if text.starts_with(CALL) { CALL.len() } else { 0 };
        let (first, start) = first_behind(text, start, &[FUNCTION]);
        match (first, end) {
            (First::Tag(_), _) => {}
            (First::Started, None) => return Some(Reading::More),
            // The beginning of a call, and no more of it.
            (First::Started, Some(_)) if self.certain => return Some(Reading::Dropped(text.len())),
            _ => return Some(Reading::Text(opener(text))),
        }
        match name(text, start + FUNCTION.len()) {
            Name::Whole { name, end, .. } if !name.is_empty() && !name.contains(char::is_whitespace) => {
                self.name = name.to_owned();
                self.at = end;
            }
            Name::Started if end.is_none() => return Some(Reading::More),
            Name::Started if self.certain && !text[start..].contains(' ') => return Some(Reading::Dropped(text.len())),
            _ => return Some(Reading::Text(opener(text))),
        }
        if self.certain {
            self.state = State::Between;
            return None;
        }
        self.state = State::Doubtful;
        if self.name_is_known(tools) { None } else { Some(Reading::Text(opener(text))) }
    }

    fn between(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Option<Reading> {
        self.at = skip_space(text, self.at);
        let tags = [PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION, PARAMETER_END, THOUGHT_END];
        match (first_of(&text[self.at..], &tags), end) {
            (First::Tag(PARAMETER), _) => match name(text, self.at + PARAMETER.len()) {
                Name::Whole { name, end, line } => {
                    self.at = end;
                    self.state =
                        State::Value(name.to_owned(), Value::new(end, Layout::at(text, end, line), self.loose));
                }
                Name::Started if end.is_none() => return Some(Reading::More),
                Name::Started => self.at = text.len(),
                Name::Absent => self.at += PARAMETER.len(),
            },
            (First::Tag(FUNCTION_END), _) => {
                self.at += FUNCTION_END.len();
                self.state = State::Closed;
            }
            (First::Tag(CALL_END), _) => return Some(self.call(self.at + CALL_END.len())),
            // The next call: this one lacks its closers.
            (First::Tag(CALL | FUNCTION), _) => return Some(self.call(self.at)),
            (First::Tag(THOUGHT_END), _) if self.in_thought => return Some(Reading::Dropped(self.at)),
            (First::Tag(stray), _) => self.at += stray.len(),
            (First::Started, None) => return Some(Reading::More),
            (First::Started, Some(end)) => return Some(self.unclosed(text, end, tools)),
            // Stray text: behind a name that no tool has, this is no call but talk of one.
            (First::Other, _) if self.parameters.is_empty() && !self.name_is_known(tools) => {
                return Some(Reading::Text(opener(text)));
            }
            (First::Other, _) => {
                self.stray = true;
                let next = text[self.at..].char_indices().skip(1).find(|(_, letter)| *letter == '<');
                self.at = next.map_or(text.len(), |(at, _)| self.at + at);
            }
        }
        None
    }

    fn value(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Option<Reading> {
        let (given, schema) = (&self.parameters, tools.get(&self.name));
        let State::Value(key, value) = &mut self.state else { return None };
        // A parameter may end the value where it is one of the tool's and was not given yet.
        let fits = |name: &str| {
            name != key && schema.is_none_or(|tool| tool.takes(name)) && !given.iter().any(|(given, _)| given == name)
        };
        let is_tool = |name: &str| tools.get(name).is_some();
        match value.find_end(text, end.is_some(), fits, is_tool) {
            Ending::Found { end, next } => {
                let (key, content) = (std::mem::take(key), value.content(text, end));
                self.set(tools, key, content);
                self.at = next;
                self.state = State::Between;
                None
            }
            Ending::Unknown => match end {
                None => Some(Reading::More),
                Some(End::Cut) => Some(Reading::Dropped(text.len())),
                Some(End::Model) if !self.loose => {
                    *self = Self { loose: true, ..Self::new(self.certain, self.in_thought) };
                    None
                }
                Some(end) => {
                    let (key, content) = (std::mem::take(key), value.content(text, text.len()));
                    self.set(tools, key, content);
                    Some(self.unclosed(text, end, tools))
                }
            },
        }
    }
}

impl CallReader for Reader {
    fn read(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Reading {
        loop {
            if let Some(reading) = self.step(text, end, tools) {
                return reading;
            }
        }
    }
}

/// Bytes of the opener at the start of a text.
fn opener(text: &str) -> usize {
    if text.starts_with(CALL) { CALL.len() } else { FUNCTION.len().min(text.len()) }
}

/// The place of the first letter from `at` on that is no white space.
fn skip_space(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    text.len() - rest.trim_start().len()
}

/// What a text starts with.
#[derive(Debug, PartialEq, Eq)]
enum First {
    Tag(&'static str),
    /// It ends where one of the tags may go on.
    Started,
    Other,
}

/// What follows a place behind white space, and where.
fn first_behind(text: &str, at: usize, tags: &[&'static str]) -> (First, usize) {
    let next = skip_space(text, at);
    let first = if next.saturating_sub(at) > WIDEST_GAP { First::Other } else { first_of(&text[next..], tags) };
    (first, next)
}

fn first_of(text: &str, tags: &[&'static str]) -> First {
    let mut first = First::Other;
    for wanted in tags {
        match tag(text, wanted) {
            Tag::Whole => return First::Tag(wanted),
            Tag::Started => first = First::Started,
            Tag::Absent => {}
        }
    }
    first
}

/// A name in a header.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    /// The name; where the header ends; whether its line ends there instead of a `>`.
    Whole { name: &'a str, end: usize, line: bool },
    /// The text ends before the name does.
    Started,
    /// No name is that long.
    Absent,
}

/// Reads the name of a header, up to its `>`. Models forget that one: the name then ends with its line, or at a tag.
fn name(text: &str, start: usize) -> Name<'_> {
    let rest = text.get(start..).unwrap_or_default();
    match rest.find(['>', '\n', '<']) {
        Some(at) if at > LONGEST_NAME => Name::Absent,
        Some(at) => {
            let quotes = ['"', '\''];
            let name = rest[..at].trim().trim_matches(quotes);
            let (line, more) = (rest[at..].starts_with('\n'), usize::from(!rest[at..].starts_with('<')));
            Name::Whole { name, end: start + at + more, line }
        }
        None if rest.len() > LONGEST_NAME => Name::Absent,
        None => Name::Started,
    }
}
