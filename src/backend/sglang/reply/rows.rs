//! The rows of an answer: which elements of `hidden_states` are its own.
//!
//! By depth, these are: a matrix `[rows][hidden]` for each part of the prompt that was computed at once, then a vector `[hidden]` a
//! decode step. The last row of the prompt's last matrix is row 0, as it chose the first token. Rows of matrices that do not count
//! are passed over: only their brackets are looked for.
//!
//! A matrix of one row is row 0 where it comes first, and a decode step's row after that. A prompt whose last part is a
//! single token looks the same and gives a row too many: compare the rows with the tokens of the answer.

use half::bf16;

use super::brackets::{Brackets, Mark, end_of_row};
use super::error::ReplyError;
use super::row::RowParser;

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
    /// Rows of the prompt that came beside row 0, which are dropped unless they are what is asked for: each costs the serve and the
    /// network as much as a row of the answer.
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
    brackets: Brackets,
    /// The row that is being read.
    row: Option<Row>,
    /// Holds the candidate's values while there is one.
    parser: RowParser,
    candidate: Candidate,
    /// Text of the newest row of a matrix, from its first value on.
    text: Vec<u8>,
    /// Bytes of that row so far.
    row_bytes: usize,
    /// Where in the body it ended.
    row_end: u64,
    /// Empty elements before any row.
    empty_elements: usize,
    found: RowsFound,
    /// There is no list but `null`.
    null: bool,
}

/// How a row is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    /// A vector that is given.
    Given,
    /// A vector that is not.
    Skipped,
    /// A row of a matrix, kept as text where it may have to be given.
    OfMatrix { keep: bool },
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
    /// Whether row 0 is missing, as far as is known.
    pub(super) fn first_row_missing(&self) -> bool {
        self.found.first_row_missing
    }

    /// For rows of `hidden` values, of which the first `skip` are not given.
    pub(super) fn new(hidden: usize, skip: usize) -> Self {
        Self {
            hidden,
            skip,
            brackets: Brackets::new(),
            row: None,
            parser: RowParser::new(hidden),
            candidate: Candidate::None,
            text: Vec::new(),
            row_bytes: 0,
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
        while let (Some(&byte), false) = (bytes.get(at), self.brackets.is_complete()) {
            let here = offset + at as u64;
            let rest = &bytes[at..];
            at += match self.row {
                Some(row) => self.read(row, here, rest, sink)?,
                None => {
                    if let Some(mark) = self.brackets.step(here, byte)? {
                        self.mark(mark, sink)?;
                    }
                    // The first byte of a row is the row's.
                    usize::from(self.row.is_none())
                }
            };
        }
        Ok(self.brackets.is_complete().then_some(at))
    }

    /// What stands between the numbers.
    fn mark(&mut self, mark: Mark, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        match mark {
            Mark::Vector => {
                self.begin_decode_row(sink)?;
                self.parser.begin();
                self.row = Some(if self.found.rows < self.skip { Row::Skipped } else { Row::Given });
            }
            Mark::MatrixRow { first } => {
                self.text.clear();
                self.row_bytes = 0;
                // As row 0 if it ends a block, or as the next row if it is a matrix of its own.
                let keep = self.skip == 0 || (first && self.rows_with_candidate() >= self.skip);
                self.row = Some(Row::OfMatrix { keep });
            }
            Mark::MatrixGoesOn { .. } => self.block_goes_on()?,
            Mark::MatrixEnds { rows, after_empty } => self.end_matrix(rows, after_empty, sink)?,
            Mark::Empty => self.empty()?,
            Mark::ListEnds => self.settle(sink)?,
            Mark::Null => self.null = true,
        }
        Ok(())
    }

    /// Reads a row, up to the byte after its bracket.
    fn read(&mut self, row: Row, here: u64, bytes: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<usize, ReplyError> {
        let end = match row {
            Row::Given => self.parser.push(bytes).map_err(|error| error.at(here, self.next_row()))?,
            Row::Skipped | Row::OfMatrix { .. } => end_of_row(here, bytes)?.map(|end| end + 1),
        };
        let read = end.unwrap_or(bytes.len());
        if row == (Row::OfMatrix { keep: true }) {
            self.keep_text(&bytes[..read], bytes.get(read))?;
        }
        if end.is_some() {
            self.brackets.end_row();
            self.row = None;
            match row {
                Row::Given => self.give(sink)?,
                Row::Skipped => self.found.rows += 1,
                Row::OfMatrix { .. } => self.row_end = here + read as u64,
            }
        }
        Ok(read)
    }

    /// Keeps more text of a row of a matrix; `next` is the byte after it, where that has come.
    fn keep_text(&mut self, text: &[u8], next: Option<&u8>) -> Result<(), ReplyError> {
        let limit = self.hidden.max(LEAST_WIDTH) * MAX_BYTES_PER_VALUE;
        self.row_bytes += text.len();
        if self.row_bytes > limit {
            return Err(ReplyError::RowTooLong { row: self.next_row(), limit });
        }
        // A comma after it, and it does not count.
        if next != Some(&b',') {
            self.text.extend_from_slice(text);
        }
        Ok(())
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
        Ok(())
    }

    /// The row that ended, or that has no values, is the last of its matrix.
    fn end_matrix(&mut self, rows: usize, empty: bool, sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        if rows > 1 || (self.rows_with_candidate() == 0 && self.empty_elements == 0) {
            self.candidate = if self.skip > 0 { Candidate::Skipped } else { Candidate::Held };
            return if self.skip > 0 { Ok(()) } else { self.read_text(empty) };
        }
        self.begin_decode_row(sink)?;
        if self.found.rows < self.skip {
            self.found.rows += 1;
            return Ok(());
        }
        self.read_text(empty)?;
        self.give(sink)
    }

    /// Reads the row whose text was kept, or one without values, and checks its width.
    fn read_text(&mut self, empty: bool) -> Result<(), ReplyError> {
        self.parser.begin();
        if !empty {
            let start = self.row_end.saturating_sub(self.text.len() as u64);
            self.parser.push(&self.text).map_err(|error| error.at(start, self.next_row()))?;
        }
        self.parser.row().map(|_| ()).map_err(|found| self.width(found))
    }

    /// An element without values.
    fn empty(&mut self) -> Result<(), ReplyError> {
        if self.rows_with_candidate() > 0 {
            return Err(ReplyError::Missing { row: self.next_row() + usize::from(self.candidate != Candidate::None) });
        }
        self.empty_elements += 1;
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
}
