//! Weights of a real model's shapes and storage, with random values: speed and memory can be measured where the checkpoint is
//! not.

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Fp8Activations, LoadError, Progress, ProgressFn, WeightSource};
use crate::backend::candle::kernels::{Format, Matrix, RowOrder, SQUARE};
use crate::checkpoint::SharedBytes;

/// Bytes of noise, repeated to fill a tensor: random enough for speed, and made in no time. A prime, so that rows do not repeat.
const NOISE: usize = 1_048_573;

/// The parts of released names whose tensors stay in bf16 in a block-quantised checkpoint.
const PLAIN: [&str; 7] =
    ["embed_tokens", "lm_head", "in_proj_a", "in_proj_b", "conv1d", "mlp.gate.weight", "shared_expert_gate"];

/// Random weights under any name: projections in block-FP8 with their scales, the others in bf16, as released.
pub(in crate::backend::candle) struct SyntheticWeights<'a> {
    noise: Vec<u8>,
    activations: Fp8Activations,
    progress: Progress<'a>,
}

impl<'a> SyntheticWeights<'a> {
    /// `total` bytes will be asked for.
    pub(in crate::backend::candle) fn new(total: u64, activations: Fp8Activations, progress: &'a ProgressFn) -> Self {
        let mut noise = vec![0; NOISE];
        // The same weights each time.
        ChaCha8Rng::seed_from_u64(1).fill(&mut noise[..]);
        Self { noise, activations, progress: Progress::new(total, progress) }
    }

    /// Whether a matrix is stored in block-FP8.
    pub(in crate::backend::candle) fn is_quantised(name: &str, shape: &[usize]) -> bool {
        shape.len() == 2 && !PLAIN.iter().any(|part| name.contains(part))
    }

    /// Bytes for a tensor of `length` values, each made of a byte of noise; other noise for another name.
    fn bytes<const N: usize>(&self, name: &str, length: usize, value: impl Fn(u8) -> [u8; N]) -> Vec<u8> {
        let start = name.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % NOISE;
        let noise = self.noise[start..].iter().chain(&self.noise[..start]).take(length);
        let pattern: Vec<u8> = noise.flat_map(|byte| value(*byte)).collect();
        let mut bytes = Vec::with_capacity(length * N);
        while bytes.len() < length * N {
            bytes.extend_from_slice(&pattern[..pattern.len().min(length * N - bytes.len())]);
        }
        bytes
    }

    /// Values about as large as a trained model's: below 1 over the root of a row's length.
    fn plain(&self, name: &str, rows: usize, columns: usize) -> Option<Matrix> {
        let largest = 1.0 / (columns as f32).sqrt();
        let value = |byte| bf16::from_f32((f32::from(byte) / 128.0 - 1.0) * largest).to_le_bytes();
        let bytes = self.bytes(name, rows * columns, value);
        Matrix::new(SharedBytes::owned(bytes), Format::Bf16, rows, columns, RowOrder::Plain)
    }

    fn quantised(&self, name: &str, rows: usize, columns: usize) -> Option<Matrix> {
        // Any sign, exponents up to that of 1: no byte is out of range or no number.
        let bytes = self.bytes(name, rows * columns, |byte| [byte & 0xbf]);
        let scale = bf16::from_f32(1.0 / (columns as f32).sqrt()).to_f32();
        let scales = vec![scale; rows.div_ceil(SQUARE) * columns.div_ceil(SQUARE)];
        Matrix::with_scales(SharedBytes::owned(bytes), rows, columns, &scales)
    }
}

impl WeightSource for SyntheticWeights<'_> {
    fn contains(&self, _: &str) -> bool {
        // Names of fused tensors are asked for first; there are none here.
        false
    }

    fn read(&self, _: &str, matrix: &Matrix) -> Result<(), LoadError> {
        // It was just made: there are no files to read, and nothing in it is no number.
        self.progress.add((0..matrix.rows()).map(|row| matrix.row_bytes(row).len() as u64).sum());
        Ok(())
    }

    fn rounds_activations(&self) -> bool {
        self.activations == Fp8Activations::Dynamic
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        let quantised = Self::is_quantised(name, &[output, input]);
        let matrix = if quantised { self.quantised(name, output, input) } else { self.plain(name, output, input) };
        matrix.ok_or_else(|| LoadError::Config(format!("{name}: {output} rows of {input} values")))
    }

    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
        let part = |at| {
            self.plain(&format!("{name}.{at}"), output, input)
                .ok_or_else(|| LoadError::Config(format!("{name}: {output} rows of {input} values")))
        };
        (0..count).map(part).collect()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
        self.plain(name, 1, len).ok_or_else(|| LoadError::Config(format!("{name}: {len} values")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_stored_as_released_and_are_numbers() {
        let weights = SyntheticWeights::new(0, Fp8Activations::default(), &|_, _| {});
        let row = |name: &str, output, input| {
            let matrix = WeightSource::matrix(&weights, name, output, input).unwrap();
            let mut row = vec![f32::NAN; input];
            matrix.decode_row(output - 1, &mut row);
            (matrix.is_eight_bit(), row)
        };
        let (eight_bit, expert) = row("model.language_model.layers.0.mlp.experts.3.up_proj.weight", 130, 256);
        assert!(eight_bit);
        let (plain_eight_bit, router) = row("model.language_model.layers.0.mlp.gate.weight", 130, 256);
        assert!(!plain_eight_bit);
        for row in [&expert, &router] {
            let size = (row.iter().map(|x| x * x).sum::<f32>()).sqrt();
            assert!((0.1..2.0).contains(&size), "a row of length {size}");
        }
        let (_, other) = row("model.language_model.layers.0.mlp.experts.4.up_proj.weight", 130, 256);
        assert_ne!(expert, other);
        assert_eq!(weights.vector("norm", 7).unwrap().columns(), 7);
    }
}
