//! Weights where they lie.

use std::ops::Range;
use std::sync::Arc;

use super::e4m3;
use super::format::{BLOCK, Bf16, Decode, F16, F32, Format, Fp8E4m3, Q4_0, Q4_1, Q8_0, SQUARE, StoredRow};
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
    /// From a stored row to the next one: more than a row's bytes where this is some columns of a wider matrix.
    stride: usize,
    order: RowOrder,
    /// `[ceil(stored rows / SQUARE), ceil(columns / SQUARE)]`, times 256, where the format has scales beside its bytes.
    scales: Arc<[f32]>,
}

/// Which stored row is which output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::candle) enum RowOrder {
    /// As stored.
    Plain,
    /// llama.cpp's converter interleaves the two halves of each head's query and key rows (stored row `2j + h` of a head
    /// is output `h * d/2 + j`), because its rotary embedding turns neighbouring pairs; ours turns halves.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
    /// Some of the stored rows: runs of `run` of them, which begin at `starts`.
    Picked {
        /// Rows of a run.
        run: usize,
        /// The first stored row of each.
        starts: Arc<[usize]>,
    },
}

impl Matrix {
    /// `None` if the bytes are not those of `rows` times `columns` weights, or if the format wants scales beside them.
    pub(in crate::backend::candle) fn new(
        bytes: SharedBytes,
        format: Format,
        rows: usize,
        columns: usize,
        order: RowOrder,
    ) -> Option<Self> {
        if format == Format::Fp8E4m3 {
            return None;
        }
        let scales = Arc::new([]);
        Self::of(bytes, format, (rows, columns), order, scales)
    }

    /// Weights in eight-bit floating point, none of them NaN (see [`e4m3::first_nan`]), each to be multiplied by the scale of its square: `[ceil(rows / SQUARE),
    /// ceil(columns / SQUARE)]`. `None` if the sizes do not fit, or a scale is none (see [`Matrix::is_scale`]).
    pub(in crate::backend::candle) fn with_scales(
        bytes: SharedBytes,
        rows: usize,
        columns: usize,
        scales: &[f32],
    ) -> Option<Self> {
        let count = rows.div_ceil(SQUARE).checked_mul(columns.div_ceil(SQUARE))?;
        if scales.len() != count || !scales.iter().all(|scale| Self::is_scale(*scale)) {
            return None;
        }
        let scales = scales.iter().map(|scale| scale * 256.0).collect();
        Self::of(bytes, Format::Fp8E4m3, (rows, columns), RowOrder::Plain, scales)
    }

    /// Whether a number can be a scale: above zero, and all weights in its square finite.
    pub(in crate::backend::candle) fn is_scale(scale: f32) -> bool {
        scale > 0.0 && scale <= f32::MAX / e4m3::MAX
    }

    fn of(
        bytes: SharedBytes,
        format: Format,
        (rows, columns): (usize, usize),
        order: RowOrder,
        scales: Arc<[f32]>,
    ) -> Option<Self> {
        let row_bytes = format.row_bytes(columns)?;
        let fits = columns > 0 && bytes.len() == row_bytes.checked_mul(rows)?;
        let ordered = match order {
            RowOrder::Plain => true,
            RowOrder::Interleaved { head_dim } => {
                head_dim > 0 && head_dim.is_multiple_of(2) && rows.is_multiple_of(head_dim)
            }
            // Made of a whole matrix only.
            RowOrder::Picked { .. } => false,
        };
        (fits && ordered).then_some(Self { bytes, format, rows, columns, row_bytes, stride: row_bytes, order, scales })
    }

    /// The two matrices whose runs of `run` rows take turns in this one: Qwen3.5 stores each head's gates behind its queries.
    /// `None` if they do not come out even.
    pub(in crate::backend::candle) fn alternating(&self, run: usize) -> Option<[Self; 2]> {
        if run == 0 || !self.rows.is_multiple_of(2 * run) {
            return None;
        }
        let part = |part: usize| {
            let runs = (part * run..self.rows).step_by(2 * run).map(|first| first..first + run);
            self.rows_of(&runs.collect::<Vec<_>>())
        };
        Some([part(0)?, part(1)?])
    }

    /// Some of its outputs, in order. `None` where they are not there, or the rows of a head are stored in another order.
    pub(in crate::backend::candle) fn rows_of(&self, ranges: &[Range<usize>]) -> Option<Self> {
        if ranges.iter().any(|range| range.start >= range.end || range.end > self.rows) {
            return None;
        }
        let rows = ranges.iter().map(Range::len).sum();
        if let (RowOrder::Interleaved { head_dim }, [range]) = (&self.order, ranges) {
            // Heads are reordered each within itself.
            let whole = range.start.is_multiple_of(*head_dim) && range.end.is_multiple_of(*head_dim);
            let bytes = self.bytes.part(range.start * self.stride..self.bytes.len())?;
            return whole.then(|| Self { bytes, rows, ..self.clone() });
        }
        // Runs as long as all of them, and the runs of which this one is made, allow.
        let own = match &self.order {
            RowOrder::Plain => 0,
            RowOrder::Picked { run, .. } => *run,
            RowOrder::Interleaved { .. } => return None,
        };
        let run = ranges.iter().fold(own, |run, range| gcd(gcd(run, range.start), range.end));
        let starts =
            ranges.iter().flat_map(|range| range.clone().step_by(run)).map(|first| self.place(first)).collect();
        Some(Self { order: RowOrder::Picked { run, starts }, rows, ..self.clone() })
    }

    /// Some of its columns. `None` where they are not there, or would cut through a block of the format or a square with one
    /// scale.
    pub(in crate::backend::candle) fn columns_of(&self, range: Range<usize>) -> Option<Self> {
        if range.start >= range.end || range.end > self.columns {
            return None;
        }
        let (skipped, row_bytes) = (self.format.row_bytes(range.start)?, self.format.row_bytes(range.len())?);
        let mut scales = Arc::clone(&self.scales);
        if self.is_eight_bit() {
            let whole = |column: usize| column.is_multiple_of(SQUARE) || column == self.columns;
            if !whole(range.start) || !whole(range.end) {
                return None;
            }
            let across = self.columns.div_ceil(SQUARE);
            let own = range.start / SQUARE..range.end.div_ceil(SQUARE);
            scales = self.scales.chunks_exact(across).flat_map(|row| row[own.clone()].iter().copied()).collect();
        }
        let bytes = self.bytes.part(skipped..self.bytes.len())?;
        Some(Self { bytes, columns: range.len(), row_bytes, scales, ..self.clone() })
    }

    /// The same weights in bytes of their own, if these are a part of a buffer: who holds a part of it would hold all of it. Parts of
    /// a mapped file cost nothing and stay what they are, as do parts whose squares with one scale begin anywhere.
    pub(in crate::backend::candle) fn detached(self) -> Self {
        let whole = matches!(self.order, RowOrder::Plain) && self.bytes.len() == self.rows * self.row_bytes;
        if self.bytes.is_mapped() || whole {
            return self;
        }
        let mut scales = Vec::new();
        if self.is_eight_bit() {
            for first in (0..self.rows).step_by(SQUARE) {
                let last = (first + SQUARE).min(self.rows) - 1;
                let squares = [first, last].map(|row| self.place(row) / SQUARE);
                if squares[0] != squares[1] || !self.place(first).is_multiple_of(SQUARE) {
                    return self;
                }
                scales.extend_from_slice(self.row(first, self.rows).scales);
            }
        }
        let bytes = (0..self.rows).flat_map(|row| self.row_bytes(row)).copied().collect();
        let (stride, order) = (self.row_bytes, RowOrder::Plain);
        Self { bytes: SharedBytes::owned(bytes), stride, order, scales: scales.into(), ..self }
    }

    pub(in crate::backend::candle) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether its weights are stored in eight-bit floating point.
    pub(in crate::backend::candle) fn is_eight_bit(&self) -> bool {
        self.format == Format::Fp8E4m3
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(in crate::backend::candle) fn columns(&self) -> usize {
        self.columns
    }

    /// What is stored of output `row`; output `ahead` is read after it.
    pub(super) fn row(&self, row: usize, ahead: usize) -> StoredRow<'_> {
        let stored = self.place(row);
        let scales = match self.format {
            Format::Fp8E4m3 => {
                let (square, count) = (stored / SQUARE, self.columns.div_ceil(SQUARE));
                &self.scales[square * count..(square + 1) * count]
            }
            _ => &[],
        };
        let bytes = |stored: usize| &self.bytes[stored * self.stride..stored * self.stride + self.row_bytes];
        let ahead = if ahead < self.rows { bytes(self.place(ahead)) } else { &[] };
        StoredRow { bytes: bytes(stored), scales, ahead }
    }

    /// Which stored row output `row` is.
    pub(in crate::backend::candle) fn place(&self, row: usize) -> usize {
        match &self.order {
            RowOrder::Plain => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + 2 * (within % (head_dim / 2)) + within / (head_dim / 2)
            }
            RowOrder::Picked { run, starts } => starts[row / run] + row % run,
        }
    }

    /// The stored bytes of output `row`.
    pub(in crate::backend::candle) fn row_bytes(&self, row: usize) -> &[u8] {
        self.row(row, self.rows).bytes
    }

    /// One row's weights as f32, into `out` (`[columns]`).
    pub(in crate::backend::candle) fn decode_row(&self, row: usize, out: &mut [f32]) {
        let row = self.row(row, self.rows);
        match self.format {
            Format::F32 => decode::<F32>(row, out),
            Format::F16 => decode::<F16>(row, out),
            Format::Bf16 => decode::<Bf16>(row, out),
            Format::Fp8E4m3 => decode::<Fp8E4m3>(row, out),
            Format::Q4_0 => decode::<Q4_0>(row, out),
            Format::Q4_1 => decode::<Q4_1>(row, out),
            Format::Q8_0 => decode::<Q8_0>(row, out),
        }
    }
}

/// The greatest common divisor; of 0 and a number, the number.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn decode<D: Decode>(row: StoredRow<'_>, out: &mut [f32]) {
    let (blocks, end) = D::blocks(row.bytes);
    let (wide, wide_end) = out.split_at_mut((BLOCK * blocks.len()).min(out.len()));
    let wide = wide.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
    for (at, (block, out)) in blocks.iter().zip(wide).enumerate() {
        for (half, out) in D::decode::<Portable>(block, D::scale(row.scales, at)).into_iter().zip(out) {
            half.store(out);
        }
    }
    if let Some(width) = D::WEIGHT_BYTES
        && !end.is_empty()
    {
        let scale = D::scale(row.scales, blocks.len());
        for (weight, out) in end.chunks_exact(width).zip(wide_end) {
            *out = D::weight(weight, scale);
        }
    }
}
