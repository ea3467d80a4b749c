//! From logits to log-probabilities.

use super::candidates::by_value;
use crate::backend::TokenLogprobs;

/// Log-probabilities of `chosen` and of the `k` best ids, from the logits as the model gave them.
///
/// A logit that is no number counts as minus infinity, so that what a broken model gives is still finite here.
pub(super) fn token_logprobs(logits: &[f32], chosen: u32, k: usize) -> TokenLogprobs {
    let mut ranked: Vec<(u32, f32)> = (0_u32..).zip(logits.iter().copied()).filter(|(_, x)| !x.is_nan()).collect();
    let highest = ranked.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
    // Relative to the highest, so that nothing overflows. Two infinities have no difference, and equals have none to find.
    let below = |logit: f32| if logit == highest { 0.0 } else { f64::from(logit) - f64::from(highest) };
    // In f64: a vocabulary has more terms than an f32 has room to add up.
    let log_total = ranked.iter().map(|(_, logit)| below(*logit).exp()).sum::<f64>().ln();
    let logprob = |logit: f32| ((below(logit) - log_total) as f32).max(TokenLogprobs::LOWEST_LOGPROB);
    if k < ranked.len() {
        ranked.select_nth_unstable_by(k, by_value);
        ranked.truncate(k);
    }
    ranked.sort_unstable_by(by_value);
    TokenLogprobs {
        // `max` prefers the number, also where the chosen logit is none.
        logprob: logits.get(chosen as usize).map_or(TokenLogprobs::LOWEST_LOGPROB, |logit| logprob(*logit)),
        top: ranked.into_iter().map(|(id, logit)| (id, logprob(logit))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const LOWEST: f32 = TokenLogprobs::LOWEST_LOGPROB;

    #[test]
    fn known_values() {
        // Probabilities 0.5, 0.25, 0.125, 0.125, whatever is added to all logits.
        for shift in [0.0, -700.0, 1e4] {
            let logits = [2_f32.ln() * 2.0, 2_f32.ln(), 0.0, 0.0].map(|x| x + shift);
            let got = token_logprobs(&logits, 1, 3);
            let near = |got: f32, p: f32| (got - p.ln()).abs() < if shift > 1e3 { 1e-3 } else { 1e-4 };
            assert!(near(got.logprob, 0.25), "{got:?}");
            assert_eq!(got.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2], "the lowest of equals");
            assert!(got.top.iter().zip([0.5, 0.25, 0.125]).all(|((_, got), p)| near(*got, p)), "{got:?}");
        }
        let logits = [1.0, 2.0];
        assert_eq!(token_logprobs(&logits, 0, 0).top, []);
        assert_eq!(token_logprobs(&[-0.0, 0.0], 0, 1).top[0].0, 0, "zeros are equals");
        assert_eq!(token_logprobs(&logits, 0, 20).top.len(), 2, "no more than there are");
    }

    #[test]
    fn agrees_with_a_full_sort_of_a_plain_log_softmax() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for _ in 0..200 {
            let vocab = rng.random_range(1..400_usize);
            // Steps of a quarter, so that equals are common.
            let logits: Vec<f32> =
                (0..vocab).map(|_| rng.random_range(-40..40_i8).into()).map(|x: f32| x / 4.0).collect();
            let (k, chosen) = (rng.random_range(0..=20), rng.random_range(0..vocab));
            let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
            let want = |id: usize| (f64::from(logits[id]) - total.ln()) as f32;
            let mut order: Vec<usize> = (0..vocab).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let got = token_logprobs(&logits, chosen as u32, k);
            assert!((got.logprob - want(chosen)).abs() < 1e-5);
            assert_eq!(got.top.len(), k.min(vocab));
            for ((id, logprob), want_id) in got.top.iter().zip(order) {
                assert_eq!(*id as usize, want_id);
                assert!((logprob - want(want_id)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn what_is_no_number_or_has_no_end_gives_finite_values() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let got = token_logprobs(&[nan, 0.0, -inf, 0.0], 0, 4);
        assert_eq!(got, TokenLogprobs { logprob: LOWEST, top: vec![(1, -2_f32.ln()), (3, -2_f32.ln()), (2, LOWEST)] });
        assert_eq!(token_logprobs(&[inf, 3.0], 0, 2).top, [(0, 0.0), (1, LOWEST)]);
        assert_eq!(token_logprobs(&[f32::MAX, f32::MIN], 1, 0).logprob, LOWEST);
        for logits in [vec![], vec![nan; 3], vec![-inf; 3], vec![inf; 3], vec![nan, inf, -inf]] {
            let got = token_logprobs(&logits, 1, 20);
            assert!(got.logprob.is_finite() && got.top.iter().all(|(_, x)| x.is_finite()), "{logits:?}: {got:?}");
        }
    }
}
