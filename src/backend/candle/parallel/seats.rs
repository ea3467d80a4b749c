//! Places in a world, before its ranks' threads have taken them.

use std::time::Duration;

use candle_core::{Device, Error, Result};

#[cfg(feature = "nccl")]
use super::nccl::{self, GpuSeat};
use super::{Communicator, ThreadComm, world};
use crate::backend::candle::device::Devices;

/// A rank's place. It may travel; what is made of it belongs to the thread that takes it.
pub(in crate::backend::candle) enum Seat {
    /// On the processor.
    Cpu(ThreadComm),
    /// On a GPU.
    #[cfg(feature = "nccl")]
    Gpu(GpuSeat),
}

/// A place for each device.
///
/// # Errors
/// When the machine or this build lacks one of them.
pub(in crate::backend::candle) fn seats(devices: &Devices, patience: Duration) -> Result<Vec<Seat>> {
    devices.find().map_err(Error::wrap)?;
    match devices {
        Devices::Cpu(count) => Ok(world(*count, patience).into_iter().map(Seat::Cpu).collect()),
        #[cfg(feature = "nccl")]
        Devices::Cuda(gpus) => Ok(nccl::world(gpus, patience)?.into_iter().map(Seat::Gpu).collect()),
        #[cfg(not(feature = "nccl"))]
        Devices::Cuda(_) => Err(Error::wrap(crate::backend::candle::device::DeviceError::NoNccl)),
    }
}

impl Seat {
    /// Opens the device and joins the others; returns once all have.
    ///
    /// # Errors
    /// When the device does not open, or another rank fails or does not come.
    pub(in crate::backend::candle) fn take(self) -> Result<(Device, Box<dyn Communicator>)> {
        match self {
            Self::Cpu(comm) => Ok((Device::Cpu, Box::new(comm))),
            #[cfg(feature = "nccl")]
            Self::Gpu(seat) => {
                let (device, comm) = seat.take()?;
                Ok((Device::Cuda(device), Box::new(comm)))
            }
        }
    }
}
