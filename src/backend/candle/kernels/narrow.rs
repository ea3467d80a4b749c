//! Rows of f32 to bf16, as they leave the model.

use candle_core::{DType, Result, Storage, Tensor};
use half::bf16;

use super::rows::Rows;

/// Some rows of a tensor `[rows, width]`, rounded to bf16.
///
/// On the processor they are read where they stand: a step of few rows would otherwise spend more on tensors between than on the
/// numbers.
pub(in crate::backend::candle) fn narrow_rows(
    tensor: &Tensor,
    wanted: impl Iterator<Item = usize>,
) -> Result<Vec<Vec<bf16>>> {
    if tensor.dtype() == DType::F32
        && let (storage, layout) = tensor.storage_and_layout()
        && let Storage::Cpu(storage) = &*storage
    {
        let rows = Rows::new(storage, layout)?;
        return Ok(wanted.map(|row| rows.row(row).iter().map(|x| round(*x)).collect()).collect());
    }
    let wanted: Vec<u32> = wanted.filter_map(|row| u32::try_from(row).ok()).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let rows = if wanted.len() == tensor.dims2()?.0 {
        tensor.clone()
    } else {
        tensor.index_select(&Tensor::new(wanted, tensor.device())?, 0)?
    };
    rows.to_dtype(DType::BF16)?.to_vec2()
}

/// To the nearest, of two as near the even one; no number stays none. Without a branch, so that several are rounded at once.
#[inline(always)]
fn round(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let none = bits >> 16 | 0x40;
    let is_number = bits & 0x7FFF_FFFF <= 0x7F80_0000;
    bf16::from_bits(if is_number { rounded } else { none } as u16)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::backend::candle::kernels::testing::normal;

    #[test]
    fn numbers_are_rounded_as_the_library_of_bf16_rounds_them() {
        // Each bf16, and around it what lies half-way and next to that.
        for high in 0..=u32::from(u16::MAX) {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let x = f32::from_bits(high << 16 | low);
                let (own, theirs) = (round(x), bf16::from_f32(x));
                assert!(own.to_bits() == theirs.to_bits(), "{x}: {own} and {theirs}");
            }
        }
    }

    #[test]
    fn the_wanted_rows_come_in_their_order() {
        let whole = normal(3, 6, 40);
        // Some columns of it, so that rows do not stand one behind the other.
        let part = whole.narrow(1, 4, 33).unwrap();
        for tensor in [whole, part] {
            let all = tensor.to_dtype(DType::BF16).unwrap().to_vec2::<bf16>().unwrap();
            for wanted in [vec![], vec![4], vec![0, 2, 5], (0..6).collect()] {
                let expected: Vec<Vec<bf16>> = wanted.iter().map(|row: &usize| all[*row].clone()).collect();
                assert_eq!(narrow_rows(&tensor, wanted.iter().copied()).unwrap(), expected);
                let doubles = tensor.to_dtype(DType::F64).unwrap();
                assert_eq!(narrow_rows(&doubles, wanted.into_iter()).unwrap(), expected, "not where they stand");
            }
        }
        assert!(narrow_rows(&Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap(), [0].into_iter()).is_err());
    }
}
