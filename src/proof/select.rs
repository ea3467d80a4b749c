//! The k activations of a batch with the largest magnitudes, found while rows stream by.
//!
//! torch's CPU top-k, whose choice among ties toploc 0.1.6 inherits, works in one of two
//! ways: a heap when the batch has at least 64 elements per chosen one, else
//! `nth_element`. Which it will be is unknown until enough rows came, so up to that many
//! elements are buffered; from there on only the heap is held.

use super::heap::{Candidate, build, replace_root};
use super::nth_element::select_front;

/// Elements per chosen one from which torch uses `std::partial_sort`.
const HEAP_FROM: usize = 64;

/// Smallest magnitude that is no finite number (BF16 exponent all ones).
const NON_FINITE: u16 = 0x7F80;

/// Elements compared with the heap's smallest member at once.
///
/// Once the heap is warm nearly every block is passed over. Larger blocks are passed over
/// faster but hit more often; 32 measured fastest of 32, 64, 128 and 256. At most 32, as
/// positions within a block are bits.
const BLOCK: usize = 32;

/// Each position within a block as a bit: a table, since SSE2 cannot shift by different counts.
const POSITIONS: [u32; BLOCK] = {
    let mut bits = [0; BLOCK];
    let mut position = 0;
    while position < BLOCK {
        bits[position] = 1 << position;
        position += 1;
    }
    bits
};

/// A NaN or an infinity: its column and its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NonFiniteAt {
    pub(super) column: usize,
    pub(super) bits: u16,
}

/// The running top k of one batch.
#[derive(Clone, Debug)]
pub(super) struct TopK {
    k: usize,
    /// Elements seen in this batch; the next row's first flat index.
    seen: usize,
    /// Every element so far, while they are too few for the heap.
    buffer: Vec<u16>,
    /// The k largest so far, once they are enough; empty before.
    heap: Vec<Candidate>,
}

impl TopK {
    /// An empty batch. `k` is at least 1, and a batch has at most 2^31 elements.
    pub(super) fn new(k: usize) -> Self {
        Self { k, seen: 0, buffer: Vec::new(), heap: Vec::new() }
    }

    /// Elements seen since the batch began.
    pub(super) fn seen(&self) -> usize {
        self.seen
    }

    /// Takes the batch's next row, or reports its first non-finite element.
    pub(super) fn push(&mut self, row: &[u16]) -> Result<(), NonFiniteAt> {
        if self.heap.is_empty() {
            check_finite(row)?;
            self.buffer.extend_from_slice(row);
            if self.buffer.len() >= self.k * HEAP_FROM {
                self.begin_streaming();
            }
        } else {
            stream(&mut self.heap, row, self.seen)?;
        }
        self.seen += row.len();
        Ok(())
    }

    /// Ends the batch: its k chosen elements, or `None` if it has fewer than k.
    pub(super) fn take(&mut self) -> Option<Vec<Candidate>> {
        let enough = self.seen >= self.k;
        self.seen = 0;
        if !self.heap.is_empty() {
            return Some(std::mem::take(&mut self.heap));
        }
        let mut items = candidates(&self.buffer);
        self.buffer.clear();
        if !enough {
            return None;
        }
        select_front(&mut items, self.k);
        items.truncate(self.k);
        Some(items)
    }

    /// Turns the buffer into the heap: the first k as they are, the rest on merit.
    fn begin_streaming(&mut self) {
        let (first, rest) = self.buffer.split_at(self.k);
        self.heap = candidates(first);
        build(&mut self.heap);
        // The buffer's rows were checked as they came.
        let _finite = stream(&mut self.heap, rest, self.k);
        self.buffer.clear();
    }
}

/// A batch's first elements with their flat indices.
fn candidates(bits: &[u16]) -> Vec<Candidate> {
    (0..).zip(bits).map(|(index, &bits)| Candidate::new(bits, index)).collect()
}

/// Lets every element of `row` that beats the heap's root take its place, in order.
fn stream(heap: &mut [Candidate], row: &[u16], first_index: usize) -> Result<(), NonFiniteAt> {
    let (blocks, tail) = row.as_chunks::<BLOCK>();
    let mut column = 0;
    for block in blocks {
        if any_above(block, floor(heap)) {
            admit(heap, block, first_index, column)?;
        }
        column += BLOCK;
    }
    admit(heap, tail, first_index, column)
}

/// The smallest magnitude kept; always finite, so a NaN is always above it.
#[inline(always)]
fn floor(heap: &[Candidate]) -> u16 {
    heap.first().map_or(u16::MAX, |root| root.magnitude())
}

/// Element by element, the exact rule. At most [`BLOCK`] elements.
fn admit(heap: &mut [Candidate], block: &[u16], first_index: usize, column: usize) -> Result<(), NonFiniteAt> {
    // Which elements are above the root is as good as random, so a branch on each would
    // mostly be mispredicted. Gather their positions first, without one.
    let lowest = floor(heap);
    let mut above = 0;
    for (&bits, bit) in block.iter().zip(POSITIONS) {
        above |= if bits & 0x7FFF > lowest { bit } else { 0 };
    }
    while above != 0 {
        let position = above.trailing_zeros() as usize;
        above &= above - 1;
        let bits = block[position];
        let column = column + position;
        if bits & 0x7FFF >= NON_FINITE {
            return Err(NonFiniteAt { column, bits });
        }
        // The root may have grown since the positions were gathered.
        if bits & 0x7FFF > floor(heap) {
            let index = (first_index + column) as u32;
            replace_root(heap, Candidate::new(bits, index));
        }
    }
    Ok(())
}

/// Whether any magnitude is above `floor`. A saturating difference joined by OR is three
/// SSE2 instructions for eight elements.
#[inline(always)]
fn any_above(block: &[u16], floor: u16) -> bool {
    block.iter().fold(0, |any, bits| any | (bits & 0x7FFF).saturating_sub(floor)) != 0
}

/// The first NaN or infinity of a row, if any.
fn check_finite(row: &[u16]) -> Result<(), NonFiniteAt> {
    if !any_above(row, NON_FINITE - 1) {
        return Ok(());
    }
    match row.iter().position(|bits| bits & 0x7FFF >= NON_FINITE) {
        Some(column) => Err(NonFiniteAt { column, bits: row[column] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(bits: &[u16], k: usize, row: usize) -> Vec<u32> {
        let mut top = TopK::new(k);
        for row in bits.chunks(row) {
            top.push(row).unwrap();
        }
        let mut indices: Vec<u32> = top.take().unwrap().iter().map(|c| c.index()).collect();
        indices.sort_unstable();
        indices
    }

    // The sets below are what GNU libstdc++ 12 keeps; in each, the k-th magnitude is tied.

    #[test]
    fn ties_in_the_heap_fall_as_in_partial_sort() {
        let bits: Vec<u16> = (0..256).map(|i| i * 37 % 101 % 9).collect();
        for row in [1, 7, 64, 256] {
            assert_eq!(chosen(&bits, 4, row), [24, 26, 28, 57]);
        }
    }

    #[test]
    fn ties_in_a_short_batch_fall_as_in_nth_element() {
        let bits: Vec<u16> = (0..255).map(|i| i * 37 % 101 % 9).collect();
        assert_eq!(chosen(&bits, 4, 17), [164, 191, 193, 195]);
    }

    #[test]
    fn ties_fall_as_in_nth_element_when_its_pivots_are_all_bad() {
        // Made by an adversary so that the depth limit is reached and a heap takes over.
        let bits = [13, 20, 15, 19, 10, 18, 14, 17, 10, 16, 20, 19, 18, 17, 16, 15, 14, 13, 10, 10];
        let but = |gone: u32| (0..18).filter(|&i| i != gone).collect::<Vec<u32>>();
        assert_eq!(chosen(&bits, 17, 20), but(8));
        assert_eq!(chosen(&bits, 18, 20), (0..18).collect::<Vec<u32>>());
    }

    #[test]
    fn a_finished_batch_leaves_nothing_behind() {
        let mut top = TopK::new(2);
        top.push(&[1, 9, 5]).unwrap();
        assert!(top.take().is_some());
        top.push(&[7]).unwrap();
        assert_eq!(top.take(), None);
        assert_eq!(top.take(), None);
        top.push(&[3, 4]).unwrap();
        let indices: Vec<u32> = top.take().unwrap().iter().map(|c| c.index()).collect();
        assert_eq!(indices.len(), 2);
        assert!(indices.contains(&0) && indices.contains(&1));
    }
}
