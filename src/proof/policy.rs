//! From checks to a verdict.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::Ordinal;
use super::verify::Verification;

/// Exponent mismatches a batch may have and still pass.
///
/// 40 of 128, a share of 0.3125: above what honest FP8 serving shows (P99 0.18 to 0.23)
/// and well below what a 4-bit stand-in shows (0.55).
pub const DEFAULT_MAX_MISMATCHES: usize = 40;

/// Share of an answer's batches that must pass.
///
/// 0.99 forgives one batch in a hundred, so a stray batch does not fail a long answer;
/// an answer of fewer than a hundred batches may miss none.
pub const DEFAULT_PASS_RATIO: f64 = 0.99;

/// When an answer counts as made by the checkpoint it names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// A batch passes with at most this many exponent mismatches.
    /// Default [`DEFAULT_MAX_MISMATCHES`].
    pub max_mismatches: usize,
    /// The answer passes when at least this share of its batches pass, `0.0..=1.0`.
    /// Default [`DEFAULT_PASS_RATIO`].
    pub pass_ratio: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { max_mismatches: DEFAULT_MAX_MISMATCHES, pass_ratio: DEFAULT_PASS_RATIO }
    }
}

/// What the checks come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Enough batches passed.
    Pass,
    /// Too few did.
    Fail,
    /// The answer has no batches. Nothing was proven, so this is not a pass.
    Empty,
}

/// The verdict on one answer; displayed, it is one line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What the checks come to.
    pub outcome: Outcome,
    /// Batches within [`Policy::max_mismatches`].
    pub passed: usize,
    /// Batches in all.
    pub total: usize,
    /// The number, counted from 0, of the batch with most mismatches, the first of equals;
    /// `None` without batches.
    pub worst_batch: Option<usize>,
    /// That batch's mismatches; 0 without batches.
    pub worst_mismatches: usize,
    /// Mismatches a batch on average; 0 without batches.
    pub mean_mismatches: f64,
    /// The threshold the batches were held to.
    pub max_mismatches: usize,
}

impl Policy {
    /// Judges an answer by its checks.
    #[must_use]
    pub fn judge(&self, verification: &Verification) -> Verdict {
        let checks = &verification.batches;
        let mismatches = || checks.iter().map(|check| check.exp_mismatches);
        let total = checks.len();
        let passed = mismatches().filter(|&m| m <= self.max_mismatches).count();
        let (mut worst_batch, mut worst_mismatches) = (None, 0);
        for (batch, m) in mismatches().enumerate() {
            if worst_batch.is_none() || m > worst_mismatches {
                (worst_batch, worst_mismatches) = (Some(batch), m);
            }
        }
        let outcome = if total == 0 {
            Outcome::Empty
        } else if passed as f64 / total as f64 >= self.pass_ratio {
            Outcome::Pass
        } else {
            Outcome::Fail
        };
        Verdict {
            outcome,
            passed,
            total,
            worst_batch,
            worst_mismatches,
            mean_mismatches: mismatches().sum::<usize>() as f64 / total.max(1) as f64,
            max_mismatches: self.max_mismatches,
        }
    }
}

impl Verdict {
    /// Whether the answer passed; an answer without batches did not.
    #[must_use]
    pub fn is_pass(&self) -> bool {
        self.outcome == Outcome::Pass
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.outcome {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
            Outcome::Empty => return f.write_str("EMPTY: no batches, so nothing was proven"),
        };
        write!(
            f,
            "{word}: {} of {} batches within {} mismatches (worst {}",
            self.passed, self.total, self.max_mismatches, self.worst_mismatches
        )?;
        if let (Outcome::Fail, Some(batch)) = (self.outcome, self.worst_batch) {
            write!(f, " in the {} batch", Ordinal(batch))?;
        }
        write!(f, ", mean {:.1})", self.mean_mismatches)
    }
}

#[cfg(test)]
mod tests {
    use super::super::verify::BatchCheck;
    use super::*;

    fn verdict(mismatches: impl IntoIterator<Item = usize>) -> Verdict {
        let batches = mismatches
            .into_iter()
            .map(|exp_mismatches| BatchCheck { compared: 128, exp_mismatches, mantissa: None })
            .collect();
        Policy::default().judge(&Verification { batches })
    }

    #[test]
    fn an_honest_answer_passes() {
        let verdict = verdict([0, 0, 0]);
        assert!(verdict.is_pass());
        assert_eq!(verdict.to_string(), "PASS: 3 of 3 batches within 40 mismatches (worst 0, mean 0.0)");
    }

    #[test]
    fn the_threshold_itself_passes_and_one_more_fails() {
        assert!(verdict([40]).is_pass());
        let verdict = verdict([0, 41, 2]);
        assert_eq!(verdict.outcome, Outcome::Fail);
        assert_eq!(verdict.worst_batch, Some(1));
        assert_eq!(
            verdict.to_string(),
            "FAIL: 2 of 3 batches within 40 mismatches (worst 41 in the second batch, mean 14.3)"
        );
    }

    #[test]
    fn one_bad_batch_in_a_hundred_is_forgiven() {
        let answer = |batches: usize| (0..batches).map(|b| if b == 0 { 128 } else { 0 });
        assert!(verdict(answer(100)).is_pass());
        assert!(!verdict(answer(99)).is_pass());
    }

    #[test]
    fn no_batches_is_not_a_pass() {
        let verdict = verdict([]);
        assert_eq!(verdict.outcome, Outcome::Empty);
        assert!(!verdict.is_pass());
        assert_eq!(verdict.to_string(), "EMPTY: no batches, so nothing was proven");
    }

    #[test]
    fn a_verdict_is_written_as_json() {
        let json = serde_json::to_value(verdict([3])).unwrap();
        assert_eq!(json["outcome"], "pass");
        assert_eq!(json["worst_mismatches"], 3);
    }

    #[test]
    fn a_policy_may_be_left_out_but_not_misspelt() {
        let read = |text| serde_json::from_str::<Policy>(text);
        assert_eq!(read("{}").unwrap(), Policy::default());
        assert!(read(r#"{"mismatches": 1}"#).is_err());
    }
}
