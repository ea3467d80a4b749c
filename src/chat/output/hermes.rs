//! Calls in the form of Hermes, Qwen2.5 and Qwen3: a JSON object between two tags.
//!
//! ```text
//! <tool_call>
//! {"name": "name", "arguments": {"key": "value"}}
//! </tool_call>
//! ```

use super::call::{Call, CallReader, End, Reading};
use super::json::{self, Json, Nesting};
use super::schema::ToolSchemas;
use super::written::{Tag, tag};

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Bytes of white space between a tag and what belongs to it.
const WIDEST_GAP: usize = 256;

/// Reads one call from its opener on.
#[derive(Debug, Default)]
pub(super) struct Reader {
    state: State,
    /// Where the JSON starts.
    start: usize,
    /// What was read so far ends here.
    at: usize,
    nesting: Nesting,
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
enum State {
    /// Before the JSON.
    #[default]
    Opener,
    Json,
    /// Behind it.
    Closed,
}

impl Reader {
    /// Takes the calls out of the JSON up to `end`; going on at `next`. Without any, there is no call.
    fn take(&mut self, calls: Option<Vec<Call>>, next: usize) -> Option<Reading> {
        match calls {
            Some(calls) => {
                self.calls = calls;
                self.at = next;
                self.state = State::Closed;
                None
            }
            None => Some(Reading::Text(CALL.len())),
        }
    }

    fn json(&mut self, text: &str, end: Option<End>) -> Option<Reading> {
        while let Some(byte) = text.as_bytes().get(self.at) {
            if *byte == b'<' && !self.nesting.in_text() {
                match tag(&text[self.at..], CALL_END) {
                    // Brackets are missing.
                    Tag::Whole => return self.take(calls(&text[self.start..self.at], true), self.at),
                    Tag::Started if end.is_none() => return Some(Reading::More),
                    _ => {}
                }
            }
            self.nesting.step(*byte);
            self.at += 1;
            if self.nesting.is_closed() && matches!(byte, b'}' | b']') {
                return self.take(calls(&text[self.start..self.at], false), self.at);
            }
        }
        match end? {
            End::Cut => Some(Reading::Dropped(text.len())),
            End::Model => {
                // A quote that is missing, or the tags' own closer as text: the first closer it is.
                let rest = &text[self.start..];
                let json = rest.split_once(CALL_END).map_or(rest, |(json, _)| json);
                self.take(calls(json.trim_end(), true), self.start + json.len())
            }
        }
    }

    fn step(&mut self, text: &str, end: Option<End>) -> Option<Reading> {
        match self.state {
            State::Opener => {
                let next = skip_space(text, CALL.len());
                match (text[next..].chars().next(), end) {
                    (Some('{' | '['), _) => {
                        (self.start, self.at, self.state) = (next, next, State::Json);
                        None
                    }
                    (None, None) if next - CALL.len() <= WIDEST_GAP => Some(Reading::More),
                    (None, Some(_)) => Some(Reading::Dropped(text.len())),
                    _ => Some(Reading::Text(CALL.len())),
                }
            }
            State::Json => match self.json(text, end) {
                None if end.is_none() && matches!(self.state, State::Json) => Some(Reading::More),
                reading => reading,
            },
            State::Closed => {
                let next = skip_space(text, self.at);
                let calls = |reader: &mut Self, used| Some(Reading::Calls(std::mem::take(&mut reader.calls), used));
                match (tag(&text[next..], CALL_END), end) {
                    _ if next - self.at > WIDEST_GAP => calls(self, self.at),
                    (Tag::Whole, _) => calls(self, next + CALL_END.len()),
                    (Tag::Started, None) => Some(Reading::More),
                    (Tag::Started, Some(_)) => calls(self, text.len()),
                    (Tag::Absent, _) => calls(self, self.at),
                }
            }
        }
    }
}

impl CallReader for Reader {
    fn read(&mut self, text: &str, end: Option<End>, _: &ToolSchemas) -> Reading {
        loop {
            if let Some(reading) = self.step(text, end) {
                return reading;
            }
        }
    }
}

fn skip_space(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}

/// The calls that a text is: an object each, or a list of them. `None` where it is none.
fn calls(text: &str, unclosed: bool) -> Option<Vec<Call>> {
    let value = match unclosed {
        true => Json::parse_unclosed(text),
        false => Json::parse(text).or_else(|| Json::parse_python(text)),
    };
    match value? {
        Json::Array(values) if !values.is_empty() => values.iter().map(call).collect(),
        value => Some(vec![call(&value)?]),
    }
}

fn call(value: &Json) -> Option<Call> {
    let Some(Json::Text(name)) = value.get("name") else { return None };
    // Models that were trained on other forms call them so.
    let arguments = value.get("arguments").or_else(|| value.get("parameters"));
    // Some write the object as text once more.
    let inner = match arguments {
        Some(Json::Text(text)) => Json::parse(text),
        _ => None,
    };
    let mut pieces = vec!["{".to_owned()];
    match inner.as_ref().or(arguments) {
        Some(Json::Object(fields)) => {
            for (at, (key, value)) in fields.iter().enumerate() {
                let mut piece = if at == 0 { String::new() } else { ", ".to_owned() };
                json::write_text(key, &mut piece);
                piece.push_str(": ");
                value.write(&mut piece);
                pieces.push(piece);
            }
        }
        None | Some(Json::Null) => {}
        Some(_) => return None,
    }
    pieces.push("}".to_owned());
    Some(Call { name: name.clone(), arguments: pieces })
}
