//! Attention of a few consecutive rows over their sequence: the inner loops.
//!
//! A context is cut at the multiples of [`PART`] tokens. What a query finds in a part is computed by itself: its scores, each one
//! sum over the head in order; their highest; their powers and the sum of these; the values that they weigh, token by token. Parts
//! are then merged in order. None of this knows which queries share a part's keys and values, where a step's rows begin, or which
//! thread computes which parts, so a query's result is the same bits in all cases. Keys and values that a query does not see are never
//! multiplied into its sums, whatever they are.

use std::ops::Range;

use super::super::kv_value::KvValue;
use super::super::lanes::{LANES, Lanes, exp};
use super::super::simd::Kernel;
use crate::backend::candle::plan::BLOCK_TOKENS;

/// Tokens of a part: keys and values of a head of 64 then just fit the fastest cache, and four queries' scores are sixteen
/// vectors, which hide the latency of a fused multiply-add and fit the registers of AVX-512.
pub(super) const PART: usize = 64;
/// Blocks of a part.
const BLOCKS: usize = PART / BLOCK_TOKENS;
/// Queries that are computed side by side.
const QUERIES: usize = 4;
/// Vectors of values that are summed side by side.
const VECTORS: usize = 4;

const _: () = assert!(BLOCK_TOKENS == LANES, "a block's tokens are the lanes of a vector of scores");

/// Floats that say what a query found: the weighted values (not yet divided, padded to whole vectors), the highest score, and
/// the sum of the weights.
pub(super) fn finding_len(dim: usize) -> usize {
    dim.next_multiple_of(LANES) + 2
}

/// Rows of one sequence, and the query heads of theirs that share a key head.
pub(super) struct Tile<'a, T> {
    pub(super) queries: Queries<'a>,
    pub(super) keys: &'a [T],
    pub(super) values: &'a [T],
    pub(super) paged: Paged<'a>,
    /// Tokens that the first row sees; each further one sees one more.
    pub(super) context: usize,
    /// The parts to look at.
    pub(super) parts: Range<usize>,
    /// Whether the findings of these parts are merged: then one for each query comes out, else one for each part and query.
    pub(super) merged: bool,
    pub(super) scratch: &'a mut Scratch,
    /// `[parts if not merged, rows, heads of the group, finding_len]`, zeros.
    pub(super) out: &'a mut [f32],
}

/// Where a tile's queries are.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// `[rows, width]`.
    pub(super) inputs: &'a [f32],
    pub(super) width: usize,
    pub(super) rows: usize,
    /// In a row, the place of the first query.
    pub(super) first: usize,
    /// Query heads that share a key head.
    pub(super) group: usize,
    pub(super) dim: usize,
    pub(super) scale: f32,
}

/// Where one head's vectors of a sequence lie in the cache.
#[derive(Clone, Copy)]
pub(super) struct Paged<'a> {
    pub(super) blocks: &'a [u32],
    pub(super) block_stride: usize,
    /// A head's part of a block is contiguous, and begins here.
    pub(super) head_offset: usize,
}

/// Memory that a thread uses again and again.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[queries / QUERIES, dim, QUERIES]`, scaled.
    queries: Vec<[f32; QUERIES]>,
    /// A part's keys and values where they are not used as they are stored.
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
    findings: Vec<f32>,
}

/// A part's blocks; where there are fewer, the last stands for the missing ones.
struct Part<'a, U> {
    /// `[dim]` vectors of tokens each.
    keys: [&'a [[U; LANES]]; BLOCKS],
    /// `[BLOCK_TOKENS, vectors]` each.
    values: [&'a [[U; LANES]]; BLOCKS],
    /// The keys that are read next.
    ahead: [&'a [[U; LANES]]; BLOCKS],
    /// Vectors of a token's values.
    vectors: usize,
}

impl<T: KvValue> Kernel for Tile<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { queries, keys, values, paged, context, parts, merged, scratch, out } = self;
        let dim = queries.dim;
        let count = queries.rows * queries.group;
        let finding = finding_len(dim);
        queries.pack(&mut scratch.queries);
        scratch.findings.resize(QUERIES * finding, 0.0);
        if merged {
            for finding in out.chunks_exact_mut(finding) {
                finding[finding.len() - 2] = f32::NEG_INFINITY;
            }
        }
        for part in parts.clone() {
            let first = part * PART;
            let blocks = (context + queries.rows - 1 - first).min(PART).div_ceil(BLOCK_TOKENS);
            let tile = Seen { context, first, group: queries.group, count, finding, merged };
            let out = if merged { &mut *out } else { &mut out[(part - parts.start) * count * finding..] };
            if count <= QUERIES && dim.is_multiple_of(LANES) {
                // Each key is read once: as it is stored, while the next ones are asked for.
                let next = (part + 1).min(parts.end - 1);
                let next_blocks = (context + queries.rows - 1 - next * PART).min(PART).div_ceil(BLOCK_TOKENS);
                let stored = Part {
                    keys: paged.part(keys, part, blocks, dim),
                    values: paged.part(values, part, blocks, dim),
                    ahead: paged.part(keys, next, next_blocks, dim),
                    vectors: dim / LANES,
                };
                tile.attend::<L, T, true>(&stored, &scratch.queries, &mut scratch.findings, out);
                continue;
            }
            let (stored_keys, stored_values) =
                (paged.part(keys, part, blocks, dim), paged.part(values, part, blocks, dim));
            let vectors = dim.div_ceil(LANES);
            let mut wide: Part<'_, f32> =
                Part { keys: [&[]; BLOCKS], values: [&[]; BLOCKS], ahead: [&[]; BLOCKS], vectors };
            if T::as_f32(&[]).is_some() && dim.is_multiple_of(LANES) {
                for block in 0..BLOCKS {
                    wide.keys[block] = T::as_f32(stored_keys[block]).unwrap_or_default();
                    wide.values[block] = T::as_f32(stored_values[block]).unwrap_or_default();
                }
            } else {
                scratch.keys.resize(BLOCKS * dim, [0.0; LANES]);
                scratch.values.resize(BLOCKS * BLOCK_TOKENS * vectors, [0.0; LANES]);
                for block in 0..blocks {
                    let to = &mut scratch.keys[block * dim..(block + 1) * dim];
                    for (key, to) in stored_keys[block].iter().zip(to) {
                        T::lanes::<L>(key).store(to);
                    }
                    let to = &mut scratch.values[block * BLOCK_TOKENS * vectors..(block + 1) * BLOCK_TOKENS * vectors];
                    let tokens = stored_values[block].as_flattened().chunks_exact(dim);
                    for (value, to) in tokens.zip(to.chunks_exact_mut(vectors)) {
                        widen::<L, T>(value, to);
                    }
                }
                for block in 0..BLOCKS {
                    let stands = block.min(blocks - 1);
                    wide.keys[block] = &scratch.keys[stands * dim..(stands + 1) * dim];
                    let size = BLOCK_TOKENS * vectors;
                    wide.values[block] = &scratch.values[stands * size..(stands + 1) * size];
                }
            }
            tile.attend::<L, f32, false>(&wide, &scratch.queries, &mut scratch.findings, out);
        }
    }
}

impl Queries<'_> {
    fn pack(self, packed: &mut Vec<[f32; QUERIES]>) {
        let Self { inputs, width, rows, first, group, dim, scale } = self;
        packed.clear();
        packed.resize((rows * group).div_ceil(QUERIES) * dim, [0.0; QUERIES]);
        for (row, inputs) in inputs.chunks(width).take(rows).enumerate() {
            for (head, query) in inputs[first..first + group * dim].chunks_exact(dim).enumerate() {
                let at = row * group + head;
                for (packed, value) in packed[at / QUERIES * dim..].iter_mut().zip(query) {
                    packed[at % QUERIES] = value * scale;
                }
            }
        }
    }
}

impl Paged<'_> {
    /// The `blocks` blocks of a part.
    #[inline(always)]
    fn part<'a, T>(&self, stored: &'a [T], part: usize, blocks: usize, dim: usize) -> [&'a [[T; LANES]]; BLOCKS] {
        let mut out: [&[[T; LANES]]; BLOCKS] = [&[]; BLOCKS];
        for (at, out) in out.iter_mut().enumerate() {
            let block = self.blocks[part * BLOCKS + at.min(blocks - 1)] as usize;
            let start = block * self.block_stride + self.head_offset;
            *out = stored[start..start + BLOCK_TOKENS * dim].as_chunks::<LANES>().0;
        }
        out
    }
}

/// One token's values as f32, padded to whole vectors with zeros.
#[inline(always)]
fn widen<L: Lanes, T: KvValue>(values: &[T], wide: &mut [[f32; LANES]]) {
    let (vectors, end) = values.as_chunks::<LANES>();
    for (value, wide) in vectors.iter().zip(wide.iter_mut()) {
        T::lanes::<L>(value).store(wide);
    }
    if !end.is_empty() {
        for (value, wide) in end.iter().zip(&mut wide[vectors.len()]) {
            *wide = value.load();
        }
    }
}

/// What the queries of a tile see of a part.
#[derive(Clone, Copy)]
struct Seen {
    context: usize,
    /// The part's first token.
    first: usize,
    group: usize,
    /// Queries.
    count: usize,
    finding: usize,
    merged: bool,
}

impl Seen {
    /// All queries over one part.
    #[inline(always)]
    fn attend<L: Lanes, U: KvValue, const AHEAD: bool>(
        self,
        part: &Part<'_, U>,
        packed: &[[f32; QUERIES]],
        scratch: &mut [f32],
        out: &mut [f32],
    ) {
        let finding = self.finding;
        for (at, queries) in packed.chunks_exact(part.keys[0].len()).enumerate() {
            let first = at * QUERIES;
            let count = QUERIES.min(self.count - first);
            let mut seen = [0; QUERIES];
            for (at, seen) in seen.iter_mut().enumerate() {
                // Missing queries count as the last.
                let row = (first + at.min(count - 1)) / self.group;
                *seen = (self.context + row).saturating_sub(self.first).min(PART);
            }
            if seen[count - 1] == 0 {
                continue;
            }
            let out = &mut out[first * finding..(first + count) * finding];
            let found = if self.merged { &mut scratch[..count * finding] } else { &mut *out };
            match count {
                1 => few::<L, U, 1, AHEAD>(part, queries, seen, found),
                2 => few::<L, U, 2, AHEAD>(part, queries, seen, found),
                3 => few::<L, U, 3, AHEAD>(part, queries, seen, found),
                _ => few::<L, U, QUERIES, AHEAD>(part, queries, seen, found),
            }
            if self.merged {
                let each = out.chunks_exact_mut(finding).zip(scratch.chunks_exact(finding));
                for ((out, found), seen) in each.zip(seen) {
                    if seen > 0 {
                        merge::<L>(out, found);
                    }
                }
            }
        }
    }
}

/// What `M` queries find in a part, of which they see so many tokens (ascending).
#[inline(always)]
fn few<L: Lanes, U: KvValue, const M: usize, const AHEAD: bool>(
    part: &Part<'_, U>,
    queries: &[[f32; QUERIES]],
    seen: [usize; QUERIES],
    found: &mut [f32],
) {
    let mut scores = [[[f32::NEG_INFINITY; LANES]; BLOCKS]; M];
    let blocks = seen[M - 1].div_ceil(BLOCK_TOKENS);
    // More sums than registers took a whole prefill of 4,096 tokens a third longer with AVX2.
    if blocks > BLOCKS / 2 && L::SUMS >= QUERIES * BLOCKS {
        score::<L, U, M, BLOCKS, AHEAD>(part, 0, queries, &mut scores);
    } else {
        for block in 0..blocks {
            score::<L, U, M, 1, AHEAD>(part, block, queries, &mut scores);
        }
    }
    let finding = found.len() / M;
    for ((scores, seen), found) in scores.iter_mut().zip(seen).zip(found.chunks_exact_mut(finding)) {
        let (highest, sum) = weigh::<L>(scores, seen);
        found[finding - 2] = highest;
        found[finding - 1] = sum;
    }
    let mut at = 0;
    while at + VECTORS <= part.vectors && L::SUMS >= QUERIES * VECTORS {
        add_up::<L, U, M, VECTORS, AHEAD>(part, at, &scores, seen, found);
        at += VECTORS;
    }
    while at < part.vectors {
        add_up::<L, U, M, 1, AHEAD>(part, at, &scores, seen, found);
        at += 1;
    }
}

/// The products of `M` queries with the keys of `N` blocks from `first` on.
#[inline(always)]
fn score<L: Lanes, U: KvValue, const M: usize, const N: usize, const AHEAD: bool>(
    part: &Part<'_, U>,
    first: usize,
    queries: &[[f32; QUERIES]],
    scores: &mut [[[f32; LANES]; BLOCKS]; M],
) {
    // Cut to one length each, so that the loop below has nothing to check.
    let mut keys: [&[[U; LANES]]; N] = [&[]; N];
    let mut ahead: [&[[U; LANES]]; N] = [&[]; N];
    for n in 0..N {
        keys[n] = &part.keys[first + n][..queries.len()];
        if AHEAD {
            ahead[n] = &part.values[first + n][..queries.len()];
        }
    }
    let mut sums = [[L::zero(); N]; M];
    for (at, queries) in queries.iter().enumerate() {
        let mut key = [L::zero(); N];
        for n in 0..N {
            if AHEAD {
                L::prefetch(&ahead[n][at]);
            }
            key[n] = U::lanes(&keys[n][at]);
        }
        for m in 0..M {
            let query = L::splat(queries[m]);
            for n in 0..N {
                sums[m][n] = key[n].multiply_add(query, sums[m][n]);
            }
        }
    }
    for m in 0..M {
        for n in 0..N {
            sums[m][n].store(&mut scores[m][first + n]);
        }
    }
}

/// Turns scores into weights, not yet divided by their sum: the highest score, and that sum. Those of tokens that are not seen
/// become zeros.
#[inline(always)]
fn weigh<L: Lanes>(scores: &mut [[f32; LANES]; BLOCKS], seen: usize) -> (f32, f32) {
    if seen < PART {
        scores.as_flattened_mut()[seen..].fill(f32::NEG_INFINITY);
    }
    let mut highest = L::load(&scores[0]);
    for scores in &scores[1..] {
        highest = highest.max(L::load(scores));
    }
    let highest = highest.highest();
    for scores in scores.iter_mut() {
        exp(L::load(scores).add(L::splat(-highest))).store(scores);
    }
    if seen < PART {
        scores.as_flattened_mut()[seen..].fill(0.0);
    }
    let mut sums = L::zero();
    for weights in scores.iter() {
        sums = sums.add(L::load(weights));
    }
    (highest, sums.sum())
}

/// `N` vectors, from `at` on, of the values that `M` queries weigh.
#[inline(always)]
fn add_up<L: Lanes, U: KvValue, const M: usize, const N: usize, const AHEAD: bool>(
    part: &Part<'_, U>,
    at: usize,
    weights: &[[[f32; LANES]; BLOCKS]; M],
    seen: [usize; QUERIES],
    found: &mut [f32],
) {
    let mut sums = [[L::zero(); N]; M];
    // The queries see nearly the same tokens: what all of them see is read once.
    let common = seen[0];
    for (block, values) in part.values.iter().enumerate().take(common.div_ceil(BLOCK_TOKENS)) {
        let mut tokens = BLOCK_TOKENS.min(common - block * BLOCK_TOKENS);
        for (token, values) in values.chunks_exact(part.vectors).enumerate() {
            if tokens == 0 {
                break;
            }
            tokens -= 1;
            let values = &values[at..at + N];
            if AHEAD {
                let ahead = &part.ahead[block][token * part.vectors + at..][..N];
                for ahead in ahead {
                    L::prefetch(ahead);
                }
            }
            let mut value = [L::zero(); N];
            for n in 0..N {
                value[n] = U::lanes(&values[n]);
            }
            for m in 0..M {
                let weight = L::splat(weights[m][block][token % LANES]);
                for n in 0..N {
                    sums[m][n] = value[n].multiply_add(weight, sums[m][n]);
                }
            }
        }
    }
    let finding = found.len() / M;
    for m in 0..M {
        for token in common..seen[m] {
            let (block, within) = (token / BLOCK_TOKENS, token % BLOCK_TOKENS);
            let values = &part.values[block][within * part.vectors + at..][..N];
            let weight = L::splat(weights[m][block][within]);
            for n in 0..N {
                sums[m][n] = U::lanes::<L>(&values[n]).multiply_add(weight, sums[m][n]);
            }
        }
        let out = found[m * finding..(m + 1) * finding].as_chunks_mut::<LANES>().0;
        for (sum, out) in sums[m].iter().zip(&mut out[at..at + N]) {
            sum.store(out);
        }
    }
}

/// Adds what a query found in the next part to what it found before.
#[inline(always)]
fn merge<L: Lanes>(before: &mut [f32], next: &[f32]) {
    let len = before.len();
    let (highest, next_highest) = (before[len - 2], next[len - 2]);
    let mut fading = [0.0; LANES];
    exp(L::splat(-(next_highest - highest).abs())).store(&mut fading);
    let (keep, take) = if next_highest > highest { (fading[0], 1.0) } else { (1.0, fading[0]) };
    before[len - 2] = highest.max(next_highest);
    before[len - 1] = before[len - 1] * keep + next[len - 1] * take;
    let sums = before[..len - 2].as_chunks_mut::<LANES>().0;
    for (sum, next) in sums.iter_mut().zip(next.as_chunks::<LANES>().0) {
        let kept = L::load(sum).multiply(L::splat(keep));
        L::load(next).multiply_add(L::splat(take), kept).store(sum);
    }
}

/// Merges one query's findings of several parts.
pub(super) struct Merge<'a> {
    /// The first of the parts' findings begins with this, each further one `step` later.
    pub(super) found: &'a [f32],
    pub(super) step: usize,
    pub(super) parts: usize,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let len = self.out.len();
        self.out.fill(0.0);
        self.out[len - 2] = f32::NEG_INFINITY;
        for part in 0..self.parts {
            merge::<L>(self.out, &self.found[part * self.step..][..len]);
        }
    }
}
