//! Which key/value block is free.

/// A stack of free blocks. Every block is either here or in exactly one sequence's table.
#[derive(Debug)]
pub(in crate::backend::candle) struct BlockAllocator {
    free: Vec<u32>,
    total: usize,
}

impl BlockAllocator {
    /// `total` blocks, all free.
    pub(in crate::backend::candle) fn new(total: u32) -> Self {
        Self {
            // Popped from the end: low blocks go first, so that a lightly used cache stays compact.
            free: (0..total).rev().collect(),
            total: total as usize,
        }
    }

    /// A free block, or `None` when all are taken.
    pub(in crate::backend::candle) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives blocks back.
    pub(in crate::backend::candle) fn give_back(&mut self, blocks: impl IntoIterator<Item = u32>) {
        self.free.extend(blocks);
        debug_assert!(self.free.len() <= self.total, "a block was given back twice");
    }

    pub(in crate::backend::candle) fn free(&self) -> usize {
        self.free.len()
    }

    pub(in crate::backend::candle) fn total(&self) -> usize {
        self.total
    }
}
