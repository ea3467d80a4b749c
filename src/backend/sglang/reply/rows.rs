//! The value of `hidden_states`: which of its elements are rows of the answer.
//!
//! It is a list with, by depth, these elements: a matrix `[rows][hidden]` for each part of the prompt that was computed at
//! once, then a vector `[hidden]` a decode step. The last row of the prompt's last matrix is row 0, as it chose the first
//! token. Rows of matrices that do not count are passed over: only their brackets are looked for.
//!
//! A matrix of one row is row 0 where it comes first, and a decode step's row after that. A prompt whose last part is a
//! single token looks the same and gives a row too many: compare the rows with the tokens of the answer.

use half::bf16;
use memchr::memchr2;

use super::error::ReplyError;
use super::row::{RowError, RowParser};
use super::skeleton::is_space;

/// A row of a matrix is kept as text until it is known whether it counts. No serve writes more than 25 bytes a value;
/// the rest is for spaces between them.
const MAX_BYTES_PER_VALUE: usize = 64;
/// A row of fewer values may be as long as one of this many.
const LEAST_WIDTH: usize = 64;

/// What was found in `hidden_states`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowsFound {
    /// Rows of the answer, those included that the reader was told to skip.
    pub rows: usize,
    /// Rows of the prompt that came beside row 0 and were dropped: each costs the serve and the network as much as a row
    /// of the answer.
    pub prompt_rows: usize,
    /// The element that holds row 0 is empty, as after a hit of the serve's prefix cache: the first row given is row 1.
    pub first_row_missing: bool,
}

/// Reads the value of `hidden_states`.
#[derive(Debug)]
pub(super) struct RowsReader {
    /// Values of a row.
    hidden: usize,
    /// How many rows are not given.
    skip: usize,
    state: State,
    /// Holds the candidate's values while there is one.
    parser: RowParser,
    candidate: Candidate,
    /// Text of the newest row of a matrix, from its first value on.
    text: Vec<u8>,
    /// Bytes of that row so far.
    row_bytes: usize,
    /// Whether it may have to be given.
    keep: bool,
    /// Rows of this matrix that have ended.
    matrix_rows: usize,
    /// The newest of these has no values.
    empty_row: bool,
    /// Where in the body it ended.
    row_end: u64,
    /// Empty elements before any row.
    empty_elements: usize,
    found: RowsFound,
    /// There is no list but `null`.
    null: bool,
}

/// Where in the list the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before it.
    List,
    /// Before an element, or the end.
    FirstElement,
    /// Before an element.
    Element,
    /// After an element.
    AfterElement,
    /// After an element's bracket.
    Opened,
    /// In a vector.
    Vector,
    /// In a vector that is not given.
    SkippedVector,
    /// Before a row of a matrix.
    Row,
    /// After the bracket of a row of a matrix.
    RowOpened,
    /// In that row.
    RowText,
    /// After that row.
    AfterRow,
    /// In a `null` of which this many letters were read.
    Null { read: usize, list: bool },
    /// After the list.
    End,
}

/// The row that becomes row 0 unless another block of prompt rows follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidate {
    None,
    /// It will not be given, so it was not read.
    Skipped,
    /// The parser holds it.
    Held,
}

impl RowsReader {
    /// For rows of `hidden` values, of which the first `skip` are not given.
    pub(super) fn new(hidden: usize, skip: usize) -> Self {
        Self {
            hidden,
            skip,
            state: State::List,
            parser: RowParser::new(hidden),
            candidate: Candidate::None,
            text: Vec::new(),
            row_bytes: 0,
            keep: false,
            matrix_rows: 0,
            empty_row: false,
            row_end: 0,
            empty_elements: 0,
            found: RowsFound::default(),
            null: false,
        }
    }

    /// What has been found so far; `None` where `null` stands for the list.
    pub(super) fn found(&self) -> Option<RowsFound> {
        (!self.null).then_some(self.found)
    }

    /// Reads on from `bytes`, which stand at `offset` of the body. How many of them up to the list's end; `None` if all
    /// belong to it.
    pub(super) fn push(
        &mut self,
        offset: u64,
        bytes: &[u8],
        sink: &mut dyn FnMut(&[bf16]),
    ) -> Result<Option<usize>, ReplyError> {
        let mut at = 0;
        while let (Some(&byte), true) = (bytes.get(at), self.state != State::End) {
            let here = offset + at as u64;
            let rest = &bytes[at..];
            at += match self.state {
                State::Vector => match self.parser.push(rest).map_err(|error| self.locate(here, error))? {
                    None => rest.len(),
                    Some(read) => {
                        self.give(sink)?;
                        self.state = State::AfterElement;
                        read
                    }
                },
                State::SkippedVector => self.skip_vector(here, rest)?,
                State::RowText => self.row_text(here, rest)?,
                _ => usize::from(self.step(here, byte, sink)?),
            };
        }
        Ok((self.state == State::End).then_some(at))
    }

    /// What one byte between the numbers means. False if it belongs to what comes next.
    fn step(&mut self, here: u64, byte: u8, sink: &mut dyn FnMut(&[bf16])) -> Result<bool, ReplyError> {
        if let State::Null { read, list } = self.state {
            return self.null(here, byte, read, list).map(|()| true);
        }
        if is_space(byte) {
            return Ok(true);
        }
        match (self.state, byte) {
            (State::List, b'[') => self.state = State::FirstElement,
            (State::List, b'n') => self.state = State::Null { read: 1, list: true },
            (State::List, _) => return Err(ReplyError::NotAList { offset: here, found: kind(byte) }),

            (State::FirstElement | State::AfterElement, b']') => {
                self.settle(sink)?;
                self.state = State::End;
            }
            (State::FirstElement | State::Element, b'[') => self.state = State::Opened,
            (State::FirstElement | State::Element, b'n') => self.state = State::Null { read: 1, list: false },
            (State::FirstElement | State::Element, b'-' | b'0'..=b'9') if self.rows_with_candidate() == 0 => {
                return Err(ReplyError::LastOnly);
            }
            (State::AfterElement, b',') => self.state = State::Element,

            (State::Opened, b']') => self.empty()?,
            (State::Opened, b'[') => {
                self.matrix_rows = 0;
                self.state = State::RowOpened;
            }
            (State::Opened, _) => {
                self.begin_decode_row(sink)?;
                self.parser.begin();
                self.state = if self.found.rows < self.skip { State::SkippedVector } else { State::Vector };
                return Ok(false);
            }

            (State::Row, b'[') => self.state = State::RowOpened,
            (State::RowOpened, b']') => self.end_row(here + 1, true),
            (State::RowOpened, _) => {
                self.text.clear();
                self.row_bytes = 0;
                // As row 0 if it ends a block, or as the next row if it is a matrix of its own.
                self.keep = self.skip == 0 || (self.matrix_rows == 0 && self.rows_with_candidate() >= self.skip);
                self.state = State::RowText;
                return Ok(false);
            }
            (State::AfterRow, b',') => self.block_goes_on()?,
            (State::AfterRow, b']') => self.end_matrix(sink)?,

            _ => {
                let what = format!("{:?} in the list of hidden states", char::from(byte));
                return Err(ReplyError::Malformed { offset: here, what });
            }
        }
        Ok(true)
    }

    /// One more letter of `null`: the whole list, or an element.
    fn null(&mut self, here: u64, byte: u8, read: usize, list: bool) -> Result<(), ReplyError> {
        const NULL: &[u8] = b"null";
        if NULL.get(read) != Some(&byte) {
            let what = format!("{:?} in a null", char::from(byte));
            return Err(ReplyError::Malformed { offset: here, what });
        }
        if read + 1 < NULL.len() {
            self.state = State::Null { read: read + 1, list };
        } else if list {
            self.null = true;
            self.state = State::End;
        } else {
            self.empty()?;
        }
        Ok(())
    }

    /// Passes over a vector, up to the byte after its bracket.
    fn skip_vector(&mut self, here: u64, bytes: &[u8]) -> Result<usize, ReplyError> {
        let Some(end) = end_of_row(here, bytes)? else { return Ok(bytes.len()) };
        self.found.rows += 1;
        self.state = State::AfterElement;
        Ok(end + 1)
    }

    /// Passes over a row of a matrix, up to the byte after its bracket, and keeps its text where it may count.
    fn row_text(&mut self, here: u64, bytes: &[u8]) -> Result<usize, ReplyError> {
        let end = end_of_row(here, bytes)?;
        let text = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
        let limit = self.hidden.max(LEAST_WIDTH) * MAX_BYTES_PER_VALUE;
        self.row_bytes += text.len();
        if self.keep && self.row_bytes > limit {
            return Err(ReplyError::RowTooLong { row: self.next_row(), limit });
        }
        // A comma after it, and it does not count.
        if self.keep && bytes.get(text.len()) != Some(&b',') {
            self.text.extend_from_slice(text);
        }
        if end.is_some() {
            self.end_row(here + text.len() as u64, false);
        }
        Ok(text.len())
    }

    fn end_row(&mut self, end: u64, empty: bool) {
        self.row_end = end;
        self.empty_row = empty;
        self.matrix_rows += 1;
        self.state = State::AfterRow;
    }

    /// The row that ended is followed by another of its matrix, so this is a block of prompt rows.
    fn block_goes_on(&mut self) -> Result<(), ReplyError> {
        if self.found.rows > 0 {
            return Err(ReplyError::LateBlock { row: self.next_row() - 1 });
        }
        if self.candidate != Candidate::None {
            self.found.prompt_rows += 1;
            self.candidate = Candidate::None;
        }
        self.found.prompt_rows += 1;
        self.empty_elements = 0;
        self.state = State::Row;
        Ok(())
    }

    /// The row that ended is the last of its matrix.
    fn end_matrix(&mut self, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        if self.matrix_rows == 1 && self.empty_row {
            return self.empty();
        }
        self.state = State::AfterElement;
        if self.matrix_rows > 1 || (self.rows_with_candidate() == 0 && self.empty_elements == 0) {
            self.candidate = if self.skip > 0 { Candidate::Skipped } else { Candidate::Held };
            return if self.skip > 0 { Ok(()) } else { self.read_text() };
        }
        self.begin_decode_row(sink)?;
        if self.found.rows < self.skip {
            self.found.rows += 1;
            return Ok(());
        }
        self.read_text()?;
        self.give(sink)
    }

    /// Reads the row whose text was kept and checks its width.
    fn read_text(&mut self) -> Result<(), ReplyError> {
        self.parser.begin();
        if !self.empty_row {
            let read = self.parser.push(&self.text);
            read.map_err(|error| self.locate(self.row_end.saturating_sub(self.text.len() as u64), error))?;
        }
        self.parser.row().map(|_| ()).map_err(|found| self.width(found))
    }

    /// An element without values.
    fn empty(&mut self) -> Result<(), ReplyError> {
        if self.rows_with_candidate() > 0 {
            return Err(ReplyError::Missing { row: self.next_row() + usize::from(self.candidate != Candidate::None) });
        }
        self.empty_elements += 1;
        self.state = State::AfterElement;
        Ok(())
    }

    /// A row that is no prompt's begins: what came before is row 0, or row 0 is missing.
    fn begin_decode_row(&mut self, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        self.settle(sink)?;
        if self.found.rows == 0 && self.empty_elements > 0 {
            self.found.first_row_missing = true;
            if self.empty_elements > 1 {
                return Err(ReplyError::Missing { row: 1 });
            }
        }
        Ok(())
    }

    /// Gives the candidate, if there is one.
    fn settle(&mut self, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        match std::mem::replace(&mut self.candidate, Candidate::None) {
            Candidate::None => Ok(()),
            Candidate::Skipped => {
                self.found.rows += 1;
                Ok(())
            }
            Candidate::Held => self.give(sink),
        }
    }

    /// Gives the row that the parser holds.
    fn give(&mut self, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        sink(self.parser.row().map_err(|found| self.width(found))?);
        self.found.rows += 1;
        Ok(())
    }

    fn rows_with_candidate(&self) -> usize {
        self.found.rows + usize::from(self.candidate != Candidate::None)
    }

    /// The number of the next row in the answer.
    fn next_row(&self) -> usize {
        self.found.rows + usize::from(self.found.first_row_missing)
    }

    fn width(&self, found: usize) -> ReplyError {
        ReplyError::Width { row: self.next_row(), found, expected: self.hidden }
    }

    fn locate(&self, here: u64, error: RowError) -> ReplyError {
        match error {
            RowError::NonFinite { column, found } => ReplyError::NonFinite { row: self.next_row(), column, found },
            RowError::Malformed { at, what } => ReplyError::Malformed { offset: here.saturating_add_signed(at), what },
        }
    }
}

/// Where the bracket is that ends a row of numbers; `None` if it is not among these bytes.
fn end_of_row(here: u64, bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    match memchr2(b']', b'[', bytes) {
        Some(at) if bytes[at] == b'[' => {
            Err(ReplyError::Malformed { offset: here + at as u64, what: "a list in a row of numbers".to_owned() })
        }
        end => Ok(end),
    }
}

/// What a JSON value is that begins with this byte.
fn kind(byte: u8) -> &'static str {
    match byte {
        b'"' => "a string",
        b'{' => "an object",
        b't' | b'f' => "a boolean",
        b'-' | b'0'..=b'9' => "a number",
        _ => "no JSON",
    }
}
