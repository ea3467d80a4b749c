//! One step of the engine as plain data: what a scheduler decides and a runner computes.
//!
//! Holds no tensor and no handle, so that the same plan can be given to every rank and a fake runner can stand in for
//! a model in tests.

use std::ops::Range;
use std::time::Duration;

use half::bf16;

use super::candidates::{LogitsWanted, RowLogits};

/// Tokens a key/value block holds.
pub(super) const BLOCK_TOKENS: usize = 16;

/// The flattened batch of one step. `tokens`, `positions` and `slots` have one entry a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StepPlan {
    /// The ids to read.
    pub(super) tokens: Vec<u32>,
    /// Each row's position in its sequence, from 0.
    pub(super) positions: Vec<u32>,
    /// Where each row's keys and values go: `block * BLOCK_TOKENS + offset`.
    pub(super) slots: Vec<u32>,
    /// The sequences, in the order of their rows.
    pub(super) spans: Vec<Span>,
    /// Rows whose fin or logits are wanted, ascending.
    pub(super) outputs: Vec<OutputRow>,
    /// States to copy before anything is computed: snapshots from which new sequences start.
    pub(super) restores: Vec<StateCopy>,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    /// Its rows in the batch. Row `rows.start + i` attends to the first `context + i + 1` tokens.
    pub(super) rows: Range<usize>,
    /// Tokens of the sequence that were computed before this step.
    pub(super) context: usize,
    /// Its blocks, in the order of its tokens.
    pub(super) blocks: Vec<u32>,
    /// Where the model has linear layers: the slot of what they remember. A sequence at its start (`context` 0) finds old
    /// values there, which count as zeros.
    pub(super) state: u32,
    /// Snapshots to take on the way, in the order of their rows.
    pub(super) saves: Vec<StateSave>,
}

/// A copy of what linear layers remember, from one slot to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateCopy {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// A snapshot of a sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateSave {
    /// Taken when so many of the span's rows have been read, at least 1.
    pub(super) after: usize,
    /// The slot that it goes to.
    pub(super) to: u32,
}

/// A row that is computed to its end: to fin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OutputRow {
    /// The row in the batch.
    pub(super) row: usize,
    /// Whether its fin is wanted, or its logits alone.
    pub(super) fin: bool,
    /// What is wanted of its logits.
    pub(super) logits: LogitsWanted,
}

/// What a step computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StepOutput {
    /// `[hidden]` each: of the outputs whose fin is wanted, in their order. A row is made once, and given away as it is.
    pub(super) fin: Vec<Vec<bf16>>,
    /// Processor time of bringing these out of the model.
    pub(super) fin_time: Duration,
    /// Of the outputs whose logits are wanted, in their order.
    pub(super) logits: Vec<RowLogits>,
}

/// Why a step was not computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepError {
    pub(super) reason: String,
    /// Whether the runner can compute no other step either.
    pub(super) fatal: bool,
}

impl StepError {
    /// This step failed; another may not.
    pub(super) fn step(reason: String) -> Self {
        Self { reason, fatal: false }
    }

    /// The runner is of no use any more.
    pub(super) fn fatal(reason: String) -> Self {
        Self { reason, fatal: true }
    }
}

/// Computes steps. One step at a time; the caches behind it remember what former steps wrote.
pub(super) trait StepRunner {
    /// Computes a step.
    ///
    /// # Errors
    /// When the computation failed; the caches of the plan's sequences are then unusable.
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError>;
}
