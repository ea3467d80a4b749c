//! Causal attention of a flattened batch over block-paged keys and values.
//!
//! The tensor library's own attention wants keys gathered into one tensor a sequence and repeated for every query head
//! of a group; here a row reads its blocks where they lie, and the heads of a group share each read. A row's result is
//! computed by itself in a fixed order, so it does not depend on what else is in the batch: prefill, decode and a
//! verifier's recompute agree bit for bit on this step.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

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

/// Queries `[rows, heads, head_dim]` to attended values `[rows, heads * head_dim]`.
pub(in crate::backend::candle) fn paged_attention(
    queries: &Tensor,
    cache: &LayerCache,
    map: &Arc<AttentionMap>,
    scale: f32,
) -> Result<Tensor> {
    let op = PagedAttention { map: Arc::clone(map), scale };
    queries.contiguous()?.apply_op3_no_bwd(&cache.keys, &cache.values, &op)
}

struct PagedAttention {
    map: Arc<AttentionMap>,
    scale: f32,
}

impl CustomOp3 for PagedAttention {
    fn name(&self) -> &'static str {
        "paged-attention"
    }

    fn cpu_fwd(
        &self,
        queries: &CpuStorage,
        queries_at: &Layout,
        keys: &CpuStorage,
        keys_at: &Layout,
        values: &CpuStorage,
        _values_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, heads, dim) = queries_at.shape().dims3()?;
        let (_, kv_heads, _, _) = keys_at.shape().dims4()?;
        let (CpuStorage::F32(queries), CpuStorage::F32(keys), CpuStorage::F32(values)) = (queries, keys, values) else {
            bail!("attention computes in f32 on CPU")
        };
        let Some((start, end)) = queries_at.contiguous_offsets() else { bail!("queries must be contiguous") };
        if rows != self.map.span_of.len() || !heads.is_multiple_of(kv_heads) {
            bail!("attention over {rows} rows and {heads} heads does not fit its plan")
        }
        let group = heads / kv_heads;
        let mut out = vec![0_f32; rows * heads * dim];
        out.par_chunks_mut(group * dim).zip(queries[start..end].par_chunks(group * dim)).enumerate().for_each_init(
            Vec::new,
            |scores, (at, (out, queries))| {
                let (row, kv_head) = (at / kv_heads, at % kv_heads);
                let (blocks, context) = self.map.context(row);
                let part = |block: u32| (block as usize * kv_heads + kv_head) * BLOCK_TOKENS * dim;
                let group = HeadGroup { dim, context, blocks };
                group.scores(queries, keys, part, self.scale, scores);
                for scores in scores.chunks_exact_mut(context) {
                    softmax(scores);
                }
                group.mix(scores, values, part, out);
            },
        );
        Ok((CpuStorage::F32(out), Shape::from((rows, heads * dim))))
    }
}

/// The query heads of one row that share a key head.
struct HeadGroup<'a> {
    dim: usize,
    context: usize,
    blocks: &'a [u32],
}

impl HeadGroup<'_> {
    /// The sequence's vectors in one head of a paged tensor, in order.
    fn vectors<'t>(&self, paged: &'t [f32], part: impl Fn(u32) -> usize) -> impl Iterator<Item = &'t [f32]> {
        let (dim, context) = (self.dim, self.context);
        self.blocks
            .iter()
            .flat_map(move |&block| paged[part(block)..part(block) + BLOCK_TOKENS * dim].chunks_exact(dim))
            .take(context)
    }

    /// Fills `scores` with `[heads of the group, context]`.
    fn scores(&self, queries: &[f32], keys: &[f32], part: impl Fn(u32) -> usize, scale: f32, scores: &mut Vec<f32>) {
        scores.clear();
        scores.resize(queries.len() / self.dim * self.context, 0.0);
        for (at, key) in self.vectors(keys, part).enumerate() {
            for (head, query) in queries.chunks_exact(self.dim).enumerate() {
                scores[head * self.context + at] = dot(query, key) * scale;
            }
        }
    }

    /// Adds the values, weighted by `scores`, to `out` (`[heads of the group, dim]`, zeros).
    fn mix(&self, scores: &[f32], values: &[f32], part: impl Fn(u32) -> usize, out: &mut [f32]) {
        for (at, value) in self.vectors(values, part).enumerate() {
            for (head, out) in out.chunks_exact_mut(self.dim).enumerate() {
                let weight = scores[head * self.context + at];
                for (sum, x) in out.iter_mut().zip(value) {
                    *sum += weight * x;
                }
            }
        }
    }
}

/// Dot product in sixteen fixed lanes: wide enough for any vector unit, and the same order for every caller.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0_f32; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + tail
}

fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::cache::kv::{KvShape, allocate};
    use candle_core::{D, Device};

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
        let normal = |shape| Tensor::randn(0_f32, 1.0, shape, &Device::Cpu).unwrap();
        let (q, k, v) =
            (normal((rows, heads, dim)), normal((context, kv_heads, dim)), normal((context, kv_heads, dim)));
        let shape = KvShape { layers: 1, kv_heads, head_dim: dim };
        let cache = allocate(shape, 8, &Device::Cpu).unwrap().remove(0);
        let blocks = [5_u32, 0, 7];
        let slots: Vec<u32> = (0..context).map(|t| blocks[t / BLOCK_TOKENS] * 16 + (t % BLOCK_TOKENS) as u32).collect();
        cache.write(&slots, &k, &v).unwrap();
        let plan = StepPlan {
            spans: vec![Span { rows: 0..rows, context: context - rows, blocks: blocks.into() }],
            ..StepPlan::default()
        };
        let got = paged_attention(&q, &cache, &Arc::new(AttentionMap::new(&plan)), 0.25).unwrap();
        let want = textbook(&q, &k, &v, 0.25);
        let worst = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(worst < 1e-5, "{worst}");
    }
}
