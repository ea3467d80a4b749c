//! Products in which some rows meet some weights: a mixture's experts in one go.
//!
//! An expert's share of a step is a row or a few, and its weights are read for them alone. Product by product, each would be
//! over before the other threads had woken; so all of them are cut into pieces together, and the threads share the pieces.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::dot::GROUP;
use super::elementwise::{by_rows, values};
use super::matmul::{by_outputs, transpose};
use super::matrix::Matrix;
use super::simd;

/// Activation rows of a piece: with more, they no longer stay in the cache next to the core while the weights pass by.
const PANEL: usize = 32;
/// Multiplications of a piece: some tens of microseconds, long against handing it over and short against a step.
const PIECE: usize = 1 << 20;

/// Rows that meet the same weights.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Segment {
    pub(in crate::backend::candle) rows: Range<usize>,
    /// Outputs side by side, as in a plain product.
    pub(in crate::backend::candle) matrices: Arc<[Matrix]>,
}

/// `x` `[rows, columns]` times the transposes of each row's own matrices: `[rows, outputs]`. The segments' rows follow one
/// another and are all there are; all segments have the same number of outputs.
pub(in crate::backend::candle) fn grouped_matmul(x: &Tensor, segments: Arc<[Segment]>) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&GroupedMatMul { segments })
}

struct GroupedMatMul {
    segments: Arc<[Segment]>,
}

/// Some outputs of some rows of a segment.
struct Piece<'a> {
    matrices: &'a [Matrix],
    rows: Range<usize>,
    first: usize,
    /// `[outputs, rows]`.
    out: &'a mut [f32],
}

impl CustomOp1 for GroupedMatMul {
    fn name(&self) -> &'static str {
        "grouped-matmul"
    }

    fn cpu_fwd(&self, x: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, columns) = at.shape().dims2()?;
        let x = values(x, at)?;
        let outputs = |segment: &Segment| segment.matrices.iter().map(Matrix::rows).sum::<usize>();
        let width = self.segments.first().map_or(0, outputs);
        let mut end = 0;
        for segment in self.segments.iter() {
            let fits = segment.matrices.iter().all(|matrix| matrix.columns() == columns);
            if segment.rows.start != end || segment.rows.end < end || outputs(segment) != width || !fits {
                bail!("a segment over rows {:?} does not fit {rows} rows of {columns} values", segment.rows);
            }
            end = segment.rows.end;
        }
        if end != rows {
            bail!("segments over {end} rows are given for {rows}");
        }
        // Panel by panel, each output by output; turned at the end.
        let mut turned = vec![0_f32; rows * width];
        let panels: Vec<(Range<usize>, &[Matrix])> = self.segments.iter().flat_map(panels).collect();
        let level = simd::level();
        pieces(&panels, width, columns, &mut turned).into_par_iter().for_each(|piece| piece.compute(x, columns, level));
        let mut out = vec![0_f32; rows * width];
        for (panel, _) in &panels {
            let at = panel.start * width..panel.end * width;
            transpose(&turned[at.clone()], panel.len(), &mut out[at]);
        }
        Ok((CpuStorage::F32(out), Shape::from((rows, width))))
    }
}

/// A segment's rows, a panel at a time.
fn panels(segment: &Segment) -> impl Iterator<Item = (Range<usize>, &[Matrix])> {
    let Range { start, end } = segment.rows;
    (start..end).step_by(PANEL).map(move |first| (first..end.min(first + PANEL), &*segment.matrices))
}

fn pieces<'a>(
    panels: &[(Range<usize>, &'a [Matrix])],
    width: usize,
    columns: usize,
    mut turned: &'a mut [f32],
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    for (rows, matrices) in panels {
        let share = (PIECE / (columns * rows.len()).max(1)).max(1).next_multiple_of(GROUP);
        for first in (0..width).step_by(share) {
            let count = share.min(width - first);
            let (out, rest) = turned.split_at_mut(count * rows.len());
            turned = rest;
            pieces.push(Piece { matrices, rows: rows.clone(), first, out });
        }
    }
    pieces
}

impl Piece<'_> {
    fn compute(self, x: &[f32], columns: usize, level: simd::Level) {
        let x = &x[self.rows.start * columns..self.rows.end * columns];
        by_outputs(level, self.matrices, self.first, x, columns, self.out);
    }
}

/// For each row, which rows of a product to add up, and their weights.
pub(in crate::backend::candle) type Shares = Vec<Vec<(usize, f32)>>;

/// `[rows, n]`: each row is the weighted sum of rows of `parts`, in the order of `shares`.
pub(in crate::backend::candle) fn weighted_sums(parts: &Tensor, shares: Shares) -> Result<Tensor> {
    parts.contiguous()?.apply_op1_no_bwd(&WeightedSums { shares })
}

/// The same, plus `sigmoid(gate) * extra` with `[rows, 1]` gates and `[rows, n]`.
pub(in crate::backend::candle) fn add_gated(sums: &Tensor, extra: &Tensor, gates: Vec<f32>) -> Result<Tensor> {
    sums.contiguous()?.apply_op2_no_bwd(&extra.contiguous()?, &AddGated { gates })
}

struct WeightedSums {
    shares: Shares,
}

impl CustomOp1 for WeightedSums {
    fn name(&self) -> &'static str {
        "weighted-sums"
    }

    fn cpu_fwd(&self, parts: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        let (count, n) = at.shape().dims2()?;
        let parts = values(parts, at)?;
        if self.shares.iter().flatten().any(|(part, _)| *part >= count) {
            bail!("a share of a row that is none of {count}");
        }
        let mut out = vec![0_f32; self.shares.len() * n];
        if n > 0 {
            by_rows(&mut out, n, |row, out| {
                for &(part, weight) in &self.shares[row] {
                    for (sum, value) in out.iter_mut().zip(&parts[part * n..(part + 1) * n]) {
                        *sum += weight * value;
                    }
                }
            });
        }
        Ok((CpuStorage::F32(out), Shape::from((self.shares.len(), n))))
    }
}

struct AddGated {
    gates: Vec<f32>,
}

impl CustomOp2 for AddGated {
    fn name(&self) -> &'static str {
        "add-gated"
    }

    fn cpu_fwd(
        &self,
        sums: &CpuStorage,
        sums_at: &Layout,
        extra: &CpuStorage,
        extra_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, n) = sums_at.shape().dims2()?;
        if extra_at.shape() != sums_at.shape() || self.gates.len() != rows {
            bail!("{} gates do not fit {rows} rows", self.gates.len());
        }
        let mut out = values(sums, sums_at)?.to_vec();
        let extra = values(extra, extra_at)?;
        if n > 0 {
            by_rows(&mut out, n, |row, out| {
                let share = 1.0 / (1.0 + (-self.gates[row]).exp());
                for (sum, value) in out.iter_mut().zip(&extra[row * n..(row + 1) * n]) {
                    *sum += share * value;
                }
            });
        }
        Ok((CpuStorage::F32(out), sums_at.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::format::Format;
    use crate::backend::candle::kernels::matmul;
    use crate::backend::candle::kernels::matrix::RowOrder;
    use crate::backend::candle::kernels::testing::normal;
    use crate::checkpoint::SharedBytes;

    fn matrices(seed: u64, outputs: usize, columns: usize) -> Arc<[Matrix]> {
        let stored = normal(seed, outputs, columns).flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let bytes = SharedBytes::owned(stored.into_iter().flat_map(f32::to_le_bytes).collect());
        Arc::new([Matrix::new(bytes, Format::F32, outputs, columns, RowOrder::Plain).unwrap()])
    }

    fn rows(x: &Tensor) -> Vec<Vec<f32>> {
        x.to_vec2().unwrap()
    }

    /// From one row to all of them for a single segment, with empty ones between: the same bits as one product after the other.
    #[test]
    fn a_segment_is_the_plain_product_of_its_rows() {
        for loads in [vec![1, 1, 1], vec![0, 5, 0, 2], vec![100, 0, 1], vec![70], vec![33, 31]] {
            let total: usize = loads.iter().sum();
            let x = normal(1, total, 50);
            let mut segments = Vec::new();
            let mut want = Vec::new();
            for (at, &load) in loads.iter().enumerate() {
                let start = segments.last().map_or(0, |s: &Segment| s.rows.end);
                let matrices = matrices(at as u64, 23, 50);
                if load > 0 {
                    let part = x.narrow(0, start, load).unwrap();
                    want.extend(rows(&matmul(&part, Arc::clone(&matrices)).unwrap()));
                }
                segments.push(Segment { rows: start..start + load, matrices });
            }
            assert_eq!(rows(&grouped_matmul(&x, segments.into()).unwrap()), want, "{loads:?}");
        }
    }

    #[test]
    fn segments_that_do_not_fit_are_refused() {
        let x = normal(1, 4, 50);
        let segment = |rows, outputs, columns| Segment { rows, matrices: matrices(1, outputs, columns) };
        for segments in [
            vec![segment(0..3, 8, 50)],
            vec![segment(0..4, 8, 49)],
            vec![segment(0..2, 8, 50), segment(2..4, 9, 50)],
            vec![segment(0..2, 8, 50), segment(1..4, 8, 50)],
            vec![],
        ] {
            assert!(grouped_matmul(&x, segments.into()).is_err());
        }
    }

    #[test]
    fn sums_are_weighted_and_gated() {
        let parts = Tensor::new(&[[1_f32, 2.0], [10.0, 20.0], [100.0, 200.0]], &candle_core::Device::Cpu).unwrap();
        let sums = weighted_sums(&parts, vec![vec![(2, 0.5), (0, 2.0)], vec![]]).unwrap();
        assert_eq!(rows(&sums), [[52.0, 104.0], [0.0, 0.0]]);
        let extra = parts.narrow(0, 0, 2).unwrap();
        assert_eq!(rows(&add_gated(&sums, &extra, vec![0.0, 100.0]).unwrap()), [[52.5, 105.0], [10.0, 20.0]]);
        assert!(weighted_sums(&parts, vec![vec![(3, 1.0)]]).is_err());
        assert!(add_gated(&sums, &parts, vec![0.0, 0.0]).is_err());
    }
}
