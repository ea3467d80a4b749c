//! Ranks that share one model: how they talk, and the threads that they run on.
//!
//! A rank is one thread with its shard of the weights and its part of the layers' memory. The scheduler gives all of them the same
//! plan; within a step they meet in [`Communicator`]'s collectives, and rank 0 answers.

mod drill;
mod measure;
#[cfg(feature = "nccl")]
mod nccl;
mod ranks;
mod seats;
mod solo;
mod threads;

use candle_core::{DType, Device, Result, Tensor, bail};

pub(super) use drill::Drilled;
pub use drill::{FaultKind, RankFault};
pub use measure::{CollectiveTime, Measurement};
pub(super) use ranks::{MakeRunner, Ranks};
use seats::seats;
pub(super) use solo::Solo;
pub(super) use threads::{ThreadComm, world};

/// What ranks do together. Every rank of a world calls the same collectives in the same order; one that does not come keeps the
/// others waiting until their patience ends, and then all of them fail.
///
/// Belongs to one rank's thread and stays there.
pub(super) trait Communicator {
    /// Which of them this is, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn world(&self) -> usize;

    /// The sum of all ranks' tensors of one shape, f32, on every rank. The order of addition is the same on every rank and in every run.
    ///
    /// # Errors
    /// When another rank failed or did not come, or shapes differ.
    fn all_reduce_sum(&self, x: &Tensor) -> Result<Tensor>;

    /// All ranks' tensors `[rows, n]`, f32, side by side in the order of the ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`].
    fn all_gather_columns(&self, x: &Tensor) -> Result<Tensor>;

    /// Rank `root`'s tensor, f32, on every rank; all bring one of the same shape.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_sum`].
    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor>;

    /// Returns once every rank has come and what was asked of this rank's device before is done. Behind it, results may be read.
    ///
    /// # Errors
    /// When another rank failed or did not come.
    fn barrier(&self) -> Result<()>;
}

/// The ranks' first meeting: finds a world that is wired wrongly, or whose ranks hold parts of different models, before a buyer does.
/// `own` are numbers that must be the same on all ranks.
///
/// # Errors
/// When a rank differs or does not come.
pub(super) fn greet(comm: &dyn Communicator, own: &[usize], device: &Device) -> Result<()> {
    let own: Vec<f32> = own.iter().map(|&number| number as f32).collect();
    let row = Tensor::from_slice(&own, (1, own.len()), device)?;
    let first = comm.broadcast(&row, 0)?;
    let ranks = comm.all_gather_columns(&Tensor::full(comm.rank() as f32, (1, 1), device)?)?;
    let count = comm.all_reduce_sum(&Tensor::ones((1, 1), DType::F32, device)?)?;
    comm.barrier()?;
    let read = |x: Tensor| x.flatten_all()?.to_vec1::<f32>();
    let (first, ranks, count) = (read(first)?, read(ranks)?, read(count)?);
    if first != own {
        bail!("rank {} holds a part of another model than rank 0: {own:?} where that has {first:?}", comm.rank());
    }
    if count != [comm.world() as f32] || !ranks.iter().copied().eq((0..comm.world()).map(|rank| rank as f32)) {
        bail!("rank {} of {} counts {count:?} ranks and sees {ranks:?}", comm.rank(), comm.world());
    }
    Ok(())
}
