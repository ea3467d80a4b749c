//! How long to wait before dialling again.

use std::time::Duration;

use rand::Rng;

/// The first wait, and the base of the doubling.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait: a gateway that is back is found again within this.
const LONGEST: Duration = Duration::from_secs(30);

/// Doubling waits with jitter, so that a fleet does not dial in step after an outage.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next wait: between half and all of the doubled one.
    pub(super) fn next(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// After a success the next failure waits the shortest time again.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_anew() {
        let mut backoff = Backoff::default();
        for doubled in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            let wait = backoff.next().as_secs_f64();
            assert!((doubled / 2.0..=doubled).contains(&wait), "{wait} for {doubled}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
        backoff.failures = u32::MAX;
        assert!(backoff.next() <= LONGEST);
    }
}
