//! Which key/value block is whose, and which state slot.

use super::prefix::{NodeId, PrefixTree};
use super::states::StateSlots;
use crate::backend::candle::plan::BLOCK_TOKENS;

/// All blocks, with their owners counted.
///
/// A block is free, or owned by the sequences that have it in their tables and by the prefix tree if that knows it. Only
/// whole blocks are known to the tree and so shared; nobody writes to a whole block, so sharing needs no copies. Blocks
/// that only the tree owns are given up when a sequence needs one, the longest unused first.
#[derive(Debug)]
pub(in crate::backend::candle) struct BlockPool {
    free: Vec<u32>,
    /// Owners of each block.
    owners: Vec<u32>,
    tree: Option<PrefixTree>,
    /// Most blocks that the tree may know.
    tree_limit: usize,
    /// Blocks that the tree knows.
    known: usize,
    /// Blocks that only the tree owns.
    spare: usize,
    states: Option<StateSlots>,
}

impl BlockPool {
    /// `total` blocks, all free; a prefix tree over at most `prefix_blocks` of them (0: none). `states` are there where a
    /// model has layers that remember something of fixed size.
    pub(in crate::backend::candle) fn new(total: u32, prefix_blocks: usize, states: Option<StateSlots>) -> Self {
        Self {
            // Popped from the end: low blocks go first, so that a lightly used cache stays compact.
            free: (0..total).rev().collect(),
            owners: vec![0; total as usize],
            tree: (prefix_blocks > 0).then(PrefixTree::default),
            tree_limit: prefix_blocks,
            known: 0,
            spare: 0,
            states,
        }
    }

    /// Whether sequences have states.
    pub(in crate::backend::candle) fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// A state slot for a running sequence, where sequences have one.
    pub(in crate::backend::candle) fn take_state(&mut self) -> Option<u32> {
        self.states.as_mut()?.take()
    }

    /// Takes a running sequence's state slot back.
    pub(in crate::backend::candle) fn give_back_state(&mut self, slot: u32) {
        if let Some(states) = &mut self.states {
            states.give_back(slot);
        }
    }

    /// A slot for a snapshot, if need be that of the longest unused one. `None` where there are no such slots, or those who
    /// have them are about to attach them.
    pub(in crate::backend::candle) fn take_snapshot(&mut self) -> Option<u32> {
        // Without a tree nobody could find it again.
        let tree = self.tree.as_mut()?;
        self.states.as_mut()?.take_snapshot().or_else(|| tree.evict_snapshot())
    }

    /// Takes a snapshot's slot back.
    pub(in crate::backend::candle) fn give_back_snapshot(&mut self, slot: u32) {
        if let Some(states) = &mut self.states {
            states.give_back_snapshot(slot);
        }
    }

    /// The snapshot behind a node.
    pub(in crate::backend::candle) fn snapshot(&self, node: NodeId) -> Option<u32> {
        self.tree.as_ref()?.snapshot(node)
    }

    /// Gives a node a snapshot. False, and the slot is free again, where it has one already.
    pub(in crate::backend::candle) fn attach_snapshot(&mut self, node: NodeId, slot: u32) -> bool {
        let surplus = match &mut self.tree {
            Some(tree) => tree.attach(node, slot),
            None => Some(slot),
        };
        surplus.into_iter().for_each(|slot| self.give_back_snapshot(slot));
        surplus.is_none()
    }

    /// Takes a node's snapshot away, to use its slot again; `None` where it is not that slot any more.
    pub(in crate::backend::candle) fn retake_snapshot(&mut self, node: NodeId, slot: u32) -> Option<u32> {
        let tree = self.tree.as_mut()?;
        if tree.snapshot(node) == Some(slot) { tree.detach(node) } else { None }
    }

    pub(in crate::backend::candle) fn total(&self) -> usize {
        self.owners.len()
    }

    /// Blocks that a sequence could have: free ones, and those that only the tree owns.
    pub(in crate::backend::candle) fn available(&self) -> usize {
        self.free.len() + self.spare
    }

    /// A block for one sequence; `None` when sequences own them all.
    pub(in crate::backend::candle) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict()?,
        };
        self.owners[block as usize] = 1;
        Some(block)
    }

    /// Takes the blocks of the longest known prefix of `tokens`: for each its node and the block.
    pub(in crate::backend::candle) fn take_prefix(&mut self, tokens: &[u32]) -> Vec<(NodeId, u32)> {
        let Some(tree) = &mut self.tree else { return Vec::new() };
        let found = tree.find(tokens);
        for &(_, block) in &found {
            self.own(block);
        }
        found
    }

    /// Makes a whole, computed block of a sequence known behind `parent`. Gives its node and the block to use from now
    /// on: where another sequence had computed the same tokens, that one, and the given one is given back.
    pub(in crate::backend::candle) fn publish(
        &mut self,
        parent: Option<NodeId>,
        tokens: &[u32],
        block: u32,
    ) -> Option<(NodeId, u32)> {
        let key = *tokens.first_chunk::<BLOCK_TOKENS>()?;
        if self.tree.is_some() && self.known >= self.tree_limit {
            let evicted = self.evict();
            self.free.extend(evicted);
        }
        if self.known >= self.tree_limit {
            return None;
        }
        match self.tree.as_mut()?.add(parent, key, block) {
            (node, None) => {
                self.owners[block as usize] += 1;
                self.known += 1;
                Some((node, block))
            }
            (node, Some(known)) => {
                self.own(known);
                self.give_back([block]);
                Some((node, known))
            }
        }
    }

    /// Gives up one ownership of each block.
    pub(in crate::backend::candle) fn give_back(&mut self, blocks: impl IntoIterator<Item = u32>) {
        for block in blocks {
            let owners = &mut self.owners[block as usize];
            *owners = owners.saturating_sub(1);
            match *owners {
                0 => self.free.push(block),
                // Sequences share through the tree alone, so the owner that is left is the tree.
                1 => self.spare += 1,
                _ => {}
            }
        }
    }

    /// Free state slots, of sequences and of snapshots.
    #[cfg(test)]
    pub(in crate::backend::candle) fn free_states(&self) -> (usize, usize) {
        self.states.as_ref().map_or((0, 0), StateSlots::free)
    }

    fn own(&mut self, block: u32) {
        let owners = &mut self.owners[block as usize];
        if *owners == 1 {
            self.spare -= 1;
        }
        *owners += 1;
    }

    fn evict(&mut self) -> Option<u32> {
        let owners = &self.owners;
        let (block, snapshot) = self.tree.as_mut()?.evict(|block| owners[block as usize] == 1)?;
        snapshot.into_iter().for_each(|slot| self.give_back_snapshot(slot));
        self.owners[block as usize] = 0;
        self.known -= 1;
        self.spare -= 1;
        Some(block)
    }
}
