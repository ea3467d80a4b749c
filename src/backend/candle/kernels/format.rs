//! How weights are stored, 32 at a time.

use half::{bf16, f16};

use super::e4m3;
use super::lanes::{LANES, Lanes};

/// Weights of one block of any format.
pub(super) const BLOCK: usize = 32;

/// Rows and columns that share a scale in [`Format::Fp8E4m3`]: `weight_block_size` of the checkpoints.
pub(in crate::backend::candle) const SQUARE: usize = 128;

/// A stored row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoredRow<'a> {
    pub(super) bytes: &'a [u8],
    /// Where the format has scales beside its bytes: one for each [`SQUARE`] columns, times 256 (see
    /// [`Lanes::e4m3_256ths`]).
    pub(super) scales: &'a [f32],
    /// The bytes of the row that is read after this one, to be asked for while this one is computed; none where it is the last.
    pub(super) ahead: &'a [u8],
}

/// The storage of a weight matrix. Rows are stored one after the other, each a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) enum Format {
    F32,
    F16,
    Bf16,
    /// Bytes of eight-bit floating point, none of them NaN, and beside them a scale for each square of [`SQUARE`] rows and
    /// columns.
    Fp8E4m3,
    /// ggml's: a scale and 32 four-bit numbers around 8.
    Q4_0,
    /// ggml's: a scale, a minimum and 32 four-bit numbers.
    Q4_1,
    /// ggml's: a scale and 32 signed bytes.
    Q8_0,
}

impl Format {
    /// Bytes of a row of `columns` weights; `None` if they are no whole number of blocks where the format has blocks.
    pub(in crate::backend::candle) fn row_bytes(self, columns: usize) -> Option<usize> {
        let (weights, bytes) = match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Fp8E4m3 => (1, 1),
            Self::Q4_0 => (BLOCK, 18),
            Self::Q4_1 => (BLOCK, 20),
            Self::Q8_0 => (BLOCK, 34),
        };
        columns.is_multiple_of(weights).then_some(columns / weights)?.checked_mul(bytes)
    }
}

/// A format known at compile time, so that its decoding becomes part of a product's inner loop.
///
/// No closures in here: one is a function of its own, without the vector features of the loop around it, and the
/// instructions inside it then become calls.
pub(super) trait Decode {
    /// A block's bytes: an array, so that the inner loop has no length to check.
    type Block;
    /// Bytes of a single weight, where a row may end inside a block.
    const WEIGHT_BYTES: Option<usize>;
    /// Whether scales stand beside the bytes; where not, those given below mean nothing.
    const SCALED: bool = false;

    /// The whole blocks of a stored row, and the bytes behind them.
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]);

    /// A block's weights.
    fn decode<L: Lanes>(block: &Self::Block, scale: f32) -> [L; 2];

    /// A single weight of a format that has no blocks.
    fn weight(bytes: &[u8], scale: f32) -> f32 {
        let _ = (bytes, scale);
        0.0
    }

    /// The scale of a block of a row, or of what follows its last one.
    #[inline(always)]
    fn scale(scales: &[f32], block: usize) -> f32 {
        if Self::SCALED { scales[block / (SQUARE / BLOCK)] } else { 1.0 }
    }
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct Fp8E4m3;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q8_0;

impl Decode for F32 {
    type Block = [[u8; 4 * LANES]; 2];
    const WEIGHT_BYTES: Option<usize> = Some(4);

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        halves(row)
    }

    #[inline(always)]
    fn decode<L: Lanes>([low, high]: &Self::Block, _: f32) -> [L; 2] {
        [L::from_f32(low), L::from_f32(high)]
    }

    fn weight(bytes: &[u8], _: f32) -> f32 {
        bytes.first_chunk().map_or(0.0, |word| f32::from_le_bytes(*word))
    }
}

impl Decode for F16 {
    type Block = [[u8; 2 * LANES]; 2];
    const WEIGHT_BYTES: Option<usize> = Some(2);

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        halves(row)
    }

    #[inline(always)]
    fn decode<L: Lanes>([low, high]: &Self::Block, _: f32) -> [L; 2] {
        [L::from_f16(low), L::from_f16(high)]
    }

    fn weight(bytes: &[u8], _: f32) -> f32 {
        bytes.first_chunk().map_or(0.0, |word| f16::from_le_bytes(*word).to_f32())
    }
}

impl Decode for Bf16 {
    type Block = [[u8; 2 * LANES]; 2];
    const WEIGHT_BYTES: Option<usize> = Some(2);

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        halves(row)
    }

    #[inline(always)]
    fn decode<L: Lanes>([low, high]: &Self::Block, _: f32) -> [L; 2] {
        [L::from_bf16(low), L::from_bf16(high)]
    }

    fn weight(bytes: &[u8], _: f32) -> f32 {
        bytes.first_chunk().map_or(0.0, |word| bf16::from_le_bytes(*word).to_f32())
    }
}

impl Decode for Fp8E4m3 {
    type Block = [[u8; LANES]; 2];
    const WEIGHT_BYTES: Option<usize> = Some(1);
    const SCALED: bool = true;

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        halves(row)
    }

    #[inline(always)]
    fn decode<L: Lanes>(block: &Self::Block, scale: f32) -> [L; 2] {
        // Four bits of significand times the eight of a bf16 scale: exact.
        let scale = L::splat(scale);
        let [low, high] = L::finite_e4m3_256ths(block);
        [low.multiply(scale), high.multiply(scale)]
    }

    fn weight(bytes: &[u8], scale: f32) -> f32 {
        bytes.first().map_or(0.0, |byte| e4m3::value(*byte) / 256.0 * scale)
    }
}

impl Decode for Q4_0 {
    type Block = [u8; 18];
    const WEIGHT_BYTES: Option<usize> = None;

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn decode<L: Lanes>(block: &Self::Block, _: f32) -> [L; 2] {
        // (q - 8) * scale, with the subtraction as the product's addend: both forms are exact in f32.
        let scale = L::splat(half(bytes_at(block, 0)));
        let shift = scale.multiply(L::splat(-8.0));
        L::scaled_nibbles(&bytes_at(block, 2), scale, shift)
    }
}

impl Decode for Q4_1 {
    type Block = [u8; 20];
    const WEIGHT_BYTES: Option<usize> = None;

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn decode<L: Lanes>(block: &Self::Block, _: f32) -> [L; 2] {
        let (scale, minimum) = (L::splat(half(bytes_at(block, 0))), L::splat(half(bytes_at(block, 2))));
        L::scaled_nibbles(&bytes_at(block, 4), scale, minimum)
    }
}

impl Decode for Q8_0 {
    type Block = [u8; 34];
    const WEIGHT_BYTES: Option<usize> = None;

    #[inline(always)]
    fn blocks(row: &[u8]) -> (&[Self::Block], &[u8]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn decode<L: Lanes>(block: &Self::Block, _: f32) -> [L; 2] {
        let scale = L::splat(half(bytes_at(block, 0)));
        let (low, high) =
            (L::from_signed_bytes(&bytes_at(block, 2)), L::from_signed_bytes(&bytes_at(block, 2 + LANES)));
        [low.multiply_add(scale, L::zero()), high.multiply_add(scale, L::zero())]
    }
}

/// Blocks of two halves, and the rest.
#[inline(always)]
fn halves<const N: usize>(row: &[u8]) -> (&[[[u8; N]; 2]], &[u8]) {
    let blocks = row.as_chunks::<N>().0.as_chunks::<2>().0;
    (blocks, row.get(blocks.len() * 2 * N..).unwrap_or_default())
}

/// Bytes at a constant place in a block: known to lie inside it when the call is compiled.
#[inline(always)]
fn bytes_at<const N: usize, const B: usize>(block: &[u8; B], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

/// Every IEEE half as f32. A block's scale is then one load, straight into all lanes; converting it was the slowest part of
/// decoding a block.
#[allow(long_running_const_eval, reason = "65,536 conversions, a moment of compiling")]
static HALVES: [f32; 1 << 16] = {
    let mut table = [0.0; 1 << 16];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = f16::from_bits(bits as u16).to_f32_const();
        bits += 1;
    }
    table
};

#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    HALVES[usize::from(u16::from_le_bytes(bytes))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::lanes::Portable;
    use crate::backend::candle::kernels::testing::normal;
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QTensor};

    fn blocks<D: Decode>(bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        for half in D::blocks(bytes).0.iter().flat_map(|block| D::decode::<Portable>(block, 1.0)) {
            let mut values = [0.0; LANES];
            half.store(&mut values);
            out.extend(values);
        }
        out
    }

    #[test]
    fn quantised_blocks_decode_as_the_tensor_library_decodes_them() {
        let weights = (normal(11, 7, 96) * 3.0).unwrap();
        for (dtype, decode) in [
            (GgmlDType::Q4_0, blocks::<Q4_0> as fn(&[u8]) -> Vec<f32>),
            (GgmlDType::Q4_1, blocks::<Q4_1>),
            (GgmlDType::Q8_0, blocks::<Q8_0>),
            (GgmlDType::F16, blocks::<F16>),
            (GgmlDType::BF16, blocks::<Bf16>),
            (GgmlDType::F32, blocks::<F32>),
        ] {
            let stored = QTensor::quantize(&weights, dtype).unwrap();
            let want = stored.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(decode(&stored.data().unwrap()), want, "{dtype:?}");
        }
    }
}
