//! From many measurements to few figures that can be trusted on a machine that is shared with others.
//!
//! Differences of paired turns are summed up by Hodges and Lehmann's estimator and the interval that belongs to it, that of Wilcoxon's
//! signed ranks: both are exact for few pairs, assume no distribution but that it is symmetric, and a single turn that another
//! program disturbed hardly moves them.

use super::results::{Distribution, Estimate};

/// What may lie outside an interval at either end: 95 % lie within.
const TAIL: f64 = 0.025;

/// Differences that are compared with one another: work and memory grow with their square and more.
const MOST_DIFFERENCES: usize = 250;

impl Distribution {
    /// Of any values; those that are no numbers do not count.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let percentile = |percent: usize| values.get((values.len().saturating_sub(1) * percent).div_ceil(100));
        Self {
            count: values.len(),
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            p50: percentile(50).copied().unwrap_or_default(),
            p99: percentile(99).copied().unwrap_or_default(),
            percentiles: (0..=100).filter_map(|percent| percentile(percent).copied()).collect(),
        }
    }
}

impl Estimate {
    /// Of differences, one a pair.
    #[must_use]
    pub fn of(differences: &[f64]) -> Self {
        let differences = &thinned(differences);
        let means = walsh_averages(differences);
        let middle = |at: usize| means.get(at).copied().unwrap_or_default();
        let value = (middle(means.len() / 2) + middle(means.len().saturating_sub(1) / 2)) / 2.0;
        let outside = means_outside(differences.len());
        let end = |at: Option<usize>| at.and_then(|at| means.get(at).copied());
        Self { value, low: end(outside), high: end(outside.and_then(|at| (means.len() - 1).checked_sub(at))) }
    }

    /// The same with each number passed through a function that grows.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { value: f(self.value), low: self.low.map(&f), high: self.high.map(&f) }
    }
}

/// Of very many differences the means of neighbours, so that there are few enough.
fn thinned(differences: &[f64]) -> Vec<f64> {
    let neighbours = differences.len().div_ceil(MOST_DIFFERENCES).max(1);
    differences.chunks(neighbours).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect()
}

/// The means of all pairs of differences, each with itself too, in order of size.
fn walsh_averages(differences: &[f64]) -> Vec<f64> {
    let pairs = differences.iter().enumerate().flat_map(|(at, a)| differences[at..].iter().map(move |b| (a + b) / 2.0));
    let mut means: Vec<f64> = pairs.collect();
    means.sort_by(f64::total_cmp);
    means
}

/// How many of the means lie outside the interval at either end; `None` where so few pairs allow none.
///
/// The sum of the ranks of positive differences has, where there is no effect, the distribution of a sum over a coin flip for each
/// rank: it is built up rank by rank.
fn means_outside(pairs: usize) -> Option<usize> {
    let mut chance = vec![1.0_f64];
    for rank in 1..=pairs {
        let mut next = vec![0.0; chance.len() + rank];
        for (sum, p) in chance.iter().enumerate() {
            next[sum] += p / 2.0;
            next[sum + rank] += p / 2.0;
        }
        chance = next;
    }
    let mut below = 0.0;
    let within = chance.iter().take_while(|p| {
        below += *p;
        below <= TAIL
    });
    within.count().checked_sub(1)
}

/// The middle value, the mean of the two middle ones of an even number; 0 of none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |at: usize| values.get(at).copied().unwrap_or_default();
    (at(values.len() / 2) + at(values.len().saturating_sub(1) / 2)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Differences in height of plants that were cross- and self-fertilised, an eighth of an inch: Darwin's, as every textbook has them.
    const DARWIN: [f64; 15] =
        [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];

    /// Of the 120 means, the middle, and the 26th from either end: 25 is what tables of the test say of 15 pairs at 5 %.
    #[test]
    fn darwins_plants_grow_taller_when_crossed() {
        assert_eq!(Estimate::of(&DARWIN), Estimate { value: 25.0, low: Some(4.0), high: Some(41.5) });
    }

    /// Critical values of the two-sided test at 5 %, from printed tables.
    #[test]
    fn intervals_are_those_of_the_tables() {
        for (pairs, critical) in
            [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52), (25, 89), (30, 137), (50, 434)]
        {
            assert_eq!(means_outside(pairs), Some(critical), "{pairs} pairs");
        }
        for pairs in 0..6 {
            assert_eq!(means_outside(pairs), None, "{pairs} pairs");
        }
        // Beyond what 2 to the number of pairs can be held as.
        assert!(means_outside(1100).is_some());
    }

    #[test]
    fn few_pairs_have_an_estimate_and_no_interval() {
        let estimate = Estimate::of(&[1.0, 2.0, 6.0]);
        assert_eq!(estimate, Estimate { value: 2.75, low: None, high: None });
        assert_eq!(Estimate::of(&[]), Estimate { value: 0.0, low: None, high: None });
        assert_eq!(estimate.map(|x| x * 2.0).value, 5.5);
    }

    #[test]
    fn of_very_many_pairs_neighbours_are_taken_together() {
        let many: Vec<f64> = (0..100_000).map(|at| 3.0 + f64::from(at % 7) - 3.0).collect();
        let estimate = Estimate::of(&many);
        assert!(
            (estimate.value - 3.0).abs() < 0.01 && estimate.low.unwrap() > 2.9 && estimate.high.unwrap() < 3.1,
            "{estimate:?}"
        );
        assert_eq!(thinned(&[1.0, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let distribution = Distribution::of((1..=1000).rev().map(f64::from).chain([f64::NAN]).collect());
        assert_eq!((distribution.count, distribution.mean), (1000, 500.5));
        assert_eq!((distribution.p50, distribution.p99), (501.0, 991.0));
        assert_eq!((distribution.percentiles.len(), distribution.percentiles[0]), (101, 1.0));
        assert_eq!(distribution.percentiles[100], 1000.0);
        assert_eq!(Distribution::of(vec![7.0]).percentiles, vec![7.0; 101]);
        let nothing = Distribution::of(Vec::new());
        assert_eq!((nothing.count, nothing.p99, nothing.percentiles.len()), (0, 0.0, 0));
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![1.0, 4.0]), median(Vec::new())), (2.0, 2.5, 0.0));
    }
}
