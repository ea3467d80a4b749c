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

/// Sizes of a layer's heads.
#[derive(Debug, Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

fn scale(dim: usize) -> f32 {
    1.0 / (dim as f32).sqrt()
}

/// A sequence whose queries, keys and values are all known.
struct Sequence {
    /// `[tokens, queries | keys | values]`.
    inputs: Tensor,
    blocks: Vec<u32>,
}

/// Sequences of so many tokens whose keys and values stand in a cache, in blocks that lie apart. What no token has written is NaN.
fn sequences(heads: Heads, dtype: DType, tokens: &[usize]) -> (Vec<Sequence>, LayerCache) {
    let Heads { heads, kv_heads, dim } = heads;
    let blocks: usize = tokens.iter().map(|tokens| tokens.div_ceil(BLOCK_TOKENS)).sum();
    let cache =
        LayerCache::allocate(KvShape { layers: 1, kv_heads, head_dim: dim, dtype }, blocks, &Device::Cpu).unwrap();
    let all: Vec<u32> = (0..(blocks * BLOCK_TOKENS) as u32).collect();
    let nothing = Tensor::full(f32::NAN, (all.len(), (heads + 2 * kv_heads) * dim), &Device::Cpu).unwrap();
    cache.write(&all, &nothing, heads, kv_heads).unwrap();
    // Last block first, each sequence taking turns.
    let mut free: Vec<u32> = (0..blocks as u32).collect();
    let mut sequences = Vec::new();
    for (seed, &tokens) in tokens.iter().enumerate() {
        let inputs = testing::normal(seed as u64 + 1, tokens, (heads + 2 * kv_heads) * dim);
        let blocks: Vec<u32> = (0..tokens.div_ceil(BLOCK_TOKENS)).map(|n| free.remove(n * 7 % free.len())).collect();
        let slots: Vec<u32> =
            (0..tokens).map(|t| blocks[t / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (t % BLOCK_TOKENS) as u32).collect();
        cache.write(&slots, &inputs, heads, kv_heads).unwrap();
        sequences.push(Sequence { inputs, blocks });
    }
    (sequences, cache)
}

/// What the given tokens of some sequences attend to, all in one step.
fn attend(
    level: Level,
    heads: Heads,
    cache: &LayerCache,
    steps: &[(&Sequence, std::ops::Range<usize>)],
) -> Vec<Vec<f32>> {
    let mut spans = Vec::new();
    let mut rows = 0;
    for (sequence, tokens) in steps {
        spans.push(Span {
            rows: rows..rows + tokens.len(),
            context: tokens.start,
            blocks: sequence.blocks.clone(),
            state: 0,
            saves: Vec::new(),
        });
        rows += tokens.len();
    }
    let map = Arc::new(AttentionMap::new(&StepPlan { spans, ..StepPlan::default() }));
    let inputs: Vec<Tensor> =
        steps.iter().map(|(sequence, tokens)| sequence.inputs.narrow(0, tokens.start, tokens.len()).unwrap()).collect();
    let Heads { heads, dim, .. } = heads;
    let op = PagedAttention { map, heads, dim, scale: scale(dim), level };
    let out = Tensor::cat(&inputs, 0).unwrap().apply_op3_no_bwd(&cache.keys, &cache.values, &op).unwrap();
    out.to_vec2().unwrap()
}

/// A sequence read in steps of `chunk` tokens.
fn in_chunks(heads: Heads, cache: &LayerCache, sequence: &Sequence, chunk: usize) -> Vec<Vec<f32>> {
    let tokens = sequence.inputs.dim(0).unwrap();
    let starts = (0..tokens).step_by(chunk);
    let rows =
        starts.flat_map(|first| attend(simd::level(), heads, cache, &[(sequence, first..(first + chunk).min(tokens))]));
    rows.collect()
}

/// Of floats that must be the same, not only equal.
fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Head sizes that fill vectors, fill none or leave an end; groups of one to nine heads.
const HEADS: [Heads; 9] = [
    Heads { heads: 9, kv_heads: 3, dim: 64 },
    Heads { heads: 2, kv_heads: 2, dim: 8 },
    Heads { heads: 4, kv_heads: 2, dim: 16 },
    Heads { heads: 5, kv_heads: 1, dim: 20 },
    Heads { heads: 8, kv_heads: 2, dim: 24 },
    Heads { heads: 7, kv_heads: 1, dim: 32 },
    Heads { heads: 8, kv_heads: 1, dim: 128 },
    Heads { heads: 9, kv_heads: 1, dim: 80 },
    Heads { heads: 2, kv_heads: 1, dim: 256 },
];
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F8E4M3];

#[test]
fn equals_the_textbook_over_scattered_blocks() {
    for heads in HEADS {
        for dtype in DTYPES {
            for tokens in [1, 37, 64, 65, 200] {
                let (sequences, cache) = sequences(heads, dtype, &[tokens, 40]);
                let Heads { heads: count, kv_heads, dim } = heads;
                let part = |first: usize, heads: usize| {
                    let part = sequences[0].inputs.narrow(1, first * dim, heads * dim).unwrap();
                    part.reshape((tokens, heads, dim)).unwrap()
                };
                let stored = |x: Tensor| x.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
                let (k, v) = (stored(part(count, kv_heads)), stored(part(count + kv_heads, kv_heads)));
                let want = textbook(&part(0, count), &k, &v, f64::from(scale(dim)));
                for level in simd::levels() {
                    let got = attend(level, heads, &cache, &[(&sequences[0], 0..tokens)]);
                    let got = Tensor::new(got, &Device::Cpu).unwrap();
                    testing::assert_close(&got, &want, 1e-5);
                }
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_its_step() {
    for heads in HEADS {
        for dtype in DTYPES {
            // The widest heads, which take the longest here, over fewer tokens.
            let tokens = if heads.heads * heads.dim > 600 { 150 } else { 330 };
            let (sequences, cache) = sequences(heads, dtype, &[tokens, 70, 129]);
            let (one, two, three) = (&sequences[0], &sequences[1], &sequences[2]);
            let whole = bits(&attend(simd::level(), heads, &cache, &[(one, 0..tokens)]));
            for chunk in [1, 7, 16, 33] {
                assert!(bits(&in_chunks(heads, &cache, one, chunk)) == whole, "{heads:?} {dtype:?} by {chunk}");
            }
            for (first, count) in [(0, tokens), (64, 70), (tokens - 1, 1)] {
                let company = [(two, 69..70), (one, first..first + count), (three, 0..129)];
                let rows = bits(&attend(simd::level(), heads, &cache, &company));
                assert!(rows[1..=count] == whole[first..first + count], "{heads:?} {dtype:?} {first} in company");
            }
        }
    }
}

#[test]
fn a_long_contexts_bits_depend_neither_on_steps_nor_on_threads() {
    let heads = HEADS[0];
    for dtype in DTYPES {
        let (sequences, cache) = sequences(heads, dtype, &[700, 30]);
        let (one, two) = (&sequences[0], &sequences[1]);
        let whole = bits(&attend(simd::level(), heads, &cache, &[(one, 0..700)]));
        for threads in [1, 2, 3, 16] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for rows in [0..700, 699..700, 690..700, 500..547] {
                let got = pool.install(|| attend(simd::level(), heads, &cache, &[(one, rows.clone())]));
                assert!(bits(&got) == whole[rows.clone()], "{dtype:?} {rows:?} by {threads} threads");
                let both = [(two, 29..30), (one, rows.clone())];
                let got = pool.install(|| attend(simd::level(), heads, &cache, &both));
                assert!(bits(&got[1..]) == whole[rows.clone()], "{dtype:?} {rows:?} by {threads}, in company");
            }
        }
    }
}
