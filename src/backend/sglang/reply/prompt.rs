//! The rows of a prompt: what a recompute of a given text asks for.
//!
//! Row `j` is the state after reading the tokens up to and with number `j`. A serve that is not trimmed returns them as one matrix
//! `[rows][hidden]`, or as one for each part of the prompt that was computed at once; behind them comes a vector `[hidden]`, or a
//! matrix of one row, for each decode step. A vector is a prompt's row in first place alone, where a trimmed serve puts the last one.
//!
//! Rows are known by their place alone. So all must be there, the first ones too, which are not wanted: they are counted by their
//! brackets. What was given counts only once the list has ended without an error.

use half::bf16;

use super::brackets::{Brackets, Mark, end_of_row};
use super::error::ReplyError;
use super::row::RowParser;
use super::rows::RowsFound;

/// Which rows of a prompt are wanted, and what else may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptRows {
    /// Tokens of the prompt, each of which must have its row.
    pub tokens: usize,
    /// The first row that is given; those before it are passed over without reading their numbers.
    pub from: usize,
    /// Most new tokens of the call. All but the first have a row behind the prompt's, which is passed over: with 1, each row is the
    /// prompt's, and one too many is an error as soon as it begins. With more, a matrix of one row counts as the prompt's while
    /// that lacks rows.
    pub new_tokens: usize,
}

/// Reads the value of `hidden_states`.
#[derive(Debug)]
pub(super) struct PromptReader {
    /// Values of a row.
    hidden: usize,
    wanted: PromptRows,
    brackets: Brackets,
    /// The row that is being read.
    row: Option<Row>,
    parser: RowParser,
    /// There was an element.
    begun: bool,
    /// Rows of the prompt.
    rows: usize,
    /// Rows behind them.
    decode_rows: usize,
    /// There is no list but `null`.
    null: bool,
}

/// How a row is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    /// Of the prompt, and given.
    Given,
    /// Of the prompt, and not.
    Skipped,
    /// Of a decode step.
    Decode,
}

impl PromptReader {
    /// For rows of `hidden` values.
    pub(super) fn new(hidden: usize, wanted: PromptRows) -> Self {
        Self {
            hidden,
            wanted,
            brackets: Brackets::new(),
            row: None,
            parser: RowParser::new(hidden),
            begun: false,
            rows: 0,
            decode_rows: 0,
            null: false,
        }
    }

    /// What has been found so far, the prompt's last row as row 0 of the answer; `None` where `null` stands for the list.
    pub(super) fn found(&self) -> Option<RowsFound> {
        let rows = usize::from(self.rows > 0) + self.decode_rows;
        let found = RowsFound { rows, prompt_rows: self.rows.saturating_sub(1), first_row_missing: false };
        (!self.null).then_some(found)
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
            at += match self.row {
                Some(row) => self.read(row, here, &bytes[at..], sink)?,
                None => {
                    if let Some(mark) = self.brackets.step(here, byte)? {
                        self.mark(mark)?;
                    }
                    // The first byte of a row is the row's.
                    usize::from(self.row.is_none())
                }
            };
        }
        Ok(self.brackets.is_complete().then_some(at))
    }

    /// What stands between the numbers.
    fn mark(&mut self, mark: Mark) -> Result<(), ReplyError> {
        match mark {
            Mark::Vector if self.begun => self.row = Some(self.decode_row()?),
            Mark::MatrixRow { first: true } if self.rows == self.wanted.tokens => self.row = Some(self.decode_row()?),
            Mark::Vector | Mark::MatrixRow { .. } => {
                self.row = Some(self.prompt_row()?);
                self.parser.begin();
            }
            Mark::MatrixGoesOn { after_empty: true } | Mark::MatrixEnds { after_empty: true, .. } => {
                if self.prompt_row()? == Row::Given {
                    return Err(self.width(0));
                }
                self.rows += 1;
            }
            Mark::MatrixGoesOn { after_empty: false } | Mark::MatrixEnds { after_empty: false, .. } | Mark::Empty => {}
            Mark::ListEnds => self.all_rows()?,
            Mark::Null => self.null = true,
        }
        self.begun = true;
        Ok(())
    }

    /// The prompt's next row begins.
    fn prompt_row(&self) -> Result<Row, ReplyError> {
        if self.rows == self.wanted.tokens {
            return Err(ReplyError::MorePromptRows { expected: self.wanted.tokens });
        }
        Ok(if self.rows < self.wanted.from { Row::Skipped } else { Row::Given })
    }

    /// A decode step's row begins, so the prompt's have ended.
    fn decode_row(&self) -> Result<Row, ReplyError> {
        self.all_rows()?;
        if self.decode_rows + 1 >= self.wanted.new_tokens {
            return Err(ReplyError::MorePromptRows { expected: self.wanted.tokens });
        }
        Ok(Row::Decode)
    }

    /// Whether all rows of the prompt came.
    fn all_rows(&self) -> Result<(), ReplyError> {
        let (found, expected) = (self.rows, self.wanted.tokens);
        if found < expected { Err(ReplyError::FewerPromptRows { found, expected }) } else { Ok(()) }
    }

    /// Reads a row, up to the byte after its bracket.
    fn read(&mut self, row: Row, here: u64, bytes: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<usize, ReplyError> {
        let end = match row {
            Row::Given => self.parser.push(bytes).map_err(|error| error.at(here, self.rows))?,
            Row::Skipped | Row::Decode => end_of_row(here, bytes)?.map(|end| end + 1),
        };
        if end.is_some() {
            self.brackets.end_row();
            self.row = None;
            match row {
                Row::Given => {
                    sink(self.parser.row().map_err(|found| self.width(found))?);
                    self.rows += 1;
                }
                Row::Skipped => self.rows += 1,
                Row::Decode => self.decode_rows += 1,
            }
        }
        Ok(end.unwrap_or(bytes.len()))
    }

    fn width(&self, found: usize) -> ReplyError {
        ReplyError::Width { row: self.rows, found, expected: self.hidden }
    }
}
