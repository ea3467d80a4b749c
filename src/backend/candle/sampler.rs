//! From logits to the next id.

use std::collections::HashMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::backend::SamplingParams;

/// One sequence's way of choosing: its parameters, its random numbers and what it has seen.
///
/// Draws one random number a token whatever the batch, so a seed means the same in any company.
#[derive(Debug)]
pub(super) struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// How often each id was chosen; ids of the prompt stand with 0.
    seen: HashMap<u32, u32>,
}

impl Sampler {
    /// A sampler for an answer to `prompt`. Without a seed, the system draws one.
    pub(super) fn new(params: SamplingParams, prompt: &[u32]) -> Self {
        let seed = params.seed.unwrap_or_else(|| rand::rng().random());
        // The prompt matters to the repetition penalty alone; without one, its ids need no memory.
        let remembered = if params.repetition_penalty == 1.0 { &[][..] } else { prompt };
        Self { rng: ChaCha8Rng::seed_from_u64(seed), seen: remembered.iter().map(|&id| (id, 0)).collect(), params }
    }

    /// Chooses the next id. `None` when no logit is a number, which only a broken model gives.
    pub(super) fn choose(&mut self, mut logits: Vec<f32>) -> Option<u32> {
        self.penalise(&mut logits);
        let id = if self.params.temperature > 0.0 && self.params.top_k != Some(1) {
            self.draw(&logits)?
        } else {
            argmax(&logits)?
        };
        if self.remembers() {
            *self.seen.entry(id).or_insert(0) += 1;
        }
        Some(id)
    }

    fn remembers(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    fn penalise(&self, logits: &mut [f32]) {
        let p = &self.params;
        for (&id, &count) in &self.seen {
            let Some(logit) = logits.get_mut(id as usize) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= p.repetition_penalty;
            } else {
                *logit *= p.repetition_penalty;
            }
            if count > 0 {
                *logit -= p.presence_penalty + count as f32 * p.frequency_penalty;
            }
        }
    }

    fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        let highest = argmax(logits).and_then(|id| logits.get(id as usize).copied())?;
        let p = &self.params;
        // Probabilities relative to the best id's, which is 1; so min-p is a plain floor.
        let relative = |logit: f32| ((logit - highest) / p.temperature).exp();
        let mut candidates: Vec<(u32, f32)> = (0_u32..)
            .zip(logits)
            .map(|(id, &logit)| (id, relative(logit)))
            .filter(|(_, weight)| *weight > 0.0)
            .collect();
        let by_weight = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(k) = p.top_k.filter(|k| *k < candidates.len()) {
            candidates.select_nth_unstable_by(k, by_weight);
            candidates.truncate(k);
        }
        if p.top_p < 1.0 {
            // Ids below an even share of what top-p leaves out cannot be inside it, all of them together: they need no
            // sorting, which on a large vocabulary is most of the work.
            let total: f32 = candidates.iter().map(|(_, weight)| weight).sum();
            let share = (1.0 - p.top_p) * total / candidates.len() as f32;
            candidates.retain(|(_, weight)| *weight >= share.min(1.0));
            candidates.sort_unstable_by(by_weight);
            let mut reached = 0.0;
            let inside = candidates.iter().position(|(_, weight)| {
                reached += weight;
                reached >= p.top_p * total
            });
            candidates.truncate(inside.map_or(candidates.len(), |last| last + 1));
        }
        candidates.retain(|(_, weight)| *weight >= p.min_p);
        let total: f32 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.random::<f32>() * total;
        for &(id, weight) in &candidates {
            if left < weight {
                return Some(id);
            }
            left -= weight;
        }
        // Rounding can leave a crumb past the last candidate.
        candidates.last().map(|(id, _)| *id)
    }
}

/// The id of the highest logit, the lowest of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in (0_u32..).zip(logits) {
        if !logit.is_nan() && best.is_none_or(|(_, highest)| logit > highest) {
            best = Some((id, logit));
        }
    }
    best.map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(params, &[2])
    }

    fn seeded() -> SamplingParams {
        SamplingParams { temperature: 1.0, seed: Some(7), ..SamplingParams::default() }
    }

    /// How often each id of `logits` is chosen in 4,000 draws.
    fn frequencies(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        let mut sampler = sampler(params.clone());
        for _ in 0..4000 {
            counts[sampler.choose(logits.to_vec()).unwrap() as usize] += 1.0 / 4000.0;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_skips_nan() {
        let mut s = sampler(SamplingParams::default());
        assert_eq!(s.choose(vec![f32::NAN, 1.0, 3.0, 3.0]), Some(2));
        assert_eq!(s.choose(vec![f32::NAN; 3]), None);
        assert_eq!(s.choose(vec![]), None);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
        let sum: f64 = [0_f64, 1.0, 2.0].iter().map(|x| x.exp()).sum();
        for (id, found) in frequencies(&seeded(), &logits).into_iter().enumerate() {
            let want = f64::from(logits[id]).exp() / sum;
            assert!((found - want).abs() < 0.03, "id {id}: {found} for {want}");
        }
        let cold = SamplingParams { temperature: 0.5, ..seeded() };
        let want = 4_f64.exp() / (1.0 + 2_f64.exp() + 4_f64.exp());
        assert!((frequencies(&cold, &logits)[2] - want).abs() < 0.03);
    }

    #[test]
    fn filters_leave_out_what_they_should() {
        // Probabilities 0.4, 0.3, 0.2, 0.1.
        let logits: Vec<f32> = [0.4_f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        let chosen = |params: SamplingParams| -> Vec<usize> {
            let found = frequencies(&params, &logits);
            (0..4).filter(|&id| found[id] > 0.0).collect()
        };
        assert_eq!(chosen(SamplingParams { top_k: Some(2), ..seeded() }), [0, 1]);
        assert_eq!(chosen(SamplingParams { top_p: 0.65, ..seeded() }), [0, 1]);
        assert_eq!(chosen(SamplingParams { top_p: 0.75, ..seeded() }), [0, 1, 2]);
        assert_eq!(chosen(SamplingParams { min_p: 0.45, ..seeded() }), [0, 1, 2]);
        assert_eq!(chosen(SamplingParams { min_p: 0.55, ..seeded() }), [0, 1]);
        assert_eq!(chosen(SamplingParams { top_p: 0.0, ..seeded() }), [0]);
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let logits = vec![0.0; 50];
        let run = |seed| {
            let mut s = sampler(SamplingParams { seed: Some(seed), ..seeded() });
            (0..20).map(|_| s.choose(logits.clone()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn penalties_push_seen_ids_down() {
        // Repetition counts the prompt (id 2): 3.0 / 2 falls below 2.0.
        let mut s = sampler(SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() });
        assert_eq!(s.choose(vec![0.0, 2.0, 3.0]), Some(1));
        assert_eq!(s.choose(vec![0.0, 2.0, 1.9]), Some(1), "2.0 / 2 against 1.9 / 2");
        // A negative logit is multiplied.
        assert_eq!(s.choose(vec![-1.5, -1.0, -1.0]), Some(0));
        // Presence and frequency count the answer alone.
        let mut s =
            sampler(SamplingParams { presence_penalty: 0.5, frequency_penalty: 1.0, ..SamplingParams::default() });
        let chosen: Vec<u32> = (0..3).map(|_| s.choose(vec![0.0, 1.0, 2.0]).unwrap()).collect();
        assert_eq!(chosen, [2, 1, 2]);
    }
}
