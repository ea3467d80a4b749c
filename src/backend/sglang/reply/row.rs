//! One row: the numbers of a JSON list, from pieces of its text.

use half::bf16;

use super::error::ReplyError;
use super::number;
use super::skeleton::is_space;

/// The longest text of one number. The longest that is exact in f64 has about 1,080 characters; no serve writes more than 25.
const MAX_NUMBER_BYTES: usize = 1_200;
/// As much of a refused number as a message shows.
const SHOWN_BYTES: usize = 32;

/// Reads a row. Holds its values and, between two pieces, the text of a number that is not complete.
#[derive(Debug)]
pub(super) struct RowParser {
    values: Vec<bf16>,
    /// Values read, of which those beyond the row's width are only counted.
    column: usize,
    /// The beginning of a number that goes on in the next piece.
    begun: Vec<u8>,
    expect: Expect,
}

/// What comes next in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    FirstOrEnd,
    Value,
    CommaOrEnd,
}

/// What is wrong with a row's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RowError {
    /// `null`, NaN, infinite, or too large for bf16.
    NonFinite { column: usize, found: String },
    /// Not a list of numbers, from this byte on: below 0, it came with a piece before.
    Malformed { at: i64, what: String },
}

impl RowError {
    /// As an error of the reply: the pushed bytes stand at `here` of the body, and the row has this number.
    pub(super) fn at(self, here: u64, row: usize) -> ReplyError {
        match self {
            Self::NonFinite { column, found } => ReplyError::NonFinite { row, column, found },
            Self::Malformed { at, what } => ReplyError::Malformed { offset: here.saturating_add_signed(at), what },
        }
    }
}

impl RowParser {
    /// For rows of `hidden` values.
    pub(super) fn new(hidden: usize) -> Self {
        Self { values: vec![bf16::ZERO; hidden], column: 0, begun: Vec::new(), expect: Expect::FirstOrEnd }
    }

    /// Begins a row, after its `[`.
    pub(super) fn begin(&mut self) {
        self.column = 0;
        self.begun.clear();
        self.expect = Expect::FirstOrEnd;
    }

    /// The row that was read to its end, or how many values it has where that is not the width.
    pub(super) fn row(&self) -> Result<&[bf16], usize> {
        if self.column == self.values.len() { Ok(&self.values) } else { Err(self.column) }
    }

    /// Reads on. How many bytes up to and with the row's `]`; `None` if all of them belong to it.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Option<usize>, RowError> {
        let mut at = 0;
        loop {
            if self.expect != Expect::CommaOrEnd && self.begun.is_empty() {
                at += self.run(&bytes[at..]);
            }
            let Some(&byte) = bytes.get(at) else { return Ok(None) };
            match (self.expect, byte) {
                (_, space) if is_space(space) && self.begun.is_empty() => at += 1,
                (Expect::CommaOrEnd, b',') => {
                    self.expect = Expect::Value;
                    at += 1;
                }
                (Expect::CommaOrEnd | Expect::FirstOrEnd, b']') if self.begun.is_empty() => return Ok(Some(at + 1)),
                (Expect::CommaOrEnd, _) => return Err(self.unexpected(at, byte)),
                _ => at += self.number(at, &bytes[at..])?,
            }
        }
    }

    /// Reads numbers of the usual shape, each with the comma after it, as long as there are such and bytes enough to look
    /// at. How many bytes.
    fn run(&mut self, bytes: &[u8]) -> usize {
        let (mut at, mut column) = (0, self.column);
        while let Some(number) = bytes[at..].first_chunk().and_then(number::short) {
            if number.next != b',' {
                break;
            }
            if let Some(value) = self.values.get_mut(column) {
                *value = number.value;
            }
            column += 1;
            at += number.bytes + 1;
        }
        if at > 0 {
            self.column = column;
            self.expect = Expect::Value;
        }
        at
    }

    /// Reads one number of any shape, or as much of it as there is. How many bytes.
    fn number(&mut self, at: usize, bytes: &[u8]) -> Result<usize, RowError> {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        let end = bytes.iter().position(|byte| !is_part(byte));
        let text = &bytes[..end.unwrap_or(bytes.len())];
        if self.begun.len() + text.len() > MAX_NUMBER_BYTES {
            return Err(self.malformed(at, format!("a number of more than {MAX_NUMBER_BYTES} characters")));
        }
        if end.is_none() {
            self.begun.extend_from_slice(text);
            return Ok(text.len());
        }
        let value = if self.begun.is_empty() {
            self.value(at, text, bytes.first())
        } else {
            self.begun.extend_from_slice(text);
            self.value(at + text.len(), &self.begun, None)
        }?;
        if let Some(slot) = self.values.get_mut(self.column) {
            *slot = value;
        }
        self.begun.clear();
        self.column += 1;
        self.expect = Expect::CommaOrEnd;
        Ok(text.len())
    }

    /// The value that `text` writes; `first` stands where no text is.
    fn value(&self, at: usize, text: &[u8], first: Option<&u8>) -> Result<bf16, RowError> {
        let shown = || String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]).into_owned();
        match number::parse(text).map(number::to_bf16) {
            Some(value) if value.is_finite() => Ok(value),
            Some(_) => Err(RowError::NonFinite { column: self.column, found: shown() }),
            None if matches!(text, b"null" | b"NaN" | b"Infinity" | b"-Infinity") => {
                Err(RowError::NonFinite { column: self.column, found: shown() })
            }
            None => match first {
                Some(&byte) if text.is_empty() => Err(self.unexpected(at, byte)),
                _ => Err(self.malformed(at, format!("{:?} where a number should be", shown()))),
            },
        }
    }

    fn unexpected(&self, at: usize, byte: u8) -> RowError {
        self.malformed(at, format!("{:?} in a row of numbers", char::from(byte)))
    }

    fn malformed(&self, at: usize, what: String) -> RowError {
        RowError::Malformed { at: at as i64 - self.begun.len() as i64, what }
    }
}
