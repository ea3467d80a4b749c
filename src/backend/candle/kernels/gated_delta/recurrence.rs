//! The arithmetic of the gated delta rule on one head's vectors, and on sixteen columns of its state.

use super::super::lanes::{LANES, Lanes};
use super::super::simd::Kernel;

/// Added to the sum of squares under the root of the keys' and queries' normalisation.
const NORM_EPS: f32 = 1e-6;
/// Sums that run side by side over the rows of a state, so that none waits for the one before.
const SUMS: usize = 4;

/// What a token does to the state of a value head.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gates {
    /// `alpha`: what the state keeps.
    pub(super) decay: f32,
    /// `beta`: how much of the difference is written.
    pub(super) strength: f32,
}

/// Brings a key and a query to length 1, the query then to `key_dim^-½`, and multiplies them.
pub(super) struct Normalise<'a> {
    pub(super) key: &'a mut [f32],
    pub(super) query: &'a mut [f32],
    pub(super) product: &'a mut f32,
}

impl Kernel for Normalise<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { key, query, product } = self;
        let length = (key.len() as f32).sqrt();
        scale::<L>(key, 1.0 / (dot::<L>(key, key) + NORM_EPS).sqrt());
        scale::<L>(query, 1.0 / ((dot::<L>(query, query) + NORM_EPS).sqrt() * length));
        *product = dot::<L>(key, query);
    }
}

#[inline(always)]
fn dot<L: Lanes>(x: &[f32], y: &[f32]) -> f32 {
    let ((x, x_end), (y, y_end)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut sums = L::zero();
    for (x, y) in x.iter().zip(y) {
        sums = L::load(x).multiply_add(L::load(y), sums);
    }
    let mut sum = sums.sum();
    for (x, y) in x_end.iter().zip(y_end) {
        sum += x * y;
    }
    sum
}

#[inline(always)]
fn scale<L: Lanes>(x: &mut [f32], factor: f32) {
    let (lanes, end) = x.as_chunks_mut::<LANES>();
    for x in lanes {
        L::load(x).multiply(L::splat(factor)).store(x);
    }
    for x in end {
        *x *= factor;
    }
}

/// Sixteen columns of a state and the tokens of its sequence.
pub(super) struct Columns<'a> {
    /// `[key_dim, 16]`.
    pub(super) state: &'a mut [[f32; LANES]],
    /// `[tokens, key | query]`.
    pub(super) keys: &'a [f32],
    /// `[tokens]`: key times query.
    pub(super) products: &'a [f32],
    /// `[tokens]`.
    pub(super) gates: &'a [Gates],
    /// `[tokens, 16]`: values in, outputs out.
    pub(super) values: &'a mut [[f32; LANES]],
}

impl Kernel for Columns<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { state, keys, products, gates, values } = self;
        let dim = state.len();
        let mut pairs = keys.chunks_exact(2 * dim);
        let Some(mut pair) = pairs.next() else { return };
        let mut answers = pass::<L, false, true>(state, pair, [L::zero(); 2], pair);
        for ((value, gates), product) in values.iter_mut().zip(gates).zip(products) {
            let [by_key, by_query] = answers;
            let decay = L::splat(gates.decay);
            let missing = by_key.multiply_add(L::splat(-gates.decay), L::load(value));
            let update = missing.multiply(L::splat(gates.strength));
            update.multiply_add(L::splat(*product), by_query.multiply(decay)).store(value);
            // A token's update and the next one's sums are one pass; cut between them, each does the same to every value.
            match pairs.next() {
                Some(next) => {
                    answers = pass::<L, true, true>(state, pair, [decay, update], next);
                    pair = next;
                }
                None => {
                    pass::<L, true, false>(state, pair, [decay, update], pair);
                }
            }
        }
    }
}

/// One pass over sixteen columns of a state: where `UPDATE`, each row becomes `decay * row + key * update`; where `SUM`, gives the
/// products of what is then the state with the key and the query of `next`. Keys and queries stand behind each other.
///
/// Row `i` goes to sum `i % SUMS`, in order; the sums are then added in pairs.
#[inline(always)]
fn pass<L: Lanes, const UPDATE: bool, const SUM: bool>(
    state: &mut [[f32; LANES]],
    pair: &[f32],
    [decay, update]: [L; 2],
    next: &[f32],
) -> [L; 2] {
    let dim = state.len();
    let (rows, end_rows) = state.as_chunks_mut::<SUMS>();
    let (keys, end_keys) = pair[..dim].as_chunks::<SUMS>();
    let (next_keys, end_next_keys) = next[..dim].as_chunks::<SUMS>();
    let (queries, end_queries) = next[dim..2 * dim].as_chunks::<SUMS>();
    let mut sums = [[L::zero(); 2]; SUMS];
    for (((rows, keys), next_keys), queries) in rows.iter_mut().zip(keys).zip(next_keys).zip(queries) {
        for at in 0..SUMS {
            let with = [keys[at], next_keys[at], queries[at]];
            row::<L, UPDATE, SUM>(&mut rows[at], with, [decay, update], &mut sums[at]);
        }
    }
    for at in 0..end_rows.len() {
        let with = [end_keys[at], end_next_keys[at], end_queries[at]];
        row::<L, UPDATE, SUM>(&mut end_rows[at], with, [decay, update], &mut sums[at]);
    }
    let [first, second, third, fourth] = sums;
    [first[0].add(second[0]).add(third[0].add(fourth[0])), first[1].add(second[1]).add(third[1].add(fourth[1]))]
}

#[inline(always)]
fn row<L: Lanes, const UPDATE: bool, const SUM: bool>(
    stored: &mut [f32; LANES],
    [key, next_key, query]: [f32; 3],
    [decay, update]: [L; 2],
    sums: &mut [L; 2],
) {
    let mut row = L::load(stored);
    if UPDATE {
        row = update.multiply_add(L::splat(key), row.multiply(decay));
        row.store(stored);
    }
    if SUM {
        sums[0] = row.multiply_add(L::splat(next_key), sums[0]);
        sums[1] = row.multiply_add(L::splat(query), sums[1]);
    }
}
