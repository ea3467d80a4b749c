//! From logits to the next id.

use std::collections::HashMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::candidates::{Best, Candidates, LogitsWanted, RowLogits, by_value, weight};
use crate::backend::SamplingParams;

/// How many of the best ids a draw begins with. On text they nearly always have all the probability that the draw can reach, and
/// from four ranks they take 2 kB.
const CANDIDATES: usize = 64;

/// More than so many candidates are no shorter than the row: it is then gathered whole.
const MOST_CANDIDATES: usize = 1024;

/// One sequence's way of choosing: its parameters, its random numbers and what it has seen.
///
/// Draws one random number a token whatever the batch, so a seed means the same in any company.
#[derive(Debug)]
pub(super) struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// The next draw, from 0 to below 1: known beforehand, so that ranks can tell which ids it can reach.
    next: f32,
    /// How often each id was chosen; ids of the prompt stand with 0.
    seen: HashMap<u32, u32>,
}

impl Sampler {
    /// A sampler for an answer to `prompt`. Without a seed, the system draws one.
    pub(super) fn new(params: SamplingParams, prompt: &[u32]) -> Self {
        let seed = params.seed.unwrap_or_else(|| rand::rng().random());
        // The prompt matters to the repetition penalty alone; without one, its ids need no memory.
        let remembered = if params.repetition_penalty == 1.0 { &[][..] } else { prompt };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self { next: rng.random(), rng, seen: remembered.iter().map(|&id| (id, 0)).collect(), params }
    }

    /// What it needs to see of the next row of logits.
    pub(super) fn wants(&self) -> LogitsWanted {
        let p = &self.params;
        // Penalties change the order of ids that only this sampler knows of.
        if self.remembers() {
            return LogitsWanted::All;
        }
        let temperature = p.temperature;
        let best = match p.top_k {
            _ if self.is_greedy() => Best::GREEDY,
            Some(k) if k <= MOST_CANDIDATES => Best { count: k, temperature, share: 0.0, floor: 0.0 },
            Some(_) => return LogitsWanted::All,
            None => {
                // A draw among all needs the ids before it alone; what is drawn is known.
                let share = if p.top_p < 1.0 || p.min_p > 0.0 { p.top_p } else { self.next };
                Best { count: CANDIDATES, temperature, share, floor: p.min_p }
            }
        };
        LogitsWanted::Best(best)
    }

    /// Chooses the next id. `None` when no logit is a number, which only a broken model gives.
    pub(super) fn choose(&mut self, logits: RowLogits) -> Option<u32> {
        let id = match logits {
            RowLogits::Best(found) if self.is_greedy() => found.best.first()?.0,
            RowLogits::Best(found) => self.draw(found.best, found.total)?,
            RowLogits::All(mut logits) => {
                self.penalise(&mut logits);
                if self.is_greedy() {
                    Candidates::of(&logits, 0, Best::GREEDY).best.first()?.0
                } else {
                    self.draw_of_all(&logits)?
                }
            }
        };
        if self.remembers() {
            *self.seen.entry(id).or_insert(0) += 1;
        }
        Some(id)
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature <= 0.0 || self.params.top_k == Some(1)
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

    /// Draws from the whole row.
    fn draw_of_all(&mut self, logits: &[f32]) -> Option<u32> {
        // The best first and the others by id: as good as sorted for a draw, and little work on a large vocabulary.
        let (temperature, count) = (self.params.temperature, self.params.top_k.unwrap_or(CANDIDATES));
        let Candidates { mut best, total } =
            Candidates::of(logits, 0, Best { count, temperature, share: 1.0, floor: 0.0 });
        let last = *best.last()?;
        let others =
            (0_u32..).zip(logits.iter().copied()).filter(|other| by_value(other, &last).is_gt() && !other.1.is_nan());
        best.extend(others);
        self.draw(best, total)
    }

    /// Draws from ids with their logits, the best first. `total` is what all ids of the row weigh together, also those that
    /// are not given since the draw cannot reach them.
    fn draw(&mut self, mut candidates: Vec<(u32, f32)>, mut total: f64) -> Option<u32> {
        let p = &self.params;
        let (_, highest) = candidates.first().copied().filter(|(_, logit)| logit.is_finite())?;
        // From here on weights, relative to the best id's, which is 1; so min-p is a plain floor.
        candidates.iter_mut().for_each(|(_, logit)| *logit = weight(*logit, highest, p.temperature));
        candidates.retain(|(_, weight)| *weight > 0.0);
        let weighs = |candidates: &[(u32, f32)]| candidates.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>();
        if let Some(k) = p.top_k {
            candidates.truncate(k);
            total = weighs(&candidates);
        }
        if p.top_p < 1.0 {
            let top_p = f64::from(p.top_p);
            // Ids below an even share of what top-p leaves out cannot be inside it, all of them together: they need no
            // sorting, which on a large vocabulary is most of the work.
            let share = (1.0 - top_p) * total / candidates.len() as f64;
            candidates.retain(|(_, weight)| f64::from(*weight) >= share.min(1.0));
            candidates.sort_unstable_by(by_value);
            let mut reached = 0.0;
            let inside = candidates.iter().position(|(_, weight)| {
                reached += f64::from(*weight);
                reached >= top_p * total
            });
            candidates.truncate(inside.map_or(candidates.len(), |last| last + 1));
        }
        candidates.retain(|(_, weight)| *weight >= p.min_p);
        if p.top_p < 1.0 || p.min_p > 0.0 {
            total = weighs(&candidates);
        }
        let mut left = f64::from(std::mem::replace(&mut self.next, self.rng.random())) * total;
        for &(id, weight) in &candidates {
            if left < weight.into() {
                return Some(id);
            }
            left -= f64::from(weight);
        }
        // Rounding can leave a crumb past the last candidate.
        candidates.last().map(|(id, _)| *id)
    }
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
            counts[sampler.choose(RowLogits::All(logits.to_vec())).unwrap() as usize] += 1.0 / 4000.0;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_skips_nan() {
        let mut s = sampler(SamplingParams::default());
        assert_eq!(s.choose(RowLogits::All(vec![f32::NAN, 1.0, 3.0, 3.0])), Some(2));
        assert_eq!(s.choose(RowLogits::All(vec![f32::NAN; 3])), None);
        assert_eq!(s.choose(RowLogits::All(vec![])), None);
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

    /// The best ids of a row choose what the row would, whenever they are enough; and they most often are.
    #[test]
    fn candidates_choose_as_the_whole_row_does() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let (mut by_candidates, mut rows) = (0, 0);
        for case in 0..400 {
            let params = SamplingParams {
                temperature: [0.0, 0.3, 1.0][case % 3],
                top_p: [1.0, 0.9][case / 3 % 2],
                top_k: [None, Some(20), Some(1)][case / 6 % 3],
                min_p: [0.0, 0.1][case / 18 % 2],
                seed: Some(case as u64),
                ..SamplingParams::default()
            };
            let (mut whole, mut brief) = (sampler(params.clone()), sampler(params));
            for _ in 0..20 {
                // As a model's: a few likely ids, and a long tail.
                let logits: Vec<f32> = (0..500).map(|_| -5.0 * rng.random::<f32>().ln() - 8.0).collect();
                let comm = crate::backend::candle::parallel::Solo;
                let row = candle_core::Tensor::from_slice(&logits, (1, 500), &candle_core::Device::Cpu).unwrap();
                let seen = crate::backend::candle::candidates::gather(&row, &[brief.wants()], &comm).unwrap().remove(0);
                rows += 1;
                by_candidates += usize::from(matches!(seen, RowLogits::Best(_)));
                assert_eq!(brief.choose(seen), whole.choose(RowLogits::All(logits)), "case {case}");
            }
        }
        assert!(by_candidates * 10 > rows * 9, "{by_candidates} of {rows}");
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let logits = vec![0.0; 50];
        let run = |seed| {
            let mut s = sampler(SamplingParams { seed: Some(seed), ..seeded() });
            (0..20).map(|_| s.choose(RowLogits::All(logits.clone())).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn penalties_push_seen_ids_down() {
        // Repetition counts the prompt (id 2): 3.0 / 2 falls below 2.0.
        let mut s = sampler(SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() });
        assert_eq!(s.choose(RowLogits::All(vec![0.0, 2.0, 3.0])), Some(1));
        assert_eq!(s.choose(RowLogits::All(vec![0.0, 2.0, 1.9])), Some(1), "2.0 / 2 against 1.9 / 2");
        // A negative logit is multiplied.
        assert_eq!(s.choose(RowLogits::All(vec![-1.5, -1.0, -1.0])), Some(0));
        // Presence and frequency count the answer alone.
        let mut s =
            sampler(SamplingParams { presence_penalty: 0.5, frequency_penalty: 1.0, ..SamplingParams::default() });
        let chosen: Vec<u32> = (0..3).map(|_| s.choose(RowLogits::All(vec![0.0, 1.0, 2.0])).unwrap()).collect();
        assert_eq!(chosen, [2, 1, 2]);
    }
}
