//! From the text of a JSON number to bf16: the value that reading it as f64, correctly rounded, and then rounding that
//! to bf16, ties to even, gives.
//!
//! By way of f32 the same text can give another value: a number just above the middle between two bf16 values may round
//! to that middle in f32. `bf16::from_f64` of the crate half 2.7 drops the low half of the f64 before it rounds, with
//! the same effect.

use half::bf16;

/// Bytes that [`short`] looks at: a number and the byte after it.
pub(super) const WINDOW: usize = 16;

/// Powers of ten that f64 holds exactly. One operation on two exact values rounds once, so a mantissa below 2^53 times or
/// through one of these is the correctly rounded value of the text (W. Clinger, "How to read floating point numbers
/// accurately", 1990).
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];
/// Whole numbers below this are exact in f64.
const EXACT_MANTISSA: u64 = 1 << 53;
/// Significant digits that a u64 always holds.
const MANTISSA_DIGITS: usize = 19;

/// Bits of an f64's mantissa that bf16 has no room for.
const DROPPED_BITS: u32 = 52 - 7;
/// From the biased exponent of an f64 to that of a bf16, in place above bf16's mantissa.
const REBIAS: u64 = (1023 - 127) << 7;
/// The smallest normal bf16, 2^-126.
const SMALLEST_NORMAL: f64 = f64::from_bits((1023 - 126) << 52);
/// Beyond all bf16 values.
const TOO_LARGE: f64 = f64::from_bits((1023 + 128) << 52);
/// Turns the distance of two subnormal neighbours, 2^-133, into 1.
const SUBNORMAL_STEPS: f64 = f64::from_bits((1023 + 133) << 52);

/// What [`short`] read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Short {
    /// Always finite.
    pub(super) value: bf16,
    /// Bytes of the number.
    pub(super) bytes: usize,
    /// The byte after it: not a digit.
    pub(super) next: u8,
}

/// Reads a number of digits, a point and digits, at most 14 of them, or 13 after a sign: what nearly all values of a row
/// look like. No step depends on how many digits there are, nor on the sign.
///
/// `None` says only that the number has not this shape: ask [`parse`].
#[inline(always)]
pub(super) fn short(window: &[u8; WINDOW]) -> Option<Short> {
    const ONES: u128 = u128::from_le_bytes([1; WINDOW]);
    let negative = usize::from(window[0] == b'-');
    // A sign becomes a leading zero, digits become 0 to 9.
    let sign = negative as u128 * u128::from(b'-' ^ b'0');
    let bytes = u128::from_le_bytes(*window) ^ sign ^ (ONES * u128::from(b'0'));
    // What is above 9 sets its byte's highest bit, and no sum leaves its byte.
    let others = (((bytes & (ONES * 0x7F)) + ONES * (0x7F - 9)) | bytes) & (ONES * 0x80);
    let ends = others & others.wrapping_sub(1);
    let point = others.trailing_zeros() as usize / 8;
    let end = ends.trailing_zeros() as usize / 8;
    if end >= WINDOW || window[point] != b'.' || point == negative || end - point < 2 {
        return None;
    }
    if (window[negative] == b'0') & (point - negative > 1) {
        return None;
    }
    // The point goes, what follows the number goes, and zeros lead: 16 digits, the first in the lowest byte.
    let before_point = (1u128 << (8 * point)) - 1;
    let digits = ((bytes & before_point) | ((bytes >> 8) & !before_point)) << (8 * (WINDOW + 1 - end));
    let mantissa = eight_digits(digits as u64) * 100_000_000 + eight_digits((digits >> 64) as u64);
    let value = mantissa as i64 as f64 / POWERS_OF_TEN[end - point - 1];
    // Neither too large for bf16 nor subnormal: 14 digits with a point are 0, or from 1e-13 to 1e13.
    let magnitude = if mantissa == 0 { 0 } else { round_normal(value) };
    let value = bf16::from_bits(magnitude | (negative as u16) << 15);
    Some(Short { value, bytes: end, next: window[end] })
}

/// The number that eight digits write, one a byte, the first in the lowest.
#[inline(always)]
fn eight_digits(digits: u64) -> u64 {
    // Neighbours join: pairs, then two fours at once, each in its half, then the sum of both in the upper half.
    const PAIRS: u64 = 0x0000_00FF_0000_00FF;
    let pairs = (digits * 10) + (digits >> 8);
    let first = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let second = ((pairs >> 16) & PAIRS).wrapping_mul(1 + (10_000 << 32));
    first.wrapping_add(second) >> 32
}

/// Reads any number that JSON allows. `None` where JSON does not allow it. Infinite where f64 is too small for it.
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut mantissa = Mantissa::default();
    let (whole, rest) = unsigned.split_at(digits(unsigned));
    if whole.is_empty() || (whole[0] == b'0' && whole.len() > 1) {
        return None;
    }
    mantissa.append(whole);
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => match digits(rest) {
            0 => return None,
            count => rest.split_at(count),
        },
        rest => (&[][..], rest),
    };
    mantissa.append(fraction);
    let exponent = match rest {
        [] => 0,
        [b'e' | b'E', rest @ ..] => exponent(rest)?,
        _ => return None,
    };
    let exponent = exponent.saturating_sub(i64::try_from(fraction.len()).ok()?);
    let power = usize::try_from(exponent.unsigned_abs()).ok().and_then(|power| POWERS_OF_TEN.get(power));
    if let (Some(mantissa), Some(power)) = (mantissa.exact(), power) {
        let value = if exponent < 0 { mantissa / power } else { mantissa * power };
        return Some(if negative { -value } else { value });
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// How many digits the text begins with.
fn digits(text: &[u8]) -> usize {
    text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len())
}

/// What follows the `e`. Saturates.
fn exponent(text: &[u8]) -> Option<i64> {
    let (sign, text) = match text {
        [b'-', rest @ ..] => (-1, rest),
        [b'+', rest @ ..] => (1, rest),
        rest => (1, rest),
    };
    if text.is_empty() || digits(text) < text.len() {
        return None;
    }
    let magnitude = text.iter().fold(0i64, |sum, digit| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    Some(sign * magnitude)
}

/// Digits as a whole number.
#[derive(Debug, Default)]
struct Mantissa {
    value: u64,
    /// From the first that is not zero.
    significant: usize,
}

impl Mantissa {
    fn append(&mut self, digits: &[u8]) {
        for digit in digits {
            self.value = self.value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.significant += usize::from(self.value > 0 || self.significant > 0);
        }
    }

    /// As f64, if it is exact.
    fn exact(&self) -> Option<f64> {
        (self.significant <= MANTISSA_DIGITS && self.value < EXACT_MANTISSA).then_some(self.value as f64)
    }
}

/// Rounds to the nearest bf16, ties to even. Infinite from the middle above the largest finite value on.
pub(super) fn to_bf16(value: f64) -> bf16 {
    let magnitude = value.abs();
    let bits = if magnitude < SMALLEST_NORMAL {
        // Counts steps, exactly; 128 of them are the smallest normal value, whose bits are 128 too.
        (magnitude * SUBNORMAL_STEPS).round_ties_even() as u16
    } else if magnitude < TOO_LARGE {
        round_normal(magnitude)
    } else {
        bf16::INFINITY.to_bits()
    };
    bf16::from_bits(bits | (u16::from(value.is_sign_negative()) << 15))
}

/// The bits of a value from [`SMALLEST_NORMAL`] to below [`TOO_LARGE`], rounded; those of infinity where it rounds up to
/// that.
#[inline(always)]
fn round_normal(value: f64) -> u16 {
    let bits = value.to_bits();
    let to_even = (bits >> DROPPED_BITS) & 1;
    // A carry out of the mantissa raises the exponent, as it should.
    let rounded = (bits + (1 << (DROPPED_BITS - 1)) - 1 + to_even) >> DROPPED_BITS;
    rounded.wrapping_sub(REBIAS) as u16
}
