//! Which runs of tokens already have their keys and values in a block.

use std::collections::{BTreeSet, HashMap};

use crate::backend::candle::plan::BLOCK_TOKENS;

/// Names a node of the tree. Stays valid while the node's block has an owner beside the tree.
pub(in crate::backend::candle) type NodeId = usize;

/// The tokens of a whole block.
pub(super) type BlockKey = [u32; BLOCK_TOKENS];

/// A tree whose edges are whole blocks of tokens: a path from the root is a prefix, and its nodes name the blocks that hold
/// it. Keys are the tokens themselves, so nothing is ever taken for something that it is not.
#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    /// Places in `nodes` that are free again.
    vacant: Vec<NodeId>,
    children: HashMap<(Option<NodeId>, BlockKey), NodeId>,
    /// Nodes without children, the longest unused first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes with a snapshot, the longest unused first.
    snapshots: BTreeSet<(u64, NodeId)>,
    clock: u64,
}

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    key: BlockKey,
    block: u32,
    children: usize,
    used: u64,
    /// The slot that holds what linear layers remember after this node's last token.
    snapshot: Option<u32>,
}

impl PrefixTree {
    /// The nodes and blocks of the longest known prefix of `tokens`, in order.
    pub(super) fn find(&mut self, tokens: &[u32]) -> Vec<(NodeId, u32)> {
        let mut found = Vec::new();
        let mut at = None;
        for key in tokens.as_chunks::<BLOCK_TOKENS>().0 {
            let Some(&node) = self.children.get(&(at, *key)) else { break };
            found.push((node, self.nodes[node].block));
            at = Some(node);
        }
        self.clock += 1;
        for &(node, _) in &found {
            self.touch(node);
        }
        found
    }

    /// Adds a block behind `parent`. Gives its node, and the block that the node had already, if there was one: then
    /// nothing was added.
    pub(super) fn add(&mut self, parent: Option<NodeId>, key: BlockKey, block: u32) -> (NodeId, Option<u32>) {
        if let Some(&node) = self.children.get(&(parent, key)) {
            self.clock += 1;
            self.touch(node);
            return (node, Some(self.nodes[node].block));
        }
        self.clock += 1;
        let new = Node { parent, key, block, children: 0, used: self.clock, snapshot: None };
        let node = match self.vacant.pop() {
            Some(vacant) => {
                self.nodes[vacant] = new;
                vacant
            }
            None => {
                self.nodes.push(new);
                self.nodes.len() - 1
            }
        };
        self.children.insert((parent, key), node);
        self.leaves.insert((self.clock, node));
        if let Some(parent) = parent {
            self.leaves.remove(&(self.nodes[parent].used, parent));
            self.nodes[parent].children += 1;
        }
        (node, None)
    }

    /// Forgets the longest unused block that has no continuation and that `free` allows; gives it, and its snapshot.
    pub(super) fn evict(&mut self, free: impl Fn(u32) -> bool) -> Option<(u32, Option<u32>)> {
        let &(used, node) = self.leaves.iter().find(|(_, node)| free(self.nodes[*node].block))?;
        self.leaves.remove(&(used, node));
        let snapshot = self.detach(node);
        let Node { parent, key, block, .. } = self.nodes[node];
        self.children.remove(&(parent, key));
        self.vacant.push(node);
        if let Some(parent) = parent {
            self.nodes[parent].children -= 1;
            if self.nodes[parent].children == 0 {
                self.leaves.insert((self.nodes[parent].used, parent));
            }
        }
        Some((block, snapshot))
    }

    /// The snapshot behind a node.
    pub(super) fn snapshot(&self, node: NodeId) -> Option<u32> {
        self.nodes[node].snapshot
    }

    /// Gives a node a snapshot; the given slot comes back where it has one already.
    pub(super) fn attach(&mut self, node: NodeId, slot: u32) -> Option<u32> {
        if self.nodes[node].snapshot.is_some() {
            return Some(slot);
        }
        self.nodes[node].snapshot = Some(slot);
        self.snapshots.insert((self.nodes[node].used, node));
        None
    }

    /// Takes a node's snapshot away.
    pub(super) fn detach(&mut self, node: NodeId) -> Option<u32> {
        let slot = self.nodes[node].snapshot.take()?;
        self.snapshots.remove(&(self.nodes[node].used, node));
        Some(slot)
    }

    /// Takes the longest unused snapshot away.
    pub(super) fn evict_snapshot(&mut self) -> Option<u32> {
        let &(_, node) = self.snapshots.first()?;
        self.detach(node)
    }

    fn touch(&mut self, node: NodeId) {
        let leaf = self.leaves.remove(&(self.nodes[node].used, node));
        let kept = self.snapshots.remove(&(self.nodes[node].used, node));
        self.nodes[node].used = self.clock;
        if kept {
            self.snapshots.insert((self.clock, node));
        }
        if leaf {
            self.leaves.insert((self.clock, node));
        }
    }
}
