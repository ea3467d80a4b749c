//! Operands as rows.

use std::ops::Range;

use candle_core::{CpuStorage, Layout, Result, bail};

/// Values `[rows, width]`, each row contiguous: a whole tensor or some columns of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    values: &'a [f32],
    count: usize,
    width: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &Layout) -> Result<Self> {
        let CpuStorage::F32(values) = storage else { bail!("computed in f32 on CPU") };
        let (count, width) = layout.shape().dims2()?;
        match *layout.stride() {
            [stride, step] if step == 1 || width <= 1 => {
                Ok(Self { values: &values[layout.start_offset()..], count, width, stride })
            }
            _ => bail!("the values of a row must stand side by side"),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..row * self.stride + self.width]
    }

    /// Some of a row's values.
    pub(super) fn part(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        &self.row(row)[columns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::testing::normal;

    #[test]
    fn columns_of_a_tensor_are_rows_and_its_transpose_is_not() {
        let whole = normal(1, 5, 7);
        let part = whole.narrow(1, 2, 3).unwrap().narrow(0, 1, 4).unwrap();
        let check = |tensor: &candle_core::Tensor| {
            let (storage, layout) = tensor.storage_and_layout();
            let candle_core::Storage::Cpu(storage) = &*storage else { panic!("on CPU") };
            let rows = Rows::new(storage, layout)?;
            Ok::<_, candle_core::Error>((0..rows.count()).map(|row| rows.row(row).to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(check(&part).unwrap(), part.to_vec2::<f32>().unwrap());
        assert!(check(&whole.t().unwrap()).is_err());
    }
}
