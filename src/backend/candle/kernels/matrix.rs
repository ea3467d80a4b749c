//! Weights where they lie.

use super::format::{BLOCK, Bf16, Decode, F16, F32, Format, Q4_0, Q4_1, Q8_0};
use super::lanes::{LANES, Lanes, Portable};
use crate::checkpoint::SharedBytes;

/// Weights `[rows, columns]`, one stored row an output.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Matrix {
    bytes: SharedBytes,
    format: Format,
    rows: usize,
    columns: usize,
    row_bytes: usize,
    order: RowOrder,
}

/// Which stored row is which output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) enum RowOrder {
    /// As stored.
    Plain,
    /// llama.cpp's converter interleaves the two halves of each head's query and key rows (stored row `2j + h` of a head
    /// is output `h * d/2 + j`), because its rotary embedding turns neighbouring pairs; ours turns halves.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
}

impl Matrix {
    /// `None` if the bytes are not those of `rows` times `columns` weights.
    pub(in crate::backend::candle) fn new(
        bytes: SharedBytes,
        format: Format,
        rows: usize,
        columns: usize,
        order: RowOrder,
    ) -> Option<Self> {
        let row_bytes = format.row_bytes(columns)?;
        let fits = columns > 0 && bytes.len() == row_bytes.checked_mul(rows)?;
        let ordered = match order {
            RowOrder::Plain => true,
            RowOrder::Interleaved { head_dim } => {
                head_dim > 0 && head_dim.is_multiple_of(2) && rows.is_multiple_of(head_dim)
            }
        };
        (fits && ordered).then_some(Self { bytes, format, rows, columns, row_bytes, order })
    }

    pub(in crate::backend::candle) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(in crate::backend::candle) fn columns(&self) -> usize {
        self.columns
    }

    /// The stored bytes of output `row`.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let stored = match self.order {
            RowOrder::Plain => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + 2 * (within % (head_dim / 2)) + within / (head_dim / 2)
            }
        };
        &self.bytes[stored * self.row_bytes..(stored + 1) * self.row_bytes]
    }

    /// One row's weights as f32, into `out` (`[columns]`).
    pub(in crate::backend::candle) fn decode_row(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row(row);
        match self.format {
            Format::F32 => decode::<F32>(bytes, out),
            Format::F16 => decode::<F16>(bytes, out),
            Format::Bf16 => decode::<Bf16>(bytes, out),
            Format::Q4_0 => decode::<Q4_0>(bytes, out),
            Format::Q4_1 => decode::<Q4_1>(bytes, out),
            Format::Q8_0 => decode::<Q8_0>(bytes, out),
        }
    }
}

fn decode<D: Decode>(row: &[u8], out: &mut [f32]) {
    let (blocks, end) = D::blocks(row);
    let (wide, wide_end) = out.split_at_mut((BLOCK * blocks.len()).min(out.len()));
    for (block, out) in blocks.iter().zip(wide.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0) {
        for (half, out) in D::decode::<Portable>(block).into_iter().zip(out) {
            half.store(out);
        }
    }
    if let Some(width) = D::WEIGHT_BYTES {
        for (weight, out) in end.chunks_exact(width).zip(wide_end) {
            *out = D::weight(weight);
        }
    }
}
