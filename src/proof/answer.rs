//! An answer's proofs, made while its rows come one by one among other work.

use half::bf16;

use super::builder::ProofBuilder;
use super::error::ProofError;
use super::params::ProofParams;
use super::proof::Proof;

/// Rows that are folded together. A row that comes alone, between steps of a model, finds the folding's code and heap gone from the
/// processor's caches and takes several times as long. A divisor of a batch's 32 rows.
const FOLDED_AT_ONCE: usize = 8;

/// [`ProofBuilder`] for rows that come one by one: keeps a few and folds them together.
///
/// Holds what a builder holds, up to eight rows, and the proofs.
#[derive(Debug)]
pub struct AnswerProofs {
    builder: ProofBuilder,
    hidden: usize,
    /// `[rows, hidden]`
    waiting: Vec<bf16>,
    proofs: Vec<Proof>,
}

impl AnswerProofs {
    /// For one answer of a model with `hidden` columns a row, the prompt not proven.
    ///
    /// # Errors
    ///
    /// As [`ProofBuilder::new`].
    pub fn new(params: ProofParams, hidden: usize) -> Result<Self, ProofError> {
        Ok(Self { builder: ProofBuilder::new(params, hidden)?, hidden, waiting: Vec::new(), proofs: Vec::new() })
    }

    /// Takes the next token's final hidden state, `[hidden]`.
    ///
    /// # Errors
    ///
    /// As [`ProofBuilder::push`], of this row or of one of the few before it; the error says of which.
    pub fn push(&mut self, row: &[bf16]) -> Result<(), ProofError> {
        if row.len() != self.hidden {
            // Those before it come first, and the builder knows what to say of this one.
            self.fold()?;
            self.proofs.extend(self.builder.push(row)?);
            return Ok(());
        }
        self.waiting.extend_from_slice(row);
        if self.waiting.len() >= FOLDED_AT_ONCE * self.hidden { self.fold() } else { Ok(()) }
    }

    /// Whether the next row is not only kept: for those who measure what folding takes.
    #[must_use]
    pub fn folds_next(&self) -> bool {
        self.waiting.len() + self.hidden >= FOLDED_AT_ONCE * self.hidden
    }

    /// Ends the answer and returns all of its proofs.
    ///
    /// # Errors
    ///
    /// As [`ProofBuilder::push`] and [`ProofBuilder::finish`].
    pub fn finish(mut self) -> Result<Vec<Proof>, ProofError> {
        self.fold()?;
        self.proofs.extend(self.builder.finish()?);
        Ok(self.proofs)
    }

    fn fold(&mut self) -> Result<(), ProofError> {
        for row in self.waiting.chunks_exact(self.hidden) {
            self.proofs.extend(self.builder.push(row)?);
        }
        self.waiting.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::build_proofs;
    use super::*;

    const PARAMS: ProofParams = ProofParams { topk: 4, batch: 5 };
    const HIDDEN: usize = 6;

    fn rows(count: usize) -> Vec<bf16> {
        (0..count * HIDDEN).map(|at| bf16::from_f32((at * 37 % 101) as f32 - 50.0)).collect()
    }

    fn proofs(rows: &[bf16]) -> Result<Vec<Proof>, ProofError> {
        let mut proofs = AnswerProofs::new(PARAMS, HIDDEN)?;
        rows.chunks(HIDDEN).try_for_each(|row| proofs.push(row))?;
        proofs.finish()
    }

    #[test]
    fn rows_that_wait_make_the_same_proofs() {
        for count in 0..40 {
            let rows = rows(count);
            assert_eq!(proofs(&rows), build_proofs(&rows, HIDDEN, PARAMS, None), "{count} rows");
        }
    }

    #[test]
    fn a_bad_row_is_named_wherever_it_waited() {
        for bad in 0..20 {
            let mut rows = rows(20);
            rows[bad * HIDDEN + 2] = bf16::NAN;
            assert_eq!(proofs(&rows), build_proofs(&rows, HIDDEN, PARAMS, None), "row {bad}");
        }
        for good in 0..20 {
            let mut rows = rows(good);
            rows.extend([bf16::ONE; 3]);
            assert!(matches!(proofs(&rows), Err(ProofError::RowWidth { .. })), "after {good} rows");
        }
    }
}
