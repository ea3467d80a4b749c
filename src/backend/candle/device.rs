//! Where ranks compute: the names that operators write, and what this build and this machine make of them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A device by its name: `cpu`, or `cuda:N` for the GPU that the driver counts as number N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match text.strip_prefix("cuda:").map(number) {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(Some(number)) => Ok(Self::Cuda(number)),
            _ => Err(DeviceError::Unknown(text.into())),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// The devices of a world, one a rank: the processor for all of them, or a GPU for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Devices {
    /// So many ranks on this machine's processor.
    Cpu(usize),
    /// One rank on each of these GPUs.
    Cuda(Vec<usize>),
}

/// Why ranks cannot compute where they were told to.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The name says nothing.
    #[error("{0:?} is no device; write cpu, or cuda:0 for the first GPU")]
    Unknown(String),
    /// Ranks without a device, or devices without a rank.
    #[error("--devices names {named} and --tp-size says {ranks}: each rank has one device")]
    Count {
        /// Devices.
        named: usize,
        /// Ranks.
        ranks: usize,
    },
    /// Ranks that could not meet.
    #[error("--devices names the processor beside GPUs; ranks meet on one kind: write cpu for all or cuda:N for all")]
    Mixed,
    /// Two ranks on one GPU, which NCCL refuses.
    #[error("--devices names {0} twice: each rank has a GPU of its own")]
    Twice(DeviceName),
    /// The build knows no GPU.
    #[error(
        "--devices names {0}: this build computes on the processor alone; build with --features nccl (docs/cuda.md) or write cpu"
    )]
    NotBuilt(DeviceName),
    /// The build has tensors on GPUs and no way for ranks to meet there.
    #[error(
        "ranks on GPUs meet over NCCL, which this build lacks; build with --features nccl (docs/cuda.md) or write cpu"
    )]
    NoNccl,
    /// `libcuda.so.1` is not there.
    #[error(
        "no NVIDIA driver on this machine: libcuda.so.1 is not found; install the driver (nvidia-smi then runs) or write --devices cpu"
    )]
    NoDriver,
    /// It is, and finds no GPU.
    #[error(
        "the NVIDIA driver finds no GPU: see whether nvidia-smi lists one and this container is given it, or write --devices cpu"
    )]
    NoGpu,
    /// It fails in another way.
    #[error("the NVIDIA driver does not start: {0}; see what nvidia-smi says, or write --devices cpu")]
    Driver(String),
    /// A number above the last one.
    #[error("there is no {name}: the driver finds {count} GPUs, counted from cuda:0 (nvidia-smi lists them)")]
    Absent {
        /// The one asked for.
        name: DeviceName,
        /// How many there are.
        count: usize,
    },
    /// Models cannot be computed there yet.
    #[error(
        "--devices names {0}: the layers of models have kernels for the processor alone so far; write cpu (bench collectives runs on GPUs)"
    )]
    NoKernels(DeviceName),
}

impl Devices {
    /// The devices that an operator named, one for each of so many ranks; where none is named, the processor for all.
    ///
    /// # Errors
    /// When the names do not make a world, or not with this build. The machine is not asked.
    pub fn new(named: Option<&[DeviceName]>, ranks: usize) -> Result<Self, DeviceError> {
        let Some(named) = named else { return Ok(Self::Cpu(ranks)) };
        if named.len() != ranks {
            return Err(DeviceError::Count { named: named.len(), ranks });
        }
        let mut gpus = Vec::new();
        for (at, &name) in named.iter().enumerate() {
            let DeviceName::Cuda(number) = name else { continue };
            if !cfg!(feature = "cuda") {
                return Err(DeviceError::NotBuilt(name));
            }
            if named[..at].contains(&name) {
                return Err(DeviceError::Twice(name));
            }
            gpus.push(number);
        }
        match gpus.len() {
            0 => Ok(Self::Cpu(ranks)),
            all if all == ranks => Ok(Self::Cuda(gpus)),
            _ => Err(DeviceError::Mixed),
        }
    }

    /// Finds out whether the machine has them.
    ///
    /// # Errors
    /// When it has no driver, or fewer GPUs.
    pub fn find(&self) -> Result<(), DeviceError> {
        let Self::Cuda(gpus) = self else { return Ok(()) };
        let count = gpu_count()?;
        match gpus.iter().find(|&&number| number >= count) {
            None => Ok(()),
            Some(_) if count == 0 => Err(DeviceError::NoGpu),
            Some(&number) => Err(DeviceError::Absent { name: DeviceName::Cuda(number), count }),
        }
    }

    /// Whether a model can be computed there.
    ///
    /// # Errors
    /// On GPUs: what is missing on the machine, or else in this program.
    pub fn for_models(&self) -> Result<(), DeviceError> {
        self.find()?;
        match self {
            Self::Cuda(gpus) => {
                Err(DeviceError::NoKernels(DeviceName::Cuda(gpus.first().copied().unwrap_or_default())))
            }
            Self::Cpu(_) => Ok(()),
        }
    }
}

/// GPUs that the driver finds.
#[cfg(feature = "cuda")]
fn gpu_count() -> Result<usize, DeviceError> {
    use candle_core::cuda::cudarc::driver::CudaContext;
    use candle_core::cuda::cudarc::driver::sys::CUresult;

    match CudaContext::device_count() {
        Ok(count) => Ok(usize::try_from(count).unwrap_or_default()),
        // The answer of scripts/cuda/driver.c and of the toolkit's own stand-in.
        Err(error) if error.0 == CUresult::CUDA_ERROR_STUB_LIBRARY => Err(DeviceError::NoDriver),
        Err(error) if error.0 == CUresult::CUDA_ERROR_NO_DEVICE => Err(DeviceError::NoGpu),
        Err(error) => Err(DeviceError::Driver(format!("{:?}", error.0))),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu_count() -> Result<usize, DeviceError> {
    Ok(0)
}

/// Opens a GPU, with one stream for all that is asked of it.
///
/// # Errors
/// The driver's.
#[cfg(feature = "nccl")]
pub(super) fn open_gpu(number: usize) -> candle_core::Result<candle_core::CudaDevice> {
    let device = candle_core::CudaDevice::new_with_stream(number)?;
    // Not the stream of the calling thread, which would be another one on each thread. The library then guards every tensor with
    // events, which one stream does not need and which cost as much as a small kernel.
    //
    // SAFETY: all work on this device's tensors is queued on its one stream, in order; no other stream ever touches them.
    unsafe { device.disable_event_tracking() };
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<DeviceName>, DeviceError> {
        text.split(',').map(str::parse).collect()
    }

    #[test]
    fn names_are_read_and_written() {
        for name in ["cpu", "cuda:0", "cuda:17"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        for wrong in
            ["", "gpu", "CPU", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:99999999999999999999", "cpu "]
        {
            assert_eq!(wrong.parse::<DeviceName>(), Err(DeviceError::Unknown(wrong.into())));
        }
    }

    #[test]
    fn each_rank_has_one_device() {
        assert_eq!(Devices::new(None, 4), Ok(Devices::Cpu(4)));
        let of = |text: &str, ranks| Devices::new(Some(&names(text).unwrap()), ranks);
        assert_eq!(of("cpu,cpu", 2), Ok(Devices::Cpu(2)));
        assert_eq!(of("cpu,cpu", 1), Err(DeviceError::Count { named: 2, ranks: 1 }));
        assert_eq!(of("cpu", 2), Err(DeviceError::Count { named: 1, ranks: 2 }));
        if cfg!(feature = "cuda") {
            assert_eq!(of("cuda:2,cuda:0", 2), Ok(Devices::Cuda(vec![2, 0])));
            assert_eq!(of("cuda:1,cuda:1", 2), Err(DeviceError::Twice(DeviceName::Cuda(1))));
            assert_eq!(of("cuda:1,cpu", 2), Err(DeviceError::Mixed));
        } else {
            assert_eq!(of("cpu,cuda:1", 2), Err(DeviceError::NotBuilt(DeviceName::Cuda(1))));
        }
    }

    #[test]
    fn models_are_computed_on_the_processor() {
        assert_eq!(Devices::Cpu(2).for_models(), Ok(()));
        // Whatever the machine lacks, it says so and does not panic.
        let gpus = Devices::Cuda(vec![0]);
        let refused = gpus.for_models().unwrap_err();
        match gpus.find() {
            Ok(()) => assert_eq!(refused, DeviceError::NoKernels(DeviceName::Cuda(0))),
            Err(missing) => assert_eq!(refused, missing),
        }
        assert!(!refused.to_string().contains('\n'));
    }
}
