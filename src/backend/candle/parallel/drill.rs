//! Ranks that fail on purpose: what becomes of a world, and of whoever watches over the program, can be tried out.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_core::{Result, Tensor, bail};

use super::Communicator;

/// A fault that a rank has on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankFault {
    /// Which rank.
    pub rank: usize,
    /// At which of its collectives, from 1, counted from the start.
    pub collective: usize,
    /// What happens there.
    pub kind: FaultKind,
}

/// What a rank does in place of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Its thread dies.
    Panic,
    /// It reports an error.
    Error,
    /// It never comes back.
    Hang,
    /// It comes late, by so long.
    Delay(Duration),
}

impl FromStr for RankFault {
    type Err = String;

    /// `RANK:COLLECTIVE:panic`, `error`, `hang` or milliseconds.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("{text:?} is not RANK:COLLECTIVE:KIND with a KIND of panic, error, hang or milliseconds");
        let &[rank, collective, kind] = text.split(':').collect::<Vec<_>>().as_slice() else {
            return Err(wrong());
        };
        let kind = match kind {
            "panic" => FaultKind::Panic,
            "error" => FaultKind::Error,
            "hang" => FaultKind::Hang,
            delay => FaultKind::Delay(Duration::from_millis(delay.parse().map_err(|_| wrong())?)),
        };
        let number = |text: &str| text.parse().map_err(|_| wrong());
        Ok(Self { rank: number(rank)?, collective: number(collective)?, kind })
    }
}

/// A rank's communicator with a fault in it, perhaps.
#[derive(Debug)]
pub(in crate::backend::candle) struct Drilled<C> {
    comm: C,
    fault: Option<RankFault>,
    collectives: AtomicUsize,
}

impl<C: Communicator> Drilled<C> {
    /// `fault` is another rank's, or this one's.
    pub(in crate::backend::candle) fn new(comm: C, fault: Option<RankFault>) -> Self {
        let fault = fault.filter(|fault| fault.rank == comm.rank());
        Self { comm, fault, collectives: AtomicUsize::new(0) }
    }

    /// Comes to a collective, or fails at it.
    fn come(&self) -> Result<&C> {
        let number = self.collectives.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(fault) = self.fault.filter(|fault| fault.collective == number) else {
            return Ok(&self.comm);
        };
        match fault.kind {
            // Not a panic of this program's making: no hook reports it as a defect.
            FaultKind::Panic => std::panic::resume_unwind(Box::new("a drill")),
            FaultKind::Error => bail!("a drill: it fails at collective {number}"),
            FaultKind::Hang => loop {
                std::thread::park();
            },
            FaultKind::Delay(delay) => std::thread::sleep(delay),
        }
        Ok(&self.comm)
    }
}

impl<C: Communicator> Communicator for Drilled<C> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn world(&self) -> usize {
        self.comm.world()
    }

    fn all_reduce_sum(&self, x: &Tensor) -> Result<Tensor> {
        self.come()?.all_reduce_sum(x)
    }

    fn all_gather_columns(&self, x: &Tensor) -> Result<Tensor> {
        self.come()?.all_gather_columns(x)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.come()?.broadcast(x, root)
    }

    fn barrier(&self) -> Result<()> {
        self.come()?.barrier()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_rank_collective_and_kind() {
        let fault = |kind| RankFault { rank: 1, collective: 25, kind };
        assert_eq!("1:25:panic".parse(), Ok(fault(FaultKind::Panic)));
        assert_eq!("1:25:hang".parse(), Ok(fault(FaultKind::Hang)));
        assert_eq!("1:25:300".parse(), Ok(fault(FaultKind::Delay(Duration::from_millis(300)))));
        for wrong in ["", "1", "1:2", "1:2:3:4", "x:2:error", "1:-2:error", "1:2:late"] {
            assert!(wrong.parse::<RankFault>().unwrap_err().contains("RANK:COLLECTIVE:KIND"), "{wrong}");
        }
    }
}
