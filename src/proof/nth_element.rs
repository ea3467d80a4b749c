//! The selection that decides ties in a batch with fewer than 64 elements per chosen one.
//!
//! There torch uses GNU libstdc++'s `std::nth_element`, an introspective quickselect.
//! As with [`super::heap`], its exact swaps are part of the format.

use super::heap::{Candidate, build, replace_root};

/// Ranges up to this length are sorted outright.
const SORT_BELOW: usize = 4;

/// Moves the `k` largest magnitudes to the front of `items`, in no particular order.
///
/// Nothing happens unless `1 <= k <= items.len()`.
pub(super) fn select_front(items: &mut [Candidate], k: usize) {
    if k == 0 || k > items.len() {
        return;
    }
    let nth = k - 1;
    let mut rounds_left = 2 * items.len().ilog2();
    let (mut start, mut end) = (0, items.len());
    while end - start >= SORT_BELOW {
        if rounds_left == 0 {
            // Bad pivots all along: a heap bounds the time.
            select_by_heap(&mut items[start..end], nth - start);
            return;
        }
        rounds_left -= 1;
        let cut = start + partition(&mut items[start..end]);
        if cut <= nth {
            start = cut;
        } else {
            end = cut;
        }
    }
    insertion_sort(&mut items[start..end]);
}

/// Moves the `nth + 1` largest to the front with a heap, the smallest of them last.
fn select_by_heap(range: &mut [Candidate], nth: usize) {
    let (heap, rest) = range.split_at_mut(nth + 1);
    build(heap);
    for item in rest {
        if item.beats(heap[0]) {
            let value = std::mem::replace(item, heap[0]);
            replace_root(heap, value);
        }
    }
    heap.swap(0, nth);
}

/// Partitions at least four items around a median of three and returns where the second
/// part starts. Items equal to the pivot stop both scans, so they land on either side.
fn partition(range: &mut [Candidate]) -> usize {
    let (middle, last) = (range.len() / 2, range.len() - 1);
    median_to_front(range, 1, middle, last);
    let pivot = range[0];
    let (mut left, mut right) = (1, range.len());
    // The pivot is a median, so each scan meets an item that stops it within the range.
    loop {
        while range[left].beats(pivot) {
            left += 1;
        }
        right -= 1;
        while pivot.beats(range[right]) {
            right -= 1;
        }
        if left >= right {
            return left;
        }
        range.swap(left, right);
        left += 1;
    }
}

/// Swaps the median of three items with the first; which of equals it takes is fixed.
fn median_to_front(range: &mut [Candidate], a: usize, b: usize, c: usize) {
    let beats = |x: usize, y: usize| range[x].beats(range[y]);
    let median = if beats(a, b) {
        if beats(b, c) {
            b
        } else if beats(a, c) {
            c
        } else {
            a
        }
    } else if beats(a, c) {
        a
    } else if beats(b, c) {
        c
    } else {
        b
    };
    range.swap(0, median);
}

/// Sorts a short range, largest first; equals keep their order.
fn insertion_sort(range: &mut [Candidate]) {
    for end in 1..range.len() {
        let mut at = end;
        while at > 0 && range[at].beats(range[at - 1]) {
            range.swap(at, at - 1);
            at -= 1;
        }
    }
}
