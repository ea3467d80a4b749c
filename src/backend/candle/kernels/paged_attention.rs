//! Causal attention of a flattened batch over block-paged keys and values.
//!
//! The tensor library's own attention wants keys gathered into one tensor a sequence and repeated for every query head
//! of a group; here a row reads its blocks where they lie, and the heads of a group share each read. A row's result is
//! computed by itself in a fixed order, so it does not depend on what else is in the batch: prefill, decode and a
//! verifier's recompute agree bit for bit on this step.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::elementwise;
use super::kv_value::{self, KvSlice, KvValue};
use super::lanes::{LANES, Lanes, exp};
use super::simd::{self, Kernel};
use crate::backend::candle::cache::kv::LayerCache;
use crate::backend::candle::plan::{BLOCK_TOKENS, Span, StepPlan};

/// Which tokens each row of a step attends to. Made once a step, shared by all layers.
#[derive(Debug)]
pub(in crate::backend::candle) struct AttentionMap {
    spans: Vec<Span>,
    /// Each row's span.
    span_of: Vec<usize>,
}

impl AttentionMap {
    pub(in crate::backend::candle) fn new(plan: &StepPlan) -> Self {
        let span_of = plan.spans.iter().enumerate().flat_map(|(at, span)| span.rows.clone().map(move |_| at)).collect();
        Self { spans: plan.spans.clone(), span_of }
    }

    /// The blocks of a row's sequence and how many of its tokens the row sees.
    fn context(&self, row: usize) -> (&[u32], usize) {
        let span = &self.spans[self.span_of[row]];
        (&span.blocks, span.context + (row - span.rows.start) + 1)
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
    let op = PagedAttention { map: Arc::clone(map), heads, dim, scale };
    inputs.contiguous()?.apply_op3_no_bwd(&cache.keys, &cache.values, &op)
}

struct PagedAttention {
    map: Arc<AttentionMap>,
    heads: usize,
    dim: usize,
    scale: f32,
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
        let (_, kv_heads, _, dim) = keys_at.shape().dims4()?;
        let inputs = elementwise::values(inputs, inputs_at)?;
        let heads = self.heads;
        if rows != self.map.span_of.len() || !heads.is_multiple_of(kv_heads) || dim != self.dim || heads * dim > width {
            bail!("attention over {rows} rows of {width} values and {heads} heads does not fit its plan");
        }
        let step = Step { op: self, inputs, rows, width, kv_heads };
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
    rows: usize,
    width: usize,
    kv_heads: usize,
}

impl Step<'_> {
    fn attend<T: KvValue>(&self, keys: &[T], values: &[T]) -> Vec<f32> {
        let PagedAttention { map, heads, dim, scale } = self.op;
        let (heads, dim, kv_heads) = (*heads, *dim, self.kv_heads);
        let whole_group = heads / kv_heads;
        // The heads of a group share each read of a key, unless there would be too few groups to go round.
        let group = if self.rows * kv_heads < 4 * rayon::current_num_threads() { 1 } else { whole_group };
        let mut out = vec![0_f32; self.rows * heads * dim];
        let level = simd::level();
        let one = |scores: &mut Vec<f32>, at: usize, out: &mut [f32]| {
            let (row, head) = (at / (heads / group), at % (heads / group) * group);
            let kv_head = head / whole_group;
            let first = row * self.width + head * dim;
            let (blocks, context) = map.context(row);
            let group = HeadGroup {
                queries: &self.inputs[first..first + group * dim],
                keys,
                values,
                paged: Paged {
                    blocks,
                    context,
                    dim,
                    block_stride: kv_heads * BLOCK_TOKENS * dim,
                    head_offset: kv_head * BLOCK_TOKENS * dim,
                },
                scale: *scale,
                scores,
                out,
            };
            simd::run_at(level, group);
        };
        let work: usize = (0..self.rows).map(|row| map.context(row).1).sum::<usize>() * heads * dim;
        if work < SMALLEST_SHARE {
            let mut scores = Vec::new();
            for (at, out) in out.chunks_exact_mut(group * dim).enumerate() {
                one(&mut scores, at, out);
            }
        } else {
            let parts = out.par_chunks_exact_mut(group * dim).enumerate();
            parts.for_each_init(Vec::new, |scores, (at, out)| one(scores, at, out));
        }
        out
    }
}

/// Multiplications below which a single thread is faster than waking others.
const SMALLEST_SHARE: usize = 1 << 15;

/// Where one head's vectors of a sequence lie in a paged tensor.
#[derive(Clone, Copy)]
struct Paged<'a> {
    blocks: &'a [u32],
    /// Tokens that are looked at.
    context: usize,
    dim: usize,
    block_stride: usize,
    /// A head's part of a block is contiguous, and begins here.
    head_offset: usize,
}

impl Paged<'_> {
    /// Of the sequence's block number `at`: its first token, how many of its tokens are looked at, and where they lie.
    #[inline(always)]
    fn part(&self, at: usize) -> (usize, usize, Range<usize>) {
        let first = at * BLOCK_TOKENS;
        let count = BLOCK_TOKENS.min(self.context - first);
        let start = self.blocks[at] as usize * self.block_stride + self.head_offset;
        (first, count, start..start + count * self.dim)
    }
}

/// The query heads of one row that share a key head.
struct HeadGroup<'a, T> {
    /// `[heads of the group, dim]`.
    queries: &'a [f32],
    keys: &'a [T],
    values: &'a [T],
    paged: Paged<'a>,
    scale: f32,
    scores: &'a mut Vec<f32>,
    /// `[heads of the group, dim]`, zeros.
    out: &'a mut [f32],
}

impl<T: KvValue> Kernel for HeadGroup<'_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { queries, keys, values, paged, scale, scores, out } = self;
        let Paged { dim, context, .. } = paged;
        let heads = queries.len() / dim;
        // Padded to whole vectors, so that the softmax has no end to treat apart.
        let padded = context.next_multiple_of(LANES);
        scores.clear();
        scores.resize(heads * padded, f32::NEG_INFINITY);
        for at in 0..context.div_ceil(BLOCK_TOKENS) {
            let (first, _, place) = paged.part(at);
            let block = &keys[place];
            for (token, key) in block.chunks_exact(dim).enumerate() {
                for (head, query) in queries.chunks_exact(dim).enumerate() {
                    scores[head * padded + first + token] = dot::<L, T>(query, key) * scale;
                }
            }
        }
        for scores in scores.chunks_exact_mut(padded) {
            softmax::<L>(scores);
        }
        for at in 0..context.div_ceil(BLOCK_TOKENS) {
            let (first, count, place) = paged.part(at);
            let block = &values[place];
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                let weights = &scores[head * padded + first..head * padded + first + count];
                for (weight, value) in weights.iter().zip(block.chunks_exact(dim)) {
                    add_scaled::<L, T>(out, *weight, value);
                }
            }
        }
    }
}

/// `out += weight * value`.
#[inline(always)]
fn add_scaled<L: Lanes, T: KvValue>(out: &mut [f32], weight: f32, value: &[T]) {
    let (outs, end_outs) = out.as_chunks_mut::<LANES>();
    let (values, end_values) = value.as_chunks::<LANES>();
    for (out, value) in outs.iter_mut().zip(values) {
        T::lanes::<L>(value).multiply_add(L::splat(weight), L::load(out)).store(out);
    }
    for (out, value) in end_outs.iter_mut().zip(end_values) {
        *out += weight * value.load();
    }
}

#[inline(always)]
fn dot<L: Lanes, T: KvValue>(query: &[f32], key: &[T]) -> f32 {
    let (queries, end_queries) = query.as_chunks::<LANES>();
    let (keys, end_keys) = key.as_chunks::<LANES>();
    let mut sums = L::zero();
    for (query, key) in queries.iter().zip(keys) {
        sums = L::load(query).multiply_add(T::lanes::<L>(key), sums);
    }
    let mut sum = sums.sum();
    for (query, key) in end_queries.iter().zip(end_keys) {
        sum += query * key.load();
    }
    sum
}

/// Over whole vectors; the padding is minus infinity and comes out as next to nothing, at places that nobody reads.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32]) {
    let mut highest = f32::NEG_INFINITY;
    for score in scores.iter() {
        highest = highest.max(*score);
    }
    let lanes = scores.as_chunks_mut::<LANES>().0;
    let mut sums = L::zero();
    for scores in lanes.iter_mut() {
        let powers = exp(L::load(scores).add(L::splat(-highest)));
        powers.store(scores);
        sums = sums.add(powers);
    }
    let share = L::splat(1.0 / sums.sum());
    for scores in lanes {
        L::load(scores).multiply(share).store(scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::cache::kv::KvShape;
    use crate::backend::candle::kernels::testing;
    use candle_core::{D, DType, Device};

    /// Attention as the textbook has it, over whole tensors: softmax(q kᵀ / √d, causal) v with repeated key heads.
    fn textbook(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Tensor {
        let (rows, heads, dim) = q.dims3().unwrap();
        let (context, kv_heads, _) = k.dims3().unwrap();
        let repeat = |x: &Tensor| {
            let x = x.unsqueeze(2).unwrap().broadcast_as((context, kv_heads, heads / kv_heads, dim)).unwrap();
            x.reshape((context, heads, dim)).unwrap().transpose(0, 1).unwrap().contiguous().unwrap()
        };
        let q = q.transpose(0, 1).unwrap().contiguous().unwrap();
        let scores = (q.matmul(&repeat(k).transpose(1, 2).unwrap()).unwrap() * scale).unwrap();
        let mask: Vec<f32> = (0..rows)
            .flat_map(|row| (0..context).map(move |c| if c > context - rows + row { f32::NEG_INFINITY } else { 0.0 }))
            .collect();
        let mask = Tensor::from_vec(mask, (rows, context), &Device::Cpu).unwrap();
        let weights = candle_nn::ops::softmax(&scores.broadcast_add(&mask).unwrap(), D::Minus1).unwrap();
        weights.matmul(&repeat(v)).unwrap().transpose(0, 1).unwrap().reshape((rows, heads * dim)).unwrap()
    }

    #[test]
    fn equals_the_textbook_over_scattered_blocks() {
        let (heads, kv_heads, dim, context, rows) = (6, 2, 20, 37, 5);
        let normal = |shape: (usize, usize, usize)| {
            testing::normal(shape.0 as u64, shape.0, shape.1 * shape.2).reshape(shape).unwrap()
        };
        let (q, k, v) =
            (normal((rows, heads, dim)), normal((context, kv_heads, dim)), normal((context, kv_heads, dim)));
        let shape = KvShape { layers: 1, kv_heads, head_dim: dim, dtype: DType::F32 };
        let cache = LayerCache::allocate(shape, 8, &Device::Cpu).unwrap();
        let blocks = [5_u32, 0, 7];
        let slots: Vec<u32> = (0..context).map(|t| blocks[t / BLOCK_TOKENS] * 16 + (t % BLOCK_TOKENS) as u32).collect();
        let flat = |x: &Tensor, heads: usize| x.reshape((x.dim(0).unwrap(), heads * dim)).unwrap();
        // Rows as the projection gives them: queries (unused here), keys, values.
        let unused = normal((context, heads, dim));
        let rows_in = Tensor::cat(&[&flat(&unused, heads), &flat(&k, kv_heads), &flat(&v, kv_heads)], 1).unwrap();
        cache.write(&slots, &rows_in, heads, kv_heads).unwrap();
        let plan = StepPlan {
            spans: vec![Span {
                rows: 0..rows,
                context: context - rows,
                blocks: blocks.into(),
                state: 0,
                saves: Vec::new(),
            }],
            ..StepPlan::default()
        };
        let got =
            paged_attention(&flat(&q, heads), &cache, &Arc::new(AttentionMap::new(&plan)), (heads, dim), 0.25).unwrap();
        let want = textbook(&q, &k, &v, 0.25);
        testing::assert_close(&got, &want, 1e-5);
    }
}
