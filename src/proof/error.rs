//! What can go wrong with rows, with proofs, and between the two.

use std::fmt;

use thiserror::Error;

use super::params::MAX_BATCH_ELEMENTS;
use super::proof::PRIME;

/// Why no proof was built, read or checked.
///
/// Rows, columns and batches in fields count from 0, rows over the whole answer unless
/// the name says otherwise. toploc 0.1.6 answers many of these with null proofs; we
/// never do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ProofError {
    /// `topk` is 0, or larger than the field has points.
    #[error("top-k {topk} cannot be proven: choose 1 to {PRIME} activations a batch")]
    TopK {
        /// The refused setting.
        topk: usize,
    },

    /// A batch of no rows, or rows of no columns.
    #[error("a batch of {rows} rows by {hidden} columns has nothing to prove: both must be at least 1")]
    EmptyShape {
        /// Rows a batch would hold.
        rows: usize,
        /// Columns a row would hold.
        hidden: usize,
    },

    /// A batch whose flat indices do not fit the format's 32-bit signed integers.
    #[error(
        "a batch of {rows} rows by {hidden} columns is more than the {MAX_BATCH_ELEMENTS} \
         elements whose indices fit the format: use fewer rows a batch"
    )]
    BatchTooLarge {
        /// Rows of the batch.
        rows: usize,
        /// Columns of a row.
        hidden: usize,
    },

    /// A row of the wrong width.
    #[error(
        "row {row} of the answer has {got} columns where the model's hidden size is {hidden}: \
         pass the final hidden state of one token, [hidden]"
    )]
    RowWidth {
        /// Row within the whole answer.
        row: usize,
        /// Columns it came with.
        got: usize,
        /// Columns it should have.
        hidden: usize,
    },

    /// A flat slice that is no whole number of rows.
    #[error(
        "{elements} activations are no whole number of rows of {hidden}: \
         pass rows flattened in order, [rows, hidden]"
    )]
    RaggedRows {
        /// Elements in the slice.
        elements: usize,
        /// Columns of a row.
        hidden: usize,
    },

    /// The prompt's block is longer than the rows that came.
    #[error(
        "the prompt's block should have {prefill_rows} rows but only {rows} came: \
         pass the block and the answer's rows together"
    )]
    PrefillTooShort {
        /// Rows the first batch should cover.
        prefill_rows: usize,
        /// Rows that came in all.
        rows: usize,
    },

    /// NaN or infinity among the activations.
    #[error(
        "non-finite activation (bits {bits:#06x}) at row {row}, column {column} \
         (row {row_in_batch} of the {} batch): the model's output is broken, \
         so fail the answer and look for the layer it came from",
        Ordinal(*.batch)
    )]
    NonFinite {
        /// Batch the row falls in.
        batch: usize,
        /// Row within the whole answer.
        row: usize,
        /// Row within its batch.
        row_in_batch: usize,
        /// Column within the row.
        column: usize,
        /// The BF16 bits found there.
        bits: u16,
    },

    /// A batch, mostly the short last one, with fewer elements than `topk`.
    #[error(
        "the {} batch (rows: {rows}) has {elements} elements, fewer than top-k {topk}: \
         lower top-k or leave this answer without proofs",
        Ordinal(*.batch)
    )]
    TopKTooLarge {
        /// The batch.
        batch: usize,
        /// Its rows.
        rows: usize,
        /// Its elements, rows times hidden.
        elements: usize,
        /// Elements a proof needs.
        topk: usize,
    },

    /// No modulus keeps the chosen indices apart.
    #[error(
        "no modulus up to {PRIME} keeps the top {topk} indices of the {} batch apart: \
         lower top-k or the rows a batch",
        Ordinal(*.batch)
    )]
    NoModulus {
        /// The batch.
        batch: usize,
        /// Indices chosen from it.
        topk: usize,
    },

    /// An earlier call failed, so what is held is only part of an answer.
    #[error("an earlier row of this answer already failed: start again with its first row")]
    Poisoned,

    /// Text that is not padded standard base64.
    #[error("the proof is not padded standard base64 ({reason}): ask for it again")]
    Base64 {
        /// What the decoder objected to.
        reason: String,
    },

    /// A proof of the wrong length.
    #[error(
        "the proof has {got} bytes where top-k {topk} makes {}: \
         check that both sides use the same top-k",
        Self::proof_bytes(*.topk)
    )]
    ProofLength {
        /// Bytes it came with.
        got: usize,
        /// Coefficients it should have.
        topk: usize,
    },

    /// A null proof: toploc's sign that building failed.
    #[error("this is a null proof (modulus 0): its maker failed to build one, so reject the answer")]
    NullProof,

    /// A modulus no honest maker can arrive at.
    #[error(
        "the proof's modulus {modulus} is outside {topk}..={PRIME}: no maker of this format \
         writes it, so reject the answer"
    )]
    Modulus {
        /// The modulus read.
        modulus: u16,
        /// Coefficients in the proof; their points need as many residues.
        topk: usize,
    },

    /// A coefficient that is no field element.
    #[error(
        "coefficient {position} of the proof is {value}, not below the prime {PRIME}: \
         no maker of this format writes it, so reject the answer"
    )]
    Coefficient {
        /// Its power of x.
        position: usize,
        /// Its value.
        value: u16,
    },

    /// A proof whose top-k is not the verifier's.
    #[error(
        "the {} proof has {got} coefficients where the verifier uses top-k {topk}: \
         check that both sides use the same top-k",
        Ordinal(*.batch)
    )]
    ProofTopK {
        /// Which proof.
        batch: usize,
        /// Coefficients it has.
        got: usize,
        /// Coefficients the verifier expects.
        topk: usize,
    },

    /// More rows than the proofs cover.
    #[error(
        "row {row} opens the {} batch but the answer came with {proofs} proofs: \
         reject it, or check that both sides use the same batch size",
        Ordinal(*.batch)
    )]
    TooFewProofs {
        /// Proofs that came.
        proofs: usize,
        /// The batch that has none.
        batch: usize,
        /// Its first row, within the whole answer.
        row: usize,
    },

    /// More proofs than the rows fill.
    #[error(
        "the answer came with {proofs} proofs but its {rows} rows make {batches} batches: \
         reject it, or check that every row was recomputed"
    )]
    TooManyProofs {
        /// Proofs that came.
        proofs: usize,
        /// Batches the rows make.
        batches: usize,
        /// Rows that came.
        rows: usize,
    },
}

impl ProofError {
    /// Bytes of a proof with `topk` coefficients: modulus and coefficients, two bytes each.
    fn proof_bytes(topk: usize) -> usize {
        topk.saturating_add(1).saturating_mul(2)
    }
}

/// A position counted from 0, written as people count: `the first batch`.
#[derive(Clone, Copy)]
pub(super) struct Ordinal(pub(super) usize);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
        if let Some(word) = WORDS.get(self.0) {
            return f.write_str(word);
        }
        let n = self.0.saturating_add(1);
        let suffix = match (n % 10, n % 100) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, "{n}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_read_as_people_count() {
        let said: Vec<String> = [0, 1, 4, 5, 10, 11, 20, 21, 22, 111].map(|n| Ordinal(n).to_string()).into();
        assert_eq!(said, ["first", "second", "fifth", "6th", "11th", "12th", "21st", "22nd", "23rd", "112th"]);
    }
}
