//! The threads of a world, behind the door of a single runner.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::backend::candle::plan::{StepError, StepOutput, StepPlan, StepRunner};

/// Makes a rank's runner on the rank's own thread, so that what it holds of a device need never move.
pub(in crate::backend::candle) type MakeRunner<E> = Box<dyn FnOnce(usize) -> Result<Box<dyn StepRunner>, E> + Send>;

/// How long ranks that have not answered are still heard once another has failed: those who wait for one another give up within
/// moments, and one that hangs never will.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// A world of ranks, each on a thread of its own. Rank 0's answer is the world's; when any rank fails, so does the world, for good.
pub(in crate::backend::candle) struct Ranks {
    plans: Vec<Sender<Arc<StepPlan>>>,
    answers: Receiver<(usize, Result<StepOutput, StepError>)>,
    threads: Vec<JoinHandle<()>>,
    failed: Option<String>,
}

impl Ranks {
    /// Starts a rank for each maker and waits until all have made their runners.
    ///
    /// # Errors
    /// The first maker's that failed; `refused` where the system gives no thread, or one died.
    pub(in crate::backend::candle) fn start<E: Send + 'static>(
        makers: Vec<MakeRunner<E>>,
        refused: impl Fn(String) -> E,
    ) -> Result<Self, E> {
        let (outbox, answers) = mpsc::channel();
        let (ready, made) = mpsc::channel();
        let mut world = Self { plans: Vec::new(), answers, threads: Vec::new(), failed: None };
        for (number, make) in makers.into_iter().enumerate() {
            let (plans, inbox) = mpsc::channel::<Arc<StepPlan>>();
            let (outbox, ready) = (outbox.clone(), ready.clone());
            let work = move || {
                let mut runner = match make(number) {
                    Ok(runner) => {
                        let _ = ready.send(Ok(()));
                        runner
                    }
                    Err(error) => return drop(ready.send(Err(error))),
                };
                // Whoever waits for the others to be made must not wait for this one.
                drop(ready);
                for plan in inbox {
                    let answer = catch_unwind(AssertUnwindSafe(|| runner.run(&plan)));
                    let answer = answer.unwrap_or_else(|_| Err(StepError::fatal("a fault of this program".into())));
                    let failed = answer.is_err();
                    if outbox.send((number, answer)).is_err() || failed {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("rank-{number}")).spawn(work);
            world.threads.push(thread.map_err(|error| refused(format!("rank {number}: {error}")))?);
            world.plans.push(plans);
        }
        drop(ready);
        for _ in 0..world.plans.len() {
            // The first that fails is the reason: the others fail since it does not come, or hang, and are not waited for.
            let failure = match made.recv() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error,
                Err(mpsc::RecvError) => refused("one of them died while it started".into()),
            };
            world.failed = Some("it did not start".into());
            return Err(failure);
        }
        Ok(world)
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepOutput, String> {
        let plan = Arc::new(plan.clone());
        for (number, plans) in self.plans.iter().enumerate() {
            plans.send(Arc::clone(&plan)).map_err(|_| format!("rank {number} is gone"))?;
        }
        let mut first = None;
        let mut reasons = Vec::new();
        let mut until: Option<Instant> = None;
        // All of them are heard, so that no answer of this step is taken for the next one's.
        for _ in 0..self.plans.len() {
            let answer = match until {
                None => self.answers.recv().map_err(|_| "all ranks are gone".to_owned())?,
                Some(until) => match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(answer) => answer,
                    Err(_) => break,
                },
            };
            match answer {
                (0, Ok(output)) => first = Some(output),
                (_, Ok(_)) => {}
                (number, Err(error)) => {
                    until.get_or_insert_with(|| Instant::now() + LAST_WORDS);
                    reasons.push(format!("rank {number}: {}", error.reason));
                }
            }
        }
        match (reasons.is_empty(), first) {
            (true, Some(output)) => Ok(output),
            _ => Err(reasons.join("; ")),
        }
    }
}

impl StepRunner for Ranks {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        if let Some(reason) = &self.failed {
            return Err(StepError::fatal(reason.clone()));
        }
        self.step(plan).map_err(|reason| {
            self.failed = Some(reason.clone());
            StepError::fatal(reason)
        })
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.plans.clear();
        // A world that failed may have a rank that hangs: nobody waits for that.
        if self.failed.is_none() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::candidates::RowLogits;
    use crate::backend::candle::parallel::{Communicator, ThreadComm, world};

    /// Meets the others in each step, and answers with its number; from a step on it fails in some way.
    struct Scripted {
        comm: ThreadComm,
        steps: usize,
        fault: Option<(usize, Fault)>,
    }

    #[derive(Debug, Clone, Copy)]
    enum Fault {
        Error,
        Panic,
        Hang,
    }

    impl StepRunner for Scripted {
        fn run(&mut self, _: &StepPlan) -> Result<StepOutput, StepError> {
            self.steps += 1;
            match self.fault.filter(|(step, _)| *step == self.steps) {
                Some((_, Fault::Error)) => return Err(StepError::fatal("out of memory".into())),
                Some((_, Fault::Panic)) => std::panic::resume_unwind(Box::new("a fault")),
                // Longer than the others' patience: they must not wait for it.
                Some((_, Fault::Hang)) => std::thread::sleep(Duration::from_secs(3600)),
                None => {}
            }
            let x = candle_core::Tensor::new(&[1_f32], &candle_core::Device::Cpu).unwrap();
            self.comm.all_reduce_sum(&x).map_err(|e| StepError::fatal(e.to_string()))?;
            let logits = vec![RowLogits::All(vec![self.comm.rank() as f32])];
            Ok(StepOutput { logits, ..StepOutput::default() })
        }
    }

    fn start(patience: Duration, fault: Option<(usize, Fault)>) -> Ranks {
        let makers = world(3, patience).into_iter().map(|comm| {
            let fault = fault.filter(|_| comm.rank() == 1);
            let make: MakeRunner<String> =
                Box::new(move |_| Ok(Box::new(Scripted { comm, steps: 0, fault }) as Box<dyn StepRunner>));
            make
        });
        Ranks::start(makers.collect(), |reason| reason).map_err(|reason| panic!("{reason}")).unwrap()
    }

    #[test]
    fn rank_0_answers() {
        let mut ranks = start(Duration::from_secs(60), None);
        for _ in 0..100 {
            assert_eq!(ranks.run(&StepPlan::default()).unwrap().logits, [RowLogits::All(vec![0.0])]);
        }
    }

    #[test]
    fn any_rank_that_fails_takes_the_world_with_it() {
        for (fault, named, patience) in [
            (Fault::Error, "rank 1: out of memory", Duration::from_secs(60)),
            (Fault::Panic, "rank 1: a fault of this program", Duration::from_secs(60)),
            (Fault::Hang, "waited", Duration::from_millis(20)),
        ] {
            let mut ranks = start(patience, Some((3, fault)));
            let began = Instant::now();
            for _ in 0..2 {
                ranks.run(&StepPlan::default()).unwrap();
            }
            for _ in 0..2 {
                let error = ranks.run(&StepPlan::default()).unwrap_err();
                assert!(error.fatal && error.reason.contains(named), "{fault:?}: {error:?}");
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{fault:?}");
        }
    }

    /// Its maker died, or never comes back: the others find out, and nobody waits for ever.
    #[test]
    fn a_rank_that_is_lost_while_it_starts_is_the_worlds_error() {
        for hangs in [false, true] {
            let comms = world(2, Duration::from_millis(20));
            let makers = comms.into_iter().map(|comm| {
                let make: MakeRunner<String> = Box::new(move |number| {
                    if number == 0 && hangs {
                        loop {
                            std::thread::park();
                        }
                    } else if number == 0 {
                        std::panic::resume_unwind(Box::new("a fault"));
                    }
                    comm.barrier().map_err(|error| error.to_string())?;
                    Ok(Box::new(Scripted { comm, steps: 0, fault: None }) as Box<dyn StepRunner>)
                });
                make
            });
            let reason = Ranks::start(makers.collect(), |reason| reason).err().unwrap();
            assert!(reason.contains("rank 0 has ended") || reason.contains("rank 1 waited"), "{reason}");
        }
    }

    #[test]
    fn a_rank_that_cannot_start_is_the_worlds_error() {
        let comms = world(2, Duration::from_secs(60));
        let makers = comms.into_iter().map(|comm| {
            let make: MakeRunner<String> = Box::new(move |number| match number {
                0 => Ok(Box::new(Scripted { comm, steps: 0, fault: None }) as Box<dyn StepRunner>),
                _ => Err("no weights".into()),
            });
            make
        });
        assert_eq!(Ranks::start(makers.collect(), |reason| reason).err().unwrap(), "no weights");
    }
}
