//! Dot products of a few weight rows with activation rows: the inner loop of every product.

use std::marker::PhantomData;

use super::format::{BLOCK, Bf16, Decode, F16, F32, Format, Fp8E4m3, Q4_0, Q4_1, Q8_0, StoredRow};
use super::lanes::{LANES, Lanes};
use super::simd::{self, Kernel, Level};

/// Weight rows of a tile: with [`TILE`] activation rows they make sixteen accumulators, enough to hide the latency of a
/// fused multiply-add and few enough for the registers.
pub(super) const GROUP: usize = 4;
/// Activation rows of a tile.
pub(super) const TILE: usize = 4;

/// Up to [`GROUP`] weight rows of one format; where there are fewer, the last stands for the missing ones.
pub(super) struct Group<'a> {
    pub(super) rows: [StoredRow<'a>; GROUP],
    pub(super) count: usize,
    pub(super) format: Format,
}

/// A group's products with all rows of `x`, by the best instructions there are. `store` gets output (within the group),
/// row and sum.
pub(super) fn dispatch(
    level: Level,
    weights: &Group<'_>,
    x: &[f32],
    columns: usize,
    rows: usize,
    scratch: &mut Vec<u8>,
    store: impl FnMut(usize, usize, f32),
) {
    let task = Task { weights, x, columns, rows, scratch, store };
    match weights.format {
        Format::F32 => simd::run_at(level, Of::<F32, _>(task, PhantomData)),
        Format::F16 => simd::run_at(level, Of::<F16, _>(task, PhantomData)),
        Format::Bf16 => simd::run_at(level, Of::<Bf16, _>(task, PhantomData)),
        Format::Fp8E4m3 => simd::run_at(level, Of::<Fp8E4m3, _>(task, PhantomData)),
        Format::Q4_0 => simd::run_at(level, Of::<Q4_0, _>(task, PhantomData)),
        Format::Q4_1 => simd::run_at(level, Of::<Q4_1, _>(task, PhantomData)),
        Format::Q8_0 => simd::run_at(level, Of::<Q8_0, _>(task, PhantomData)),
    }
}

/// A task on weights of a format.
struct Of<D, T>(T, PhantomData<D>);

impl<D: Decode, S: FnMut(usize, usize, f32)> Kernel for Of<D, Task<'_, S>> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        self.0.body::<D, L>();
    }
}

struct Task<'a, S> {
    weights: &'a Group<'a>,
    x: &'a [f32],
    columns: usize,
    rows: usize,
    scratch: &'a mut Vec<u8>,
    store: S,
}

impl<S: FnMut(usize, usize, f32)> Task<'_, S> {
    #[inline(always)]
    fn body<D: Decode, L: Lanes>(mut self) {
        if self.rows <= TILE {
            return self.tile::<D, L, true>(self.weights.rows, 0, self.rows);
        }
        // With more rows the group is decoded once, into the fastest cache, and read from there for each tile.
        let mut scratch = std::mem::take(self.scratch);
        let wide = 4 * self.columns;
        scratch.resize(GROUP * wide, 0);
        for (row, out) in self.weights.rows.iter().zip(scratch.chunks_exact_mut(wide)) {
            widen::<D, L>(*row, out);
        }
        let mut rows = [StoredRow::default(); GROUP];
        for (row, bytes) in rows.iter_mut().zip(scratch.chunks_exact(wide)) {
            row.bytes = bytes;
        }
        let mut first = 0;
        while first < self.rows {
            let count = TILE.min(self.rows - first);
            self.tile::<F32, L, false>(rows, first, count);
            first += count;
        }
        *self.scratch = scratch;
    }

    /// The products with rows `first..first + count`. Where `AHEAD`, the weights that come next are asked for.
    #[inline(always)]
    fn tile<D: Decode, L: Lanes, const AHEAD: bool>(
        &mut self,
        weights: [StoredRow<'_>; GROUP],
        first: usize,
        count: usize,
    ) {
        match count {
            1 => self.tile_of::<D, L, 1, AHEAD>(weights, first),
            2 => self.tile_of::<D, L, 2, AHEAD>(weights, first),
            3 => self.tile_of::<D, L, 3, AHEAD>(weights, first),
            _ => self.tile_of::<D, L, TILE, AHEAD>(weights, first),
        }
    }

    #[inline(always)]
    fn tile_of<D: Decode, L: Lanes, const M: usize, const AHEAD: bool>(
        &mut self,
        weights: [StoredRow<'_>; GROUP],
        first: usize,
    ) {
        let mut x: [&[f32]; M] = [&[]; M];
        for (at, x) in x.iter_mut().enumerate() {
            *x = &self.x[(first + at) * self.columns..(first + at + 1) * self.columns];
        }
        let sums = dot_tile::<D, L, M, AHEAD>(weights, x, self.columns);
        for (output, sums) in sums.iter().take(self.weights.count).enumerate() {
            for (row, sum) in sums.iter().enumerate() {
                (self.store)(output, first + row, *sum);
            }
        }
    }
}

/// The dot products of four weight rows with `M` activation rows.
///
/// Each is summed in sixteen lanes (lane `l` takes the values whose index is `l` modulo 16, in order), the lanes are then
/// added in halves, and a row's end that fills no block is added last. That order is the whole contract: it has no `M` and
/// no format in it.
#[inline(always)]
fn dot_tile<D: Decode, L: Lanes, const M: usize, const AHEAD: bool>(
    weights: [StoredRow<'_>; GROUP],
    x: [&[f32]; M],
    columns: usize,
) -> [[f32; M]; GROUP] {
    let blocks = columns / BLOCK;
    // Cut to one length each, so that the loop below has nothing to check.
    let mut stored: [&[D::Block]; GROUP] = [&[]; GROUP];
    let mut ahead: [&[D::Block]; GROUP] = [&[]; GROUP];
    for row in 0..GROUP {
        stored[row] = &D::blocks(weights[row].bytes).0[..blocks];
        ahead[row] = blocks_ahead::<D>(weights[row], stored[row]);
    }
    let mut halves: [&[[f32; LANES]]; M] = [&[]; M];
    for m in 0..M {
        halves[m] = &x[m].as_chunks::<LANES>().0[..2 * blocks];
    }
    let mut sums = [[L::zero(); M]; GROUP];
    for block in 0..blocks {
        let mut decoded = [[L::zero(); 2]; GROUP];
        for row in 0..GROUP {
            if AHEAD {
                L::prefetch(&ahead[row][block]);
            }
            decoded[row] = D::decode(&stored[row][block], D::scale(weights[row].scales, block));
        }
        for m in 0..M {
            let (low, high) = (L::load(&halves[m][2 * block]), L::load(&halves[m][2 * block + 1]));
            for row in 0..GROUP {
                sums[row][m] = decoded[row][0].multiply_add(low, sums[row][m]);
                sums[row][m] = decoded[row][1].multiply_add(high, sums[row][m]);
            }
        }
    }
    let mut out = [[0_f32; M]; GROUP];
    for row in 0..GROUP {
        for m in 0..M {
            let mut end = 0_f32;
            if let Some(width) = D::WEIGHT_BYTES {
                let rest = D::blocks(weights[row].bytes).1;
                if !rest.is_empty() {
                    let scale = D::scale(weights[row].scales, blocks);
                    for (weight, x) in rest.chunks_exact(width).zip(&x[m][blocks * BLOCK..]) {
                        end += D::weight(weight, scale) * x;
                    }
                }
            }
            out[row][m] = sums[row][m].sum() + end;
        }
    }
    out
}

/// The blocks that are read after those of a row; its own where nothing is, so that there are always as many.
///
/// They are asked for while the row is computed. A processor foresees by itself how memory is read, but no further than to
/// the end of a page, and a row is hardly longer than one: products of one activation row took up to twice as long.
#[inline(always)]
fn blocks_ahead<'a, D: Decode>(row: StoredRow<'a>, own: &'a [D::Block]) -> &'a [D::Block] {
    match D::blocks(row.ahead).0.get(..own.len()) {
        Some(ahead) => ahead,
        None => own,
    }
}

/// A stored row as little-endian f32.
#[inline(always)]
fn widen<D: Decode, L: Lanes>(row: StoredRow<'_>, out: &mut [u8]) {
    let (blocks, end) = D::blocks(row.bytes);
    let (wide, wide_end) = out.split_at_mut((4 * BLOCK * blocks.len()).min(out.len()));
    let wide = wide.as_chunks_mut::<{ 4 * LANES }>().0.as_chunks_mut::<2>().0;
    let ahead = blocks_ahead::<D>(row, blocks);
    for (at, ((block, ahead), out)) in blocks.iter().zip(ahead).zip(wide).enumerate() {
        L::prefetch(ahead);
        let [low, high] = D::decode::<L>(block, D::scale(row.scales, at));
        low.to_f32(&mut out[0]);
        high.to_f32(&mut out[1]);
    }
    if let Some(width) = D::WEIGHT_BYTES
        && !end.is_empty()
    {
        let scale = D::scale(row.scales, blocks.len());
        for (weight, out) in end.chunks_exact(width).zip(wide_end.as_chunks_mut::<4>().0) {
            *out = D::weight(weight, scale).to_le_bytes();
        }
    }
}
