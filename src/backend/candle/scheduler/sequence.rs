//! One sequence: its tokens, what of them is computed, and its part of a step.

use super::{RowUse, SequenceId, Wanted};
use crate::backend::candle::cache::NodeId;
use crate::backend::candle::cache::blocks::BlockPool;
use crate::backend::candle::candidates::LogitsWanted;
use crate::backend::candle::plan::{BLOCK_TOKENS, OutputRow, Span, StateCopy, StateSave, StepPlan};

/// Tokens between two snapshots while a long prompt is read. A snapshot of Qwen3.6 takes as much memory as the keys and values
/// of 3,000 tokens.
const SNAPSHOT_SPACING: usize = 2048;

/// Tokens at the end of a prompt that its snapshot leaves out: they open the answer (`<|im_start|>assistant`, an opened
/// thought), and when the conversation comes again with that answer in it, they need not come again alike.
const TURN_OPENING: usize = 8;

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) tokens: Vec<u32>,
    /// Tokens that it came with.
    prompt: usize,
    /// Tokens whose keys and values stand in the cache.
    pub(super) computed: usize,
    pub(super) blocks: Vec<u32>,
    wanted: Wanted,
    /// Blocks of its table that the prefix tree knows, the last one's node, and whether more can follow.
    published: usize,
    node: Option<NodeId>,
    publishing: bool,
    /// Prompt tokens that were found in the tree when it was first let in.
    pub(super) cached: Option<usize>,
    /// Its state slot, while it runs on a model with linear layers.
    state: Option<u32>,
    /// Snapshots whose block the tree does not know yet: after how many tokens they are taken, and their slots.
    saves: Vec<(usize, u32)>,
    /// Where its newest snapshot stands, or where it started.
    newest_save: usize,
    /// Where a known prefix went on but had no snapshot: whoever comes next shall find one.
    branch: usize,
    /// The newest snapshot taken behind the prompt, and its slot. One is enough: only the whole answer comes again.
    answer_snapshot: Option<(NodeId, u32)>,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, tokens: Vec<u32>, wanted: Wanted) -> Self {
        Self {
            id,
            prompt: tokens.len(),
            tokens,
            computed: 0,
            blocks: Vec::new(),
            wanted,
            published: 0,
            node: None,
            publishing: true,
            cached: None,
            state: None,
            saves: Vec::new(),
            newest_save: 0,
            branch: 0,
            answer_snapshot: None,
        }
    }

    /// Tokens that are still to be read.
    pub(super) fn unread(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether its next token is one that was just chosen.
    pub(super) fn is_decoding(&self) -> bool {
        self.computed > 0 && self.unread() == 1
    }

    /// Blocks that reading all its tokens will still take.
    pub(super) fn missing_blocks(&self) -> usize {
        self.tokens.len().div_ceil(BLOCK_TOKENS).saturating_sub(self.blocks.len())
    }

    /// Whether it has all that it needs to run, but for blocks.
    pub(super) fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// Starts behind the longest prefix that is known and leaves something to compute. Where sequences have states, gives the
    /// snapshot to start from.
    pub(super) fn adopt_prefix(&mut self, pool: &mut BlockPool) -> Option<StateCopy> {
        let most = match self.wanted {
            Wanted::Next => self.tokens.len() - 1,
            Wanted::RowsFrom(from) => from.min(self.tokens.len() - 1),
        };
        let mut found = pool.take_prefix(&self.tokens[..most]);
        if pool.has_states() {
            // Keys and values alone are no start: linear layers need what they remembered at that token.
            let usable = found.iter().rposition(|(node, _)| pool.snapshot(*node).is_some()).map_or(0, |at| at + 1);
            self.branch = if found.len() > usable { found.len() * BLOCK_TOKENS } else { 0 };
            pool.give_back(found.drain(usable..).map(|(_, block)| block));
            self.state = pool.take_state();
        }
        self.node = found.last().map(|(node, _)| *node);
        self.published = found.len();
        self.computed = found.len() * BLOCK_TOKENS;
        self.newest_save = self.computed;
        self.blocks = found.into_iter().map(|(_, block)| block).collect();
        Some(StateCopy { from: pool.snapshot(self.node?)?, to: self.state? })
    }

    /// Gives all that it has back; it will be computed again.
    pub(super) fn give_up(&mut self, pool: &mut BlockPool) {
        pool.give_back(self.blocks.drain(..));
        self.give_up_saves(pool);
        self.state.take().into_iter().for_each(|slot| pool.give_back_state(slot));
        (self.computed, self.published, self.node, self.publishing) = (0, 0, None, true);
        self.answer_snapshot = None;
    }

    /// Makes its whole computed blocks known, and the snapshots behind them.
    pub(super) fn publish(&mut self, pool: &mut BlockPool) {
        while self.publishing && (self.published + 1) * BLOCK_TOKENS <= self.computed {
            let at = self.published;
            let published = pool.publish(self.node, &self.tokens[at * BLOCK_TOKENS..], self.blocks[at]);
            let Some((node, block)) = published else {
                self.publishing = false;
                self.give_up_saves(pool);
                return;
            };
            self.blocks[at] = block;
            self.node = Some(node);
            self.published += 1;
            self.attach_save(pool, node);
        }
    }

    /// The snapshots to take while the next `chunk` tokens are read. Only whole blocks are ever found again, so only ends of
    /// blocks are of use.
    pub(super) fn plan_saves(&mut self, pool: &mut BlockPool, chunk: usize) -> Vec<StateSave> {
        if self.state.is_none() || !self.publishing {
            return Vec::new();
        }
        let end = self.computed + chunk;
        let last = end / BLOCK_TOKENS * BLOCK_TOKENS;
        let mut wanted = Vec::new();
        if self.computed >= self.prompt {
            wanted.push(last);
        } else {
            wanted.extend([self.branch, self.prompt.saturating_sub(TURN_OPENING) / BLOCK_TOKENS * BLOCK_TOKENS]);
            if last >= self.newest_save + SNAPSHOT_SPACING {
                wanted.push(last);
            }
            wanted.sort_unstable();
            wanted.dedup();
        }
        let mut saves = Vec::new();
        for position in wanted.into_iter().filter(|position| (self.computed + 1..=end).contains(position)) {
            // An answer moves its snapshot along in one slot: if each took a new one, answers would push out the prompts' that
            // others start from.
            let own = self.answer_snapshot.take().and_then(|(node, slot)| pool.retake_snapshot(node, slot));
            let Some(to) = own.or_else(|| pool.take_snapshot()) else { break };
            self.saves.push((position, to));
            self.newest_save = position;
            saves.push(StateSave { after: position - self.computed, to });
        }
        saves
    }

    /// Adds its next `chunk` tokens to a plan.
    pub(super) fn put_into(
        &mut self,
        plan: &mut StepPlan,
        uses: &mut Vec<RowUse>,
        chunk: usize,
        saves: Vec<StateSave>,
    ) {
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
                // The engine narrows it to what the sequence's sampler needs.
                let logits = if chooses { LogitsWanted::All } else { LogitsWanted::Nothing };
                plan.outputs.push(OutputRow { row, fin: true, logits });
                uses.push(RowUse { sequence: self.id, chooses });
            }
        }
        plan.spans.push(Span {
            rows: start..start + chunk,
            context: self.computed,
            blocks: self.blocks.clone(),
            state: self.state.unwrap_or_default(),
            saves,
        });
        self.computed += chunk;
    }

    /// Hands the snapshot at the end of the block that was just published to its node.
    fn attach_save(&mut self, pool: &mut BlockPool, node: NodeId) {
        let end = self.published * BLOCK_TOKENS;
        let Some(at) = self.saves.iter().position(|(position, _)| *position == end) else { return };
        let (_, slot) = self.saves.swap_remove(at);
        let kept = pool.attach_snapshot(node, slot);
        if kept && end > self.prompt {
            self.answer_snapshot = Some((node, slot));
        }
    }

    fn give_up_saves(&mut self, pool: &mut BlockPool) {
        self.saves.drain(..).for_each(|(_, slot)| pool.give_back_snapshot(slot));
    }
}
