//! Sixteen f32 in the registers of x86-64.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "one contract for the module: each `unsafe` runs instructions that the caller has enabled (see `Lanes`), on \
              memory behind a reference to an array of the size that the instruction reads or writes, unaligned; the test \
              `every_level_agrees` of the products runs all of them against the portable form"
)]

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512(__m512);

/// Two 256-bit registers.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(__m256, __m256);

impl Lanes for Avx512 {
    // Of 32 registers.
    const SUMS: usize = 16;

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
    fn e4m3_256ths(bytes: &[u8; LANES]) -> Self {
        unsafe { Self(_mm512_cvtph_ps(halves_of_e4m3(bytes))) }
    }

    #[inline(always)]
    fn finite_e4m3_256ths(bytes: &[[u8; LANES]; 2]) -> [Self; 2] {
        unsafe {
            // As `halves_of_finite_e4m3`, in one register.
            let signed = _mm512_cvtepi8_epi16(_mm256_loadu_si256(bytes.as_ptr().cast()));
            let halves = _mm512_andnot_si512(_mm512_set1_epi16(1 << 14), _mm512_slli_epi16::<7>(signed));
            let (low, high) = (_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64::<1>(halves));
            [Self(_mm512_cvtph_ps(low)), Self(_mm512_cvtph_ps(high))]
        }
    }

    #[inline(always)]
    fn prefetch<T>(place: &T) {
        prefetch(place);
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), high))
        }
    }

    #[inline(always)]
    fn highest(self) -> f32 {
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(self.0);
            highest_of_eight(_mm256_max_ps(_mm512_castps512_ps256(self.0), high))
        }
    }
}

impl Lanes for Avx2 {
    // Of 16 registers each takes two.
    const SUMS: usize = 4;

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
    fn e4m3_256ths(bytes: &[u8; LANES]) -> Self {
        unsafe { wide_halves(halves_of_e4m3(bytes)) }
    }

    #[inline(always)]
    fn finite_e4m3_256ths([low, high]: &[[u8; LANES]; 2]) -> [Self; 2] {
        unsafe { [wide_halves(halves_of_finite_e4m3(low)), wide_halves(halves_of_finite_e4m3(high))] }
    }

    #[inline(always)]
    fn prefetch<T>(place: &T) {
        prefetch(place);
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe { sum_of_eight(_mm256_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn highest(self) -> f32 {
        unsafe { highest_of_eight(_mm256_max_ps(self.0, self.1)) }
    }
}

#[inline(always)]
fn prefetch<T>(place: &T) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    let first: *const i8 = std::ptr::from_ref(place).cast();
    for line in 0..size_of::<T>().div_ceil(LINE) {
        // The instruction reads nothing and never fails.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(line * LINE)) }
    }
}

/// The halves whose values are 256ths of e4m3 numbers.
#[inline(always)]
unsafe fn halves_of_e4m3(bytes: &[u8; LANES]) -> __m256i {
    unsafe {
        let halves = halves_of_finite_e4m3(bytes);
        // NaN alone has all seven bits, so that one more carries into bit 14: there it makes a half's NaN.
        let carried = _mm256_add_epi16(halves, _mm256_set1_epi16(1 << 7));
        _mm256_or_si256(halves, _mm256_and_si256(carried, _mm256_set1_epi16(1 << 14)))
    }
}

#[inline(always)]
unsafe fn halves_of_finite_e4m3(bytes: &[u8; LANES]) -> __m256i {
    unsafe {
        // Widened with its sign, a byte has that also above bit 7: after the shift at the place of a half's sign, and once
        // more below it, where it is cleared.
        let signed = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes.as_ptr().cast()));
        _mm256_andnot_si256(_mm256_set1_epi16(1 << 14), _mm256_slli_epi16::<7>(signed))
    }
}

/// Halves to f32.
#[inline(always)]
unsafe fn wide_halves(halves: __m256i) -> Avx2 {
    unsafe {
        let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
        Avx2(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
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

#[inline(always)]
unsafe fn highest_of_eight(eight: __m256) -> f32 {
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}
