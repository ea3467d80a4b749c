//! The maker's end: rows in, proofs out.

use half::bf16;

use super::batches::{Batches, Chosen, first_batch_rows, rows_of};
use super::error::ProofError;
use super::params::ProofParams;
use super::proof::Proof;

/// Builds an answer's proofs while the answer is being generated.
///
/// Holds the running top k of the open batch (and at its start up to `64 * topk` elements,
/// four rows at hidden 2048, until torch's rule for ties is settled), never the answer.
///
/// ```
/// use engy_miner::proof::{ProofBuilder, ProofParams};
/// use half::bf16;
///
/// let mut builder = ProofBuilder::new(ProofParams { topk: 2, batch: 32 }, 4)?;
/// let mut proofs = Vec::new();
/// for row in [[1.0, -8.0, 0.5, 2.0], [0.25, 3.0, 1.0, 0.0]] {
///     proofs.extend(builder.push(&row.map(bf16::from_f32))?);
/// }
/// proofs.extend(builder.finish()?);
/// assert_eq!(proofs.len(), 1);
/// assert_eq!(proofs[0].value_at(1), bf16::from_f32(-8.0).to_bits());
/// # Ok::<(), engy_miner::proof::ProofError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProofBuilder {
    batches: Batches,
}

impl ProofBuilder {
    /// A builder for one answer of a model with `hidden` columns a row, the prompt not
    /// proven (toploc's `skip_prefill`): every batch has `params.batch` rows.
    ///
    /// # Errors
    ///
    /// [`ProofError::TopK`], [`ProofError::EmptyShape`] or [`ProofError::BatchTooLarge`]
    /// if no batch of that shape can be proven.
    pub fn new(params: ProofParams, hidden: usize) -> Result<Self, ProofError> {
        Self::with_first_batch(params, hidden, params.batch)
    }

    /// A builder whose first batch has `first_rows` rows, such as a whole prompt.
    ///
    /// # Errors
    ///
    /// As [`ProofBuilder::new`].
    pub fn with_first_batch(params: ProofParams, hidden: usize, first_rows: usize) -> Result<Self, ProofError> {
        Ok(Self { batches: Batches::new(params, hidden, first_rows)? })
    }

    /// Takes the next token's final hidden state, `[hidden]`, and returns a proof if the
    /// row fills a batch.
    ///
    /// # Errors
    ///
    /// [`ProofError::RowWidth`], [`ProofError::NonFinite`], [`ProofError::TopKTooLarge`]
    /// if the batch just filled is smaller than `topk`, or [`ProofError::NoModulus`].
    /// After an error every later call returns [`ProofError::Poisoned`].
    pub fn push(&mut self, row: &[bf16]) -> Result<Option<Proof>, ProofError> {
        self.batches.push(row, prove)
    }

    /// Ends the answer and returns the proof of its short last batch, if it has one.
    ///
    /// # Errors
    ///
    /// [`ProofError::TopKTooLarge`] if that batch has fewer elements than `topk`,
    /// [`ProofError::NoModulus`], or [`ProofError::Poisoned`].
    pub fn finish(mut self) -> Result<Option<Proof>, ProofError> {
        self.batches.finish(prove)
    }
}

/// The proofs of a whole answer: `rows` is `[rows, hidden]`, flattened in order.
///
/// `prefill_rows` is `None` when the prompt is not proven (toploc's `skip_prefill`);
/// `Some(n)` makes the first n rows, the prompt's block, a batch of their own.
/// No rows and no block make no proofs.
///
/// # Errors
///
/// [`ProofError::RaggedRows`], [`ProofError::PrefillTooShort`], else as
/// [`ProofBuilder::push`]. One bad batch fails the answer.
pub fn build_proofs(
    rows: &[bf16],
    hidden: usize,
    params: ProofParams,
    prefill_rows: Option<usize>,
) -> Result<Vec<Proof>, ProofError> {
    let rows = rows_of(rows, hidden)?;
    let first_rows = first_batch_rows(params, rows.len(), prefill_rows)?;
    let mut builder = ProofBuilder::with_first_batch(params, hidden, first_rows)?;
    let mut proofs = Vec::new();
    for row in rows {
        proofs.extend(builder.push(row)?);
    }
    proofs.extend(builder.finish()?);
    Ok(proofs)
}

fn prove(chosen: Chosen) -> Result<Proof, ProofError> {
    Proof::through(&chosen.top).ok_or(ProofError::NoModulus { batch: chosen.batch, topk: chosen.top.len() })
}
