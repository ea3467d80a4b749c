//! Sixteen f32 side by side, on each kind of processor.
//!
//! Kernels are written once over [`Lanes`]. The compiler does not find the vector form of their nested accumulators by
//! itself (it was measured at a twentieth of the speed), so each operation names its instructions.

/// Values in a vector.
pub(super) const LANES: usize = 16;

/// Sixteen f32.
///
/// Implementations for a processor's instructions may be used only inside functions that enable them, after the processor
/// was asked (see [`super::simd`]); every method is inlined into its caller and so compiled with the caller's features.
pub(in crate::backend::candle) trait Lanes: Copy {
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
    /// The larger of each two.
    fn max(self, other: Self) -> Self;
    /// The smaller of each two.
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
    /// The sum of all lanes, added in halves: lane `l` and `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
    fn sum(self) -> f32;
}

/// `e^x` of each lane, to about one unit in the last place, for `x` up to 88; below -87 it is about 1e-38.
///
/// Range reduction by powers of two and the polynomial of the Cephes library's `expf`.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: L) -> L {
    const COEFFICIENTS: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = x.max(L::splat(-87.0)).min(L::splat(88.0));
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

/// What every processor has: an array.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Lanes for Portable {
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
        Self(std::array::from_fn(|lane| self.0[lane].max(other.0[lane])))
    }

    fn min(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].min(other.0[lane])))
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
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one contract for the module: each `unsafe` runs instructions that the caller has enabled (see `Lanes`), on \
              memory behind a reference to an array of the size that the instruction reads or writes, unaligned; the test \
              `every_level_agrees` of the products runs all of them against the portable form"
)]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};

    /// One 512-bit register.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    /// Two 256-bit registers.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256, __m256);

    impl Lanes for Avx512 {
        #[inline(always)]
        fn zero() -> Self {
            unsafe { Self(_mm512_setzero_ps()) }
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            unsafe { Self(_mm512_set1_ps(value)) }
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            unsafe { Self(_mm512_loadu_ps(values.as_ptr())) }
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn to_f32(self, bytes: &mut [u8; 4 * LANES]) {
            unsafe { _mm512_storeu_ps(bytes.as_mut_ptr().cast(), self.0) }
        }

        #[inline(always)]
        fn multiply_add(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            unsafe { Self(_mm512_add_ps(self.0, other.0)) }
        }

        #[inline(always)]
        fn multiply(self, other: Self) -> Self {
            unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
        }

        #[inline(always)]
        fn divide(self, other: Self) -> Self {
            unsafe { Self(_mm512_div_ps(self.0, other.0)) }
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            unsafe { Self(_mm512_max_ps(self.0, other.0)) }
        }

        #[inline(always)]
        fn min(self, other: Self) -> Self {
            unsafe { Self(_mm512_min_ps(self.0, other.0)) }
        }

        #[inline(always)]
        fn round(self) -> Self {
            unsafe { Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)) }
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            unsafe { Self(_mm512_scalef_ps(self.0, n.0)) }
        }

        #[inline(always)]
        fn from_signed_bytes(bytes: &[u8; LANES]) -> Self {
            unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast())))) }
        }

        #[inline(always)]
        fn scaled_nibbles(bytes: &[u8; LANES], scale: Self, minimum: Self) -> [Self; 2] {
            unsafe {
                // Four bits have sixteen values: all of them are computed at once, and each lane picks its own.
                let numbers = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
                let values = _mm512_fmadd_ps(numbers, scale.0, minimum.0);
                let all = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
                let high = _mm512_srli_epi32::<4>(all);
                // The instruction looks at the low four bits of an index alone.
                [Self(_mm512_permutexvar_ps(all, values)), Self(_mm512_permutexvar_ps(high, values))]
            }
        }

        #[inline(always)]
        fn from_f32(bytes: &[u8; 4 * LANES]) -> Self {
            unsafe { Self(_mm512_loadu_ps(bytes.as_ptr().cast())) }
        }

        #[inline(always)]
        fn from_bf16(bytes: &[u8; 2 * LANES]) -> Self {
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)))
            }
        }

        #[inline(always)]
        fn from_f16(bytes: &[u8; 2 * LANES]) -> Self {
            unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast()))) }
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            unsafe {
                let high = _mm512_extractf32x8_ps::<1>(self.0);
                sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), high))
            }
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn zero() -> Self {
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            unsafe { Self(_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) }
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            unsafe {
                _mm256_storeu_ps(values.as_mut_ptr(), self.0);
                _mm256_storeu_ps(values.as_mut_ptr().add(8), self.1);
            }
        }

        #[inline(always)]
        fn to_f32(self, bytes: &mut [u8; 4 * LANES]) {
            let values: *mut f32 = bytes.as_mut_ptr().cast();
            unsafe {
                _mm256_storeu_ps(values, self.0);
                _mm256_storeu_ps(values.add(8), self.1);
            }
        }

        #[inline(always)]
        fn multiply_add(self, b: Self, c: Self) -> Self {
            unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn multiply(self, other: Self) -> Self {
            unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn divide(self, other: Self) -> Self {
            unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn min(self, other: Self) -> Self {
            unsafe { Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn round(self) -> Self {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            unsafe { Self(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            unsafe { Self(scaled_eight(self.0, n.0), scaled_eight(self.1, n.1)) }
        }

        #[inline(always)]
        fn from_signed_bytes(bytes: &[u8; LANES]) -> Self {
            unsafe {
                let all = _mm_loadu_si128(bytes.as_ptr().cast());
                let part = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                Self(part(all), part(_mm_srli_si128::<8>(all)))
            }
        }

        #[inline(always)]
        fn scaled_nibbles(bytes: &[u8; LANES], scale: Self, minimum: Self) -> [Self; 2] {
            unsafe {
                let all = _mm_loadu_si128(bytes.as_ptr().cast());
                let (first, last) = (_mm256_cvtepu8_epi32(all), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(all)));
                let low = |part| _mm256_cvtepi32_ps(_mm256_and_si256(part, _mm256_set1_epi32(15)));
                let high = |part| _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(part));
                let (low, high) = (Self(low(first), low(last)), Self(high(first), high(last)));
                [low.multiply_add(scale, minimum), high.multiply_add(scale, minimum)]
            }
        }

        #[inline(always)]
        fn from_f32(bytes: &[u8; 4 * LANES]) -> Self {
            let values: *const f32 = bytes.as_ptr().cast();
            unsafe { Self(_mm256_loadu_ps(values), _mm256_loadu_ps(values.add(8))) }
        }

        #[inline(always)]
        fn from_bf16(bytes: &[u8; 2 * LANES]) -> Self {
            unsafe {
                let part = |at: usize| {
                    let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
                };
                Self(part(0), part(LANES))
            }
        }

        #[inline(always)]
        fn from_f16(bytes: &[u8; 2 * LANES]) -> Self {
            unsafe {
                let part = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(at).cast()));
                Self(part(0), part(LANES))
            }
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
        }
    }

    #[inline(always)]
    unsafe fn scaled_eight(values: __m256, n: __m256) -> __m256 {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(values, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    unsafe fn sum_of_eight(eight: __m256) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
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
