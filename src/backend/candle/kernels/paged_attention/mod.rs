//! Causal attention of a flattened batch over block-paged keys and values.
//!
//! The tensor library's own attention wants keys gathered into one tensor a sequence and repeated for every query head
//! of a group; here they are read where they lie, and consecutive rows of a sequence and the heads of a group share each read. A
//! row's result is computed in an order that its position alone gives (see `tile`), so it does not depend on what else is
//! in the batch: prefill, decode and a verifier's recompute agree bit for bit on this step.

#[cfg(test)]
mod tests;
mod tile;

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use self::tile::{Merge, PART, Paged, Queries, Scratch, Tile, finding_len};
use super::elementwise;
use super::kv_value::{self, KvSlice, KvValue};
use super::simd::{self, Level};
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::plan::{BLOCK_TOKENS, Span, StepPlan};

/// Queries of a tile, about: enough for each read of a key to be worth it, few enough for their sums to stay in the fastest
/// cache.
const TILE_QUERIES: usize = 32;
/// Rows of a tile are a multiple of this, so that queries come in whole fours.
const ROWS: usize = 4;
/// Multiplications below which a single thread is faster than waking others.
const SMALLEST_SHARE: usize = 1 << 15;
/// Pieces of work for each thread, so that one that is held up elsewhere does not hold up the others.
const PIECES: usize = 8;
/// Parts of a piece at least: fewer are done sooner than handed over.
const SMALLEST_PIECE: usize = 2;

/// Which tokens each row of a step attends to. Made once a step, shared by all layers.
#[derive(Debug)]
pub(in crate::backend::candle) struct AttentionMap {
    spans: Vec<Span>,
    rows: usize,
}

impl AttentionMap {
    pub(in crate::backend::candle) fn new(plan: &StepPlan) -> Self {
        Self { spans: plan.spans.clone(), rows: plan.spans.iter().map(|span| span.rows.len()).sum() }
    }
}

/// The queries at the head of each row of `inputs` (`[rows, queries | ...]`, `(heads, head_dim)` of them) to attended values
/// `[rows, heads * head_dim]`.
pub(in crate::backend::candle) fn paged_attention(
    inputs: &Tensor,
    cache: &LayerCache,
    map: &Arc<AttentionMap>,
    (heads, dim): (usize, usize),
    scale: f32,
) -> Result<Tensor> {
    let op = PagedAttention { map: Arc::clone(map), heads, dim, scale, level: simd::level() };
    inputs.contiguous()?.apply_op3_no_bwd(&cache.keys, &cache.values, &op)
}

struct PagedAttention {
    map: Arc<AttentionMap>,
    heads: usize,
    dim: usize,
    scale: f32,
    level: Level,
}

impl CustomOp3 for PagedAttention {
    fn name(&self) -> &'static str {
        "paged-attention"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        inputs_at: &Layout,
        keys: &CpuStorage,
        keys_at: &Layout,
        values: &CpuStorage,
        values_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = inputs_at.shape().dims2()?;
        let (_, kv_heads, _, dim) = values_at.shape().dims4()?;
        let inputs = elementwise::values(inputs, inputs_at)?;
        let heads = self.heads;
        if rows != self.map.rows || !heads.is_multiple_of(kv_heads) || dim != self.dim || heads * dim > width {
            bail!("attention over {rows} rows of {width} values and {heads} heads does not fit its plan");
        }
        let step = Step { op: self, inputs, width, kv_heads, group: heads / kv_heads };
        let out = match (kv_value::slice(keys, keys_at)?, kv_value::slice(values, values_at)?) {
            (KvSlice::F32(keys), KvSlice::F32(values)) => step.attend(keys, values),
            (KvSlice::Bf16(keys), KvSlice::Bf16(values)) => step.attend(keys, values),
            (KvSlice::E4m3(keys), KvSlice::E4m3(values)) => step.attend(keys, values),
            _ => bail!("keys and values must be stored alike"),
        };
        Ok((CpuStorage::F32(out), Shape::from((rows, heads * dim))))
    }
}

/// One layer's attention under way.
struct Step<'a> {
    op: &'a PagedAttention,
    inputs: &'a [f32],
    width: usize,
    kv_heads: usize,
    /// Query heads that share a key head.
    group: usize,
}

/// Consecutive rows of a span.
struct TileRows<'a> {
    span: &'a Span,
    /// In the batch.
    first: usize,
    rows: usize,
    /// Tokens that the first row sees.
    context: usize,
    /// Parts of the context of the last row.
    parts: usize,
    /// Parts of a piece, each of which is computed by one thread: as many as `parts` where it is in one piece.
    piece: usize,
    /// Where its findings begin, in those of all.
    at: usize,
}

impl TileRows<'_> {
    fn split(&self) -> bool {
        self.piece < self.parts
    }

    /// Findings of a query.
    fn findings(&self) -> usize {
        if self.split() { self.parts } else { 1 }
    }
}

impl Step<'_> {
    fn attend<T: KvValue>(&self, keys: &[T], values: &[T]) -> Vec<f32> {
        let PagedAttention { map, heads, dim, .. } = self.op;
        let alone = self.work() < SMALLEST_SHARE;
        let tiles = self.tiles(if alone { 1 } else { rayon::current_num_threads() });
        let finding = finding_len(*dim);
        let mut found = vec![0_f32; tiles.last().map_or(0, |tile| tile.at + self.findings(tile) * finding)];
        let mut pieces = Vec::new();
        let mut rest = found.as_mut_slice();
        for tile in &tiles {
            for kv_head in 0..self.kv_heads {
                for first in (0..tile.parts).step_by(tile.piece) {
                    let parts = first..(first + tile.piece).min(tile.parts);
                    let findings = if tile.split() { parts.len() } else { 1 };
                    let (out, others) = rest.split_at_mut(findings * tile.rows * self.group * finding);
                    rest = others;
                    pieces.push((tile, kv_head, parts, out));
                }
            }
        }
        let compute = |scratch: &mut Scratch, (tile, kv_head, parts, out): (&TileRows<'_>, usize, _, &mut [f32])| {
            let queries = Queries {
                inputs: &self.inputs[tile.first * self.width..],
                width: self.width,
                rows: tile.rows,
                first: kv_head * self.group * dim,
                group: self.group,
                dim: *dim,
                scale: self.op.scale,
            };
            let paged = Paged {
                blocks: &tile.span.blocks,
                block_stride: self.kv_heads * BLOCK_TOKENS * dim,
                head_offset: kv_head * BLOCK_TOKENS * dim,
            };
            let (context, merged) = (tile.context, !tile.split());
            simd::run_at(self.op.level, Tile { queries, keys, values, paged, context, parts, merged, scratch, out });
        };
        if alone {
            let mut scratch = Scratch::default();
            for piece in pieces {
                compute(&mut scratch, piece);
            }
        } else {
            pieces.into_par_iter().with_max_len(1).for_each_init(Scratch::default, compute);
        }
        let mut out = vec![0_f32; map.rows * heads * dim];
        if !out.is_empty() {
            let tile_of: Vec<&TileRows<'_>> =
                tiles.iter().flat_map(|tile| std::iter::repeat_n(tile, tile.rows)).collect();
            elementwise::by_rows(&mut out, heads * dim, |row, out| self.finish(tile_of[row], row, &found, out));
        }
        out
    }

    /// Multiplications with keys, about.
    fn work(&self) -> usize {
        let seen: usize = self.op.map.spans.iter().map(|span| span.rows.len() * (span.context + span.rows.len())).sum();
        seen * self.op.heads * self.op.dim
    }

    /// Findings of all heads of a tile.
    fn findings(&self, tile: &TileRows<'_>) -> usize {
        tile.findings() * tile.rows * self.op.heads
    }

    /// The step's rows in tiles, cut to pieces where there are too few of them for so many threads.
    fn tiles(&self, threads: usize) -> Vec<TileRows<'_>> {
        let most = (TILE_QUERIES / self.group / ROWS * ROWS).max(ROWS);
        let mut tiles = Vec::new();
        let mut work = 0;
        for span in &self.op.map.spans {
            for first in span.rows.clone().step_by(most) {
                let rows = most.min(span.rows.end - first);
                let context = span.context + (first - span.rows.start) + 1;
                let parts = (context + rows - 1).div_ceil(PART);
                work += parts * rows * self.kv_heads;
                tiles.push(TileRows { span, first, rows, context, parts, piece: parts, at: 0 });
            }
        }
        let few = threads > 1 && tiles.len() * self.kv_heads < threads * PIECES / 2;
        let mut at = 0;
        for tile in &mut tiles {
            if few {
                let piece = work.div_ceil(threads * PIECES * tile.rows).max(SMALLEST_PIECE);
                tile.piece = tile.parts.div_ceil(tile.parts.div_ceil(piece));
            }
            tile.at = at;
            at += self.findings(tile) * finding_len(self.op.dim);
        }
        tiles
    }

    /// One row's values, from what its queries found.
    fn finish(&self, tile: &TileRows<'_>, row: usize, found: &[f32], out: &mut [f32]) {
        let (dim, finding) = (self.op.dim, finding_len(self.op.dim));
        let queries = tile.rows * self.group;
        let row = row - tile.first;
        let mut merged = if tile.split() { vec![0_f32; finding] } else { Vec::new() };
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let (kv_head, query) = (head / self.group, row * self.group + head % self.group);
            let first = tile.at + (kv_head * tile.findings() * queries + query) * finding;
            let found = if tile.split() {
                let parts = (tile.context + row).div_ceil(PART);
                let merge = Merge { found: &found[first..], step: queries * finding, parts, out: &mut merged };
                simd::run_at(self.op.level, merge);
                &merged
            } else {
                &found[first..first + finding]
            };
            let share = 1.0 / found[finding - 1];
            for (out, found) in out.iter_mut().zip(found) {
                *out = found * share;
            }
        }
    }
}
