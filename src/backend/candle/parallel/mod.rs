//! Ranks that share one model: how they talk, and the threads that they run on.
//!
//! A rank is one thread with its shard of the weights and its part of the layers' memory. The scheduler gives all of them the same
//! plan; within a step they meet in [`Communicator`]'s collectives, and rank 0 answers.

mod ranks;
mod solo;
mod threads;

use candle_core::{Result, Tensor};

pub(super) use ranks::{MakeRunner, Ranks};
pub(super) use solo::Solo;
#[cfg(test)]
pub(super) use threads::ThreadComm;
pub(super) use threads::world;

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
}
