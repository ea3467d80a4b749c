//! Sixteen f32 side by side, on each kind of processor.
//!
//! Kernels are written once over [`Lanes`]. The compiler does not find the vector form of their nested accumulators by
//! itself (it was measured at a twentieth of the speed), so each operation names its instructions.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::e4m3;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// Values in a vector.
pub(super) const LANES: usize = 16;

/// Sixteen f32.
///
/// Implementations for a processor's instructions may be used only inside functions that enable them, after the processor
/// was asked (see [`super::simd`]); every method is inlined into its caller and so compiled with the caller's features.
pub(in crate::backend::candle) trait Lanes: Copy {
    /// Sums that stay in registers, beside what is added to them.
    const SUMS: usize;

    fn zero() -> Self;
    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    fn store(self, values: &mut [f32; LANES]);
    /// As little-endian f32.
    fn to_f32(self, bytes: &mut [u8; 4 * LANES]);
    /// `self * b + c`: one rounding where the processor has the instruction, two where it has not.
    fn multiply_add(self, b: Self, c: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn divide(self, other: Self) -> Self;
    /// The larger of each two; `other` where one of them is no number.
    fn max(self, other: Self) -> Self;
    /// The smaller of each two; `other` where one of them is no number.
    fn min(self, other: Self) -> Self;
    /// To the nearest whole number, halves to even ones.
    fn round(self) -> Self;
    /// `self * 2^n` for whole `n` from -126 to 127.
    fn times_power_of_two(self, n: Self) -> Self;
    /// Signed bytes.
    fn from_signed_bytes(bytes: &[u8; LANES]) -> Self;
    /// The low four bits `q` of each byte, and the high four, as `q * scale + minimum`, rounded once where
    /// [`Lanes::multiply_add`] rounds once.
    fn scaled_nibbles(bytes: &[u8; LANES], scale: Self, minimum: Self) -> [Self; 2];
    /// Little-endian f32.
    fn from_f32(bytes: &[u8; 4 * LANES]) -> Self;
    /// Little-endian bf16.
    fn from_bf16(bytes: &[u8; 2 * LANES]) -> Self;
    /// Little-endian IEEE halves.
    fn from_f16(bytes: &[u8; 2 * LANES]) -> Self;
    /// Each e4m3 number divided by 256, exactly: with their signs apart, the bits of an e4m3 number are those of a half that
    /// is so much smaller. Whoever multiplies by a scale multiplies by 256 in it. NaN stays NaN.
    fn e4m3_256ths(bytes: &[u8; LANES]) -> Self;
    /// The same of twice as many that are all numbers: there is no NaN to look for.
    #[inline(always)]
    fn finite_e4m3_256ths([low, high]: &[[u8; LANES]; 2]) -> [Self; 2] {
        [Self::e4m3_256ths(low), Self::e4m3_256ths(high)]
    }
    /// Asks for what will be read soon.
    #[inline(always)]
    fn prefetch<T>(place: &T) {
        let _ = place;
    }
    /// The sum of all lanes, added in halves: lane `l` and `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
    fn sum(self) -> f32;
    /// The largest of all lanes.
    fn highest(self) -> f32;
}

/// `e^x` of each lane, to about one unit in the last place, for `x` up to 88; below -87 it is about 1e-38.
///
/// Range reduction by powers of two and the polynomial of the Cephes library's `expf`.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: L) -> L {
    const COEFFICIENTS: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // In this order what is no number stays so: a damaged weight must be seen in the end.
    let x = L::splat(88.0).min(L::splat(-87.0).max(x));
    let n = x.multiply(L::splat(std::f32::consts::LOG2_E)).round();
    // ln 2 in two parts, the first with few enough bits for an exact product.
    let r = n.multiply_add(L::splat(-0.693_359_4), x);
    let r = n.multiply_add(L::splat(2.121_944_4e-4), r);
    let mut p = L::splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        p = p.multiply_add(r, L::splat(*coefficient));
    }
    let y = p.multiply_add(r.multiply(r), r.add(L::splat(1.0)));
    y.times_power_of_two(n)
}

/// `1 + e^-x`: what is divided by it is multiplied by the sigmoid of `x`.
#[inline(always)]
pub(super) fn sigmoid_divisor<L: Lanes>(x: L) -> L {
    exp(x.multiply(L::splat(-1.0))).add(L::splat(1.0))
}

/// What every processor has: an array.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Lanes for Portable {
    // Of the 32 registers of 64-bit Arm each sum takes four.
    const SUMS: usize = 4;

    fn zero() -> Self {
        Self([0.0; LANES])
    }

    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    fn load(values: &[f32; LANES]) -> Self {
        Self(*values)
    }

    fn store(self, values: &mut [f32; LANES]) {
        *values = self.0;
    }

    fn to_f32(self, bytes: &mut [u8; 4 * LANES]) {
        for (word, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *word = value.to_le_bytes();
        }
    }

    fn multiply_add(self, b: Self, c: Self) -> Self {
        // Without the instruction a fused product is a library call.
        Self(std::array::from_fn(|lane| self.0[lane] * b.0[lane] + c.0[lane]))
    }

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    fn multiply(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    fn divide(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] / other.0[lane]))
    }

    fn max(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] > other.0[lane] { self.0[lane] } else { other.0[lane] }))
    }

    fn min(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] < other.0[lane] { self.0[lane] } else { other.0[lane] }))
    }

    fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }

    fn times_power_of_two(self, n: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane] * f32::from_bits(((n.0[lane] as i32 + 127) << 23).cast_unsigned())
        }))
    }

    fn from_signed_bytes(bytes: &[u8; LANES]) -> Self {
        Self(bytes.map(|byte| f32::from(byte.cast_signed())))
    }

    fn scaled_nibbles(bytes: &[u8; LANES], scale: Self, minimum: Self) -> [Self; 2] {
        let (low, high) = (bytes.map(|byte| f32::from(byte & 15)), bytes.map(|byte| f32::from(byte >> 4)));
        [Self(low).multiply_add(scale, minimum), Self(high).multiply_add(scale, minimum)]
    }

    fn from_f32(bytes: &[u8; 4 * LANES]) -> Self {
        let words = bytes.as_chunks::<4>().0;
        Self(std::array::from_fn(|lane| f32::from_le_bytes(words[lane])))
    }

    fn from_bf16(bytes: &[u8; 2 * LANES]) -> Self {
        Self(std::array::from_fn(|lane| half::bf16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32()))
    }

    fn from_f16(bytes: &[u8; 2 * LANES]) -> Self {
        Self(std::array::from_fn(|lane| half::f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32()))
    }

    fn e4m3_256ths(bytes: &[u8; LANES]) -> Self {
        Self(bytes.map(|byte| e4m3::value(byte) / 256.0))
    }

    fn sum(self) -> f32 {
        let mut lanes = self.0;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    fn highest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::simd::{self, Kernel};

    struct Exp<'a>(&'a mut [[f32; LANES]]);

    impl Kernel for Exp<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            for lanes in self.0 {
                exp(L::load(lanes)).store(lanes);
            }
        }
    }

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        let inputs: Vec<[f32; LANES]> =
            (-8700..8800).map(|n| std::array::from_fn(|lane| n as f32 / 100.0 + lane as f32 / 1700.0)).collect();
        for level in simd::levels() {
            let mut outputs = inputs.clone();
            simd::run_at(level, Exp(&mut outputs));
            for (x, y) in inputs.iter().flatten().zip(outputs.iter().flatten()) {
                let want = f64::from(*x).exp();
                let error = (f64::from(*y) - want).abs() / want;
                assert!(error < 2.0 * f64::from(f32::EPSILON), "{level:?}: exp({x}) = {y}, want {want}");
            }
        }
    }
}
