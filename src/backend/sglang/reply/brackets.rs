//! The value of `hidden_states` by its brackets: where its elements, their rows and the list itself begin and end.
//!
//! An element is a vector `[hidden]` or a matrix `[rows][hidden]`. Numbers are not looked at here, nor is it known whose rows these
//! are: whoever reads them decides that by the marks, row by row.

use memchr::memchr2;

use super::error::ReplyError;
use super::skeleton::is_space;

/// Follows the brackets of the list.
#[derive(Debug)]
pub(super) struct Brackets {
    state: State,
    /// Rows of this matrix that have begun.
    matrix_rows: usize,
    /// The newest of these has no values.
    empty_row: bool,
    /// There was a row with values.
    any_row: bool,
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
    /// Before a row of a matrix.
    Row,
    /// After the bracket of a row of a matrix.
    RowOpened,
    /// In that row.
    MatrixRow,
    /// After that row.
    AfterRow,
    /// In a `null` of which this many letters were read.
    Null { read: usize, list: bool },
    /// After the list.
    End,
}

/// What a byte means to whoever reads rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A vector begins with this byte, which is its own. [`Brackets::end_row`] says where it ends.
    Vector,
    /// A row of a matrix begins with this byte, which is its own. [`Brackets::end_row`] says where it ends.
    MatrixRow {
        /// The matrix begins with it.
        first: bool,
    },
    /// Another row of the same matrix follows.
    MatrixGoesOn {
        /// The row before it has no values, and no mark of its own.
        after_empty: bool,
    },
    /// The matrix has ended.
    MatrixEnds {
        /// Rows that it has.
        rows: usize,
        /// The last of them has no values, and no mark of its own.
        after_empty: bool,
    },
    /// An element without values: `[]`, `[[]]` or `null`.
    Empty,
    /// The list has ended.
    ListEnds,
    /// There is no list but `null`.
    Null,
}

impl Brackets {
    pub(super) fn new() -> Self {
        Self { state: State::List, matrix_rows: 0, empty_row: false, any_row: false }
    }

    /// The list, or what stands for it, has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::End
    }

    /// The row that the last mark began has ended, with the byte before the next one.
    pub(super) fn end_row(&mut self) {
        self.state = if self.state == State::Vector { State::AfterElement } else { State::AfterRow };
    }

    /// What one byte outside of rows means, if it means anything. A row's first byte has to be read again, as the row's.
    pub(super) fn step(&mut self, here: u64, byte: u8) -> Result<Option<Mark>, ReplyError> {
        if let State::Null { read, list } = self.state {
            return self.null(here, byte, read, list);
        }
        if is_space(byte) {
            return Ok(None);
        }
        let mut mark = None;
        self.state = match (self.state, byte) {
            (State::List, b'[') => State::FirstElement,
            (State::List, b'n') => State::Null { read: 1, list: true },
            (State::List, _) => return Err(ReplyError::NotAList { offset: here, found: kind(byte) }),

            (State::FirstElement | State::AfterElement, b']') => {
                mark = Some(Mark::ListEnds);
                State::End
            }
            (State::FirstElement | State::Element, b'[') => State::Opened,
            (State::FirstElement | State::Element, b'n') => State::Null { read: 1, list: false },
            (State::FirstElement | State::Element, b'-' | b'0'..=b'9') if !self.any_row => {
                return Err(ReplyError::LastOnly);
            }
            (State::AfterElement, b',') => State::Element,

            (State::Opened, b']') => {
                mark = Some(Mark::Empty);
                State::AfterElement
            }
            (State::Opened, b'[') => {
                self.matrix_rows = 0;
                State::RowOpened
            }
            (State::Opened, _) => {
                self.any_row = true;
                mark = Some(Mark::Vector);
                State::Vector
            }

            (State::Row, b'[') => State::RowOpened,
            (State::RowOpened, b']') => {
                self.matrix_rows += 1;
                self.empty_row = true;
                State::AfterRow
            }
            (State::RowOpened, _) => {
                self.any_row = true;
                self.matrix_rows += 1;
                self.empty_row = false;
                mark = Some(Mark::MatrixRow { first: self.matrix_rows == 1 });
                State::MatrixRow
            }
            (State::AfterRow, b',') => {
                mark = Some(Mark::MatrixGoesOn { after_empty: self.empty_row });
                State::Row
            }
            (State::AfterRow, b']') => {
                mark = Some(match (self.matrix_rows, self.empty_row) {
                    (1, true) => Mark::Empty,
                    (rows, after_empty) => Mark::MatrixEnds { rows, after_empty },
                });
                State::AfterElement
            }

            _ => {
                let what = format!("{:?} in the list of hidden states", char::from(byte));
                return Err(ReplyError::Malformed { offset: here, what });
            }
        };
        Ok(mark)
    }

    /// One more letter of `null`: the whole list, or an element.
    fn null(&mut self, here: u64, byte: u8, read: usize, list: bool) -> Result<Option<Mark>, ReplyError> {
        const NULL: &[u8] = b"null";
        if NULL.get(read) != Some(&byte) {
            let what = format!("{:?} in a null", char::from(byte));
            return Err(ReplyError::Malformed { offset: here, what });
        }
        if read + 1 < NULL.len() {
            self.state = State::Null { read: read + 1, list };
            return Ok(None);
        }
        self.state = if list { State::End } else { State::AfterElement };
        Ok(Some(if list { Mark::Null } else { Mark::Empty }))
    }
}

/// Where the bracket is that ends a row of numbers; `None` if it is not among these bytes.
pub(super) fn end_of_row(here: u64, bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
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
