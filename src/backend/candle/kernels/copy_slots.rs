//! Copies of whole slots within a tensor.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

use crate::backend::candle::plan::StateCopy;

/// Copies slots of `[slots, ...]`, f32, one after the other.
pub(in crate::backend::candle) fn copy_slots(states: &Tensor, copies: &[StateCopy]) -> Result<()> {
    if copies.is_empty() { Ok(()) } else { states.inplace_op1(&CopySlots { copies }) }
}

struct CopySlots<'a> {
    copies: &'a [StateCopy],
}

impl InplaceOp1 for CopySlots<'_> {
    fn name(&self) -> &'static str {
        "copy-slots"
    }

    fn cpu_fwd(&self, states: &mut CpuStorage, at: &Layout) -> Result<()> {
        let (CpuStorage::F32(states), Some((start, end))) = (states, at.contiguous_offsets()) else {
            bail!("states are f32 and contiguous")
        };
        let slots = at.shape().dims().first().copied().unwrap_or_default();
        let size = (end - start) / slots.max(1);
        for StateCopy { from, to } in self.copies {
            let (from, to) = (*from as usize, *to as usize);
            if from >= slots || to >= slots {
                bail!("slot {from} or {to} is none of {slots}");
            }
            states.copy_within(start + from * size..start + (from + 1) * size, start + to * size);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn slots_are_copied_in_order() {
        let states = Tensor::new(&[[[1_f32, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]], &Device::Cpu).unwrap();
        copy_slots(&states, &[StateCopy { from: 0, to: 2 }, StateCopy { from: 2, to: 1 }]).unwrap();
        assert_eq!(states.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        assert!(copy_slots(&states, &[StateCopy { from: 0, to: 3 }]).is_err());
        assert!(copy_slots(&states, &[]).is_ok());
    }
}
