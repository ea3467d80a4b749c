//! Eight-bit floating point: a sign, four bits of exponent with a bias of 7, three of significand. There is no infinity; the
//! one NaN has all bits but the sign set.

use float8::F8E4M3;

/// The largest finite number.
pub(super) const MAX: f32 = 448.0;

/// Every number as f32.
static VALUES: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits] = F8E4M3::from_bits(bits as u8).to_f32();
        bits += 1;
    }
    table
};

/// A stored number, exactly.
pub(super) fn value(bits: u8) -> f32 {
    VALUES[usize::from(bits)]
}

/// The nearest number to one of at most [`MAX`] in magnitude, the even one of two that are as near. NaN stays NaN.
pub(super) fn nearest(value: f32) -> f32 {
    // What an f32 has of significand and an e4m3 has not.
    const CUT: u32 = 20;
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    // An f32 of this size has steps of 2^-9, as the subnormal numbers have.
    const SUBNORMAL_STEPS: f32 = 1.5 * 16_384.0;
    let bits = value.to_bits();
    if value.is_nan() {
        value
    } else if value.abs() < SMALLEST_NORMAL {
        ((value + SUBNORMAL_STEPS) - SUBNORMAL_STEPS).copysign(value)
    } else {
        let half_less_a_bit = (1 << (CUT - 1)) - 1;
        f32::from_bits((bits + half_less_a_bit + (bits >> CUT & 1)) >> CUT << CUT)
    }
}

/// Where the first NaN stands.
pub(in crate::backend::candle) fn first_nan(bytes: &[u8]) -> Option<usize> {
    // Without a way out of the loop over a part the compiler looks at many bytes at once.
    const PART: usize = 4096;
    let is_nan = |byte: &u8| byte & 0x7f == 0x7f;
    let part = bytes.chunks(PART).position(|part| part.iter().fold(false, |found, byte| found | is_nan(byte)))?;
    let first = part * PART;
    Some(first + bytes.get(first..)?.iter().position(is_nan)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::lanes::{LANES, Lanes};
    use crate::backend::candle::kernels::simd::{self, Kernel};

    /// Decodes one by one into the first, in pairs into the second.
    struct Decode<'a>(&'a [[u8; LANES]], [&'a mut [[f32; LANES]]; 2]);

    impl Kernel for Decode<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            let [single, paired] = self.1;
            for (bytes, out) in self.0.iter().zip(single) {
                L::e4m3_256ths(bytes).store(out);
            }
            for (bytes, out) in self.0.as_chunks().0.iter().zip(paired.as_chunks_mut::<2>().0) {
                let [low, high] = L::finite_e4m3_256ths(bytes);
                low.store(&mut out[0]);
                high.store(&mut out[1]);
            }
        }
    }

    #[test]
    fn every_level_decodes_every_number() {
        let bytes: Vec<u8> = (0..=255).collect();
        for level in simd::levels() {
            let mut single = [[0.0; LANES]; 256 / LANES];
            let mut paired = single;
            simd::run_at(level, Decode(bytes.as_chunks().0, [&mut single, &mut paired]));
            for (&byte, (single, paired)) in bytes.iter().zip(single.as_flattened().iter().zip(paired.as_flattened())) {
                if byte & 0x7f == 0x7f {
                    assert!(single.is_nan(), "{level:?}: {byte:#04x} is {single}");
                } else {
                    // Bits, so that the two zeros differ.
                    let want = (F8E4M3::from_bits(byte).to_f32() / 256.0).to_bits();
                    assert_eq!((single.to_bits(), paired.to_bits()), (want, want), "{level:?}: {byte:#04x}");
                }
            }
        }
        assert_eq!((value(0x01), value(0x7e), value(0x80).to_bits()), (2_f32.powi(-9), MAX, (-0_f32).to_bits()));
    }

    #[test]
    fn the_first_nan_is_found_wherever_it_stands() {
        let mut bytes: Vec<u8> = (0..10_000_u32).map(|n| if n % 128 == 127 { 0 } else { n as u8 }).collect();
        assert_eq!(first_nan(&bytes), None);
        assert_eq!(first_nan(&[]), None);
        for (at, nan) in [(9_999, 0xff), (4_096, 0x7f), (4_095, 0xff), (0, 0x7f)] {
            bytes[at] = nan;
            assert_eq!(first_nan(&bytes), Some(at));
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_the_even() {
        let check = |value: f32| {
            let (got, want) = (nearest(value), F8E4M3::from_f32(value).to_f32());
            assert_eq!(got.to_bits(), want.to_bits(), "{value:e} to {got:e}, not {want:e}");
        };
        // Every number, the middle between it and the next, and that one's neighbours.
        for bits in 0..0x7e {
            let (number, next) = (value(bits), value(bits + 1));
            let middle = (number + next) / 2.0;
            for value in [number, middle, middle.next_up(), middle.next_down(), next.next_down()] {
                check(value);
                check(-value);
            }
            let even = if bits % 2 == 0 { number } else { next };
            assert_eq!(nearest(middle), even);
        }
        // Some of each size, subnormal f32 among them.
        for bits in (0..MAX.to_bits()).step_by(9_973) {
            check(f32::from_bits(bits));
            check(-f32::from_bits(bits));
        }
        assert!(nearest(f32::NAN).is_nan() && nearest(-f32::NAN).is_nan());
    }
}
