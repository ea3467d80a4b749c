//! The checker's end: proofs and recomputed rows in, one check a batch out.

use half::bf16;
use serde::Serialize;

use super::batches::{Batches, first_batch_rows, rows_of};
use super::error::ProofError;
use super::heap::Candidate;
use super::params::ProofParams;
use super::proof::Proof;

/// How far a batch's proof is from the checker's own activations.
///
/// Compared at the checker's own top k: at each of its indices, reduced by the proof's
/// modulus, the polynomial's value against the activation's BF16 bits. Exponents
/// (`bits >> 7 & 0xFF`) must be equal; where they are, mantissas (`bits & 0x7F`) are
/// compared too. The sign is not. Source: toploc 0.1.6.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BatchCheck {
    /// Activations compared: the top k.
    pub compared: usize,
    /// Of those, how many differ in the exponent.
    pub exp_mismatches: usize,
    /// The mantissas where exponents agree; `None` if none does (toploc writes 2^64).
    pub mantissa: Option<MantissaError>,
}

/// Absolute differences of 7-bit mantissas, `0..=127`, over the points whose exponents
/// agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MantissaError {
    /// Their mean.
    pub mean: f64,
    /// Their median, the mean of the two middle ones when they are even in number:
    /// toploc's Python checker.
    pub median: f64,
    /// Their upper median, the larger of the two middle ones: toploc's C++ checker.
    pub upper_median: f64,
}

/// The checks of a whole answer, in order, one a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verification {
    /// One check a batch.
    pub batches: Vec<BatchCheck>,
}

/// Checks an answer's proofs while its rows are being recomputed.
///
/// Holds the proofs and the running top k of the open batch, never the rows.
#[derive(Clone, Debug)]
pub struct Verifier {
    proofs: Vec<Proof>,
    batches: Batches,
    checks: Vec<BatchCheck>,
}

impl Verifier {
    /// A verifier for one answer, the prompt not proven; `hidden` is the columns of a row.
    ///
    /// # Errors
    ///
    /// [`ProofError::ProofTopK`] if a proof's coefficients are not `params.topk` in
    /// number, else as [`super::ProofBuilder::new`].
    pub fn new(proofs: Vec<Proof>, params: ProofParams, hidden: usize) -> Result<Self, ProofError> {
        Self::with_first_batch(proofs, params, hidden, params.batch)
    }

    /// A verifier whose first batch has `first_rows` rows, such as a whole prompt.
    ///
    /// # Errors
    ///
    /// As [`Verifier::new`].
    pub fn with_first_batch(
        proofs: Vec<Proof>,
        params: ProofParams,
        hidden: usize,
        first_rows: usize,
    ) -> Result<Self, ProofError> {
        let batches = Batches::new(params, hidden, first_rows)?;
        let wrong = proofs.iter().position(|proof| proof.topk() != params.topk);
        if let Some(batch) = wrong {
            return Err(ProofError::ProofTopK { batch, got: proofs[batch].topk(), topk: params.topk });
        }
        Ok(Self { checks: Vec::with_capacity(proofs.len()), proofs, batches })
    }

    /// Takes the next recomputed row, `[hidden]`, and returns a check if it fills a batch.
    ///
    /// # Errors
    ///
    /// [`ProofError::TooFewProofs`] if the row opens a batch that has no proof,
    /// [`ProofError::RowWidth`], [`ProofError::NonFinite`] or
    /// [`ProofError::TopKTooLarge`]. After an error every later call fails.
    pub fn push(&mut self, row: &[bf16]) -> Result<Option<BatchCheck>, ProofError> {
        let next = self.batches.next();
        let Some(proof) = self.proofs.get(next.batch) else {
            self.batches.fail();
            return Err(ProofError::TooFewProofs { proofs: self.proofs.len(), batch: next.batch, row: next.row });
        };
        let check = self.batches.push(row, |chosen| Ok(compare(proof, &chosen.top)))?;
        self.checks.extend(check);
        Ok(check)
    }

    /// Ends the answer: checks its short last batch, if any, and returns every check.
    ///
    /// # Errors
    ///
    /// [`ProofError::TooManyProofs`] if rows are missing for some of the proofs,
    /// [`ProofError::TopKTooLarge`], or [`ProofError::Poisoned`].
    pub fn finish(mut self) -> Result<Verification, ProofError> {
        let proof = self.proofs.get(self.batches.next().batch);
        let last = self.batches.finish(|chosen| Ok(proof.map(|proof| compare(proof, &chosen.top))))?;
        self.checks.extend(last.flatten());
        if self.checks.len() < self.proofs.len() {
            return Err(ProofError::TooManyProofs {
                proofs: self.proofs.len(),
                batches: self.checks.len(),
                rows: self.batches.next().row,
            });
        }
        Ok(Verification { batches: self.checks })
    }
}

/// Checks one proof against its whole batch: `rows` is `[rows, hidden]`, flattened.
///
/// The proof's own coefficient count is taken as the top k.
///
/// # Errors
///
/// [`ProofError::RaggedRows`], [`ProofError::EmptyShape`] for no rows,
/// [`ProofError::NonFinite`] or [`ProofError::TopKTooLarge`].
pub fn check_batch(proof: &Proof, rows: &[bf16], hidden: usize) -> Result<BatchCheck, ProofError> {
    let rows = rows_of(rows, hidden)?;
    let params = ProofParams { topk: proof.topk(), batch: rows.len() };
    let mut batches = Batches::new(params, hidden, rows.len())?;
    let shape = ProofError::EmptyShape { rows: rows.len(), hidden };
    let mut result = None;
    for row in rows {
        result = batches.push(row, |chosen| Ok(compare(proof, &chosen.top)))?;
    }
    result.ok_or(shape)
}

/// Checks a whole answer's proofs: `rows` is `[rows, hidden]`, flattened in order, and
/// `prefill_rows` as for [`super::build_proofs`].
///
/// # Errors
///
/// [`ProofError::RaggedRows`], [`ProofError::PrefillTooShort`], else as [`Verifier`].
pub fn verify_proofs(
    proofs: Vec<Proof>,
    rows: &[bf16],
    hidden: usize,
    params: ProofParams,
    prefill_rows: Option<usize>,
) -> Result<Verification, ProofError> {
    let rows = rows_of(rows, hidden)?;
    let first_rows = first_batch_rows(params, rows.len(), prefill_rows)?;
    let mut verifier = Verifier::with_first_batch(proofs, params, hidden, first_rows)?;
    for row in rows {
        verifier.push(row)?;
    }
    verifier.finish()
}

/// The comparison itself, at the checker's top k.
fn compare(proof: &Proof, top: &[Candidate]) -> BatchCheck {
    let indices: Vec<u32> = top.iter().map(|c| c.index()).collect();
    let claimed = proof.values_at(&indices);
    let mut errors: Vec<u16> = top
        .iter()
        .zip(claimed)
        .filter(|(own, claimed)| exponent(own.bits()) == exponent(*claimed))
        .map(|(own, claimed)| mantissa(own.bits()).abs_diff(mantissa(claimed)))
        .collect();
    errors.sort_unstable();
    BatchCheck { compared: top.len(), exp_mismatches: top.len() - errors.len(), mantissa: mantissa_error(&errors) }
}

/// Mean and medians of sorted errors.
fn mantissa_error(sorted: &[u16]) -> Option<MantissaError> {
    let upper = f64::from(*sorted.get(sorted.len() / 2)?);
    let lower = f64::from(*sorted.get((sorted.len() - 1) / 2)?);
    let sum: f64 = sorted.iter().map(|&error| f64::from(error)).sum();
    Some(MantissaError { mean: sum / sorted.len() as f64, median: (lower + upper) / 2.0, upper_median: upper })
}

fn exponent(bits: u16) -> u16 {
    bits >> 7 & 0xFF
}

fn mantissa(bits: u16) -> u16 {
    bits & 0x7F
}
