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

use std::collections::VecDeque;

use super::cache::NodeId;
use super::cache::blocks::BlockPool;
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
    /// Of these, how many may be kept for prefixes that come again; 0 keeps none.
    pub(super) prefix_blocks: usize,
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
    /// Blocks of its table that the prefix tree knows, the last one's node, and whether more can follow.
    published: usize,
    node: Option<NodeId>,
    publishing: bool,
    /// Prompt tokens that were found in the tree when it was first let in.
    cached: Option<usize>,
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
        Self {
            pool: BlockPool::new(config.blocks, config.prefix_blocks),
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
        self.waiting.push_back(Sequence {
            id,
            tokens,
            computed: 0,
            blocks: Vec::new(),
            wanted,
            published: 0,
            node: None,
            publishing: true,
            cached: None,
        });
        Ok(())
    }

    /// The next step and what its output rows are for; `None` when there is nothing to do.
    pub(super) fn plan(&mut self) -> Option<(StepPlan, Vec<RowUse>)> {
        for sequence in &mut self.running {
            sequence.publish(&mut self.pool);
        }
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
            self.pool.give_back(sequence.blocks);
        }
    }

    /// Forgets all sequences after a step that failed: what it was to compute must not become known.
    pub(super) fn discard_all(&mut self) {
        self.waiting.clear();
        for sequence in self.running.drain(..) {
            self.pool.give_back(sequence.blocks);
        }
    }

    /// Sequences that hold blocks, sequences that wait, tokens not yet read, tokens of all blocks that sequences hold.
    pub(super) fn load(&self) -> (usize, usize, usize, usize) {
        let unread = |s: &Sequence| s.tokens.len() - s.computed;
        let pending = self.waiting.iter().map(unread).sum::<usize>() + self.running.iter().map(unread).sum::<usize>();
        let used = (self.pool.total() - self.pool.available()) * BLOCK_TOKENS;
        (self.running.len(), self.waiting.len(), pending, used)
    }

    /// Lets waiting sequences in while there is room to read all they have.
    fn admit(&mut self) {
        let mut promised: usize = self.running.iter().map(Sequence::missing_blocks).sum();
        while self.running.len() < self.config.max_running {
            let Some(next) = self.waiting.front_mut() else { break };
            next.adopt_prefix(&mut self.pool);
            let needed = promised + next.missing_blocks();
            if needed > self.pool.available() {
                next.give_up(&mut self.pool);
                break;
            }
            promised = needed;
            next.cached.get_or_insert(next.computed);
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

impl Sequence {
    /// Blocks that reading all its tokens will still take.
    fn missing_blocks(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK_TOKENS).saturating_sub(self.blocks.len())
    }

    /// Starts behind the longest prefix that is known and leaves something to compute.
    fn adopt_prefix(&mut self, pool: &mut BlockPool) {
        let most = match self.wanted {
            Wanted::Next => self.tokens.len() - 1,
            Wanted::RowsFrom(from) => from.min(self.tokens.len() - 1),
        };
        let found = pool.take_prefix(&self.tokens[..most]);
        self.node = found.last().map(|(node, _)| *node);
        self.published = found.len();
        self.computed = found.len() * BLOCK_TOKENS;
        self.blocks = found.into_iter().map(|(_, block)| block).collect();
    }

    /// Gives all its blocks back; it will be computed again.
    fn give_up(&mut self, pool: &mut BlockPool) {
        pool.give_back(self.blocks.drain(..));
        (self.computed, self.published, self.node, self.publishing) = (0, 0, None, true);
    }

    /// Makes its whole computed blocks known.
    fn publish(&mut self, pool: &mut BlockPool) {
        while self.publishing && (self.published + 1) * BLOCK_TOKENS <= self.computed {
            let at = self.published;
            let published = pool.publish(self.node, &self.tokens[at * BLOCK_TOKENS..], self.blocks[at]);
            let Some((node, block)) = published else {
                self.publishing = false;
                return;
            };
            self.blocks[at] = block;
            self.node = Some(node);
            self.published += 1;
        }
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
        Scheduler::new(SchedulerConfig { max_running, prefill_chunk, blocks, prefix_blocks: usize::MAX })
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

    /// What stands in a cache, as the tokens that it was computed from.
    #[derive(Default)]
    struct Memory(HashMap<u32, Vec<u32>>);

    impl Memory {
        /// Runs a step: each row must find the whole prefix of its own sequence in its slots, then leaves its own mark.
        fn run(&mut self, plan: &StepPlan) {
            let slots: HashSet<u32> = plan.slots.iter().copied().collect();
            assert_eq!(slots.len(), plan.slots.len(), "a slot is written twice in a step");
            for span in &plan.spans {
                let slot =
                    |at: usize| span.blocks[at / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (at % BLOCK_TOKENS) as u32;
                let mut prefix = match span.context {
                    0 => Vec::new(),
                    context => self.0[&slot(context - 1)].clone(),
                };
                assert_eq!(prefix.len(), span.context, "the context is not the sequence's own");
                for at in 0..span.context {
                    assert_eq!(self.0[&slot(at)], prefix[..=at], "a block holds other tokens than it should");
                }
                for (row, at) in span.rows.clone().zip(span.context..) {
                    assert_eq!((plan.slots[row], plan.positions[row] as usize), (slot(at), at));
                    prefix.push(plan.tokens[row]);
                    self.0.insert(slot(at), prefix.clone());
                }
            }
        }

        /// The tokens that the row has read, its own included.
        fn read(&self, plan: &StepPlan, row: usize) -> &[u32] {
            &self.0[&plan.slots[row]]
        }
    }

    /// Random arrivals (many of them forks of one another), lengths and cancellations in a cache too small for them: every
    /// sequence ends with the tokens it would have had alone, in a bounded number of steps, and every block comes back.
    #[test]
    fn every_sequence_ends_and_every_block_comes_back() {
        let mut cached = 0;
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut s = scheduler(rng.random_range(1..6), rng.random_range(1..40), rng.random_range(6..20));
            s.pool = BlockPool::new(s.config.blocks, [usize::MAX, 5, 0][rng.random_range(0..3)]);
            let mut memory = Memory::default();
            let mut goal: HashMap<SequenceId, usize> = HashMap::new();
            let mut text: HashMap<SequenceId, Vec<u32>> = HashMap::new();
            let (mut next, mut steps) = (0_u64, 0);
            while next < 40 || !goal.is_empty() {
                steps += 1;
                assert!(steps < 20_000, "seed {seed} does not end");
                if next < 40 && rng.random_bool(0.3) {
                    let mut prompt: Vec<u32> = match text.get(&rng.random_range(0..next.max(1))) {
                        Some(other) if rng.random_bool(0.6) => {
                            other[..rng.random_range(0..=other.len().min(60))].to_vec()
                        }
                        _ => Vec::new(),
                    };
                    prompt.extend((0..rng.random_range(1..40)).map(|i| i + 1000 * next as u32));
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
                memory.run(&plan);
                for (use_, output) in uses.iter().zip(&plan.outputs) {
                    let tokens = text.get_mut(&use_.sequence).unwrap();
                    assert_eq!(memory.read(&plan, output.row), tokens.as_slice(), "seed {seed}");
                    cached += s.cached_tokens(use_.sequence);
                    // The next token depends on all before it, as a model's does.
                    let token = tokens.iter().fold(7_u32, |hash, token| hash.wrapping_mul(31).wrapping_add(*token));
                    tokens.push(token);
                    if tokens.len() >= goal[&use_.sequence] {
                        s.remove(use_.sequence);
                        goal.remove(&use_.sequence);
                    } else {
                        s.push(use_.sequence, token);
                    }
                }
            }
            assert_eq!(s.load(), (0, 0, 0, 0), "seed {seed} leaks");
            assert_eq!(s.pool.available(), s.pool.total());
            // Blocks that only the tree owned can all be had.
            let all: HashSet<u32> = std::iter::from_fn(|| s.pool.take()).collect();
            assert_eq!(all.len(), s.pool.total(), "seed {seed}");
        }
        assert!(cached > 10_000, "forks found their prefixes: {cached}");
    }

    #[test]
    fn a_known_prefix_is_not_computed_again_but_something_always_is() {
        let mut s = scheduler(2, 64, 8);
        let tokens: Vec<u32> = (0..40).collect();
        let run = |s: &mut Scheduler, id, tokens: &[u32], wanted| {
            s.submit(id, tokens.to_vec(), tokens.len(), wanted).unwrap();
            let read: usize = std::iter::from_fn(|| s.plan()).map(|(plan, _)| plan.tokens.len()).sum();
            let cached = s.cached_tokens(id);
            s.remove(id);
            (read, cached)
        };
        assert_eq!(run(&mut s, 1, &tokens, Wanted::Next), (40, 0));
        assert_eq!(run(&mut s, 2, &tokens, Wanted::Next), (8, 32), "two whole blocks of three");
        assert_eq!(run(&mut s, 3, &tokens[..32], Wanted::Next), (16, 16), "the last token is always computed");
        assert_eq!(run(&mut s, 4, &tokens, Wanted::RowsFrom(20)), (24, 16), "and so is every wanted row");
        assert_eq!(run(&mut s, 5, &tokens, Wanted::RowsFrom(0)), (40, 0));
        let mut fork = tokens.clone();
        fork[17] = 99;
        assert_eq!(run(&mut s, 6, &fork, Wanted::Next), (24, 16));
    }

    #[test]
    fn a_failed_step_leaves_nothing_known() {
        let mut s = scheduler(2, 64, 8);
        s.submit(1, (0..40).collect(), 48, Wanted::Next).unwrap();
        s.plan().unwrap();
        s.discard_all();
        s.submit(2, (0..40).collect(), 48, Wanted::Next).unwrap();
        assert_eq!(s.plan().unwrap().0.tokens.len(), 40);
    }
}
