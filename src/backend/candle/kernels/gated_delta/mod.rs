//! The gated delta rule: attention whose past is a matrix of fixed size for each head, instead of keys and values.
//!
//! For each value head, with the state `S` `[key_dim, value_dim]`, a token's key `k`, query `q`, value `v`, decay `alpha` and
//! strength `beta`:
//!
//! ```text
//! u = beta (v - alpha Sᵀk)        what the decayed state does not yet answer to k
//! o = alpha Sᵀq + (k·q) u         the answer to q: S'ᵀq, without waiting for S'
//! S' = alpha S + k uᵀ
//! ```
//!
//! Prefill and decode are the same recurrence. Columns of `S` do not know of each other, so sixteen of them at a time stay in
//! the fastest cache while all tokens of a sequence stream past, each in one pass over them. The chunked form of the literature
//! turns prefill into matrix products, but its sums depend on where chunks begin: here **a row is the same bits however its
//! sequence is cut into steps**, and whoever else is in them.

mod recurrence;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, InplaceOp3, Layout, Result, Tensor, bail};
use rayon::prelude::*;

use self::recurrence::{Columns, Gates, Normalise};
use super::elementwise::by_rows;
use super::lanes::LANES;
use super::rows::Rows;
use super::simd::{self, Level};
use super::state_span::{self, StateSpan};

/// Values below which a single thread is faster than waking others.
const SMALLEST_SHARE: usize = 1 << 15;
/// Rows whose operands are made ready at once: few enough to stay in a cache until they are used, and to take no new pages from
/// the system; enough for a state's way into the fastest cache to be worth it.
const ROWS: usize = 64;

/// Sizes of a layer. Value head `j` uses the key head `j / (value_heads / key_heads)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct DeltaShape {
    pub(in crate::backend::candle) key_heads: usize,
    pub(in crate::backend::candle) value_heads: usize,
    pub(in crate::backend::candle) key_dim: usize,
    pub(in crate::backend::candle) value_dim: usize,
}

impl DeltaShape {
    /// Dimensions of the states of so many slots, f32: `[slots, value_heads, ceil(value_dim / 16), key_dim, 16]`. Sixteen
    /// columns of a head's state stand together; those beyond `value_dim` are zeros.
    pub(in crate::backend::candle) fn states(&self, slots: usize) -> (usize, usize, usize, usize, usize) {
        (slots, self.value_heads, self.columns(), self.key_dim, LANES)
    }

    /// Values of an input row: queries, keys, values.
    pub(in crate::backend::candle) fn input_width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.output_width()
    }

    /// Values of an output row.
    pub(in crate::backend::candle) fn output_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Vectors of columns of a head's state.
    fn columns(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }
}

/// A layer's sizes and weights.
#[derive(Debug)]
pub(in crate::backend::candle) struct DeltaParams {
    shape: DeltaShape,
    /// `-exp(A_log)` of each value head.
    rates: Vec<f32>,
    /// `dt_bias` of each value head.
    biases: Vec<f32>,
}

impl DeltaParams {
    /// `A_log` and `dt_bias`, each `[value_heads]`. `None` if sizes do not fit.
    pub(in crate::backend::candle) fn new(shape: DeltaShape, a_log: &[f32], dt_bias: &[f32]) -> Option<Self> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = shape;
        let fits = [key_heads, value_heads, key_dim, value_dim].iter().all(|size| *size > 0)
            && value_heads.is_multiple_of(key_heads)
            && a_log.len() == value_heads
            && dt_bias.len() == value_heads;
        fits.then(|| Self { shape, rates: a_log.iter().map(|a| -a.exp()).collect(), biases: dt_bias.to_vec() })
    }

    /// The decay and strength that a token's projections `a` and `b` mean for a value head.
    fn gates(&self, head: usize, a: f32, b: f32) -> Gates {
        let x = a + self.biases[head];
        // As the reference has it: beyond 20 the logarithm adds nothing.
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        Gates { decay: (self.rates[head] * softplus).exp(), strength: 1.0 / (1.0 + (-b).exp()) }
    }
}

/// One layer's step: `inputs` `[rows, queries | keys | values]` after the convolution and `gates` `[rows, a | b]` as projected
/// to `[rows, value_heads * value_dim]`. Reads and replaces the spans' `states` (see [`DeltaShape::states`]).
///
/// Queries and keys are normalised here, and queries scaled by `key_dim^-½`. Inputs and gates may be columns of wider tensors.
pub(in crate::backend::candle) fn gated_delta(
    inputs: &Tensor,
    gates: &Tensor,
    params: &Arc<DeltaParams>,
    states: &Tensor,
    spans: &Arc<[StateSpan]>,
) -> Result<Tensor> {
    let op = GatedDelta { params: Arc::clone(params), spans: Arc::clone(spans), out: Cell::default() };
    states.inplace_op3(inputs, gates, &op)?;
    Tensor::from_vec(op.out.into_inner(), (inputs.dim(0)?, params.shape.output_width()), inputs.device())
}

struct GatedDelta {
    params: Arc<DeltaParams>,
    spans: Arc<[StateSpan]>,
    /// An operation in place gives nothing back but what it leaves here.
    out: Cell<Vec<f32>>,
}

impl InplaceOp3 for GatedDelta {
    fn name(&self) -> &'static str {
        "gated-delta"
    }

    fn cpu_fwd(
        &self,
        states: &mut CpuStorage,
        states_at: &Layout,
        inputs: &CpuStorage,
        inputs_at: &Layout,
        gates: &CpuStorage,
        gates_at: &Layout,
    ) -> Result<()> {
        let shape = self.params.shape;
        let (inputs, gates) = (Rows::new(inputs, inputs_at)?, Rows::new(gates, gates_at)?);
        let rows = inputs.count();
        if inputs.width() != shape.input_width() || gates.width() != 2 * shape.value_heads || gates.count() != rows {
            bail!("{rows} rows of {} values and {} gates do not fit {shape:?}", inputs.width(), gates.width());
        }
        let dims = states_at.shape().dims5()?;
        if dims != shape.states(dims.0) {
            bail!("states {dims:?} are not those of {shape:?}");
        }
        state_span::check(&self.spans, rows)?;
        let size = shape.value_heads * shape.columns() * shape.key_dim * LANES;
        let states = state_span::states_of(&self.spans, state_span::all_states(states, states_at)?, size)?;
        self.out.set(step(&self.params, inputs, gates, &self.spans, states, simd::level()));
        Ok(())
    }
}

/// The rows of a step and the state of each span to output rows.
fn step(
    params: &DeltaParams,
    inputs: Rows<'_>,
    gates: Rows<'_>,
    spans: &[StateSpan],
    mut states: Vec<&mut [f32]>,
    level: Level,
) -> Vec<f32> {
    let width = params.shape.output_width();
    let mut out = vec![0_f32; inputs.count() * width];
    let mut work = Work::new(params.shape, level);
    for (at, out) in out.chunks_mut(ROWS * width).enumerate() {
        let rows = at * ROWS..inputs.count().min((at + 1) * ROWS);
        work.prepare(params, inputs, gates, rows.clone());
        work.run(spans, &mut states, rows.start);
        work.give(out);
    }
    out
}

/// The operands of some rows, head by head: a task then reads what it needs in one stride.
struct Work {
    shape: DeltaShape,
    level: Level,
    rows: usize,
    /// `[key_heads, rows, key | query]`, normalised.
    keys: Vec<f32>,
    /// `[key_heads, rows]`: a token's key times its query.
    products: Vec<f32>,
    /// `[value_heads, rows]`.
    gates: Vec<Gates>,
    /// `[value_heads, columns, rows, 16]`: values, each of which its output replaces.
    values: Vec<[f32; LANES]>,
}

impl Work {
    fn new(shape: DeltaShape, level: Level) -> Self {
        let (keys, products, gates, values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { shape, level, rows: 0, keys, products, gates, values }
    }

    /// Takes the operands of the rows `of`.
    fn prepare(&mut self, params: &DeltaParams, inputs: Rows<'_>, gates: Rows<'_>, of: Range<usize>) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = self.shape;
        let (rows, level, columns) = (of.len(), self.level, self.shape.columns());
        // Everything is written anew below.
        self.rows = rows;
        self.keys.resize(key_heads * rows * 2 * key_dim, 0.0);
        self.products.resize(key_heads * rows, 0.0);
        self.gates.resize(value_heads * rows, Gates::default());
        self.values.resize(value_heads * columns * rows, [0.0; LANES]);
        let key_head = |(head, (pairs, products)): (usize, (&mut [f32], &mut [f32]))| {
            let (query_at, key_at) = (head * key_dim, (key_heads + head) * key_dim);
            for (row, (pair, product)) in of.clone().zip(pairs.chunks_exact_mut(2 * key_dim).zip(products)) {
                let (key, query) = pair.split_at_mut(key_dim);
                key.copy_from_slice(inputs.part(row, key_at..key_at + key_dim));
                query.copy_from_slice(inputs.part(row, query_at..query_at + key_dim));
                simd::run_at(level, Normalise { key, query, product });
            }
        };
        let value_head = |(head, (values, heads_gates)): (usize, (&mut [[f32; LANES]], &mut [Gates]))| {
            let first = 2 * key_heads * key_dim + head * value_dim;
            for (at, (row, gate)) in of.clone().zip(heads_gates).enumerate() {
                *gate = params.gates(head, gates.row(row)[head], gates.row(row)[value_heads + head]);
                let (whole, end) = inputs.part(row, first..first + value_dim).as_chunks();
                for (column, part) in whole.iter().enumerate() {
                    values[column * rows + at] = *part;
                }
                if !end.is_empty() {
                    let mut padded = [0.0; LANES];
                    padded[..end.len()].copy_from_slice(end);
                    values[whole.len() * rows + at] = padded;
                }
            }
        };
        let (keys_of, values_of) = (rows * 2 * key_dim, columns * rows);
        if inputs.width() * rows < SMALLEST_SHARE {
            let keys = self.keys.chunks_exact_mut(keys_of).zip(self.products.chunks_exact_mut(rows));
            keys.enumerate().for_each(key_head);
            let values = self.values.chunks_exact_mut(values_of).zip(self.gates.chunks_exact_mut(rows));
            values.enumerate().for_each(value_head);
        } else {
            let keys = self.keys.par_chunks_exact_mut(keys_of).zip(self.products.par_chunks_exact_mut(rows));
            keys.enumerate().for_each(key_head);
            let values = self.values.par_chunks_exact_mut(values_of).zip(self.gates.par_chunks_exact_mut(rows));
            values.enumerate().for_each(value_head);
        }
    }

    /// Runs every sequence's tokens past its state. `states` are those of the spans, one each; the rows begin with row `first` of
    /// the step.
    fn run(&mut self, spans: &[StateSpan], states: &mut [&mut [f32]], first: usize) {
        let DeltaShape { key_heads, value_heads, key_dim, .. } = self.shape;
        let (rows, level, columns) = (self.rows, self.level, self.shape.columns());
        // Each span's part of these rows, and its state's columns, head after head.
        let mut parts: Vec<_> = spans
            .iter()
            .zip(states)
            .map(|(span, state)| {
                let within = |row: usize| row.clamp(first, first + rows) - first;
                (within(span.rows.start)..within(span.rows.end), state.chunks_exact_mut(key_dim * LANES))
            })
            .filter(|(rows, _)| !rows.is_empty())
            .collect();
        let mut tasks = Vec::with_capacity(parts.len() * value_heads * columns);
        for (at, values) in self.values.chunks_exact_mut(rows).enumerate() {
            let head = at / columns;
            let key_head = head / (value_heads / key_heads);
            let mut values = values;
            for (part, states) in &mut parts {
                let Some(state) = states.next() else { continue };
                let (mine, rest) = values.split_at_mut(part.len());
                values = rest;
                let (start, end) = (key_head * rows + part.start, key_head * rows + part.end);
                tasks.push(Columns {
                    state: state.as_chunks_mut().0,
                    keys: &self.keys[start * 2 * key_dim..end * 2 * key_dim],
                    products: &self.products[start..end],
                    gates: &self.gates[head * rows + part.start..head * rows + part.end],
                    values: mine,
                });
            }
        }
        if rows * value_heads * columns * key_dim * LANES < SMALLEST_SHARE {
            tasks.into_iter().for_each(|task| simd::run_at(level, task));
        } else {
            tasks.into_par_iter().for_each(|task| simd::run_at(level, task));
        }
    }

    /// The outputs, row by row.
    fn give(&self, out: &mut [f32]) {
        let DeltaShape { value_dim, .. } = self.shape;
        let columns = self.shape.columns();
        by_rows(out, self.shape.output_width(), |row, out| {
            for (head, out) in out.chunks_exact_mut(value_dim).enumerate() {
                let (whole, end) = out.as_chunks_mut();
                let place = |column: usize| (head * columns + column) * self.rows + row;
                for (column, out) in whole.iter_mut().enumerate() {
                    *out = self.values[place(column)];
                }
                if !end.is_empty() {
                    end.copy_from_slice(&self.values[place(columns - 1)][..end.len()]);
                }
            }
        });
    }
}
