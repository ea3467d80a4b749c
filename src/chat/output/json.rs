//! JSON as it goes into tool arguments: nothing that a model wrote is lost on the way.
//!
//! A number keeps its digits (an id of twenty digits is no float), an object its order, and text is written as Python's
//! `json.dumps(ensure_ascii=False)` writes it. What JSON does not have (NaN, infinities, half a surrogate pair) does not
//! parse, so that it is never written.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::CharIndices;

/// Deeper values are not parsed: no tool needs them, and the parser calls itself.
const DEEPEST: usize = 64;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// As it is written, and valid JSON.
    Number(String),
    Text(String),
    Array(Vec<Json>),
    /// In order; of equal keys the last value counts, at the first's place.
    Object(Vec<(String, Json)>),
}

/// Which values are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grammar {
    Json,
    /// Those that Python's `ast.literal_eval` reads and that JSON can say: also `'text'`, `True`, `None`, tuples, `0x1F`.
    Python,
}

impl Json {
    /// Reads JSON.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Parser::new(text, Grammar::Json).whole()
    }

    /// Reads a literal of Python.
    pub(super) fn parse_python(text: &str) -> Option<Self> {
        Parser::new(text, Grammar::Python).whole()
    }

    /// Reads JSON that lacks some closing brackets at its end.
    pub(super) fn parse_unclosed(text: &str) -> Option<Self> {
        let mut nesting = Nesting::default();
        text.bytes().for_each(|byte| nesting.step(byte));
        let closers: String = nesting.open.iter().rev().map(|closer| char::from(*closer)).collect();
        if nesting.in_text { None } else { Self::parse(&format!("{text}{closers}")) }
    }

    /// The value under a key of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(digits) => out.push_str(digits),
            Self::Text(text) => write_text(text, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (at, (key, value)) in fields.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { ", " });
                    write_text(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// The value as JSON text.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }
}

/// A text as JSON: only what must be is escaped.
pub(super) fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            // Writing to a string cannot fail.
            '\0'..='\x1f' => drop(write!(out, "\\u{:04x}", u32::from(letter))),
            _ => out.push(letter),
        }
    }
    out.push('"');
}

/// Sets a key; of equal keys the last value counts, at the first's place, as in a dict of Python's.
pub(super) fn set<V>(fields: &mut Vec<(String, V)>, key: String, value: V) {
    match fields.iter_mut().find(|(name, _)| *name == key) {
        Some(field) => field.1 = value,
        None => fields.push((key, value)),
    }
}

/// Follows JSON byte by byte and knows which brackets are open.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    /// What would close each open bracket.
    open: Vec<u8>,
    in_text: bool,
    escaped: bool,
}

impl Nesting {
    pub(super) fn step(&mut self, byte: u8) {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' => self.open.push(b'}'),
            b'[' => self.open.push(b']'),
            b'}' | b']' => drop(self.open.pop()),
            _ => {}
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.open.is_empty() && !self.in_text
    }

    pub(super) fn in_text(&self) -> bool {
        self.in_text
    }
}

struct Parser<'a> {
    text: &'a str,
    letters: Peekable<CharIndices<'a>>,
    grammar: Grammar,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, grammar: Grammar) -> Self {
        Self { text, letters: text.char_indices().peekable(), grammar, depth: 0 }
    }

    fn whole(mut self) -> Option<Json> {
        let value = self.value()?;
        self.space();
        self.letters.peek().is_none().then_some(value)
    }

    fn peek(&mut self) -> Option<char> {
        self.letters.peek().map(|(_, letter)| *letter)
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.letters.next_if(|(_, letter)| *letter == wanted).is_some()
    }

    fn space(&mut self) {
        while self.letters.next_if(|(_, letter)| matches!(letter, ' ' | '\t' | '\n' | '\r')).is_some() {}
    }

    /// The text up to the first letter that is none of the wanted ones.
    fn run(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let place = |parser: &mut Self| parser.letters.peek().map_or(parser.text.len(), |(at, _)| *at);
        let start = place(self);
        while self.letters.next_if(|(_, letter)| wanted(*letter)).is_some() {}
        let end = place(self);
        self.text.get(start..end).unwrap_or_default()
    }

    fn value(&mut self) -> Option<Json> {
        self.space();
        let python = self.grammar == Grammar::Python;
        match self.peek()? {
            '"' => self.string('"').map(Json::Text),
            '\'' if python => self.string('\'').map(Json::Text),
            '{' => self.nested(Self::object),
            '[' => self.nested(|parser| parser.items(']')).map(|(items, _)| Json::Array(items)),
            // A tuple, or a value in brackets.
            '(' if python => self.nested(|parser| parser.items(')')).map(|(mut items, comma)| {
                match (items.pop(), items.is_empty() && !comma) {
                    (Some(only), true) => only,
                    (last, _) => Json::Array(items.into_iter().chain(last).collect()),
                }
            }),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => match (self.run(|letter| letter.is_ascii_alphanumeric() || letter == '_'), python) {
                ("true", false) | ("True", true) => Some(Json::Bool(true)),
                ("false", false) | ("False", true) => Some(Json::Bool(false)),
                ("null", false) | ("None", true) => Some(Json::Null),
                _ => None,
            },
        }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.letters.next();
        self.depth += 1;
        let value = if self.depth > DEEPEST { None } else { read(self) };
        self.depth -= 1;
        value
    }

    /// Values up to a closer, and whether a comma stood before it.
    fn items(&mut self, closer: char) -> Option<(Vec<Json>, bool)> {
        let mut items = Vec::new();
        let mut comma = false;
        loop {
            self.space();
            if (items.is_empty() || (comma && self.grammar == Grammar::Python)) && self.eat(closer) {
                return Some((items, comma));
            }
            items.push(self.value()?);
            self.space();
            comma = self.eat(',');
            if !comma {
                return self.eat(closer).then_some((items, false));
            }
        }
    }

    fn object(&mut self) -> Option<Json> {
        let mut fields = Vec::new();
        let mut comma = false;
        loop {
            self.space();
            if (fields.is_empty() && !comma || comma && self.grammar == Grammar::Python) && self.eat('}') {
                return Some(Json::Object(fields));
            }
            let key = match self.peek()? {
                '\'' if self.grammar == Grammar::Python => self.string('\'')?,
                '"' => self.string('"')?,
                // Python writes other keys as text too.
                _ if self.grammar == Grammar::Python => match self.value()? {
                    Json::Number(digits) => digits,
                    Json::Bool(value) => value.to_string(),
                    Json::Null => "null".to_owned(),
                    _ => return None,
                },
                _ => return None,
            };
            self.space();
            if !self.eat(':') {
                return None;
            }
            let value = self.value()?;
            set(&mut fields, key, value);
            self.space();
            comma = self.eat(',');
            if !comma {
                return self.eat('}').then_some(Json::Object(fields));
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        self.letters.next();
        let mut out = String::new();
        loop {
            match self.letters.next()?.1 {
                letter if letter == quote => return Some(out),
                '\\' => self.escape(&mut out)?,
                '\0'..='\x1f' if self.grammar == Grammar::Json => return None,
                '\n' => return None,
                letter => out.push(letter),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Option<()> {
        let python = self.grammar == Grammar::Python;
        let letter = self.letters.next()?.1;
        let letter = match letter {
            '"' | '\\' => letter,
            '/' if !python => '/',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => self.surrogates()?,
            '\'' if python => '\'',
            'a' if python => '\u{7}',
            'v' if python => '\u{b}',
            'x' if python => char::from_u32(self.hex(2)?)?,
            'U' if python => char::from_u32(self.hex(8)?)?,
            // A line that goes on in the next.
            '\n' if python => return Some(()),
            '0'..='7' if python => {
                let mut code = letter.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.peek().and_then(|letter| letter.to_digit(8)) else { break };
                    self.letters.next();
                    code = code * 8 + digit;
                }
                char::from_u32(code)?
            }
            // Python keeps the backslash of an escape that it does not know.
            _ if python => {
                out.push('\\');
                letter
            }
            _ => return None,
        };
        out.push(letter);
        Some(())
    }

    /// The character of `\uXXXX`, or of two that make one.
    fn surrogates(&mut self) -> Option<char> {
        let first = self.hex(4)?;
        if !(0xD800..0xDC00).contains(&first) || self.grammar == Grammar::Python {
            return char::from_u32(first);
        }
        if !(self.eat('\\') && self.eat('u')) {
            return None;
        }
        let second = self.hex(4)?;
        let low = second.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((first - 0xD800) << 10) + low)
    }

    fn hex(&mut self, digits: u32) -> Option<u32> {
        let mut code = 0_u32;
        for _ in 0..digits {
            code = code.checked_mul(16)? + self.letters.next()?.1.to_digit(16)?;
        }
        Some(code)
    }

    fn number(&mut self) -> Option<Json> {
        if self.grammar == Grammar::Python {
            let text = self.run(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '-' | '.' | '_'));
            return python_number(text).map(Json::Number);
        }
        let text = self.run(|letter| matches!(letter, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        is_number(text).then(|| Json::Number(text.to_owned()))
    }
}

/// Whether a text is a number of JSON, and one that a float can hold (others become infinite at the reader's).
pub(super) fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (digits, None),
    };
    let (whole, part) = match mantissa.split_once('.') {
        Some((whole, part)) => (whole, Some(part)),
        None => (mantissa, None),
    };
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && part.is_none_or(all_digits)
        && exponent.is_none_or(all_digits)
        && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// A number literal of Python's as JSON.
fn python_number(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.to_ascii_lowercase().strip_prefix(prefix) {
            let value = u64::from_str_radix(&digits.replace('_', ""), radix).ok().filter(|_| !digits.starts_with('+'));
            return value.map(|value| format!("{sign}{value}"));
        }
    }
    let plain = digits.replace('_', "");
    if is_number(&plain) {
        return Some(format!("{sign}{plain}"));
    }
    // `.5` and `5.` are numbers to Python.
    let shaped = plain.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'-' | b'+'));
    let value: f64 = plain.parse().ok().filter(|value: &f64| shaped && plain.contains('.') && value.is_finite())?;
    Some(format!("{sign}{}", crate::chat::python::float(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Option<String> {
        Json::parse(text).map(|value| value.text())
    }

    fn python(text: &str) -> Option<String> {
        Json::parse_python(text).map(|value| value.text())
    }

    #[test]
    fn keeps_digits_order_and_letters() {
        let text = r#" {"z":[1,-2.50,1e5,123456789012345678901234567890],"a":{"é":"\u00e9\ud83d\ude00\n/"},"n":null} "#;
        let want = r#"{"z": [1, -2.50, 1e5, 123456789012345678901234567890], "a": {"é": "é😀\n/"}, "n": null}"#;
        assert_eq!(json(text).as_deref(), Some(want));
        assert_eq!(json(r#"{"a":1,"b":2,"a":3}"#).as_deref(), Some(r#"{"a": 3, "b": 2}"#));
        assert_eq!(json("\"\\u0001\\u001f\"").as_deref(), Some(r#""\u0001\u001f""#));
    }

    #[test]
    fn what_is_no_json_does_not_parse() {
        for text in [
            "",
            "NaN",
            "[1, NaN]",
            "-Infinity",
            "[1e999]",
            "01",
            "1.",
            ".5",
            "+1",
            "[1,]",
            "{\"a\":1,}",
            "{a: 1}",
            "'x'",
            "\"\n\"",
            "\"\\ud800\"",
            "\"\\x41\"",
            "[1] 2",
            "{\"a\" 1}",
            "tru",
            "\"",
            "[",
            "{\"a\":",
            "{,}",
            "[,]",
        ] {
            assert_eq!(json(text), None, "{text}");
        }
        let deep = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(json(&deep(64)).is_some() && json(&deep(65)).is_none() && json(&deep(1 << 20)).is_none());
    }

    #[test]
    fn literals_of_python() {
        for (text, want) in [
            ("['a', True]", r#"["a", true]"#),
            ("{'k': None, \"q\": (1, 2,), 3: 'it\\'s'}", r#"{"k": null, "q": [1, 2], "3": "it's"}"#),
            ("(1)", "1"),
            ("(1,)", "[1]"),
            ("()", "[]"),
            ("[0x1F, 1_000, -.5, 2., +3]", "[31, 1000, -0.5, 2.0, 3]"),
            ("'\\x41\\u00e9\\n\\q'", r#""Aé\n\\q""#),
        ] {
            assert_eq!(python(text).as_deref(), Some(want), "{text}");
        }
        for text in ["true", "nan", "inf", "{1, 2}", "f(x)", "1 + 2", "1j", "'a", "[1 2]", "1e999", "__import__('os')"]
        {
            assert_eq!(python(text), None, "{text}");
        }
    }

    #[test]
    fn missing_brackets_are_closed() {
        let close = |text: &str| Json::parse_unclosed(text).map(|value| value.text());
        assert_eq!(close(r#"{"a": [1, {"b": "]"}"#).as_deref(), Some(r#"{"a": [1, {"b": "]"}]}"#));
        assert_eq!((close(r#"{"a": "x"#), close(r#"{"a":"#)), (None, None));
    }
}
