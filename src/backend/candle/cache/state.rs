//! What linear layers remember of each sequence, on the device: one slot a sequence or snapshot, allocated once.

use candle_core::{DType, Device, Result, Tensor};

use crate::backend::candle::kernels::{conv_tails, copy_slots};
use crate::backend::candle::model::layers::DeltaShape;
use crate::backend::candle::plan::StateCopy;

/// One layer's memory, f32.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct LayerState {
    /// The heads' matrices, `[slots, ...]` in the form that the recurrence wants.
    pub(in crate::backend::candle) matrices: Tensor,
    /// The convolution's last inputs, see [`conv_tails`].
    pub(in crate::backend::candle) tails: Tensor,
}

impl LayerState {
    /// Zeros. The system gives their pages when they are first used.
    pub(in crate::backend::candle) fn allocate(shape: DeltaShape, slots: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            matrices: Tensor::zeros(shape.kernel().states(slots), DType::F32, device)?,
            tails: Tensor::zeros(conv_tails(slots, shape.channels()), DType::F32, device)?,
        })
    }

    /// Copies whole slots.
    pub(in crate::backend::candle) fn copy(&self, copies: &[StateCopy]) -> Result<()> {
        copy_slots(&self.matrices, copies)?;
        copy_slots(&self.tails, copies)
    }
}
