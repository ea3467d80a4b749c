//! Arithmetic modulo the format's prime, 65497 = 2^16 - 39.
//!
//! Elements are `u16` in `0..PRIME`. Products use Montgomery reduction on 16-bit halves:
//! no division, no branch and no lane wider than 16 bits, so loops over arrays compile to
//! eight-lane SSE2. Only the fixed side of a product is kept in Montgomery form
//! ([`Factor`]), so results come out as plain elements and nothing is converted back.

use super::proof::PRIME;

/// The inverse of [`PRIME`] modulo 2^16, by Newton's iteration: each round doubles the
/// number of correct low bits (an odd number is its own inverse modulo 8).
const PRIME_INVERSE: u16 = {
    let mut inverse = PRIME;
    let mut round = 0;
    while round < 3 {
        inverse = inverse.wrapping_mul(2u16.wrapping_sub(PRIME.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// The fixed side of a product: `value * 2^16 mod PRIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor(u16);

impl Factor {
    /// Prepares any `u16`, reduced or not.
    #[inline]
    pub(super) const fn new(value: u16) -> Self {
        Self((((value as u32) << 16) % PRIME as u32) as u16)
    }
}

/// `value * factor mod PRIME`. `value` may be any `u16`; the result is reduced.
#[inline(always)]
pub(super) const fn multiply(value: u16, factor: Factor) -> u16 {
    let product = value as u32 * factor.0 as u32;
    let high = (product >> 16) as u16;
    // Subtracting quotient * PRIME clears the low half, so only the high halves remain.
    let quotient = (product as u16).wrapping_mul(PRIME_INVERSE);
    let cleared = ((quotient as u32 * PRIME as u32) >> 16) as u16;
    let difference = high.wrapping_sub(cleared);
    if high < cleared { difference.wrapping_add(PRIME) } else { difference }
}

/// `left - right mod PRIME`, both reduced.
#[inline(always)]
pub(super) const fn subtract(left: u16, right: u16) -> u16 {
    let difference = left.wrapping_sub(right);
    if left < right { difference.wrapping_add(PRIME) } else { difference }
}

/// `-value mod PRIME`, `value` reduced.
#[inline(always)]
pub(super) const fn negate(value: u16) -> u16 {
    subtract(0, value)
}

/// `value mod PRIME` for any `u32`.
#[inline]
pub(super) const fn reduce(value: u32) -> u16 {
    (value % PRIME as u32) as u16
}

/// The inverse of every value, none of which may be 0, with one exponentiation in all
/// (Montgomery's trick: invert the product, then peel the values off it).
pub(super) fn invert_all(values: &[u16]) -> Vec<u16> {
    let mut product = 1;
    let mut inverses: Vec<u16> = Vec::with_capacity(values.len());
    for &value in values {
        inverses.push(product);
        product = multiply(product, Factor::new(value));
    }
    let mut rest = invert(product);
    for (slot, &value) in inverses.iter_mut().zip(values).rev() {
        *slot = multiply(*slot, Factor::new(rest));
        rest = multiply(rest, Factor::new(value));
    }
    inverses
}

/// `value^(PRIME - 2)`, the inverse by Fermat's little theorem; 0 for 0.
fn invert(value: u16) -> u16 {
    let mut result = 1;
    let mut square = value;
    let mut exponent = PRIME - 2;
    while exponent > 0 {
        let factor = Factor::new(square);
        if exponent & 1 == 1 {
            result = multiply(result, factor);
        }
        square = multiply(square, factor);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PRIME as u64;

    /// Values at which a carry or a borrow goes wrong first, and some between.
    fn samples() -> impl Iterator<Item = u16> + Clone {
        let edges = [0, 1, 2, 38, 39, 40, 32748, 32749, PRIME - 2, PRIME - 1];
        edges.into_iter().chain((0..PRIME).step_by(251))
    }

    #[test]
    fn products_and_differences_are_those_of_the_integers() {
        for left in samples() {
            for right in samples() {
                let product = u64::from(left) * u64::from(right) % P;
                assert_eq!(u64::from(multiply(left, Factor::new(right))), product);
                let difference = (P + u64::from(left) - u64::from(right)) % P;
                assert_eq!(u64::from(subtract(left, right)), difference);
            }
        }
    }

    #[test]
    fn unreduced_values_are_reduced_by_a_product() {
        for value in PRIME..=u16::MAX {
            assert_eq!(multiply(value, Factor::new(1)), value - PRIME);
            assert_eq!(Factor::new(value), Factor::new(value - PRIME));
        }
    }

    #[test]
    fn every_inverse_is_one() {
        let values: Vec<u16> = (1..PRIME).collect();
        for (&value, inverse) in values.iter().zip(invert_all(&values)) {
            assert_eq!(multiply(value, Factor::new(inverse)), 1);
        }
        assert!(invert_all(&[]).is_empty());
    }
}
