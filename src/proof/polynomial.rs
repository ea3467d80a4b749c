//! Interpolation and evaluation over the field, in O(k^2) of 16-bit lanes.

use super::field::{Factor, invert_all, multiply, negate, reduce, subtract};

/// Coefficients, lowest power first, of the one polynomial of degree below `xs.len()`
/// that passes through every `(xs[i], ys[i])`.
///
/// The `xs` must be below the prime and distinct; `ys` may be any `u16` and count modulo
/// the prime. The result depends on the set of points, not on their order.
///
/// With `M(x)` the product of all `x - x_i` and `w_i = y_i / M'(x_i)`, Lagrange's formula
/// is the sum of `w_i * M(x) / (x - x_i)`. Dividing synthetically, the coefficient of
/// `x^j` is the sum over `t > j` of `M_t * S_(t-j-1)`, where `S_r` is the sum of
/// `w_i * x_i^r`. So every quotient is shared, and each step runs over whole arrays.
pub(super) fn interpolate(xs: &[u16], ys: &[u16]) -> Vec<u16> {
    let factors: Vec<Factor> = xs.iter().map(|&x| Factor::new(x)).collect();
    let master = from_roots(&factors);
    let mut weights = invert_all(&evaluate_all(&derivative(&master), &factors));
    for (weight, &y) in weights.iter_mut().zip(ys) {
        *weight = multiply(*weight, Factor::new(y));
    }

    // All sums first: with a factor out of memory the products below stay in 16-bit lanes, with one just computed they do not.
    let minus_sums: Vec<Factor> = (0..xs.len())
        .map(|_| {
            let sum = weights.iter().map(|&w| u32::from(w)).sum();
            for (weight, &x) in weights.iter_mut().zip(&factors) {
                *weight = multiply(*weight, x);
            }
            Factor::new(negate(reduce(sum)))
        })
        .collect();
    let mut coefficients = vec![0; xs.len()];
    for (offset, &minus_sum) in (1..).zip(&minus_sums) {
        for (coefficient, &m) in coefficients.iter_mut().zip(&master[offset..]) {
            *coefficient = subtract(*coefficient, multiply(m, minus_sum));
        }
    }
    coefficients
}

/// The polynomial's value at every point.
pub(super) fn evaluate_all(coefficients: &[u16], points: &[Factor]) -> Vec<u16> {
    let mut values = vec![0; points.len()];
    for &coefficient in coefficients.iter().rev() {
        // Subtracting the negative keeps one comparison in the loop; a sum would
        // overflow 16 bits and need two.
        let minus = negate(coefficient);
        for (value, &point) in values.iter_mut().zip(points) {
            *value = subtract(multiply(*value, point), minus);
        }
    }
    values
}

/// The product of all `x - root`: one coefficient more than there are roots.
fn from_roots(roots: &[Factor]) -> Vec<u16> {
    let mut product = Vec::with_capacity(roots.len() + 1);
    let mut shifted = Vec::with_capacity(roots.len() + 1);
    product.push(1);
    for &root in roots {
        // x * product, less root * product.
        shifted.clear();
        shifted.push(0);
        shifted.extend_from_slice(&product);
        for (high, &low) in shifted.iter_mut().zip(&product) {
            *high = subtract(*high, multiply(low, root));
        }
        std::mem::swap(&mut product, &mut shifted);
    }
    product
}

/// The formal derivative.
fn derivative(coefficients: &[u16]) -> Vec<u16> {
    let powers = 1..=u16::MAX;
    coefficients
        .iter()
        .skip(1)
        .zip(powers)
        .map(|(&coefficient, power)| multiply(coefficient, Factor::new(power)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::proof::PRIME;
    use super::*;

    fn points(xs: &[u16]) -> Vec<Factor> {
        xs.iter().map(|&x| Factor::new(x)).collect()
    }

    #[test]
    fn interpolation_meets_its_points_at_every_size() {
        for k in (1..40).chain([63, 64, 65, 127, 128, 129, 300]) {
            // Distinct, since 487 and the prime have no common factor.
            let xs: Vec<u16> = (0..k).map(|i| reduce(i * 487 + 65000)).collect();
            let ys: Vec<u16> = (0..k).map(|i| reduce(i * i * 7919 + 11)).collect();
            let coefficients = interpolate(&xs, &ys);
            assert_eq!(coefficients.len(), xs.len());
            assert!(coefficients.iter().all(|&c| c < PRIME));
            assert_eq!(evaluate_all(&coefficients, &points(&xs)), ys);

            let (mut xs, mut ys) = (xs, ys);
            xs.reverse();
            ys.reverse();
            assert_eq!(interpolate(&xs, &ys), coefficients);
        }
    }

    #[test]
    fn a_known_polynomial_comes_back() {
        // 5 + 3x + x^3, so the coefficient of x^2 is 0.
        let value = |x: u64| ((5 + 3 * x + x * x * x) % u64::from(PRIME)) as u16;
        let xs = [0, 2, 65496, 40000];
        let ys = xs.map(|x| value(u64::from(x)));
        assert_eq!(interpolate(&xs, &ys), [5, 3, 0, 1]);
    }

    #[test]
    fn no_points_make_the_empty_polynomial() {
        assert!(interpolate(&[], &[]).is_empty());
        assert_eq!(evaluate_all(&[], &points(&[3])), [0]);
    }
}
