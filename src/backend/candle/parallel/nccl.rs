//! Ranks on the GPUs of one machine, which meet over NCCL. No other file knows it.
//!
//! Collectives are queued on the GPU's stream and return at once; [`Communicator::barrier`] is where a rank waits. A GPU that waits
//! for another in a collective waits for ever, and so would a thread that waits for that GPU: hence `barrier` looks again and again,
//! and leaves when the patience ends or another rank has.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use candle_core::cuda::cudarc::driver::DriverError;
use candle_core::cuda::cudarc::nccl::result::NcclError;
use candle_core::cuda::cudarc::nccl::{Comm, Id, ReduceOp};
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp1, DType, Device, Error, Layout, Result, Shape, Tensor, bail,
};

use super::{Communicator, ThreadComm};
use crate::backend::candle::device::open_gpu;

/// A rank's place in a world of GPUs, for its thread to take.
pub(super) struct GpuSeat {
    roll: ThreadComm,
    id: Id,
    gpu: usize,
}

/// A place for a rank on each of these GPUs, where ranks wait for one another for so long at most.
pub(super) fn world(gpus: &[usize], patience: Duration) -> Result<Vec<GpuSeat>> {
    let id = Id::new().map_err(|error| refused("does not start", &error))?;
    let ranks = super::world(gpus.len(), patience);
    Ok(ranks.into_iter().zip(gpus).map(|(roll, &gpu)| GpuSeat { roll, id, gpu }).collect())
}

impl GpuSeat {
    /// Opens the GPU and joins the others, on the rank's own thread: a communicator belongs to the thread that makes it.
    pub(super) fn take(self) -> Result<(CudaDevice, Nccl)> {
        let Self { roll, id, gpu } = self;
        let (rank, world) = (roll.rank(), roll.world());
        let device =
            open_gpu(gpu).map_err(|error| Error::Msg(format!("rank {rank}: cuda:{gpu} does not open: {error}")))?;
        // NCCL would wait without end for a rank whose GPU did not open; this meeting does not.
        roll.barrier()?;
        let comm = Comm::from_rank(device.cuda_stream(), rank, world, id)
            .map_err(|error| refused(&format!("does not take in rank {rank} on cuda:{gpu}"), &error))?;
        Ok((device.clone(), Nccl { device, comm: RefCell::new(Some(comm)), roll }))
    }
}

/// One rank's end of a world of GPUs.
pub(super) struct Nccl {
    device: CudaDevice,
    /// `None` once the rank has left the world.
    comm: RefCell<Option<Comm>>,
    /// Where the ranks' threads meet: finds at once that one has ended, which NCCL does not.
    roll: ThreadComm,
}

impl Nccl {
    /// Queues a collective of all ranks' tensors.
    fn queue(&self, x: &Tensor, kind: Kind) -> Result<Tensor> {
        let comm = self.comm.borrow();
        let Some(comm) = &*comm else { bail!("{}", self.roll.why_over()) };
        if !x.device().same_device(&Device::Cuda(self.device.clone())) || x.dtype() != DType::F32 {
            bail!(
                "rank {} brings {:?} on {:?} to {}, which takes f32 on its own cuda:{}",
                self.rank(),
                x.dtype(),
                x.device().location(),
                kind.name(),
                comm.ordinal()
            );
        }
        x.contiguous()?.apply_op1_no_bwd(&Collective { comm, kind })
    }

    /// Takes this rank out of the world: ends what its GPU still waits for.
    fn leave(&self) {
        if let Some(comm) = self.comm.borrow_mut().take() {
            // The library panics where NCCL fails at that. The GPU is then lost, and the reason for leaving is what matters.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(comm)));
        }
    }

    fn wait(&self) -> Result<()> {
        let failed = |error: DriverError| Error::Msg(format!("rank {}: its GPU failed: {error}", self.rank()));
        let done = self.device.cuda_stream().record_event(None).map_err(failed)?;
        self.roll.wait_for(|| done.try_is_complete().map_err(failed))?;
        // Its own GPU is done; another's may still read from it.
        self.roll.barrier()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // The others hear of it first: they may be on their way into a collective.
        self.roll.end();
        self.leave();
    }
}

impl Communicator for Nccl {
    fn rank(&self) -> usize {
        self.roll.rank()
    }

    fn world(&self) -> usize {
        self.roll.world()
    }

    fn all_reduce_sum(&self, x: &Tensor) -> Result<Tensor> {
        self.queue(x, Kind::Sum)
    }

    fn all_gather_columns(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, columns) = x.dims2()?;
        // One after the other, [world, rows, columns]; with one row that is side by side.
        let all = self.queue(x, Kind::Gather)?;
        all.transpose(0, 1)?.reshape((rows, self.world() * columns))
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        if root >= self.world() {
            bail!("rank {root} was to broadcast in a world of {}", self.world());
        }
        self.queue(x, Kind::Broadcast { root })
    }

    fn barrier(&self) -> Result<()> {
        self.wait().inspect_err(|_| self.leave())
    }
}

/// What ranks do together.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Sum,
    /// All tensors, one after the other along a new first dimension.
    Gather,
    Broadcast {
        root: usize,
    },
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Sum => "all-reduce",
            Self::Gather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
        }
    }
}

/// A collective as an operation on this rank's tensor.
struct Collective<'a> {
    comm: &'a Comm,
    kind: Kind,
}

impl CustomOp1 for Collective<'_> {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("{} over NCCL of a tensor on the processor", self.name())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else { bail!("{} of a strided tensor", self.name()) };
        let own = storage.as_cuda_slice::<f32>()?.slice(from..to);
        let mut shape = layout.dims().to_vec();
        if let Kind::Gather = self.kind {
            shape.insert(0, self.comm.world_size());
        }
        let shape = Shape::from(shape);
        // SAFETY: the collective writes every element, and all that reads them is queued behind it on the same stream. Where it
        // fails they are freed unread.
        let mut all = unsafe { storage.device.alloc::<f32>(shape.elem_count())? };
        let queued = match self.kind {
            Kind::Sum => self.comm.all_reduce(&own, &mut all, &ReduceOp::Sum),
            Kind::Gather => self.comm.all_gather(&own, &mut all),
            Kind::Broadcast { root } => {
                self.comm.broadcast(Some(&own), &mut all, i32::try_from(root).map_err(Error::wrap)?)
            }
        };
        queued.map_err(|error| refused(&format!("fails at rank {}'s {}", self.comm.rank(), self.name()), &error))?;
        Ok((CudaStorage::wrap_cuda_slice(all, storage.device.clone()), shape))
    }
}

/// NCCL's own reasons are in its log alone.
fn refused(what: &str, error: &NcclError) -> Error {
    Error::Msg(format!("NCCL {what} ({:?}); NCCL_DEBUG=WARN shows why", error.0))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;
    use crate::backend::candle::device::Devices;
    use crate::backend::candle::parallel::greet;

    /// As many GPUs as there are, up to `most`; says why where there are fewer than `least`.
    fn gpus(least: usize, most: usize) -> Option<Vec<usize>> {
        let found = (0..most).take_while(|&number| Devices::Cuda(vec![number]).find().is_ok()).count();
        if found >= least {
            return Some((0..found).collect());
        }
        let why = Devices::Cuda(vec![least - 1]).find().unwrap_err();
        let _ = writeln!(std::io::stderr(), "skipped, needs {least} GPUs: {why}");
        None
    }

    fn on_ranks<T: Send>(gpus: &[usize], work: impl Fn(&Device, Nccl) -> T + Sync) -> Vec<T> {
        let seats = world(gpus, Duration::from_secs(20)).unwrap();
        std::thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = seats
                .into_iter()
                .map(|seat| {
                    scope.spawn(move || {
                        let (device, comm) = seat.take().unwrap();
                        work(&Device::Cuda(device), comm)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_collectives_on_the_gpus_there_are() {
        let Some(gpus) = gpus(1, 4) else { return };
        let world = gpus.len();
        let results = on_ranks(&gpus, |device, comm| {
            greet(&comm, &[1, 2, 3], device).unwrap();
            let x: Vec<f32> = (0..6).map(|at| (10 * comm.rank() + at) as f32).collect();
            let x = Tensor::from_slice(&x, (2, 3), device).unwrap();
            // A view that is not contiguous comes as what it shows.
            let sum = comm.all_reduce_sum(&x.t().unwrap()).unwrap();
            let columns = comm.all_gather_columns(&x).unwrap();
            let last = comm.broadcast(&x, world - 1).unwrap();
            comm.barrier().unwrap();
            [sum, columns, last].map(|x| x.to_vec2::<f32>().unwrap())
        });
        let value = |rank: usize, row: usize, column: usize| (10 * rank + 3 * row + column) as f32;
        for [sum, columns, last] in results {
            for (row, column) in (0..2).flat_map(|row| (0..3).map(move |column| (row, column))) {
                assert_eq!(sum[column][row], (0..world).map(|rank| value(rank, row, column)).sum::<f32>());
                assert_eq!(last[row][column], value(world - 1, row, column));
                for rank in 0..world {
                    assert_eq!(columns[row][3 * rank + column], value(rank, row, column));
                }
            }
        }
    }

    #[test]
    fn what_nccl_does_not_take_is_refused_by_name() {
        let Some(gpus) = gpus(1, 1) else { return };
        on_ranks(&gpus, |device, comm| {
            for x in [
                Tensor::ones((1, 1), DType::BF16, device).unwrap(),
                Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap(),
            ] {
                let reason = comm.all_reduce_sum(&x).unwrap_err().to_string();
                assert!(reason.contains("rank 0 brings") && reason.contains("cuda:0"), "{reason}");
            }
            assert!(comm.broadcast(&Tensor::ones((1, 1), DType::F32, device).unwrap(), 1).is_err());
        });
    }

    #[test]
    fn a_rank_that_ends_is_missed_at_once() {
        let Some(gpus) = gpus(2, 2) else { return };
        let began = Instant::now();
        let reasons = on_ranks(&gpus, |device, comm| {
            let x = Tensor::ones((1, 8), DType::F32, device).unwrap();
            comm.all_reduce_sum(&x).unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                return String::new();
            }
            // This GPU waits for the other one's part, which never comes.
            comm.all_reduce_sum(&x).unwrap();
            let reason = comm.barrier().unwrap_err().to_string();
            assert!(comm.all_reduce_sum(&x).unwrap_err().to_string().contains("rank 1 has ended"), "and it stays so");
            reason
        });
        assert!(reasons[0].contains("rank 1 has ended"), "{reasons:?}");
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}
