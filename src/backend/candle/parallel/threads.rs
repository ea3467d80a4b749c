//! Ranks as threads of one process that meet in memory: sharding can be proven on any machine.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Error, Result, Tensor, bail};

use super::Communicator;

/// One rank's end of a world of threads.
///
/// When it is dropped the world is over for the others: a rank that ends, for whatever reason, is missed at once and not only when
/// their patience ends.
pub(in crate::backend::candle) struct ThreadComm {
    rank: usize,
    world: usize,
    meeting: Arc<Meeting>,
}

/// Where the ranks of a world meet.
struct Meeting {
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// A round goes from the first rank's arrival to the last one's departure.
#[derive(Default)]
struct State {
    /// What each rank has brought to this round.
    brought: Vec<Option<Tensor>>,
    /// What came of it, once all were there.
    result: Option<Tensor>,
    /// Ranks that still have to take it.
    to_leave: usize,
    /// Why no round can come to an end any more.
    broken: Option<String>,
}

/// A world of `count` ranks that wait for one another for so long at most.
pub(in crate::backend::candle) fn world(count: usize, patience: Duration) -> Vec<ThreadComm> {
    let state = State { brought: vec![None; count], ..State::default() };
    let meeting = Arc::new(Meeting { patience, state: Mutex::new(state), changed: Condvar::new() });
    (0..count).map(|rank| ThreadComm { rank, world: count, meeting: Arc::clone(&meeting) }).collect()
}

impl ThreadComm {
    /// Brings a tensor to the meeting; the last to come makes of all of them, in the order of the ranks, what each takes away.
    fn meet(&self, x: &Tensor, join: impl FnOnce(Vec<Tensor>) -> Result<Tensor>) -> Result<Tensor> {
        let Meeting { patience, changed, .. } = &*self.meeting;
        let until = Instant::now() + *patience;
        // The former round's result must have been taken by all.
        let mut state = self.wait(self.meeting.lock(), until, |state| state.to_leave == 0)?;
        if let Some(reason) = &state.broken {
            bail!("{reason}");
        }
        state.brought[self.rank] = Some(x.clone());
        if state.brought.iter().all(Option::is_some) {
            let joined = join(state.brought.iter_mut().filter_map(Option::take).collect());
            match joined {
                Ok(joined) => (state.result, state.to_leave) = (Some(joined), self.world),
                Err(error) => state.broken = Some(error.to_string()),
            }
            changed.notify_all();
        }
        let mut state = self.wait(state, until, |state| state.to_leave > 0 && state.brought[self.rank].is_none())?;
        let result = state.result.clone();
        state.to_leave -= 1;
        if state.to_leave == 0 {
            state.result = None;
            changed.notify_all();
        }
        result.ok_or_else(|| Error::Msg("a round of ranks ended without a result".into()))
    }

    /// Waits until `ready`, or fails for all.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        loop {
            // A round that all came to is over for each of them, even if one has left and ended since.
            if ready(&state) {
                return Ok(state);
            }
            if let Some(reason) = &state.broken {
                bail!("{reason}");
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.give_up(&mut state));
            }
            state = self.meeting.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl ThreadComm {
    /// The patience has ended: the world is over.
    fn give_up(&self, state: &mut State) -> Error {
        let patience = self.meeting.patience.as_secs();
        let reason = format!("rank {} waited {patience} s for another rank, which hangs or is gone", self.rank);
        self.meeting.fail(state, reason.clone());
        Error::Msg(reason)
    }

    /// The world is over, for this rank is.
    pub(super) fn end(&self) {
        self.meeting.fail(&mut self.meeting.lock(), format!("rank {} has ended", self.rank));
    }
}

/// For ranks whose work is done elsewhere than on their threads.
#[cfg(any(feature = "nccl", test))]
impl ThreadComm {
    /// Looks until `done`, or fails for all: when another rank has ended, or when the patience does.
    pub(super) fn wait_for(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !done()? {
            {
                let mut state = self.meeting.lock();
                if let Some(reason) = &state.broken {
                    bail!("{reason}");
                }
                if began.elapsed() > self.meeting.patience {
                    return Err(self.give_up(&mut state));
                }
            }
            if began.elapsed() < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SPIN / 100);
            }
        }
        Ok(())
    }

    /// Why the world is over.
    pub(super) fn why_over(&self) -> String {
        self.meeting.lock().broken.clone().unwrap_or_else(|| format!("rank {} has left its world", self.rank))
    }
}

/// How long a rank looks without a pause for what takes no longer than a step of single tokens; it then sleeps a hundredth of
/// that between two looks, which a longer step does not notice.
#[cfg(any(feature = "nccl", test))]
const SPIN: Duration = Duration::from_millis(10);

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A rank that panicked while it held the lock has left nothing half done that another would read: it is then broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, state: &mut State, reason: String) {
        state.broken.get_or_insert(reason);
        self.changed.notify_all();
    }
}

impl Drop for ThreadComm {
    fn drop(&mut self) {
        self.end();
    }
}

impl Communicator for ThreadComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn all_reduce_sum(&self, x: &Tensor) -> Result<Tensor> {
        self.meet(x, |all| {
            let mut all = all.into_iter();
            let Some(first) = all.next() else { bail!("a world without ranks") };
            all.try_fold(first, |sum, x| {
                if sum.shape() != x.shape() {
                    bail!("ranks bring tensors of {:?} and {:?} to one sum", sum.shape(), x.shape());
                }
                &sum + &x
            })
        })
    }

    fn all_gather_columns(&self, x: &Tensor) -> Result<Tensor> {
        self.meet(x, |all| Tensor::cat(&all, 1))
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.meet(x, |mut all| {
            let Some(first) = all.first() else { bail!("a world without ranks") };
            if let Some(other) = all.iter().find(|other| other.shape() != first.shape()) {
                bail!("ranks bring tensors of {:?} and {:?} to one broadcast", first.shape(), other.shape());
            }
            if root >= all.len() {
                bail!("rank {root} was to broadcast in a world of {}", all.len());
            }
            Ok(all.swap_remove(root))
        })
    }

    fn barrier(&self) -> Result<()> {
        self.meet(&Tensor::zeros((), DType::F32, &Device::Cpu)?, |mut all| {
            all.pop().ok_or_else(|| Error::Msg("a world without ranks".into()))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::candle::parallel::greet;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What each rank gets from `work`, run on a thread of its own.
    fn on_ranks<T: Send>(
        comms: Vec<ThreadComm>,
        work: impl Fn(&ThreadComm) -> T + Sync,
    ) -> Vec<std::thread::Result<T>> {
        std::thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || work(&comm))).collect();
            ranks.into_iter().map(|rank| rank.join()).collect()
        })
    }

    fn row(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, (1, values.len()), &Device::Cpu).unwrap()
    }

    #[test]
    fn sums_are_in_the_order_of_ranks_and_gathers_side_by_side() {
        for count in [1, 2, 4] {
            let results = on_ranks(world(count, PATIENCE), |comm| {
                let mut sums = Vec::new();
                for round in 0..200 {
                    // So different in size that another order of addition gives other bits.
                    let x = [1e8, 3.7, -1e8, 0.01][comm.rank()] + round as f32;
                    let sum = comm.all_reduce_sum(&row(&[x])).unwrap().to_vec2::<f32>().unwrap()[0][0];
                    let all = comm.all_gather_columns(&row(&[x, 1.0])).unwrap();
                    sums.push((sum, all.to_vec2::<f32>().unwrap().remove(0)));
                }
                sums
            });
            for sums in results {
                for (round, (sum, all)) in sums.unwrap().into_iter().enumerate() {
                    let x: Vec<f32> = [1e8, 3.7, -1e8, 0.01].iter().take(count).map(|x| x + round as f32).collect();
                    assert_eq!(sum, x.iter().skip(1).fold(x[0], |sum, x| sum + x));
                    assert_eq!(all, x.iter().flat_map(|x| [*x, 1.0]).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn every_rank_gets_what_one_of_them_has() {
        let results = on_ranks(world(3, PATIENCE), |comm| {
            let own = row(&[comm.rank() as f32, 7.0]);
            let got = (0..3).map(|root| comm.broadcast(&own, root).unwrap().to_vec2::<f32>().unwrap().remove(0));
            (got.collect::<Vec<_>>(), comm.broadcast(&own, 3).unwrap_err().to_string())
        });
        for result in results {
            let (got, refused) = result.unwrap();
            assert_eq!(got, [[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]]);
            assert!(refused.contains("rank 3 was to broadcast in a world of 3"), "{refused}");
        }
    }

    #[test]
    fn nobody_passes_a_barrier_before_all_have_come() {
        let arrived = AtomicUsize::new(0);
        let results = on_ranks(world(4, PATIENCE), |comm| {
            (1..=50).all(|round| {
                arrived.fetch_add(1, Ordering::SeqCst);
                comm.barrier().unwrap();
                arrived.load(Ordering::SeqCst) >= 4 * round
            })
        });
        assert!(results.into_iter().all(|passed| passed.unwrap()));
    }

    #[test]
    fn ranks_of_different_models_find_out_when_they_meet() {
        let greetings = |models: [usize; 3]| {
            on_ranks(world(3, PATIENCE), move |comm| greet(comm, &[64, models[comm.rank()]], &Device::Cpu))
        };
        assert!(greetings([2, 2, 2]).into_iter().all(|greeting| greeting.unwrap().is_ok()));
        let greeted: Vec<_> = greetings([2, 2, 3]).into_iter().map(|greeting| greeting.unwrap()).collect();
        assert!(greeted[0].is_ok());
        let error = greeted[2].as_ref().unwrap_err().to_string();
        assert!(error.contains("rank 2 holds a part of another model than rank 0"), "{error}");
    }

    #[test]
    fn a_rank_that_panics_is_missed_at_once() {
        let began = Instant::now();
        let results = on_ranks(world(3, PATIENCE), |comm| {
            if comm.rank() == 1 {
                std::panic::resume_unwind(Box::new("a fault"));
            }
            comm.all_reduce_sum(&row(&[1.0])).unwrap_err().to_string()
        });
        assert!(began.elapsed() < PATIENCE / 2);
        assert!(results[1].is_err());
        for rank in [0, 2] {
            let reason = results[rank].as_ref().unwrap();
            assert!(reason.contains("rank 1 has ended"), "{reason}");
        }
    }

    #[test]
    fn a_rank_that_hangs_is_waited_for_no_longer_than_said() {
        let mut comms = world(2, Duration::from_millis(20));
        // The other rank is there and never comes.
        let other = comms.pop().unwrap();
        let reason = comms[0].all_reduce_sum(&row(&[1.0])).unwrap_err().to_string();
        assert!(reason.contains("rank 0 waited"), "{reason}");
        assert!(
            other.all_reduce_sum(&row(&[1.0])).unwrap_err().to_string().contains("rank 0 waited"),
            "and it hears of that"
        );
    }

    #[test]
    fn work_elsewhere_is_waited_for_no_longer_than_others_are() {
        let mut looks = 0;
        let comms = world(2, Duration::from_millis(50));
        comms[0]
            .wait_for(|| {
                looks += 1;
                Ok(looks == 3)
            })
            .unwrap();
        let reason = comms[0].wait_for(|| Ok(false)).unwrap_err().to_string();
        assert!(reason.contains("rank 0 waited 0 s"), "{reason}");
        assert_eq!(comms[1].why_over(), reason);
        assert!(comms[1].wait_for(|| Ok(false)).unwrap_err().to_string().contains(&reason), "at once");
        assert!(comms[1].wait_for(|| bail!("no such GPU")).unwrap_err().to_string().contains("no such GPU"));

        let comms = world(2, PATIENCE);
        comms[1].end();
        assert!(comms[0].wait_for(|| Ok(false)).unwrap_err().to_string().contains("rank 1 has ended"));
        assert!(comms[0].wait_for(|| Ok(true)).is_ok(), "what is done is done");
    }

    #[test]
    fn ranks_that_disagree_fail_together() {
        let results = on_ranks(world(2, PATIENCE), |comm| {
            let x = if comm.rank() == 0 { row(&[1.0]) } else { row(&[1.0, 2.0]) };
            comm.all_reduce_sum(&x).unwrap_err().to_string()
        });
        for reason in results {
            assert!(reason.unwrap().contains("to one sum"));
        }
    }
}
