//! Gates on what a mixer gives: each value is let through as far as a projection of the same token says.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::elementwise::by_rows;
use super::lanes::{LANES, Lanes, sigmoid_divisor};
use super::rows::Rows;
use super::simd::{self, Kernel};

/// `x / sqrt(mean(x²) + eps) * weight * silu(z)`, the mean over each head of as many values as there are weights. `x` and `z`
/// are `[rows, heads * dim]`, and may be columns of wider tensors.
pub(in crate::backend::candle) fn gated_norm(x: &Tensor, z: &Tensor, weight: &Arc<[f32]>, eps: f32) -> Result<Tensor> {
    x.apply_op2_no_bwd(z, &GatedNorm { weight: Arc::clone(weight), eps })
}

/// `x * sigmoid(gates)`, both `[rows, n]`; they may be columns of wider tensors.
pub(in crate::backend::candle) fn sigmoid_gate(x: &Tensor, gates: &Tensor) -> Result<Tensor> {
    x.apply_op2_no_bwd(gates, &SigmoidGate)
}

struct GatedNorm {
    weight: Arc<[f32]>,
    eps: f32,
}

impl CustomOp2 for GatedNorm {
    fn name(&self) -> &'static str {
        "gated-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_at: &Layout, z: &CpuStorage, z_at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, z, dim) = (Rows::new(x, x_at)?, Rows::new(z, z_at)?, self.weight.len());
        let (rows, width) = (x.count(), x.width());
        if dim == 0 || !width.is_multiple_of(dim) || (z.count(), z.width()) != (rows, width) {
            bail!("a norm over heads of {dim} was given {rows} rows of {width} values and gates of {}", z.width());
        }
        let mut out = vec![0_f32; rows * width];
        let level = simd::level();
        by_rows(&mut out, width.max(1), |row, out| {
            let heads = x.row(row).chunks_exact(dim).zip(z.row(row).chunks_exact(dim));
            for ((x, z), out) in heads.zip(out.chunks_exact_mut(dim)) {
                simd::run_at(level, NormHead { x, z, weight: &self.weight, eps: self.eps, out });
            }
        });
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }
}

struct NormHead<'a> {
    x: &'a [f32],
    z: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for NormHead<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (x, end_x) = self.x.as_chunks::<LANES>();
        let mut squares = L::zero();
        for x in x {
            squares = L::load(x).multiply_add(L::load(x), squares);
        }
        let mut sum = squares.sum();
        for x in end_x {
            sum += x * x;
        }
        let scale = 1.0 / (sum / self.x.len() as f32 + self.eps).sqrt();
        let (z, end_z) = self.z.as_chunks::<LANES>();
        let (weights, end_weights) = self.weight.as_chunks::<LANES>();
        let (out, end_out) = self.out.as_chunks_mut::<LANES>();
        for (((x, z), weight), out) in x.iter().zip(z).zip(weights).zip(out) {
            let z = L::load(z);
            let normed = L::load(x).multiply(L::splat(scale)).multiply(L::load(weight));
            normed.multiply(z.divide(sigmoid_divisor(z))).store(out);
        }
        for (((x, z), weight), out) in end_x.iter().zip(end_z).zip(end_weights).zip(end_out) {
            *out = x * scale * weight * (z / (1.0 + (-z).exp()));
        }
    }
}

struct SigmoidGate;

impl CustomOp2 for SigmoidGate {
    fn name(&self) -> &'static str {
        "sigmoid-gate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_at: &Layout, gates: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, gates) = (Rows::new(x, x_at)?, Rows::new(gates, at)?);
        let (rows, width) = (x.count(), x.width());
        if (gates.count(), gates.width()) != (rows, width) {
            bail!("{rows} rows of {width} values were given {} rows of {} gates", gates.count(), gates.width());
        }
        let mut out = vec![0_f32; rows * width];
        let level = simd::level();
        by_rows(&mut out, width.max(1), |row, out| {
            simd::run_at(level, GateRow { x: x.row(row), gate: gates.row(row), out });
        });
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }
}

struct GateRow<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (x, end_x) = self.x.as_chunks::<LANES>();
        let (gates, end_gates) = self.gate.as_chunks::<LANES>();
        let (out, end_out) = self.out.as_chunks_mut::<LANES>();
        for ((x, gate), out) in x.iter().zip(gates).zip(out) {
            L::load(x).divide(sigmoid_divisor(L::load(gate))).store(out);
        }
        for ((x, gate), out) in end_x.iter().zip(end_gates).zip(end_out) {
            *out = x / (1.0 + (-gate).exp());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::testing::{assert_close, normal};
    use candle_core::{D, Device};

    #[test]
    fn norms_come_before_their_gates() {
        for (rows, heads, dim) in [(1, 4, 128), (3, 2, 24), (60, 5, 130)] {
            let (x, z) = (normal(1, rows, heads * dim), normal(2, rows, 2 * heads * dim));
            let z = z.narrow(1, heads * dim, heads * dim).unwrap();
            let weight = normal(3, 1, dim).squeeze(0).unwrap();
            let split = x.reshape((rows, heads, dim)).unwrap();
            let mean = (split.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-6).unwrap();
            let normed = split.broadcast_div(&mean.sqrt().unwrap()).unwrap().broadcast_mul(&weight).unwrap();
            let want = (normed.reshape((rows, heads * dim)).unwrap() * candle_nn::ops::silu(&z).unwrap()).unwrap();
            let weights: Arc<[f32]> = weight.to_vec1().unwrap().into();
            assert_close(&gated_norm(&x, &z, &weights, 1e-6).unwrap(), &want, 1e-5);
            assert!(gated_norm(&x, &z.narrow(1, 0, dim).unwrap(), &weights, 1e-6).is_err());
        }
    }

    #[test]
    fn gates_are_read_where_they_stand() {
        for (rows, heads, dim) in [(1, 4, 256), (3, 2, 24), (60, 5, 130)] {
            let x = normal(4, rows, heads * dim);
            let both = normal(5, rows, heads * 2 * dim);
            let gates = both.narrow(1, heads * dim, heads * dim).unwrap();
            let want = (&x * candle_nn::ops::sigmoid(&gates.contiguous().unwrap()).unwrap()).unwrap();
            assert_close(&sigmoid_gate(&x, &gates).unwrap(), &want, 1e-6);
            assert!(sigmoid_gate(&x, &both).is_err());
        }
    }

    #[test]
    fn gates_at_the_ends_are_shut_and_open() {
        let ends = Tensor::new(&[[-1e4_f32, 1e4]], &Device::Cpu).unwrap();
        let x = Tensor::new(&[[3.0_f32, 3.0]], &Device::Cpu).unwrap();
        let out = sigmoid_gate(&x, &ends).unwrap().to_vec2::<f32>().unwrap();
        assert!(out[0][0].abs() < 1e-30);
        assert_eq!(out[0][1], 3.0);
    }
}
