//! A short convolution over the tokens of a sequence, each channel by itself.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor, bail};

use super::elementwise::by_rows;
use super::lanes::{LANES, Lanes, sigmoid_divisor};
use super::rows::Rows;
use super::simd::{self, Kernel};
use super::state_span::{self, StateSpan};

/// Tokens that a convolution sees: the current one and those before it.
pub(in crate::backend::candle) const CONV_TOKENS: usize = 4;
/// Tokens before the current one.
const TAIL: usize = CONV_TOKENS - 1;

/// A layer's convolution.
#[derive(Debug)]
pub(in crate::backend::candle) struct ConvWeights {
    /// `[CONV_TOKENS, channels]`: the oldest token's first.
    values: Vec<f32>,
    channels: usize,
}

impl ConvWeights {
    /// From `[channels, CONV_TOKENS]`, as checkpoints have them. `None` if these are not so many.
    pub(in crate::backend::candle) fn new(weights: &[f32], channels: usize) -> Option<Self> {
        if channels == 0 || weights.len() != channels.checked_mul(CONV_TOKENS)? {
            return None;
        }
        let mut values = vec![0_f32; weights.len()];
        for (channel, weights) in weights.chunks_exact(CONV_TOKENS).enumerate() {
            for (token, weight) in weights.iter().enumerate() {
                values[token * channels + channel] = *weight;
            }
        }
        Some(Self { values, channels })
    }
}

/// Dimensions of the tails of so many slots, f32: `[slots, 3, channels]`, each the last tokens' inputs, the oldest first.
pub(in crate::backend::candle) fn conv_tails(slots: usize, channels: usize) -> (usize, usize, usize) {
    (slots, TAIL, channels)
}

/// `silu(convolution)` of `inputs` `[rows, channels]`, to the same shape. Reads and replaces the spans' `tails` (see
/// [`conv_tails`]); before a sequence's start there are zeros. Inputs may be columns of a wider tensor.
pub(in crate::backend::candle) fn causal_conv(
    inputs: &Tensor,
    weights: &Arc<ConvWeights>,
    tails: &Tensor,
    spans: &Arc<[StateSpan]>,
) -> Result<Tensor> {
    let op = CausalConv { weights: Arc::clone(weights), spans: Arc::clone(spans), out: Cell::default() };
    tails.inplace_op2(inputs, &op)?;
    Tensor::from_vec(op.out.into_inner(), (inputs.dim(0)?, weights.channels), inputs.device())
}

struct CausalConv {
    weights: Arc<ConvWeights>,
    spans: Arc<[StateSpan]>,
    /// An operation in place gives nothing back but what it leaves here.
    out: Cell<Vec<f32>>,
}

impl InplaceOp2 for CausalConv {
    fn name(&self) -> &'static str {
        "causal-conv"
    }

    fn cpu_fwd(
        &self,
        tails: &mut CpuStorage,
        tails_at: &Layout,
        inputs: &CpuStorage,
        inputs_at: &Layout,
    ) -> Result<()> {
        let ConvWeights { values: weights, channels } = &*self.weights;
        let (inputs, channels) = (Rows::new(inputs, inputs_at)?, *channels);
        let dims = tails_at.shape().dims3()?;
        if inputs.width() != channels || dims != conv_tails(dims.0, channels) {
            bail!("rows of {} values and tails {dims:?} do not fit a convolution of {channels}", inputs.width());
        }
        state_span::check(&self.spans, inputs.count())?;
        let all = state_span::all_states(tails, tails_at)?;
        let mut tails = state_span::states_of(&self.spans, all, TAIL * channels)?;
        let span_of: Vec<usize> =
            self.spans.iter().enumerate().flat_map(|(at, span)| span.rows.clone().map(move |_| at)).collect();
        let mut out = vec![0_f32; inputs.count() * channels];
        let spans = &self.spans;
        let level = simd::level();
        by_rows(&mut out, channels, |row, out| {
            let span = span_of[row];
            let (first, tail) = (spans[span].rows.start, &tails[span]);
            let token = |back: usize| match row.checked_sub(back) {
                Some(row) if row >= first => inputs.row(row),
                _ => {
                    let at = TAIL + (row - first) - back;
                    &tail[at * channels..(at + 1) * channels]
                }
            };
            simd::run_at(level, ConvRow { tokens: [token(3), token(2), token(1), token(0)], weights, out });
        });
        for (span, tail) in self.spans.iter().zip(&mut tails) {
            let new = span.rows.len().min(TAIL);
            tail.copy_within(new * channels.., 0);
            for (row, tail) in (span.rows.end - new..).zip(tail.chunks_exact_mut(channels).skip(TAIL - new)) {
                tail.copy_from_slice(inputs.row(row));
            }
        }
        self.out.set(out);
        Ok(())
    }
}

struct ConvRow<'a> {
    /// The oldest first.
    tokens: [&'a [f32]; CONV_TOKENS],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for ConvRow<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { tokens, weights, out } = self;
        let channels = out.len();
        let whole = channels / LANES;
        let mut inputs: [&[[f32; LANES]]; CONV_TOKENS] = [&[]; CONV_TOKENS];
        let mut factors: [&[[f32; LANES]]; CONV_TOKENS] = [&[]; CONV_TOKENS];
        for token in 0..CONV_TOKENS {
            inputs[token] = &tokens[token].as_chunks().0[..whole];
            factors[token] = &weights[token * channels..(token + 1) * channels].as_chunks().0[..whole];
        }
        let (out_lanes, end) = out.as_chunks_mut::<LANES>();
        for (at, out) in out_lanes.iter_mut().enumerate().take(whole) {
            let mut sum = L::zero();
            for token in 0..CONV_TOKENS {
                sum = L::load(&inputs[token][at]).multiply_add(L::load(&factors[token][at]), sum);
            }
            sum.divide(sigmoid_divisor(sum)).store(out);
        }
        for (at, out) in (whole * LANES..).zip(end) {
            let mut sum = 0_f32;
            for token in 0..CONV_TOKENS {
                sum += tokens[token][at] * weights[token * channels + at];
            }
            *out = sum / (1.0 + (-sum).exp());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::testing::normal;
    use candle_core::{DType, Device};

    const CHANNELS: usize = 37;
    const SLOTS: usize = 3;

    fn weights() -> (Arc<ConvWeights>, Vec<f32>) {
        let stored = normal(1, CHANNELS, CONV_TOKENS).flatten_all().unwrap().to_vec1().unwrap();
        (Arc::new(ConvWeights::new(&stored, CHANNELS).unwrap()), stored)
    }

    fn tails(weights: &ConvWeights) -> Tensor {
        Tensor::full(f32::NAN, conv_tails(SLOTS, weights.channels), &Device::Cpu).unwrap()
    }

    fn run(inputs: &Tensor, weights: &Arc<ConvWeights>, tails: &Tensor, spans: Vec<StateSpan>) -> Vec<Vec<f32>> {
        causal_conv(inputs, weights, tails, &spans.into()).unwrap().to_vec2().unwrap()
    }

    fn tail(tails: &Tensor, slot: usize) -> Vec<Vec<f32>> {
        tails.get(slot).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn equals_the_formula_and_leaves_the_last_inputs() {
        let (weights, stored) = weights();
        let inputs = normal(2, 9, CHANNELS);
        let tails = tails(&weights);
        let got = run(&inputs, &weights, &tails, vec![StateSpan { rows: 0..9, slot: 1, fresh: true }]);
        let inputs = inputs.to_vec2::<f32>().unwrap();
        for (row, got) in got.iter().enumerate() {
            for (channel, got) in got.iter().enumerate() {
                let product = |token: usize| {
                    let row = (row + token).checked_sub(TAIL)?;
                    Some(f64::from(stored[channel * CONV_TOKENS + token]) * f64::from(inputs[row][channel]))
                };
                let sum: f64 = (0..CONV_TOKENS).filter_map(product).sum();
                let want = sum / (1.0 + (-sum).exp());
                assert!((f64::from(*got) - want).abs() < 1e-6, "row {row}, channel {channel}: {got} for {want}");
            }
        }
        assert_eq!(tail(&tails, 1), inputs[6..]);
    }

    #[test]
    fn rows_are_the_same_bits_however_cut_and_in_any_company() {
        let (weights, _) = weights();
        let sequences = [normal(3, 20, CHANNELS), normal(4, 20, CHANNELS)];
        let whole = sequences.each_ref().map(|inputs| {
            let tails = tails(&weights);
            let rows = run(inputs, &weights, &tails, vec![StateSpan { rows: 0..20, slot: 0, fresh: true }]);
            (rows, tail(&tails, 0))
        });
        for (chunk, other) in [(1, 1), (2, 5), (3, 4), (4, 1), (7, 2), (20, 20)] {
            let tails = tails(&weights);
            let mut rows: [Vec<Vec<f32>>; 2] = Default::default();
            while rows.iter().any(|rows| rows.len() < 20) {
                let done = rows.each_ref().map(Vec::len);
                let (first, second) = (chunk.min(20 - done[0]), other.min(20 - done[1]));
                let part = |at: usize, count| sequences[at].narrow(0, done[at], count).unwrap();
                let inputs = Tensor::cat(&[part(0, first), part(1, second)], 0).unwrap();
                let spans = vec![
                    StateSpan { rows: 0..first, slot: 2, fresh: done[0] == 0 },
                    StateSpan { rows: first..first + second, slot: 0, fresh: done[1] == 0 },
                ];
                let mut out = run(&inputs, &weights, &tails, spans);
                rows[1].extend(out.split_off(first));
                rows[0].extend(out);
            }
            let [first, second] = rows;
            assert_eq!([(first, tail(&tails, 2)), (second, tail(&tails, 0))], whole, "{chunk} and {other} a step");
            assert!(tail(&tails, 1).iter().flatten().all(|value| value.is_nan()), "a slot that nobody has");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let (weights, stored) = weights();
        assert!(ConvWeights::new(&stored, CHANNELS - 1).is_none());
        let spans: Arc<[StateSpan]> = Arc::from([StateSpan { rows: 0..2, slot: 0, fresh: true }]);
        let refused = |inputs: &Tensor, tails: &Tensor| causal_conv(inputs, &weights, tails, &spans).is_err();
        assert!(refused(&normal(5, 2, CHANNELS + 1), &tails(&weights)));
        assert!(refused(&normal(5, 3, CHANNELS), &tails(&weights)));
        let short = Tensor::zeros((SLOTS, 2, CHANNELS), DType::F32, &Device::Cpu).unwrap();
        assert!(refused(&normal(5, 2, CHANNELS), &short));
        assert!(!refused(&normal(5, 2, CHANNELS), &tails(&weights)));
    }
}
