//! Who computes what in the next step.
//!
//! In: sequences, tokens chosen for them, cancellations. Out: [`StepPlan`]s. The scheduler owns the queues and the block
//! allocator and knows no device and no reader, so that it can be tested with made-up answers.
//!
//! First come, first served: running sequences are kept in the order of their arrival; each step reads one token of
//! every decoding sequence and up to `prefill_chunk` tokens of those still reading. When blocks run out, the youngest
//! sequence gives up its own and is computed again later; so the oldest always advances, and since no sequence is
//! accepted that could not fit alone, every sequence ends. What must never happen: a block owned twice, a block lost, a
//! row reported twice.

use std::collections::VecDeque;

use super::cache::blocks::BlockAllocator;
use super::plan::{BLOCK_TOKENS, OutputRow, Span, StepPlan};

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

#[derive(Debug)]
struct Sequence {
    id: SequenceId,
    tokens: Vec<u32>,
    /// Tokens whose keys and values stand in the cache.
    computed: usize,
    blocks: Vec<u32>,
    wanted: Wanted,
}

/// The queues.
#[derive(Debug)]
pub(super) struct Scheduler {
    config: SchedulerConfig,
    allocator: BlockAllocator,
    waiting: VecDeque<Sequence>,
    /// In the order of arrival.
    running: Vec<Sequence>,
}

impl Scheduler {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        Self { allocator: BlockAllocator::new(config.blocks), waiting: VecDeque::new(), running: Vec::new(), config }
    }

    /// Tokens that fit in the cache.
    pub(super) fn capacity(&self) -> usize {
        self.allocator.total() * BLOCK_TOKENS
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
        self.waiting.push_back(Sequence { id, tokens, computed: 0, blocks: Vec::new(), wanted });
        Ok(())
    }

    /// The next step and what its output rows are for; `None` when there is nothing to do.
    pub(super) fn plan(&mut self) -> Option<(StepPlan, Vec<RowUse>)> {
        self.admit();
        let mut budget = self.config.prefill_chunk;
        let mut chunks = Vec::with_capacity(self.running.len());
        // Oldest first, and only a younger one is ever preempted: what was reserved in this loop stays reserved.
        let mut at = 0;
        while let Some(sequence) = self.running.get(at) {
            let unread = sequence.tokens.len() - sequence.computed;
            let decoding = sequence.computed > 0 && unread == 1;
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
        let mut plan = StepPlan::default();
        let mut uses = Vec::new();
        for (sequence, &chunk) in self.running.iter_mut().zip(&chunks).filter(|(_, chunk)| **chunk > 0) {
            sequence.put_into(&mut plan, &mut uses, chunk);
        }
        (!plan.tokens.is_empty()).then_some((plan, uses))
    }

    /// Appends a chosen token to a sequence, to be read in the next step.
    pub(super) fn push(&mut self, id: SequenceId, token: u32) {
        if let Some(sequence) = self.running.iter_mut().find(|s| s.id == id) {
            sequence.tokens.push(token);
        }
    }

    /// Forgets a sequence, wherever it is, and frees its blocks.
    pub(super) fn remove(&mut self, id: SequenceId) {
        self.waiting.retain(|s| s.id != id);
        if let Some(at) = self.running.iter().position(|s| s.id == id) {
            let sequence = self.running.remove(at);
            self.allocator.give_back(sequence.blocks);
        }
    }

    /// Sequences that hold blocks, sequences that wait, tokens not yet read, tokens of all taken blocks.
    pub(super) fn load(&self) -> (usize, usize, usize, usize) {
        let unread = |s: &Sequence| s.tokens.len() - s.computed;
        let pending = self.waiting.iter().map(unread).sum::<usize>() + self.running.iter().map(unread).sum::<usize>();
        let used = (self.allocator.total() - self.allocator.free()) * BLOCK_TOKENS;
        (self.running.len(), self.waiting.len(), pending, used)
    }

    /// Lets waiting sequences in while there is room to read all they have.
    fn admit(&mut self) {
        let mut promised: usize = self.running.iter().map(Sequence::missing_blocks).sum();
        while self.running.len() < self.config.max_running {
            let Some(next) = self.waiting.front() else { break };
            let needed = promised + next.missing_blocks();
            if needed > self.allocator.free() {
                break;
            }
            promised = needed;
            self.running.extend(self.waiting.pop_front());
        }
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
            if let Some(block) = self.allocator.take() {
                sequence.blocks.push(block);
                continue;
            }
            let Some(mut youngest) = self.running.pop() else {
                return false;
            };
            self.allocator.give_back(youngest.blocks.drain(..));
            youngest.computed = 0;
            self.waiting.push_front(youngest);
        }
    }
}

impl Sequence {
    /// Blocks that reading all its tokens will still take.
    fn missing_blocks(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK_TOKENS).saturating_sub(self.blocks.len())
    }

    /// Adds its next `chunk` tokens to a plan.
    fn put_into(&mut self, plan: &mut StepPlan, uses: &mut Vec<RowUse>, chunk: usize) {
        let start = plan.tokens.len();
        for (row, position) in (start..).zip(self.computed..self.computed + chunk) {
            plan.tokens.push(self.tokens[position]);
            plan.positions.push(position as u32);
            let block = self.blocks[position / BLOCK_TOKENS];
            plan.slots.push(block * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32);
            let chooses = self.wanted == Wanted::Next && position + 1 == self.tokens.len();
            let listed = match &mut self.wanted {
                Wanted::RowsFrom(from) if position >= *from => {
                    // A sequence that is computed again must not report a row again.
                    *from = position + 1;
                    true
                }
                _ => false,
            };
            if chooses || listed {
                plan.outputs.push(OutputRow { row, logits: chooses });
                uses.push(RowUse { sequence: self.id, chooses });
            }
        }
        plan.spans.push(Span { rows: start..start + chunk, context: self.computed, blocks: self.blocks.clone() });
        self.computed += chunk;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::{HashMap, HashSet};

    fn scheduler(max_running: usize, prefill_chunk: usize, blocks: u32) -> Scheduler {
        Scheduler::new(SchedulerConfig { max_running, prefill_chunk, blocks })
    }

    #[test]
    fn a_prompt_is_read_in_chunks_and_only_its_last_row_chooses() {
        let mut s = scheduler(2, 4, 8);
        s.submit(1, vec![10, 11, 12, 13, 14, 15], 8, Wanted::Next).unwrap();
        let (plan, uses) = s.plan().unwrap();
        assert_eq!((plan.tokens.as_slice(), uses.len()), ([10, 11, 12, 13].as_slice(), 0));
        let (plan, uses) = s.plan().unwrap();
        assert_eq!((plan.tokens.as_slice(), plan.positions.as_slice()), ([14, 15].as_slice(), [4, 5].as_slice()));
        assert_eq!(uses, [RowUse { sequence: 1, chooses: true }]);
        assert!(s.plan().is_none(), "nothing to do until a token is chosen");
        s.push(1, 99);
        assert_eq!(s.plan().unwrap().0.tokens, [99]);
    }

    #[test]
    fn decoding_goes_on_while_another_prompt_is_read() {
        let mut s = scheduler(2, 4, 8);
        s.submit(1, vec![1], 8, Wanted::Next).unwrap();
        s.plan().unwrap();
        s.push(1, 2);
        s.submit(2, vec![3; 9], 16, Wanted::Next).unwrap();
        let (plan, uses) = s.plan().unwrap();
        assert_eq!(plan.tokens, [2, 3, 3, 3, 3]);
        assert_eq!(uses.len(), 1);
    }

    #[test]
    fn what_can_never_fit_is_refused() {
        let mut s = scheduler(2, 4, 2);
        assert_eq!(s.submit(1, vec![0], 33, Wanted::Next), Err(TooLong { wanted: 33, limit: 32 }));
        assert!(s.submit(1, vec![0], 32, Wanted::Next).is_ok());
    }

    #[test]
    fn recompute_rows_are_listed_once_each() {
        let mut s = scheduler(1, 3, 4);
        s.submit(1, (0..8).collect(), 8, Wanted::RowsFrom(4)).unwrap();
        let mut rows = Vec::new();
        while let Some((plan, uses)) = s.plan() {
            assert_eq!(plan.outputs.len(), uses.len());
            rows.extend(plan.outputs.iter().map(|o| plan.positions[o.row]));
        }
        assert_eq!(rows, [4, 5, 6, 7]);
    }

    /// Random arrivals, lengths and cancellations in a cache too small for them: every sequence ends with the tokens it
    /// would have had alone, in a bounded number of steps, and every block comes back.
    #[test]
    fn every_sequence_ends_and_every_block_comes_back() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut s = scheduler(rng.random_range(1..6), rng.random_range(1..40), rng.random_range(6..20));
            let mut goal: HashMap<SequenceId, usize> = HashMap::new();
            let mut text: HashMap<SequenceId, Vec<u32>> = HashMap::new();
            let (mut next, mut steps) = (0_u64, 0);
            while next < 40 || !goal.is_empty() {
                steps += 1;
                assert!(steps < 20_000, "seed {seed} does not end");
                if next < 40 && rng.random_bool(0.3) {
                    let prompt: Vec<u32> = (0..rng.random_range(1..60)).map(|i| i + 1000 * next as u32).collect();
                    let longest = prompt.len() + rng.random_range(1..40);
                    if s.submit(next, prompt.clone(), longest, Wanted::Next).is_ok() {
                        goal.insert(next, longest);
                        text.insert(next, prompt);
                    }
                    next += 1;
                }
                if rng.random_bool(0.02)
                    && let Some(&id) = goal.keys().min()
                {
                    s.remove(id);
                    goal.remove(&id);
                }
                let Some((plan, uses)) = s.plan() else { continue };
                check(&plan, &text, seed);
                for use_ in uses {
                    let tokens = text.get_mut(&use_.sequence).unwrap();
                    tokens.push(tokens.len() as u32 + 7);
                    let token = *tokens.last().unwrap();
                    if tokens.len() >= goal[&use_.sequence] {
                        s.remove(use_.sequence);
                        goal.remove(&use_.sequence);
                    } else {
                        s.push(use_.sequence, token);
                    }
                }
            }
            assert_eq!(s.load(), (0, 0, 0, 0), "seed {seed} leaks");
            assert_eq!(s.allocator.free(), s.allocator.total());
        }
    }

    /// No slot is written twice in a step, no block belongs to two sequences, every token is the sequence's own.
    fn check(plan: &StepPlan, text: &HashMap<SequenceId, Vec<u32>>, seed: u64) {
        let slots: HashSet<u32> = plan.slots.iter().copied().collect();
        assert_eq!(slots.len(), plan.slots.len(), "seed {seed}");
        let blocks: Vec<u32> = plan.spans.iter().flat_map(|s| s.blocks.clone()).collect();
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len(), "seed {seed}");
        for span in &plan.spans {
            let rows: Vec<u32> = plan.tokens[span.rows.clone()].to_vec();
            let at = span.context..span.context + rows.len();
            assert!(text.values().any(|t| t.get(at.clone()) == Some(&rows)), "seed {seed}: tokens of no sequence");
            for (row, position) in span.rows.clone().zip(at) {
                let slot = span.blocks[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS;
                assert_eq!(plan.slots[row] as usize, slot);
                assert_eq!(plan.positions[row] as usize, position);
            }
        }
    }
}
