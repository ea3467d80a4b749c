//! One step of the engine as plain data: what a scheduler decides and a runner computes.
//!
//! Holds no tensor and no handle, so that the same plan can be given to every rank and a fake runner can stand in for
//! a model in tests.

use std::ops::Range;

use half::bf16;

/// Tokens a key/value block holds.
pub(super) const BLOCK_TOKENS: usize = 16;

/// The flattened batch of one step. `tokens`, `positions` and `slots` have one entry a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StepPlan {
    /// The ids to read.
    pub(super) tokens: Vec<u32>,
    /// Each row's position in its sequence, from 0.
    pub(super) positions: Vec<u32>,
    /// Where each row's keys and values go: `block * BLOCK_TOKENS + offset`.
    pub(super) slots: Vec<u32>,
    /// The sequences, in the order of their rows.
    pub(super) spans: Vec<Span>,
    /// Rows whose fin is wanted, ascending.
    pub(super) outputs: Vec<OutputRow>,
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
}

/// A row whose fin is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutputRow {
    /// The row in the batch.
    pub(super) row: usize,
    /// Whether logits are wanted too.
    pub(super) logits: bool,
}

/// What a step computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StepOutput {
    /// `[outputs, hidden]`: fin of the wanted rows, in their order.
    pub(super) fin: Vec<bf16>,
    /// `[outputs with logits, vocab]`, in their order.
    pub(super) logits: Vec<Vec<f32>>,
}

/// Computes steps. One step at a time; the caches behind it remember what former steps wrote.
pub(super) trait StepRunner {
    /// Computes a step.
    ///
    /// # Errors
    /// When the computation failed; the caches of the plan's sequences are then unusable.
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, String>;
}
