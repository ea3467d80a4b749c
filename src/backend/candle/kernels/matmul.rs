//! Products of f32 activations with weights in the form in which they are stored.
//!
//! The tensor library multiplies bf16 by widening both sides to f32 in full, each time, and quantised blocks by rounding the
//! activations to 8 bits. Here a block of weights is decoded inside the product, and activations stay f32. Weights are
//! read where they lie, in the mapped file.
//!
//! **A row of the result does not depend on the batch.** Each element is one dot product, summed in an order that is the
//! same for every path, tile and number of rows (see `dot`); so a token's states come out the same bits in prefill, in
//! decode, in company and in a verifier's recompute.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::dot::{GROUP, Group, TILE, dispatch};
use super::format::{Format, StoredRow};
use super::matrix::Matrix;
use super::simd::{self, Level};

/// Up to this many activation rows, threads share the weights (each reads a part of them); above it they share the rows.
const FEW_ROWS: usize = 32;
/// A thread's smallest share of a product, in multiplications: about 3 microseconds, more than handing it over costs.
const SMALLEST_SHARE: usize = 1 << 15;
/// A product of this many multiplications a thread is cut finer than there are threads, so that one that is held up
/// elsewhere does not hold up the product; smaller ones lose more by cutting.
const LARGE_SHARE: usize = 1 << 21;

/// `x` `[rows, columns]` times each matrix's transpose, side by side: `[rows, sum of the matrices' rows]`.
///
/// Matrices that read the same activations are given together: one parallel region then serves them all.
pub(in crate::backend::candle) fn matmul(x: &Tensor, matrices: Arc<[Matrix]>) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&MatMul { matrices })
}

struct MatMul {
    matrices: Arc<[Matrix]>,
}

impl CustomOp1 for MatMul {
    fn name(&self) -> &'static str {
        "matmul-stored"
    }

    fn cpu_fwd(&self, x: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = at.shape().dims2()?;
        let CpuStorage::F32(x) = x else { bail!("activations are f32 on CPU") };
        let Some((start, end)) = at.contiguous_offsets() else { bail!("activations must be contiguous") };
        if self.matrices.iter().any(|matrix| matrix.columns() != columns) {
            bail!("activations of {columns} values do not fit the weights");
        }
        let outputs = self.matrices.iter().map(|matrix| matrix.rows()).sum();
        let product = Product { matrices: &self.matrices, x: &x[start..end], rows, columns, outputs };
        let out = if rows <= FEW_ROWS { product.by_weights() } else { product.by_rows() };
        Ok((CpuStorage::F32(out), Shape::from((rows, outputs))))
    }
}

/// One product under way.
struct Product<'a> {
    matrices: &'a [Matrix],
    x: &'a [f32],
    rows: usize,
    columns: usize,
    outputs: usize,
}

impl Product<'_> {
    /// Each thread takes some of the weights for all rows. Results come output by output and are transposed in the end.
    fn by_weights(&self) -> Vec<f32> {
        let (rows, outputs) = (self.rows, self.outputs);
        if rows == 0 {
            return Vec::new();
        }
        let mut transposed = vec![0_f32; rows * outputs];
        let threads = rayon::current_num_threads();
        let work = outputs * self.columns * rows;
        let parts = if work > LARGE_SHARE * threads { 4 * threads } else { threads.min(work.div_ceil(SMALLEST_SHARE)) };
        let chunk = outputs.div_ceil(parts.max(1)).next_multiple_of(GROUP);
        let level = simd::level();
        transposed.par_chunks_mut(chunk * rows).enumerate().for_each(|(at, out)| {
            by_outputs(level, self.matrices, at * chunk, self.x, self.columns, out);
        });
        if rows == 1 {
            return transposed;
        }
        let mut out = vec![0_f32; rows * outputs];
        transpose(&transposed, rows, &mut out);
        out
    }

    /// Each thread takes some of the rows for all weights.
    fn by_rows(&self) -> Vec<f32> {
        let mut out = vec![0_f32; self.rows * self.outputs];
        let chunk = self.rows.div_ceil(rayon::current_num_threads()).next_multiple_of(TILE);
        let level = simd::level();
        out.par_chunks_mut(chunk * self.outputs).zip(self.x.par_chunks(chunk * self.columns)).for_each(|(out, x)| {
            let mut scratch = Vec::new();
            let rows = x.len() / self.columns;
            let mut first = 0;
            while first < self.outputs {
                let weights = group(self.matrices, first, GROUP.min(self.outputs - first));
                dispatch(level, &weights, x, self.columns, rows, &mut scratch, |output, row, sum| {
                    out[row * self.outputs + first + output] = sum;
                });
                first += weights.count;
            }
        });
        out
    }
}

/// The outputs from `first` on, as many as there is room for in `out` (`[outputs, rows]`), for all rows of `x`.
pub(super) fn by_outputs(level: Level, matrices: &[Matrix], first: usize, x: &[f32], columns: usize, out: &mut [f32]) {
    let rows = x.len() / columns;
    let outputs = out.len() / rows;
    let mut scratch = Vec::new();
    let mut done = 0;
    while done < outputs {
        let weights = group(matrices, first + done, GROUP.min(outputs - done));
        dispatch(level, &weights, x, columns, rows, &mut scratch, |output, row, sum| {
            out[(done + output) * rows + row] = sum;
        });
        done += weights.count;
    }
}

/// `[outputs, rows]` to `[rows, outputs]`.
pub(super) fn transpose(sums: &[f32], rows: usize, out: &mut [f32]) {
    let outputs = sums.len() / rows;
    for (output, sums) in sums.chunks_exact(rows).enumerate() {
        for (row, sum) in sums.iter().enumerate() {
            out[row * outputs + output] = *sum;
        }
    }
}

/// The stored rows of up to `count` outputs from `first` on, all of one matrix.
fn group(matrices: &[Matrix], first: usize, count: usize) -> Group<'_> {
    let mut skipped = 0;
    for matrix in matrices {
        if first < skipped + matrix.rows() {
            let within = first - skipped;
            let count = count.min(matrix.rows() - within);
            let row = |at: usize| matrix.row(within + at.min(count - 1), within + at + GROUP);
            return Group { rows: [row(0), row(1), row(2), row(3)], count, format: matrix.format() };
        }
        skipped += matrix.rows();
    }
    Group { rows: [StoredRow::default(); GROUP], count: 0, format: Format::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::format::SQUARE;
    use crate::backend::candle::kernels::matrix::RowOrder;
    use crate::backend::candle::kernels::testing::{assert_close, normal};
    use crate::checkpoint::SharedBytes;
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QTensor};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const ALL: [Format; 7] =
        [Format::F32, Format::F16, Format::Bf16, Format::Fp8E4m3, Format::Q4_0, Format::Q4_1, Format::Q8_0];

    /// Random weights in a format, and as f32 as the tensor library reads them.
    fn weights(format: Format, rows: usize, columns: usize) -> (Matrix, Tensor) {
        let dtype = match format {
            Format::F32 => GgmlDType::F32,
            Format::F16 => GgmlDType::F16,
            Format::Bf16 => GgmlDType::BF16,
            Format::Fp8E4m3 => return eight_bit_weights(rows, columns),
            Format::Q4_0 => GgmlDType::Q4_0,
            Format::Q4_1 => GgmlDType::Q4_1,
            Format::Q8_0 => GgmlDType::Q8_0,
        };
        let stored = QTensor::quantize(&normal(9, rows, columns), dtype).unwrap();
        let bytes = SharedBytes::owned(stored.data().unwrap().to_vec());
        let matrix = Matrix::new(bytes, format, rows, columns, RowOrder::Plain).unwrap();
        (matrix, stored.dequantize(&Device::Cpu).unwrap())
    }

    /// Every byte but NaN, each square's scale another.
    fn eight_bit_weights(rows: usize, columns: usize) -> (Matrix, Tensor) {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let bytes: Vec<u8> =
            (0..rows * columns).map(|_| rng.random_range(0..127) | rng.random_range(0..2) << 7).collect();
        let across = columns.div_ceil(SQUARE);
        let scales: Vec<f32> = (0..rows.div_ceil(SQUARE) * across)
            .map(|_| half::bf16::from_f32(rng.random_range(0.001..0.01)).to_f32())
            .collect();
        let wide = bytes.iter().enumerate().map(|(at, byte)| {
            let (row, column) = (at / columns, at % columns);
            float8::F8E4M3::from_bits(*byte).to_f32() * scales[row / SQUARE * across + column / SQUARE]
        });
        let wide = Tensor::from_vec(wide.collect::<Vec<_>>(), (rows, columns), &Device::Cpu).unwrap();
        (Matrix::with_scales(SharedBytes::owned(bytes), rows, columns, &scales).unwrap(), wide)
    }

    fn rows(x: &Tensor) -> Vec<Vec<f32>> {
        x.to_vec2().unwrap()
    }

    #[test]
    fn products_of_all_formats_and_sizes_are_right() {
        for format in ALL {
            // Columns that fill no block only where the format has none; outputs that fill no group.
            let columns = if format.row_bytes(51).is_some() { 51 } else { 96 };
            for (tokens, outputs) in [(1, 7), (2, 4), (3, 9), (4, 1), (5, 33), (17, 6), (40, 13)] {
                let (matrix, wide) = weights(format, outputs, columns);
                let x = normal(10, tokens, columns);
                let got = matmul(&x, Arc::new([matrix])).unwrap();
                let want = x.matmul(&wide.t().unwrap()).unwrap();
                assert_close(&got, &want, 1e-4);
            }
        }
    }

    #[test]
    fn squares_of_eight_bit_weights_have_their_own_scales() {
        // Squares that the matrix fills, that it fills in part, and a last one narrower than a block.
        for (outputs, columns) in [(256, 128), (300, 160), (129, 300), (1, 257)] {
            let (matrix, wide) = eight_bit_weights(outputs, columns);
            for tokens in [1, 3, 6, 40] {
                let x = normal(10, tokens, columns);
                let got = matmul(&x, Arc::new([matrix.clone()])).unwrap();
                assert_close(&got, &x.matmul(&wide.t().unwrap()).unwrap(), 1e-4);
            }
            let mut decoded = vec![0.0; columns];
            for (row, want) in rows(&wide).iter().enumerate() {
                matrix.decode_row(row, &mut decoded);
                assert_eq!(&decoded, want, "row {row} of {outputs} by {columns}");
            }
        }
    }

    #[test]
    fn eight_bit_weights_need_fitting_scales() {
        let scaled = |rows, columns, scales: &[f32]| {
            Matrix::with_scales(SharedBytes::owned(vec![0x38; 129 * 160]), rows, columns, scales).is_some()
        };
        assert!(scaled(129, 160, &[1.0; 4]));
        assert!(!scaled(129, 160, &[1.0; 2]));
        assert!(!scaled(128, 160, &[1.0; 2]), "fewer weights than bytes");
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX / 256.0] {
            assert!(!scaled(129, 160, &[1.0, 1.0, wrong, 1.0]), "a scale of {wrong}");
        }
        let plain = Matrix::new(SharedBytes::owned(vec![0; 4]), Format::Fp8E4m3, 2, 2, RowOrder::Plain);
        assert!(plain.is_none());
    }

    #[test]
    fn scales_at_the_edges_of_f32_are_exact() {
        for scale in [f32::MAX / 448.0, f32::MIN_POSITIVE, half::bf16::from_bits(1).to_f32()] {
            let bytes: Vec<u8> = (0..=255).filter(|byte| byte & 0x7f != 0x7f).collect();
            let columns = bytes.len();
            let matrix = Matrix::with_scales(SharedBytes::owned(bytes.clone()), 1, columns, &[scale; 2]).unwrap();
            let mut decoded = vec![0.0; columns];
            matrix.decode_row(0, &mut decoded);
            for (byte, got) in bytes.iter().zip(decoded) {
                assert_eq!(got, float8::F8E4M3::from_bits(*byte).to_f32() * scale, "{byte:#04x} times {scale}");
            }
        }
    }

    #[test]
    fn a_row_is_the_same_bits_in_any_company() {
        for format in ALL {
            let columns = if format.row_bytes(171).is_some() { 171 } else { 160 };
            let (matrix, _) = weights(format, 37, columns);
            let matrices = Arc::new([matrix]);
            let x = normal(10, 70, columns);
            let together = rows(&matmul(&x, Arc::clone(&matrices) as Arc<[Matrix]>).unwrap());
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            for _ in 0..20 {
                let first = rng.random_range(0..70);
                let count = rng.random_range(1..=70 - first);
                let some = matmul(&x.narrow(0, first, count).unwrap(), Arc::clone(&matrices) as Arc<[Matrix]>).unwrap();
                assert_eq!(rows(&some), together[first..first + count], "{format:?} rows {first}..{}", first + count);
            }
        }
    }

    #[test]
    fn every_level_agrees() {
        for format in ALL {
            let (matrix, _) = weights(format, 4, 96);
            let x: Vec<f32> = rows(&normal(10, 6, 96)).concat();
            let group = Group { rows: std::array::from_fn(|row| matrix.row(row, row)), count: 4, format };
            let run = |level, count| {
                let mut sums = Vec::new();
                let x = &x[..count * 96];
                dispatch(level, &group, x, 96, count, &mut Vec::new(), |output, row, sum| {
                    sums.push((output, row, sum))
                });
                sums
            };
            let levels = simd::levels();
            for count in [1, 4, 6] {
                let want = run(Level::Baseline, count);
                for &level in &levels {
                    for (got, want) in run(level, count).iter().zip(&want) {
                        assert_eq!((got.0, got.1), (want.0, want.1));
                        // One rounding a step or two: all that may differ.
                        assert!((got.2 - want.2).abs() < 1e-4, "{format:?} {level:?}: {got:?} for {want:?}");
                    }
                }
                if let [_, avx2, avx512] = levels[..] {
                    assert_eq!(run(avx2, count), run(avx512, count), "{format:?}: fused sums are the same bits");
                }
            }
        }
    }

    #[test]
    fn matrices_side_by_side_are_each_its_own() {
        let (a, wide_a) = weights(Format::Q4_1, 5, 64);
        let (b, wide_b) = weights(Format::Bf16, 6, 64);
        for tokens in [1, 3, 50] {
            let x = normal(10, tokens, 64);
            let got = matmul(&x, Arc::new([a.clone(), b.clone()])).unwrap();
            let want = Tensor::cat(&[&wide_a, &wide_b], 0).unwrap();
            let want = x.matmul(&want.t().unwrap()).unwrap();
            assert_close(&got, &want, 1e-4);
        }
    }

    #[test]
    fn interleaved_rows_come_out_in_halves() {
        // Two heads of four rows; llama.cpp stores head rows 0 1 2 3 as 0 2 1 3.
        let stored: Vec<u8> = [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|n| (*n as f32).to_le_bytes()).collect();
        let order = RowOrder::Interleaved { head_dim: 4 };
        let matrix = Matrix::new(SharedBytes::owned(stored.clone()), Format::F32, 8, 1, order).unwrap();
        let x = Tensor::ones((1, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let got = rows(&matmul(&x, Arc::new([matrix])).unwrap());
        assert_eq!(got, [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]);
        let odd = RowOrder::Interleaved { head_dim: 3 };
        assert!(Matrix::new(SharedBytes::owned(stored), Format::F32, 8, 1, odd).is_none());
    }

    #[test]
    fn two_matrices_that_take_turns_come_out_apart() {
        let stored: Vec<u8> = (0..12_u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
        let plain = Matrix::new(SharedBytes::owned(stored), Format::F32, 12, 1, RowOrder::Plain).unwrap();
        let x = Tensor::ones((1, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let [first, second] = plain.alternating(3).unwrap();
        let got = rows(&matmul(&x, Arc::new([second, first])).unwrap());
        assert_eq!(got, [[3.0, 4.0, 5.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 6.0, 7.0, 8.0]]);
        assert!(plain.alternating(4).is_none() && plain.alternating(0).is_none());
        // Scales are those of the rows as stored: here one run a square.
        let scaled = Matrix::with_scales(SharedBytes::owned(vec![0x38; 256]), 256, 1, &[1.0, 2.0]).unwrap();
        let [first, second] = scaled.alternating(128).unwrap();
        let got = rows(&matmul(&x, Arc::new([first, second])).unwrap());
        assert_eq!((got[0][0], got[0][127], got[0][128], got[0][255]), (1.0, 1.0, 2.0, 2.0));
    }

    #[test]
    fn parts_of_a_matrix_are_parts_of_its_product() {
        for format in ALL {
            // Whole blocks and squares on both sides of every cut.
            let (matrix, wide) = weights(format, 384, 384);
            for tokens in [1, 5, 40] {
                let x = normal(10, tokens, 384);
                let rows = matrix.rows_of(&[128..256, 0..128]).unwrap();
                let got = matmul(&x, Arc::new([rows.clone()])).unwrap();
                let want =
                    Tensor::cat(&[wide.narrow(0, 128, 128).unwrap(), wide.narrow(0, 0, 128).unwrap()], 0).unwrap();
                assert_close(&got, &x.matmul(&want.t().unwrap()).unwrap(), 1e-4);
                // Parts of parts, and columns of parts.
                let part = rows.rows_of(std::slice::from_ref(&(64..192))).unwrap().columns_of(128..384).unwrap();
                let got = matmul(&x.narrow(1, 128, 256).unwrap(), Arc::new([part])).unwrap();
                let want = want.narrow(0, 64, 128).unwrap().narrow(1, 128, 256).unwrap();
                let x = x.narrow(1, 128, 256).unwrap().contiguous().unwrap();
                assert_close(&got, &x.matmul(&want.t().unwrap()).unwrap(), 1e-4);
            }
        }
    }

    #[test]
    fn parts_that_cannot_be_cut_out_are_none() {
        let (plain, _) = weights(Format::F32, 8, 64);
        assert!(
            plain.rows_of(std::slice::from_ref(&(0..9))).is_none()
                && plain.rows_of(std::slice::from_ref(&(3..3))).is_none()
        );
        assert!(plain.columns_of(0..65).is_none() && plain.columns_of(5..5).is_none());
        assert!(plain.columns_of(1..3).is_some());
        let (blocks, _) = weights(Format::Q4_1, 8, 64);
        assert!(blocks.columns_of(16..64).is_none() && blocks.columns_of(32..64).is_some());
        let (squares, _) = weights(Format::Fp8E4m3, 8, 256);
        assert!(squares.columns_of(64..256).is_none() && squares.columns_of(128..256).is_some());
    }

    #[test]
    fn interleaved_heads_are_cut_between_heads() {
        let stored: Vec<u8> = [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|n| (*n as f32).to_le_bytes()).collect();
        let order = RowOrder::Interleaved { head_dim: 4 };
        let matrix = Matrix::new(SharedBytes::owned(stored), Format::F32, 8, 1, order).unwrap();
        let x = Tensor::ones((1, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        let head = matrix.rows_of(std::slice::from_ref(&(4..8))).unwrap();
        assert_eq!(rows(&matmul(&x, Arc::new([head])).unwrap()), [[4.0, 5.0, 6.0, 7.0]]);
        assert!(matrix.rows_of(std::slice::from_ref(&(2..6))).is_none());
    }
}
