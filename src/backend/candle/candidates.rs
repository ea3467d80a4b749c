//! What the next id's chooser needs of a row of logits: most often the best few ids, not the row.
//!
//! A vocabulary is shared among the ranks. A row of 248,320 logits is a megabyte, which over PCIe costs as much as a layer; the
//! best ids of each rank and the sum of its weights are half a kilobyte, and decide nearly every draw exactly. Where
//! they do not (all ranks see that in the same numbers), the whole row follows.

use candle_core::{Result, Tensor, bail};

use super::parallel::Communicator;

/// What is wanted of an output row's logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LogitsWanted {
    /// None: its fin alone is.
    Nothing,
    /// The best ids, if they are enough.
    Best(Best),
    /// The whole row.
    All,
}

/// How many of the best ids are wanted, and when they are enough to choose by.
///
/// An id's weight is `exp((logit - best logit) / temperature)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Best {
    /// How many, at least 1.
    pub(super) count: usize,
    /// Above 0.
    pub(super) temperature: f32,
    /// They are enough if they have this share of all weights,
    pub(super) share: f32,
    /// or if the last of them weighs less than this.
    pub(super) floor: f32,
}

impl Best {
    /// The best id alone.
    pub(super) const GREEDY: Self = Self { count: 1, temperature: 1.0, share: 0.0, floor: 0.0 };
}

/// What a chooser gets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowLogits {
    /// The best ids: enough by what was asked.
    Best(Candidates),
    /// All logits, by id.
    All(Vec<f32>),
}

/// The best ids of a row, or of one rank's part of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Candidates {
    /// Ids with their logits, best first, the lowest id of equals first. None of them is NaN.
    pub(super) best: Vec<(u32, f32)>,
    /// All ids' weights added up, those that are not among the best too.
    pub(super) total: f64,
}

/// The order of ids by their logits or weights: best first, the lowest id of equals first. The two zeros are equals.
pub(super) fn by_value(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The weight of a logit beside the highest.
pub(super) fn weight(logit: f32, highest: f32, temperature: f32) -> f32 {
    // Two infinities have no difference, and equals have none to find.
    if logit == highest { 1.0 } else { ((logit - highest) / temperature).exp() }
}

impl Candidates {
    /// Of logits whose first has the id `first`. What is NaN is left out.
    pub(super) fn of(logits: &[f32], first: u32, wanted: Best) -> Self {
        let count = wanted.count.max(1);
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(2 * count);
        let mut lowest = f32::NEG_INFINITY;
        for (id, &logit) in (first..).zip(logits) {
            // Ids ascend: an equal of the last that is kept comes behind it.
            if logit > lowest || (best.len() < count && !logit.is_nan()) {
                best.push((id, logit));
                if best.len() == 2 * count {
                    lowest = keep(&mut best, count);
                }
            }
        }
        keep(&mut best, count);
        best.sort_unstable_by(by_value);
        let highest = best.first().map_or(0.0, |(_, logit)| *logit);
        // In f64: a vocabulary has more terms than an f32 has room to add up. Only draws ask for it.
        let total = if wanted.share > 0.0 || wanted.floor > 0.0 {
            let weights = logits.iter().filter(|logit| !logit.is_nan());
            weights.map(|&logit| f64::from(weight(logit, highest, wanted.temperature))).sum()
        } else {
            0.0
        };
        Self { best, total }
    }

    /// Those of a row, from those of its parts.
    fn merge(parts: Vec<Self>, wanted: Best) -> Self {
        let first = |part: &Self| part.best.first().map(|(_, logit)| *logit);
        let highest = parts.iter().filter_map(first).fold(f32::NEG_INFINITY, f32::max);
        let scaled = |part: &Self| {
            first(part).map_or(0.0, |logit| part.total * f64::from(weight(logit, highest, wanted.temperature)))
        };
        let total = parts.iter().map(scaled).sum();
        let mut best: Vec<_> = parts.into_iter().flat_map(|part| part.best).collect();
        best.sort_unstable_by(by_value);
        best.truncate(wanted.count.max(1));
        Self { best, total }
    }

    fn are_enough(&self, wanted: Best) -> bool {
        let (Some((_, highest)), Some((_, lowest))) = (self.best.first(), self.best.last()) else {
            return true;
        };
        let weight = |logit: f32| weight(logit, *highest, wanted.temperature);
        let reached: f64 = self.best.iter().map(|(_, logit)| f64::from(weight(*logit))).sum();
        // A NaN among the sums asks for the row.
        reached >= f64::from(wanted.share) * self.total || weight(*lowest) < wanted.floor
    }

    /// As `1 + 2 * width` numbers that are the same for every rank's.
    fn write(&self, width: usize, numbers: &mut Vec<f32>) {
        numbers.push(self.total as f32);
        // Ids are below 2^24, so an f32 holds them; [`gather`] sees to it.
        numbers.extend(self.best.iter().flat_map(|&(id, logit)| [id as f32, logit]));
        numbers.resize(numbers.len() + 2 * (width - self.best.len()), f32::NAN);
    }

    fn read(numbers: &[f32]) -> Self {
        let (total, best) = numbers.split_first().map_or((0.0, numbers), |(total, best)| (*total, best));
        let pairs = best.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1]));
        Self { best: pairs.filter(|(_, logit)| !logit.is_nan()).collect(), total: total.into() }
    }
}

/// Leaves the best `count`, in any order; gives the last one's value once there are as many.
fn keep(best: &mut Vec<(u32, f32)>, count: usize) -> f32 {
    if best.len() <= count {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = best.select_nth_unstable_by(count - 1, by_value);
    let lowest = last.1;
    best.truncate(count);
    lowest
}

/// From each rank's part of some rows of logits, `[rows, vocab / world]` f32, to what is wanted of each row. Collective: all ranks
/// ask for the same.
///
/// # Errors
/// When a collective fails.
pub(super) fn gather(own: &Tensor, wanted: &[LogitsWanted], comm: &dyn Communicator) -> Result<Vec<RowLogits>> {
    let (_, columns) = own.dims2()?;
    let (rank, world) = (comm.rank(), comm.world());
    if columns * world > 1 << f32::MANTISSA_DIGITS {
        bail!("a vocabulary of {} is too large: an id no longer stands exactly in an f32", columns * world);
    }
    let asked: Vec<(usize, Best)> = wanted
        .iter()
        .enumerate()
        .filter_map(|(row, wanted)| match wanted {
            LogitsWanted::Best(best) => Some((row, *best)),
            LogitsWanted::Nothing | LogitsWanted::All => None,
        })
        .collect();
    let mut candidates = Vec::new();
    if !asked.is_empty() {
        let width = asked.iter().map(|(_, best)| best.count.clamp(1, columns)).max().unwrap_or(1);
        let mut numbers = Vec::with_capacity(asked.len() * (1 + 2 * width));
        let rows = own.to_vec2::<f32>()?;
        for (row, best) in &asked {
            let logits = rows.get(*row).map_or(&[][..], Vec::as_slice);
            Candidates::of(logits, (rank * columns) as u32, Best { count: best.count.min(columns), ..*best })
                .write(width, &mut numbers);
        }
        let part = 1 + 2 * width;
        let all = comm.all_gather_columns(&Tensor::from_vec(numbers, (asked.len(), part), own.device())?)?;
        comm.barrier()?;
        for ((_, best), numbers) in asked.iter().zip(all.to_vec2::<f32>()?) {
            candidates.push(Candidates::merge(numbers.chunks_exact(part).map(Candidates::read).collect(), *best));
        }
    }
    let mut candidates = asked.into_iter().zip(candidates).peekable();
    let mut whole: Vec<u32> = Vec::new();
    let mut answers: Vec<Option<RowLogits>> = Vec::with_capacity(wanted.len());
    for (row, wanted) in (0_u32..).zip(wanted) {
        let found = candidates.next_if(|((asked, _), _)| *asked == row as usize);
        answers.push(match found {
            Some(((_, best), found)) if found.are_enough(best) => Some(RowLogits::Best(found)),
            _ => {
                debug_assert!(*wanted != LogitsWanted::Nothing, "rows without a wish are not brought here");
                whole.push(row);
                None
            }
        });
    }
    let mut rows = Vec::new();
    if !whole.is_empty() {
        let parts = own.index_select(&Tensor::new(whole, own.device())?, 0)?;
        let all = comm.all_gather_columns(&parts)?;
        comm.barrier()?;
        rows = all.to_vec2()?;
    }
    let mut rows = rows.into_iter();
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| RowLogits::All(rows.next().unwrap_or_default())))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use candle_core::Device;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::backend::candle::parallel::{Solo, world};

    const GREEDY: Best = Best::GREEDY;

    fn row(rng: &mut ChaCha8Rng, vocab: usize) -> Vec<f32> {
        // Steps of a quarter, so that equals are common; now and then no number.
        let logit = |rng: &mut ChaCha8Rng| match rng.random_range(0..20) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            _ => f32::from(rng.random_range(-40..40_i8)) / 4.0,
        };
        (0..vocab).map(|_| logit(rng)).collect()
    }

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..300 {
            let vocab = rng.random_range(1..500);
            let (logits, count) = (row(&mut rng, vocab), rng.random_range(1..80));
            let mut want: Vec<(u32, f32)> = (7..).zip(logits.iter().copied()).filter(|(_, x)| !x.is_nan()).collect();
            // Stable: ids ascend among equals.
            want.sort_by(|a, b| b.1.total_cmp(&a.1));
            want.truncate(count);
            assert_eq!(Candidates::of(&logits, 7, Best { count, ..GREEDY }).best, want);
        }
    }

    #[test]
    fn weights_add_up_whatever_the_size_of_the_logits() {
        for shift in [0.0, -700.0, 900.0] {
            let logits = [2.0_f32, 1.0, f32::NAN, 0.0, f32::NEG_INFINITY].map(|x| x + shift);
            let found = Candidates::of(&logits, 0, Best { count: 2, temperature: 0.5, share: 0.9, floor: 0.0 });
            let want = 1.0 + (-2_f64).exp() + (-4_f64).exp();
            assert!((found.total - want).abs() < 1e-4, "{shift}: {found:?}");
            assert_eq!(found.best.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
        }
        assert_eq!(Candidates::of(&[f32::NAN; 3], 0, GREEDY), Candidates::default());
        assert_eq!(Candidates::of(&[], 0, GREEDY), Candidates::default());
    }

    /// Ranks answer what one that has the whole row would, and all the same.
    #[test]
    fn parts_of_rows_give_what_whole_rows_do() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for ranks in [1, 2, 4] {
            for _ in 0..40 {
                let (rows, vocab) = (rng.random_range(1..6), 4 * rng.random_range(1..100));
                let logits: Vec<Vec<f32>> = (0..rows).map(|_| row(&mut rng, vocab)).collect();
                let wanted: Vec<LogitsWanted> = (0..rows)
                    .map(|_| match rng.random_range(0..4) {
                        0 => LogitsWanted::All,
                        1 => LogitsWanted::Best(GREEDY),
                        2 => LogitsWanted::Best(Best { count: rng.random_range(1..300), ..GREEDY }),
                        _ => LogitsWanted::Best(Best {
                            count: 8,
                            temperature: 2.0,
                            share: rng.random_range(0.1..1.0),
                            floor: [0.0, 0.3][rng.random_range(0..2)],
                        }),
                    })
                    .collect();
                let part = |rank: usize| {
                    let columns = vocab / ranks;
                    let own: Vec<f32> =
                        logits.iter().flat_map(|row| row[rank * columns..][..columns].to_vec()).collect();
                    Tensor::from_vec(own, (rows, columns), &Device::Cpu).unwrap()
                };
                let answers: Vec<Vec<RowLogits>> = std::thread::scope(|scope| {
                    let (wanted, part) = (&wanted, &part);
                    let threads: Vec<_> = world(ranks, Duration::from_secs(60))
                        .into_iter()
                        .map(|comm| scope.spawn(move || gather(&part(comm.rank()), wanted, &comm).unwrap()))
                        .collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                for answer in &answers {
                    for ((got, logits), wanted) in answer.iter().zip(&logits).zip(&wanted) {
                        let LogitsWanted::Best(best) = *wanted else {
                            assert!(matches!(got, RowLogits::All(all) if same(all, logits)));
                            continue;
                        };
                        let whole = Candidates::of(logits, 0, best);
                        match got {
                            RowLogits::Best(found) => {
                                assert_eq!(found.best, whole.best);
                                assert!((found.total - whole.total).abs() <= 1e-5 * whole.total, "{found:?}");
                                assert!(
                                    whole.best.len() < best.count || best.share == 0.0 || {
                                        let reached: f64 = shares(&whole, best).sum();
                                        let last = shares(&whole, best).last().unwrap();
                                        reached >= f64::from(best.share) * whole.total * 0.999
                                            || last < f64::from(best.floor)
                                    }
                                );
                            }
                            RowLogits::All(all) => {
                                assert!(same(all, logits));
                                let reached: f64 = shares(&whole, best).sum();
                                assert!(reached <= f64::from(best.share) * whole.total * 1.001, "{whole:?} {best:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    fn shares(found: &Candidates, wanted: Best) -> impl Iterator<Item = f64> {
        let highest = found.best[0].1;
        found.best.iter().map(move |(_, logit)| f64::from(weight(*logit, highest, wanted.temperature)))
    }

    fn same(a: &[f32], b: &[f32]) -> bool {
        a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
    }

    #[test]
    fn one_rank_needs_no_other() {
        let own = Tensor::new(&[[0.0_f32, 3.0, 1.0]], &Device::Cpu).unwrap();
        let got = gather(&own, &[LogitsWanted::Best(GREEDY)], &Solo).unwrap();
        assert_eq!(got, [RowLogits::Best(Candidates { best: vec![(1, 3.0)], total: 0.0 })]);
    }
}
