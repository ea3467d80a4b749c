//! Which state slot is whose.
//!
//! A linear layer remembers a matrix of fixed size instead of keys and values. A running sequence has one slot that each step
//! replaces; so where a prefix is to be taken up again later, its state must have been copied at that very token: a
//! snapshot, in a slot of its own.

/// Slot numbers `0..running` are running sequences', those behind them snapshots'.
#[derive(Debug)]
pub(in crate::backend::candle) struct StateSlots {
    running: Vec<u32>,
    snapshots: Vec<u32>,
}

impl StateSlots {
    /// Slots for so many running sequences and so many snapshots, all free.
    pub(in crate::backend::candle) fn new(running: u32, snapshots: u32) -> Self {
        Self {
            running: (0..running).rev().collect(),
            snapshots: (running..running.saturating_add(snapshots)).rev().collect(),
        }
    }

    /// A running sequence's slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.running.pop()
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.running.push(slot);
    }

    /// A free slot for a snapshot.
    pub(super) fn take_snapshot(&mut self) -> Option<u32> {
        self.snapshots.pop()
    }

    pub(super) fn give_back_snapshot(&mut self, slot: u32) {
        self.snapshots.push(slot);
    }

    /// Free slots of both kinds.
    #[cfg(test)]
    pub(in crate::backend::candle) fn free(&self) -> (usize, usize) {
        (self.running.len(), self.snapshots.len())
    }
}
