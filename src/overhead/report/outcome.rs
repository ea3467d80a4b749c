//! What became of answers under the policy.

use crate::overhead::MatrixCell;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There was no answer.
    Nothing,
    Accepted,
    Rejected,
    /// Some of each.
    Split,
}

impl Outcome {
    /// Of all answers of these pairs.
    pub(super) fn of<'a>(cells: impl Iterator<Item = &'a MatrixCell>) -> Self {
        let of = |cell: &MatrixCell| match cell.passed {
            passed if passed >= cell.answers => Self::Accepted,
            0 => Self::Rejected,
            _ => Self::Split,
        };
        let outcomes = cells.filter(|cell| cell.answers > 0).map(of);
        outcomes.reduce(|all, one| if all == one { all } else { Self::Split }).unwrap_or(Self::Nothing)
    }

    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::Accepted => "✓",
            Self::Rejected => "✗",
            Self::Split => "±",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "–",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Split => "split",
        }
    }
}
