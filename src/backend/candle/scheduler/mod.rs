//! Who computes what in the next step.
//!
//! In: sequences, tokens chosen for them, cancellations. Out: [`StepPlan`]s. The scheduler owns the queues and the block
//! allocator and knows no device and no reader, so that it can be tested with made-up answers.
//!
//! First come, first served: running sequences are kept in the order of their arrival; each step reads one token of
//! every decoding sequence and up to `prefill_chunk` tokens of those still reading. When blocks run out, the youngest
//! sequence gives up its own and is computed again later; so the oldest always advances, and since no sequence is
//! accepted that could not fit alone, every sequence ends.
//!
//! Whole blocks that have been computed are published to the prefix tree, by every running sequence before each step, and
//! a new sequence starts behind the longest prefix that the tree knows. What must never happen: a block lost, a block
//! shared before it was computed, a row reported twice.

mod sequence;

use std::collections::VecDeque;

use self::sequence::Sequence;
use super::cache::blocks::BlockPool;
use super::cache::states::StateSlots;
use super::plan::{BLOCK_TOKENS, StateCopy, StepPlan};

/// Names a sequence; later ones are larger.
pub(super) type SequenceId = u64;

/// Limits of a scheduler.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchedulerConfig {
    /// Sequences that may hold blocks at once.
    pub(super) max_running: usize,
    /// Prompt tokens a step, over all sequences.
    pub(super) prefill_chunk: usize,
    /// Key/value blocks there are.
    pub(super) blocks: u32,
    /// Of these, how many may be kept for prefixes that come again; 0 keeps none.
    pub(super) prefix_blocks: usize,
    /// Where the model has linear layers: slots for snapshots of what they remember. Running sequences have slots of their own.
    pub(super) snapshots: Option<u32>,
}

impl SchedulerConfig {
    /// Slots for states: the running sequences', then the snapshots'; 0 where sequences have no states.
    pub(super) fn state_slots(&self) -> usize {
        self.snapshots.map_or(0, |snapshots| self.max_running.saturating_add(snapshots as usize))
    }
}

/// What is wanted of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The row of the last token, with logits, each time all tokens have been read: generation.
    Next,
    /// The rows from this position on, once: a verifier's recompute.
    RowsFrom(usize),
}

/// What an output row of a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowUse {
    pub(super) sequence: SequenceId,
    /// Whether the row chooses the sequence's next token.
    pub(super) chooses: bool,
}

/// Why a sequence is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} tokens (prompt and answer) can never fit: the key/value cache holds {limit}")]
pub(super) struct TooLong {
    pub(super) wanted: usize,
    pub(super) limit: usize,
}

/// The queues.
#[derive(Debug)]
pub(super) struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    waiting: VecDeque<Sequence>,
    /// In the order of arrival.
    running: Vec<Sequence>,
}

impl Scheduler {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        let running = u32::try_from(config.max_running).unwrap_or(u32::MAX);
        let states = config.snapshots.map(|snapshots| StateSlots::new(running, snapshots));
        Self {
            pool: BlockPool::new(config.blocks, config.prefix_blocks, states),
            waiting: VecDeque::new(),
            running: Vec::new(),
            config,
        }
    }

    /// Tokens that fit in the cache.
    pub(super) fn capacity(&self) -> usize {
        self.pool.total() * BLOCK_TOKENS
    }

    /// Queues a sequence that will grow to at most `longest` tokens (its last token is never read).
    pub(super) fn submit(
        &mut self,
        id: SequenceId,
        tokens: Vec<u32>,
        longest: usize,
        wanted: Wanted,
    ) -> Result<(), TooLong> {
        if longest > self.capacity() {
            return Err(TooLong { wanted: longest, limit: self.capacity() });
        }
        self.waiting.push_back(Sequence::new(id, tokens, wanted));
        Ok(())
    }

    /// The next step and what its output rows are for; `None` when there is nothing to do.
    pub(super) fn plan(&mut self) -> Option<(StepPlan, Vec<RowUse>)> {
        for sequence in &mut self.running {
            sequence.publish(&mut self.pool);
        }
        let restores = self.admit();
        let mut budget = self.config.prefill_chunk;
        let mut chunks = Vec::with_capacity(self.running.len());
        // Oldest first, and only a younger one is ever preempted: what was reserved in this loop stays reserved.
        let mut at = 0;
        while let Some(sequence) = self.running.get(at) {
            let (unread, decoding) = (sequence.unread(), sequence.is_decoding());
            let chunk = if decoding { 1 } else { unread.min(budget) };
            if chunk > 0 && !self.reserve(at, chunk) {
                // This one was the youngest and gave way itself; it was the last.
                break;
            }
            if !decoding {
                budget -= chunk;
            }
            chunks.push(chunk);
            at += 1;
        }
        let mut plan = StepPlan { restores, ..StepPlan::default() };
        let mut uses = Vec::new();
        for (sequence, &chunk) in self.running.iter_mut().zip(&chunks).filter(|(_, chunk)| **chunk > 0) {
            let saves = sequence.plan_saves(&mut self.pool, chunk);
            sequence.put_into(&mut plan, &mut uses, chunk, saves);
        }
        (!plan.tokens.is_empty()).then_some((plan, uses))
    }

    /// Appends a chosen token to a sequence, to be read in the next step.
    pub(super) fn push(&mut self, id: SequenceId, token: u32) {
        if let Some(sequence) = self.running.iter_mut().find(|s| s.id == id) {
            sequence.tokens.push(token);
        }
    }

    /// Prompt tokens of a running sequence whose states were found in the cache.
    pub(super) fn cached_tokens(&self, id: SequenceId) -> usize {
        self.running.iter().find(|s| s.id == id).and_then(|s| s.cached).unwrap_or_default()
    }

    /// Forgets a sequence, wherever it is, and frees its blocks; what it has computed stays known.
    pub(super) fn remove(&mut self, id: SequenceId) {
        self.waiting.retain(|s| s.id != id);
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            let mut sequence = self.running.remove(at);
            sequence.publish(&mut self.pool);
            sequence.give_up(&mut self.pool);
        }
    }

    /// Forgets the running sequences after a step that failed, and gives their names: what it was to compute must not become
    /// known.
    pub(super) fn discard_running(&mut self) -> Vec<SequenceId> {
        let mut forgotten = Vec::with_capacity(self.running.len());
        for mut sequence in self.running.drain(..) {
            sequence.give_up(&mut self.pool);
            forgotten.push(sequence.id);
        }
        forgotten
    }

    /// Sequences that hold blocks, sequences that wait, tokens not yet read, tokens of all blocks that sequences hold.
    pub(super) fn load(&self) -> (usize, usize, usize, usize) {
        let pending = self.waiting.iter().chain(&self.running).map(Sequence::unread).sum::<usize>();
        let used = (self.pool.total() - self.pool.available()) * BLOCK_TOKENS;
        (self.running.len(), self.waiting.len(), pending, used)
    }

    /// Lets waiting sequences in while there is room to read all they have. Gives the snapshots from which they start.
    fn admit(&mut self) -> Vec<StateCopy> {
        let mut restores = Vec::new();
        let mut promised: usize = self.running.iter().map(Sequence::missing_blocks).sum();
        while self.running.len() < self.config.max_running {
            let Some(next) = self.waiting.front_mut() else { break };
            let restore = next.adopt_prefix(&mut self.pool);
            let needed = promised + next.missing_blocks();
            let lacks_state = self.pool.has_states() && !next.has_state();
            if needed > self.pool.available() || lacks_state {
                next.give_up(&mut self.pool);
                break;
            }
            promised = needed;
            restores.extend(restore);
            next.cached.get_or_insert(next.computed);
            self.running.extend(self.waiting.pop_front());
        }
        restores
    }

    /// Makes sure that the sequence at `at` has blocks for `chunk` more tokens, at the cost of younger ones. False if
    /// it had to give way itself.
    fn reserve(&mut self, at: usize, chunk: usize) -> bool {
        loop {
            let Some(sequence) = self.running.get_mut(at) else {
                return false;
            };
            let needed = (sequence.computed + chunk).div_ceil(BLOCK_TOKENS);
            if sequence.blocks.len() >= needed {
                return true;
            }
            if let Some(block) = self.pool.take() {
                sequence.blocks.push(block);
                continue;
            }
            let Some(mut youngest) = self.running.pop() else {
                return false;
            };
            youngest.give_up(&mut self.pool);
            self.waiting.push_front(youngest);
        }
    }
}

#[cfg(test)]
mod tests;
