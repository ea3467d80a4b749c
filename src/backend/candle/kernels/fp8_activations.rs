//! Activations as a serve sees them that multiplies eight-bit weights with eight-bit activations.
//!
//! Here products take activations in f32. A serve whose hardware multiplies e4m3 rounds them first, and its hidden states
//! differ by more than the noise of bf16; this rounds as it does, to be near it.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::e4m3;
use super::elementwise::{by_rows, values};

/// Columns that share a scale: the serves' group, and the width of the weights' squares.
const GROUP: usize = 128;
/// What a group's largest value counts as at least, so that a group of zeros has a scale too.
const SMALLEST: f32 = 1e-10;

/// Each value of `[rows, columns]` as the nearest e4m3 number times its group's scale. A row's every 128 columns have one: their
/// largest magnitude over the largest e4m3.
pub(in crate::backend::candle) fn quantise_activations(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&Quantise)
}

struct Quantise;

impl CustomOp1 for Quantise {
    fn name(&self) -> &'static str {
        "quantise-activations"
    }

    fn cpu_fwd(&self, x: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, (rows, columns)) = (values(x, at)?, at.shape().dims2()?);
        let mut out = vec![0_f32; rows * columns];
        by_rows(&mut out, columns.max(1), |row, out| {
            let x = x[row * columns..(row + 1) * columns].chunks(GROUP);
            for (x, out) in x.zip(out.chunks_mut(GROUP)) {
                let largest = x.iter().fold(SMALLEST, |largest, x| largest.max(x.abs()));
                let scale = largest / e4m3::MAX;
                for (x, out) in x.iter().zip(out) {
                    *out = e4m3::nearest((x / scale).clamp(-e4m3::MAX, e4m3::MAX)) * scale;
                }
            }
        });
        Ok((CpuStorage::F32(out), at.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::testing::normal;
    use candle_core::Device;
    use float8::F8E4M3;

    #[test]
    fn each_group_is_rounded_by_its_own_scale() {
        // Groups of very different sizes, the last one short.
        let (rows, columns) = (50, 300);
        let x = normal(1, rows, columns).to_vec2::<f32>().unwrap();
        let x: Vec<Vec<f32>> = x
            .into_iter()
            .map(|row| row.into_iter().enumerate().map(|(at, x)| x * 100_f32.powi(at as i32 / 128 - 1)).collect())
            .collect();
        let got = quantise_activations(&Tensor::new(x.clone(), &Device::Cpu).unwrap()).unwrap();
        for (x, got) in x.iter().zip(got.to_vec2::<f32>().unwrap()) {
            for (x, got) in x.chunks(128).zip(got.chunks(128)) {
                let scale = x.iter().fold(0_f32, |largest, x| largest.max(x.abs())) / 448.0;
                let want: Vec<f32> = x.iter().map(|x| F8E4M3::from_f32(x / scale).to_f32() * scale).collect();
                assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn ties_go_to_the_even_number_and_zeros_stay() {
        // The largest makes the scale 1.
        let x = [448.0, 17.0, -19.0, 432.0, -431.0, 2_f32.powi(-10), -3.0 * 2_f32.powi(-10), 0.0];
        let got = quantise_activations(&Tensor::new(&[x], &Device::Cpu).unwrap()).unwrap();
        let want = [448.0, 16.0, -20.0, 448.0, -416.0, 0.0, -4.0 * 2_f32.powi(-10), 0.0];
        assert_eq!(got.to_vec2::<f32>().unwrap(), [want]);
        let zeros = Tensor::zeros((2, 130), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert_eq!(quantise_activations(&zeros).unwrap().to_vec2::<f32>().unwrap(), vec![vec![0.0; 130]; 2]);
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let got = quantise_activations(&Tensor::new(&[[1.0, f32::NAN, 448.0]], &Device::Cpu).unwrap()).unwrap();
        let got = got.to_vec2::<f32>().unwrap().concat();
        assert_eq!((got[0], got[1].is_nan(), got[2]), (1.0, true, 448.0));
    }
}
