//! How long collectives take on this machine: behind `engy-miner bench collectives`.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Error, Result, Tensor, bail};
use serde::Serialize;

use super::ranks::LAST_WORDS;
use super::seats::Seat;
use super::{Communicator, greet, seats};
use crate::backend::candle::device::Devices;

/// Samples of each kind before those that count: they load kernels, and NCCL connects ranks for a size when it first comes.
const WARM_UP: usize = 3;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// Rows of the tensors, one measurement each.
    pub rows: Vec<usize>,
    /// Their columns.
    pub columns: usize,
    /// Samples of each.
    pub samples: usize,
    /// Collectives that a sample queues before it waits, as a step does.
    pub in_a_row: usize,
    /// How long a rank waits for the others.
    pub patience: Duration,
}

/// What a collective of one size takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CollectiveTime {
    /// `all_reduce_sum` or `all_gather_columns`.
    pub collective: &'static str,
    /// How ranks meet: `threads` or `nccl`.
    pub over: &'static str,
    /// How many there are.
    pub ranks: usize,
    /// Rows of the tensor that each brings.
    pub rows: usize,
    /// Its columns.
    pub columns: usize,
    /// Its bytes, f32.
    pub bytes: usize,
    /// The middle of the samples, microseconds a collective. A sample is the slowest rank's.
    pub median_us: f64,
    /// What 99 of 100 samples do not exceed.
    pub p99_us: f64,
}

impl Measurement {
    /// Measures on these devices. Blocks for as long as it takes.
    ///
    /// # Errors
    /// When a device is missing, or a rank fails.
    pub fn run(&self, devices: &Devices) -> Result<Vec<CollectiveTime>> {
        let seats = seats(devices, self.patience)?;
        let ranks = seats.len();
        let (outbox, inbox) = mpsc::channel();
        for (rank, seat) in seats.into_iter().enumerate() {
            let (outbox, of_rank) = (outbox.clone(), self.clone());
            let work = move || drop(outbox.send((rank, of_rank.rank(seat))));
            // Not joined: once one has failed, another may hang.
            std::thread::Builder::new().name(format!("rank-{rank}")).spawn(work).map_err(Error::wrap)?;
        }
        drop(outbox);
        let of_ranks = hear(&inbox, ranks)?;
        let over = match devices {
            Devices::Cpu(_) => "threads",
            Devices::Cuda(_) => "nccl",
        };
        let kinds = COLLECTIVES.iter().flat_map(|(name, _)| self.rows.iter().map(move |&rows| (*name, rows)));
        let times = kinds.enumerate().map(|(kind, (collective, rows))| {
            let slowest =
                |sample: usize| of_ranks.iter().map(|of_rank| of_rank[kind][sample]).max().unwrap_or_default();
            let mut samples: Vec<Duration> = (0..self.samples).map(slowest).collect();
            samples.sort();
            let at = |share: f64| samples[((samples.len() - 1) as f64 * share).ceil() as usize].as_nanos() as f64 / 1e3;
            CollectiveTime {
                collective,
                over,
                ranks,
                rows,
                columns: self.columns,
                bytes: rows * self.columns * DType::F32.size_in_bytes(),
                median_us: at(0.5),
                p99_us: at(0.99),
            }
        });
        Ok(times.collect())
    }

    /// A rank's samples, by kind.
    fn rank(&self, seat: Seat) -> Result<Vec<Vec<Duration>>> {
        let (device, comm) = seat.take()?;
        greet(comm.as_ref(), &self.rows, &device)?;
        let mut kinds = Vec::new();
        for (_, collective) in COLLECTIVES {
            for &rows in &self.rows {
                let x = Tensor::ones((rows, self.columns), DType::F32, &device)?;
                let all = (0..WARM_UP + self.samples).map(|_| self.sample(&device, comm.as_ref(), collective, &x));
                kinds.push(all.collect::<Result<Vec<_>>>()?.split_off(WARM_UP));
            }
        }
        // A rank that leaves ends the world of those who are still in it.
        comm.barrier()?;
        Ok(kinds)
    }

    /// What one of so many in a row takes.
    fn sample(&self, device: &Device, comm: &dyn Communicator, collective: Collective, x: &Tensor) -> Result<Duration> {
        comm.barrier()?;
        let began = Instant::now();
        for _ in 0..self.in_a_row {
            collective(comm, x)?;
        }
        device.synchronize()?;
        Ok(began.elapsed() / u32::try_from(self.in_a_row).unwrap_or(u32::MAX))
    }
}

/// What all ranks have measured, in no order. Where one failed the others are still heard for a moment: theirs may be the reason.
fn hear<T>(inbox: &mpsc::Receiver<(usize, Result<T>)>, ranks: usize) -> Result<Vec<T>> {
    let (mut heard, mut reasons) = (Vec::with_capacity(ranks), Vec::new());
    while heard.len() + reasons.len() < ranks {
        let next = match reasons.is_empty() {
            true => inbox.recv().ok(),
            false => inbox.recv_timeout(LAST_WORDS).ok(),
        };
        match next {
            Some((_, Ok(measured))) => heard.push(measured),
            Some((rank, Err(error))) => reasons.push(format!("rank {rank}: {error}")),
            None => break,
        }
    }
    match (reasons.is_empty(), heard.len() == ranks) {
        (true, true) => Ok(heard),
        (true, false) => bail!("a rank ended without a word"),
        (false, _) => bail!("{}", reasons.join("; ")),
    }
}

type Collective = fn(&dyn Communicator, &Tensor) -> Result<Tensor>;

/// What a step asks for: sums after each half of a layer, and the logits' parts side by side at its end.
const COLLECTIVES: [(&str, Collective); 2] = [
    ("all_reduce_sum", |comm, x| comm.all_reduce_sum(x)),
    ("all_gather_columns", |comm, x| comm.all_gather_columns(x)),
];

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn every_kind_is_measured_on_every_number_of_ranks() {
        let measurement = Measurement { rows: vec![1, 3], columns: 8, samples: 10, in_a_row: 2, patience: PATIENCE };
        for ranks in [1, 2, 3] {
            let times = measurement.run(&Devices::Cpu(ranks)).unwrap();
            let kinds: Vec<_> = times.iter().map(|t| (t.collective, t.rows, t.bytes)).collect();
            let sum = "all_reduce_sum";
            let gather = "all_gather_columns";
            assert_eq!(kinds, [(sum, 1, 32), (sum, 3, 96), (gather, 1, 32), (gather, 3, 96)]);
            for time in times {
                assert!(time.over == "threads" && time.ranks == ranks);
                let line = serde_json::to_value(&time).unwrap();
                let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
                assert_eq!(keys, ["collective", "over", "ranks", "rows", "columns", "bytes", "median_us", "p99_us"]);
                assert!(0.0 < time.median_us && time.median_us <= time.p99_us, "{time:?}");
            }
        }
    }

    #[test]
    fn the_reason_is_heard_behind_what_came_of_it() {
        let (outbox, inbox) = mpsc::channel();
        outbox.send((0, Err(Error::Msg("rank 1 has ended".into())))).unwrap();
        outbox.send((2, Ok(()))).unwrap();
        outbox.send((1, Err(Error::Msg("out of memory".into())))).unwrap();
        let reason = hear(&inbox, 3).unwrap_err().to_string();
        assert!(reason.contains("rank 0: rank 1 has ended; rank 1: out of memory"), "{reason}");
        drop(outbox);
        assert!(hear(&inbox, 1).unwrap_err().to_string().contains("without a word"));
    }

    #[test]
    fn a_missing_gpu_is_one_line() {
        let gpus = Devices::Cuda(vec![63]);
        let measurement = Measurement { rows: vec![1], columns: 8, samples: 1, in_a_row: 1, patience: PATIENCE };
        let reason = measurement.run(&gpus).unwrap_err().to_string();
        assert!(reason.contains(&gpus.find().unwrap_err().to_string()), "{reason}");
    }
}
