//! Cuts an answer's rows into batches and chooses each batch's top k.
//!
//! The one machinery under both ends, maker and checker.

use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::error::ProofError;
use super::heap::Candidate;
use super::params::ProofParams;
use super::select::TopK;

/// A finished batch: its number and its chosen activations.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) batch: usize,
    pub(super) top: Vec<Candidate>,
}

/// Where in the answer the next row falls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// Row within the whole answer.
    pub(super) row: usize,
    /// Batch it belongs to.
    pub(super) batch: usize,
    /// Row within that batch.
    pub(super) row_in_batch: usize,
}

/// The batches of one answer, fed row by row.
#[derive(Clone, Debug)]
pub(super) struct Batches {
    params: ProofParams,
    hidden: usize,
    /// Rows in the batch now open; the first may differ from the others.
    rows: usize,
    next: Position,
    top: TopK,
    failed: bool,
}

impl Batches {
    /// Batches of `params.batch` rows, save the first, of `first_rows`.
    pub(super) fn new(params: ProofParams, hidden: usize, first_rows: usize) -> Result<Self, ProofError> {
        params.check(hidden, first_rows)?;
        Ok(Self {
            params,
            hidden,
            rows: first_rows,
            next: Position { row: 0, batch: 0, row_in_batch: 0 },
            top: TopK::new(params.topk),
            failed: false,
        })
    }

    /// Where the next row falls; once finished, how many rows and batches there were.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    /// Makes every later call fail, as after an error of its own.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Takes a row; if it fills its batch, hands the batch to `finished`.
    ///
    /// After any error, `finished`'s included, every later call fails.
    pub(super) fn push<T>(
        &mut self,
        row: &[bf16],
        finished: impl FnOnce(Chosen) -> Result<T, ProofError>,
    ) -> Result<Option<T>, ProofError> {
        if self.failed {
            return Err(ProofError::Poisoned);
        }
        self.failed = true;
        self.add(row)?;
        let result = if self.next.row_in_batch == self.rows { Some(finished(self.close()?)?) } else { None };
        self.failed = false;
        Ok(result)
    }

    /// Ends the answer; a batch still open, if any, goes to `finished`.
    pub(super) fn finish<T>(
        &mut self,
        finished: impl FnOnce(Chosen) -> Result<T, ProofError>,
    ) -> Result<Option<T>, ProofError> {
        if self.failed {
            return Err(ProofError::Poisoned);
        }
        if self.next.row_in_batch == 0 {
            return Ok(None);
        }
        Ok(Some(finished(self.close()?)?))
    }

    fn add(&mut self, row: &[bf16]) -> Result<(), ProofError> {
        let at = self.next;
        if row.len() != self.hidden {
            return Err(ProofError::RowWidth { row: at.row, got: row.len(), hidden: self.hidden });
        }
        self.top.push(row.reinterpret_cast()).map_err(|found| ProofError::NonFinite {
            batch: at.batch,
            row: at.row,
            row_in_batch: at.row_in_batch,
            column: found.column,
            bits: found.bits,
        })?;
        self.next.row += 1;
        self.next.row_in_batch += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<Chosen, ProofError> {
        let Position { batch, row_in_batch, .. } = self.next;
        let elements = self.top.seen();
        self.rows = self.params.batch;
        self.next.batch += 1;
        self.next.row_in_batch = 0;
        match self.top.take() {
            Some(top) => Ok(Chosen { batch, top }),
            None => Err(ProofError::TopKTooLarge { batch, rows: row_in_batch, elements, topk: self.params.topk }),
        }
    }
}

/// The rows of a flat `[rows, hidden]` slice.
pub(super) fn rows_of(flat: &[bf16], hidden: usize) -> Result<std::slice::ChunksExact<'_, bf16>, ProofError> {
    if hidden == 0 {
        return Err(ProofError::EmptyShape { rows: 1, hidden });
    }
    let rows = flat.chunks_exact(hidden);
    if rows.remainder().is_empty() { Ok(rows) } else { Err(ProofError::RaggedRows { elements: flat.len(), hidden }) }
}

/// Rows the first batch covers: the prompt's block if it is proven, else a usual batch.
pub(super) fn first_batch_rows(
    params: ProofParams,
    rows: usize,
    prefill_rows: Option<usize>,
) -> Result<usize, ProofError> {
    match prefill_rows {
        Some(prefill_rows) if prefill_rows > rows => Err(ProofError::PrefillTooShort { prefill_rows, rows }),
        Some(prefill_rows) => Ok(prefill_rows),
        None => Ok(params.batch),
    }
}
