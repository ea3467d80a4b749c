//! The cheap steps between products, each one pass over its data.
//!
//! The tensor library has all of these as chains of its own operations; a decode step of a small model then spends as long on
//! allocating and starting them as on its products. Every row is computed by itself in a fixed order.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::lanes::{LANES, Lanes, sigmoid_divisor};
use super::simd::{self, Kernel};

/// Values below which a single thread is faster than waking others.
const SMALLEST_SHARE: usize = 1 << 15;

/// Root-mean-square normalisation of `x` `[rows, n]`: `x / sqrt(mean(x²) + eps) * weight`.
pub(in crate::backend::candle) fn rms_norm(x: &Tensor, weight: &Arc<[f32]>, eps: f32) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&RmsNorm { weight: Arc::clone(weight), eps })
}

/// `x + y` and its normalisation, both `[rows, n]`, in one pass.
pub(in crate::backend::candle) fn add_rms_norm(
    x: &Tensor,
    y: &Tensor,
    weight: &Arc<[f32]>,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let rows = x.dim(0)?;
    let both = x.contiguous()?.apply_op2_no_bwd(&y.contiguous()?, &RmsNorm { weight: Arc::clone(weight), eps })?;
    Ok((both.narrow(0, 0, rows)?, both.narrow(0, rows, rows)?))
}

/// `silu(gate) * up` for `[rows, gate | up]`: half as wide.
pub(in crate::backend::candle) fn swiglu(inputs: &Tensor) -> Result<Tensor> {
    inputs.contiguous()?.apply_op1_no_bwd(&SwiGlu)
}

/// The rotation of each row: cosines and sines `[rows, turned / 2]`.
#[derive(Debug)]
pub(in crate::backend::candle) struct Turns {
    pub(in crate::backend::candle) cos: Vec<f32>,
    pub(in crate::backend::candle) sin: Vec<f32>,
}

/// What happens to queries and keys before attention.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct HeadPreparation {
    pub(in crate::backend::candle) heads: usize,
    pub(in crate::backend::candle) kv_heads: usize,
    pub(in crate::backend::candle) dim: usize,
    /// The values at the start of a head that are turned, an even number; the others pass.
    pub(in crate::backend::candle) turned: usize,
    /// The norms of queries and keys, where the model has them.
    pub(in crate::backend::candle) norms: Option<HeadNorms>,
}

/// Norms over single heads.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct HeadNorms {
    pub(in crate::backend::candle) queries: Arc<[f32]>,
    pub(in crate::backend::candle) keys: Arc<[f32]>,
    pub(in crate::backend::candle) eps: f32,
}

/// Normalises and turns the heads of `[rows, queries | keys | ...]`; what stands behind the keys stays as it is.
pub(in crate::backend::candle) fn prepare_heads(
    inputs: &Tensor,
    turns: &Arc<Turns>,
    heads: &HeadPreparation,
) -> Result<Tensor> {
    inputs.contiguous()?.apply_op1_no_bwd(&PrepareHeads { turns: Arc::clone(turns), heads: heads.clone() })
}

/// Contiguous f32 values of an operand.
pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("computed in f32 on CPU") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&values[start..end]),
        None => bail!("operands must be contiguous"),
    }
}

struct RmsNorm {
    weight: Arc<[f32]>,
    eps: f32,
}

impl RmsNorm {
    fn check(&self, n: usize) -> Result<()> {
        if n != self.weight.len() || n == 0 {
            bail!("a norm over {} values was given rows of {n}", self.weight.len());
        }
        Ok(())
    }
}

impl CustomOp1 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, (rows, n)) = (values(x, at)?, at.shape().dims2()?);
        self.check(n)?;
        let mut out = vec![0_f32; rows * n];
        by_rows(&mut out, n, |row, out| {
            simd::run(NormRow { x: &x[row * n..(row + 1) * n], weight: &self.weight, eps: self.eps, out });
        });
        Ok((CpuStorage::F32(out), at.shape().clone()))
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "add-rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, at: &Layout, y: &CpuStorage, y_at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, y, (rows, n)) = (values(x, at)?, values(y, y_at)?, at.shape().dims2()?);
        self.check(n)?;
        if x.len() != y.len() {
            bail!("sums need operands of one shape");
        }
        let mut both = vec![0_f32; 2 * rows * n];
        let (sums, normed) = both.split_at_mut(rows * n);
        let row = |row: usize, sum: &mut [f32], out: &mut [f32]| {
            for ((sum, x), y) in sum.iter_mut().zip(&x[row * n..]).zip(&y[row * n..]) {
                *sum = x + y;
            }
            simd::run(NormRow { x: sum, weight: &self.weight, eps: self.eps, out });
        };
        if rows * n < SMALLEST_SHARE {
            for (at, (sum, out)) in sums.chunks_exact_mut(n).zip(normed.chunks_exact_mut(n)).enumerate() {
                row(at, sum, out);
            }
        } else {
            let rows = sums.par_chunks_exact_mut(n).zip(normed.par_chunks_exact_mut(n)).enumerate();
            rows.for_each(|(at, (sum, out))| row(at, sum, out));
        }
        Ok((CpuStorage::F32(both), Shape::from((2 * rows, n))))
    }
}

/// One row's normalisation.
struct NormRow<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (lanes, end) = self.x.as_chunks::<LANES>();
        let mut squares = L::zero();
        for x in lanes {
            squares = L::load(x).multiply_add(L::load(x), squares);
        }
        let mut sum = squares.sum();
        for x in end {
            sum += x * x;
        }
        let scale = 1.0 / (sum / self.x.len() as f32 + self.eps).sqrt();
        let (weights, end_weights) = self.weight.as_chunks::<LANES>();
        let (out, end_out) = self.out.as_chunks_mut::<LANES>();
        for ((x, weight), out) in lanes.iter().zip(weights).zip(out) {
            L::load(x).multiply(L::splat(scale)).multiply(L::load(weight)).store(out);
        }
        for ((x, weight), out) in end.iter().zip(end_weights).zip(end_out) {
            *out = x * scale * weight;
        }
    }
}

struct SwiGlu;

impl CustomOp1 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, inputs: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (inputs, (rows, both)) = (values(inputs, at)?, at.shape().dims2()?);
        let n = both / 2;
        let mut out = vec![0_f32; rows * n];
        if n > 0 {
            by_rows(&mut out, n, |row, out| {
                let (gate, up) = inputs[row * both..(row + 1) * both].split_at(n);
                simd::run(SwiGluRow { gate, up, out });
            });
        }
        Ok((CpuStorage::F32(out), Shape::from((rows, n))))
    }
}

struct SwiGluRow<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SwiGluRow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (gates, end_gates) = self.gate.as_chunks::<LANES>();
        let (ups, end_ups) = self.up.as_chunks::<LANES>();
        let (out, end_out) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(out) {
            let gate = L::load(gate);
            gate.divide(sigmoid_divisor(gate)).multiply(L::load(up)).store(out);
        }
        for ((gate, up), out) in end_gates.iter().zip(end_ups).zip(end_out) {
            *out = gate / (1.0 + (-gate).exp()) * up;
        }
    }
}

struct PrepareHeads {
    turns: Arc<Turns>,
    heads: HeadPreparation,
}

impl CustomOp1 for PrepareHeads {
    fn name(&self) -> &'static str {
        "prepare-heads"
    }

    fn cpu_fwd(&self, inputs: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let HeadPreparation { heads, kv_heads, dim, turned, norms } = &self.heads;
        let (inputs, (rows, width)) = (values(inputs, at)?, at.shape().dims2()?);
        let half = turned / 2;
        if width < (heads + kv_heads) * dim || turned > dim || self.turns.cos.len() != rows * half || width == 0 {
            bail!("heads of {width} values and {} angles do not fit {rows} rows", self.turns.cos.len());
        }
        let mut out = inputs.to_vec();
        by_rows(&mut out, width, |row, out| {
            let turn = row * half..(row + 1) * half;
            let (cos, sin) = (&self.turns.cos[turn.clone()], &self.turns.sin[turn]);
            for (at, head) in out.chunks_exact_mut(*dim).take(heads + kv_heads).enumerate() {
                if let Some(HeadNorms { queries, keys, eps }) = norms {
                    let weight = if at < *heads { queries } else { keys };
                    let x = head.to_vec();
                    simd::run(NormRow { x: &x, weight, eps: *eps, out: head });
                }
                let (low, high) = head[..2 * half].split_at_mut(half);
                for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                    (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
                }
            }
        });
        Ok((CpuStorage::F32(out), at.shape().clone()))
    }
}

/// Computes `out` (`[rows, n]`) row by row, in parallel where there is enough of it.
pub(super) fn by_rows(out: &mut [f32], n: usize, row: impl Fn(usize, &mut [f32]) + Sync) {
    if out.len() < SMALLEST_SHARE {
        for (at, out) in out.chunks_exact_mut(n).enumerate() {
            row(at, out);
        }
    } else {
        out.par_chunks_exact_mut(n).enumerate().for_each(|(at, out)| row(at, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::testing::{assert_close, normal};

    #[test]
    fn norms_are_the_tensor_librarys() {
        for (rows, n) in [(1, 576), (3, 50), (100, 600)] {
            let (x, y, weight) = (normal(1, rows, n), normal(2, rows, n), normal(3, 1, n).squeeze(0).unwrap());
            let weights: Arc<[f32]> = weight.to_vec1().unwrap().into();
            let want = |x: &Tensor| candle_nn::ops::rms_norm(x, &weight, 1e-5).unwrap();
            assert_close(&rms_norm(&x, &weights, 1e-5).unwrap(), &want(&x), 1e-5);
            let (sum, normed) = add_rms_norm(&x, &y, &weights, 1e-5).unwrap();
            assert_close(&sum, &(&x + &y).unwrap(), 1e-5);
            assert_close(&normed, &want(&(&x + &y).unwrap()), 1e-5);
        }
        assert!(rms_norm(&normal(4, 2, 3), &Arc::from([1.0, 2.0]), 1e-5).is_err());
    }

    #[test]
    fn swiglu_is_the_tensor_librarys() {
        for (rows, n) in [(1, 1536), (3, 25), (60, 700)] {
            let inputs = normal(5, rows, 2 * n);
            let (gate, up) = (inputs.narrow(1, 0, n).unwrap(), inputs.narrow(1, n, n).unwrap());
            let want = (candle_nn::ops::silu(&gate).unwrap() * up).unwrap();
            assert_close(&swiglu(&inputs).unwrap(), &want, 1e-5);
        }
    }

    #[test]
    fn heads_are_normalised_and_turned_as_the_tensor_library_does_it() {
        let (rows, heads, kv_heads, dim) = (5, 4, 2, 24);
        // A whole head, and a part of it.
        for turned in [24, 8] {
            let inputs = normal(6, rows, (heads + 2 * kv_heads) * dim);
            let angles = normal(7, rows, turned / 2);
            let flat = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
            let turns = Arc::new(Turns { cos: flat(cos.clone()), sin: flat(sin.clone()) });
            let weight = normal(8, 1, dim).squeeze(0).unwrap();
            let weights: Arc<[f32]> = weight.to_vec1().unwrap().into();
            let norms = Some(HeadNorms { queries: Arc::clone(&weights), keys: weights, eps: 1e-6 });
            let got = prepare_heads(&inputs, &turns, &HeadPreparation { heads, kv_heads, dim, turned, norms }).unwrap();
            let part = |x: &Tensor, from: usize, count: usize| x.narrow(1, from * dim, count * dim).unwrap();
            let normed = part(&inputs, 0, heads + kv_heads).reshape((rows, heads + kv_heads, dim)).unwrap();
            let normed = candle_nn::ops::rms_norm(&normed.contiguous().unwrap(), &weight, 1e-6).unwrap();
            let first = normed.narrow(2, 0, turned).unwrap().contiguous().unwrap().unsqueeze(0).unwrap();
            let first = candle_nn::rotary_emb::rope_thd(&first, &cos, &sin).unwrap().squeeze(0).unwrap();
            let rest = normed.narrow(2, turned, dim - turned).unwrap();
            let want = if turned == dim { first } else { Tensor::cat(&[first, rest], 2).unwrap() };
            let want = want.reshape((rows, (heads + kv_heads) * dim)).unwrap();
            assert_close(&part(&got, 0, heads + kv_heads), &want, 1e-5);
            assert_close(&part(&got, heads + kv_heads, kv_heads), &part(&inputs, heads + kv_heads, kv_heads), 1e-5);
        }
    }
}
