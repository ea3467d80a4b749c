//! The heap that decides which of several equal magnitudes stays in the top k.
//!
//! torch's CPU top-k leaves ties to GNU libstdc++'s `std::partial_sort`, so the *order of
//! moves* in its heap is part of the format: two correct heaps that sift differently keep
//! different members of a tie, and the proofs differ. These functions make the same moves.
//! The root is the smallest magnitude kept; only magnitudes are compared.

use std::hint::select_unpredictable;

/// One activation that may be chosen: magnitude, bits and flat index in one word.
///
/// The magnitude, `bits & 0x7FFF`, is on top, so comparing costs one shift; for finite
/// BF16 its order as an integer is the order of absolute values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate(u64);

impl Candidate {
    /// An activation's BF16 bits and its index, counted from its batch's start.
    #[inline]
    pub(super) fn new(bits: u16, index: u32) -> Self {
        Self(u64::from(bits & 0x7FFF) << 48 | u64::from(bits) << 32 | u64::from(index))
    }

    /// |x| as an integer.
    #[inline(always)]
    pub(super) fn magnitude(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The BF16 bits, sign included.
    #[inline]
    pub(super) fn bits(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// The flat index within the batch.
    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    /// Whether this magnitude is strictly the larger.
    #[inline(always)]
    pub(super) fn beats(self, other: Self) -> bool {
        self.magnitude() > other.magnitude()
    }
}

/// Orders `heap` as a heap, last parent first.
pub(super) fn build(heap: &mut [Candidate]) {
    for parent in (0..heap.len() / 2).rev() {
        let value = heap[parent];
        sift(heap, parent, value);
    }
}

/// Drops the root, the smallest magnitude kept, in favour of `value`.
#[inline]
pub(super) fn replace_root(heap: &mut [Candidate], value: Candidate) {
    if !heap.is_empty() {
        sift(heap, 0, value);
    }
}

/// Puts `value` in the place of the member at `top`, below which the heap is in order.
///
/// The path down takes the smaller child, the right one of equals. Members that `value`
/// does not fall short of move up one place and the rest stay, which is where libstdc++'s
/// sink-then-rise also ends. Every level is written, changed or not: without a branch on
/// the data one replacement overlaps the next.
#[inline]
fn sift(heap: &mut [Candidate], top: usize, value: Candidate) {
    let (mut hole, mut settles) = (top, value);
    loop {
        let right = 2 * hole + 2;
        let child = match heap.get(right) {
            Some(member) => right - usize::from(member.beats(heap[right - 1])),
            None if right == heap.len() => right - 1,
            None => break,
        };
        let member = heap[child];
        let stays = member.beats(value);
        heap[hole] = select_unpredictable(stays, settles, member);
        settles = select_unpredictable(stays, member, settles);
        hole = child;
    }
    heap[hole] = settles;
}
