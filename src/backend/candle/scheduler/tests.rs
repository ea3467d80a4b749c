use super::*;
use crate::backend::candle::plan::BLOCK_TOKENS;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet};

fn scheduler(max_running: usize, prefill_chunk: usize, blocks: u32) -> Scheduler {
    Scheduler::new(SchedulerConfig { max_running, prefill_chunk, blocks, prefix_blocks: usize::MAX, snapshots: None })
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

/// What stands in a cache, as the tokens that it was computed from: by slot, and by state slot where there are such.
struct Memory(HashMap<u32, Vec<u32>>, Option<HashMap<u32, Vec<u32>>>);

impl Memory {
    /// Runs a step: each row must find the whole prefix of its own sequence in its slots, then leaves its own mark.
    fn run(&mut self, plan: &StepPlan) {
        let slots: HashSet<u32> = plan.slots.iter().copied().collect();
        assert_eq!(slots.len(), plan.slots.len(), "a slot is written twice in a step");
        if let Some(states) = &mut self.1 {
            for copy in &plan.restores {
                states.insert(copy.to, states[&copy.from].clone());
            }
            // All running states are replaced and all snapshots taken while the step runs, in no order.
            let taken: Vec<u32> = plan.spans.iter().flat_map(|s| s.saves.iter().map(|save| save.to)).collect();
            let written = plan.spans.iter().map(|span| span.state).chain(taken.iter().copied());
            assert_eq!(written.collect::<HashSet<_>>().len(), plan.spans.len() + taken.len());
        }
        for span in &plan.spans {
            let slot = |at: usize| span.blocks[at / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (at % BLOCK_TOKENS) as u32;
            let mut prefix = match span.context {
                0 => Vec::new(),
                context => self.0[&slot(context - 1)].clone(),
            };
            assert_eq!(prefix.len(), span.context, "the context is not the sequence's own");
            for at in 0..span.context {
                assert_eq!(self.0[&slot(at)], prefix[..=at], "a block holds other tokens than it should");
            }
            if let Some(states) = &self.1
                && span.context > 0
            {
                assert_eq!(states[&span.state], prefix, "the state is not the sequence's own");
            }
            for (row, at) in span.rows.clone().zip(span.context..) {
                assert_eq!((plan.slots[row], plan.positions[row] as usize), (slot(at), at));
                prefix.push(plan.tokens[row]);
                self.0.insert(slot(at), prefix.clone());
                for save in span.saves.iter().filter(|save| save.after == row + 1 - span.rows.start) {
                    self.1.as_mut().unwrap().insert(save.to, prefix.clone());
                }
            }
            if let Some(states) = &mut self.1 {
                states.insert(span.state, prefix);
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
    let mut cached = [0; 2];
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut s = scheduler(rng.random_range(1..6), rng.random_range(1..40), rng.random_range(6..20));
        let snapshots = [0, 1, 3, 20][rng.random_range(0..4)];
        let running = s.config.max_running as u32;
        let states = (seed % 2 == 1).then(|| StateSlots::new(running, snapshots));
        let hybrid = usize::from(states.is_some());
        s.pool = BlockPool::new(s.config.blocks, [usize::MAX, 5, 0][rng.random_range(0..3)], states);
        let mut memory = Memory(HashMap::new(), (hybrid == 1).then(HashMap::new));
        let mut goal: HashMap<SequenceId, usize> = HashMap::new();
        let mut text: HashMap<SequenceId, Vec<u32>> = HashMap::new();
        let (mut next, mut steps) = (0_u64, 0);
        while next < 40 || !goal.is_empty() {
            steps += 1;
            assert!(steps < 20_000, "seed {seed} does not end");
            if next < 40 && rng.random_bool(0.3) {
                let mut prompt: Vec<u32> = match text.get(&rng.random_range(0..next.max(1))) {
                    Some(other) if rng.random_bool(0.6) => other[..rng.random_range(0..=other.len().min(60))].to_vec(),
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
                cached[hybrid] += s.cached_tokens(use_.sequence);
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
        if hybrid == 1 {
            // And with the blocks went their snapshots.
            assert_eq!(s.pool.free_states(), (running as usize, snapshots as usize), "seed {seed}");
        }
    }
    assert!(cached.iter().all(|cached| *cached > 10_000), "forks found their prefixes: {cached:?}");
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
    assert_eq!(s.discard_running(), [1]);
    s.submit(2, (0..40).collect(), 48, Wanted::Next).unwrap();
    assert_eq!(s.plan().unwrap().0.tokens.len(), 40);
}

/// Tokens that were read, and that were found, in one run of a conversation over a scheduler with state slots.
fn read(s: &mut Scheduler, id: SequenceId, prompt: &[u32], answer: usize) -> (usize, usize) {
    s.submit(id, prompt.to_vec(), prompt.len() + answer, Wanted::Next).unwrap();
    let mut read = 0;
    let mut chosen = 0;
    while let Some((plan, uses)) = s.plan() {
        read += plan.tokens.len();
        for use_ in uses {
            // The answer's tokens follow from the conversation, as a greedy model's do.
            s.push(use_.sequence, 7000 + chosen);
            chosen += 1;
            if chosen as usize > answer {
                break;
            }
        }
        if chosen as usize > answer {
            break;
        }
    }
    let cached = s.cached_tokens(id);
    s.remove(id);
    (read, cached)
}

#[test]
fn a_hybrid_hit_is_claimed_only_where_a_snapshot_stands() {
    let hybrid = |snapshots| {
        Scheduler::new(SchedulerConfig {
            max_running: 2,
            prefill_chunk: 64,
            blocks: 64,
            prefix_blocks: usize::MAX,
            snapshots: Some(snapshots),
        })
    };
    let prompt: Vec<u32> = (0..100).collect();
    let mut s = hybrid(0);
    assert_eq!(read(&mut s, 1, &prompt, 20), (120, 0));
    assert_eq!(read(&mut s, 2, &prompt, 20), (120, 0), "keys and values alone are no start");
    let mut s = hybrid(8);
    assert_eq!(read(&mut s, 1, &prompt, 40), (140, 0));
    // The whole turn comes again, with its answer and a new question: its last whole block has a snapshot.
    let mut next = prompt.clone();
    next.extend(7000..7040);
    next.extend(500..530);
    assert_eq!(read(&mut s, 2, &next, 1), (171 - 128, 128));
    // The answer is left out: the prompt's snapshot stands before the tokens that opened the answer.
    let mut other = prompt[..94].to_vec();
    other.extend(600..630);
    assert_eq!(read(&mut s, 3, &other, 1).1, 80);
    // A fork at a place without a snapshot computes on from where one stands, and leaves one for the next.
    let mut fork = next.clone();
    fork.truncate(124);
    fork.extend(800..830);
    assert_eq!(read(&mut s, 4, &fork, 1).1, 80);
    fork.truncate(124);
    fork.extend(900..930);
    assert_eq!(read(&mut s, 5, &fork, 1).1, 112);
}
