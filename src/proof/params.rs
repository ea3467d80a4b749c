//! What a proof's maker and its checker must agree on.

use serde::{Deserialize, Serialize};

use super::error::ProofError;
use super::proof::PRIME;

/// Activations a proof commits to, per batch.
///
/// 128 is what the TOPLOC paper and toploc 0.1.6 use: a proof of 258 bytes for 32 tokens,
/// with enough points that a threshold of mismatches separates checkpoints.
pub const DEFAULT_TOPK: usize = 128;

/// Rows (tokens) a proof covers.
///
/// 32 is toploc 0.1.6's `decode_batching_size`: about 8 bytes of proof a token.
pub const DEFAULT_BATCH: usize = 32;

/// Most elements a batch may hold.
///
/// toploc 0.1.6 keeps flat indices in 32-bit signed integers and wraps silently from
/// 2^31 on. We refuse such a batch rather than prove a wrapped index.
pub(super) const MAX_BATCH_ELEMENTS: usize = 1 << 31;

/// The two numbers that fix which activations a proof speaks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProofParams {
    /// Activations chosen per batch, `1..=65497`. Default [`DEFAULT_TOPK`].
    pub topk: usize,
    /// Rows per batch, at least 1. Default [`DEFAULT_BATCH`].
    pub batch: usize,
}

impl Default for ProofParams {
    fn default() -> Self {
        Self { topk: DEFAULT_TOPK, batch: DEFAULT_BATCH }
    }
}

impl ProofParams {
    /// Refuses parameters under which no batch of `rows` rows can be proven.
    pub(super) fn check(&self, hidden: usize, rows: usize) -> Result<(), ProofError> {
        if self.topk == 0 || self.topk > usize::from(PRIME) {
            return Err(ProofError::TopK { topk: self.topk });
        }
        if self.batch == 0 || rows == 0 || hidden == 0 {
            return Err(ProofError::EmptyShape { rows: self.batch.min(rows), hidden });
        }
        let largest = self.batch.max(rows);
        match largest.checked_mul(hidden) {
            Some(elements) if elements <= MAX_BATCH_ELEMENTS => Ok(()),
            _ => Err(ProofError::BatchTooLarge { rows: largest, hidden }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_may_be_left_out_but_not_misspelt() {
        let read = |text| serde_json::from_str::<ProofParams>(text);
        assert_eq!(read("{}").unwrap(), ProofParams::default());
        let params = ProofParams { topk: 8, batch: 32 };
        assert_eq!(read(r#"{"topk": 8}"#).unwrap(), params);
        assert!(read(r#"{"top_k": 8}"#).is_err());
    }
}
