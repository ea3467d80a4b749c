//! The recurrence against its formulas in f64, one token after the other and in the literature's chunks.

use candle_core::{CpuStorage, DType, Device};

use super::*;
use crate::backend::candle::kernels::testing::normal;

/// As published, small; value heads that share key heads, and sizes that fill no vector and no quad.
const SHAPES: [DeltaShape; 3] = [
    DeltaShape { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128 },
    DeltaShape { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 24 },
    DeltaShape { key_heads: 1, value_heads: 3, key_dim: 23, value_dim: 5 },
];
const SLOTS: usize = 4;

struct Layer {
    params: Arc<DeltaParams>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Layer {
    fn new(shape: DeltaShape) -> Self {
        let flat = |seed| normal(seed, 1, shape.value_heads).squeeze(0).unwrap().to_vec1::<f32>().unwrap();
        let (a_log, dt_bias) = (flat(1), flat(2));
        Self { params: Arc::new(DeltaParams::new(shape, &a_log, &dt_bias).unwrap()), a_log, dt_bias }
    }

    fn shape(&self) -> DeltaShape {
        self.params.shape
    }

    fn states(&self) -> Tensor {
        Tensor::zeros(self.shape().states(SLOTS), DType::F32, &Device::Cpu).unwrap()
    }

    /// A sequence: its inputs and gates.
    fn sequence(&self, seed: u64, tokens: usize) -> (Tensor, Tensor) {
        let shape = self.shape();
        (normal(seed, tokens, shape.input_width()), normal(seed + 1000, tokens, 2 * shape.value_heads))
    }

    fn run(&self, (inputs, gates): &(Tensor, Tensor), states: &Tensor, spans: Vec<StateSpan>) -> Vec<Vec<f32>> {
        gated_delta(inputs, gates, &self.params, states, &spans.into()).unwrap().to_vec2().unwrap()
    }

    /// A sequence alone in slot 1, so many tokens a step.
    fn run_in_chunks(&self, sequence: &(Tensor, Tensor), chunk: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
        let (states, tokens) = (self.states(), sequence.0.dim(0).unwrap());
        let mut rows = Vec::new();
        for first in (0..tokens).step_by(chunk) {
            let count = chunk.min(tokens - first);
            let part = part(sequence, first, count);
            rows.extend(self.run(&part, &states, vec![StateSpan { rows: 0..count, slot: 1, fresh: first == 0 }]));
        }
        (rows, state(&states, 1))
    }

    /// A value head's tokens, by the formulas.
    fn tokens(&self, (inputs, gates): &(Tensor, Tensor), head: usize) -> Vec<Token> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = self.shape();
        let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        let key_head = head / (value_heads / key_heads);
        let unit = |x: &[f64]| {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect::<Vec<_>>()
        };
        let token = |(inputs, gates): (Vec<f64>, Vec<f64>)| {
            let part = |at: usize, len: usize| inputs[at..at + len].to_vec();
            let query = unit(&part(key_head * key_dim, key_dim));
            Token {
                query: query.into_iter().map(|x| x / (key_dim as f64).sqrt()).collect(),
                key: unit(&part((key_heads + key_head) * key_dim, key_dim)),
                value: part(2 * key_heads * key_dim + head * value_dim, value_dim),
                decay: -f64::from(self.a_log[head]).exp() * (gates[head] + f64::from(self.dt_bias[head])).exp().ln_1p(),
                strength: 1.0 / (1.0 + (-gates[value_heads + head]).exp()),
            }
        };
        wide(inputs).into_iter().zip(wide(gates)).map(token).collect()
    }
}

struct Token {
    query: Vec<f64>,
    key: Vec<f64>,
    value: Vec<f64>,
    /// Its logarithm, `g`.
    decay: f64,
    strength: f64,
}

type Matrix = Vec<Vec<f64>>;

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// `Sᵀx`.
fn answer(state: &Matrix, x: &[f64]) -> Vec<f64> {
    (0..state[0].len()).map(|j| state.iter().zip(x).map(|(row, x)| row[j] * x).sum()).collect()
}

/// Outputs and last state, token by token.
fn recurrent(tokens: &[Token]) -> (Matrix, Matrix) {
    let mut state = vec![vec![0.0; tokens[0].value.len()]; tokens[0].key.len()];
    let step = |token: &Token| {
        state.iter_mut().flatten().for_each(|s| *s *= token.decay.exp());
        let known = answer(&state, &token.key);
        for (row, key) in state.iter_mut().zip(&token.key) {
            for ((s, value), known) in row.iter_mut().zip(&token.value).zip(&known) {
                *s += key * token.strength * (value - known);
            }
        }
        answer(&state, &token.query)
    };
    let outputs = tokens.iter().map(step).collect();
    (outputs, state)
}

/// The same in chunks: what a chunk's tokens write is solved for at once, and the state moves once a chunk.
fn chunked(tokens: &[Token], chunk: usize) -> (Matrix, Matrix) {
    let (dim, width) = (tokens[0].key.len(), tokens[0].value.len());
    let mut state = vec![vec![0.0; width]; dim];
    let mut outputs = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let count = tokens.len();
        let sums: Vec<f64> = tokens
            .iter()
            .scan(0.0, |sum, token| {
                *sum += token.decay;
                Some(*sum)
            })
            .collect();
        let between = |i: usize, j: usize| (sums[i] - sums[j]).exp();
        // (I + L) (U - W S) = beta (V - exp(G) K S), row by row: what each token writes.
        let mut written: Matrix = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            let known = answer(&state, &token.key);
            let mut row: Vec<f64> =
                (0..width).map(|j| token.strength * (token.value[j] - sums[i].exp() * known[j])).collect();
            for (before, other) in written.iter().enumerate() {
                let weight = token.strength * dot(&token.key, &tokens[before].key) * between(i, before);
                row.iter_mut().zip(other).for_each(|(x, other)| *x -= weight * other);
            }
            written.push(row);
        }
        for (i, token) in tokens.iter().enumerate() {
            let mut row: Vec<f64> = answer(&state, &token.query).iter().map(|x| sums[i].exp() * x).collect();
            for (at, other) in written.iter().enumerate().take(i + 1) {
                let weight = dot(&token.query, &tokens[at].key) * between(i, at);
                row.iter_mut().zip(other).for_each(|(x, other)| *x += weight * other);
            }
            outputs.push(row);
        }
        for (i, row) in state.iter_mut().enumerate() {
            for (j, s) in row.iter_mut().enumerate() {
                *s *= sums[count - 1].exp();
                *s += (0..count).map(|t| between(count - 1, t) * tokens[t].key[i] * written[t][j]).sum::<f64>();
            }
        }
    }
    (outputs, state)
}

fn part((inputs, gates): &(Tensor, Tensor), first: usize, count: usize) -> (Tensor, Tensor) {
    (inputs.narrow(0, first, count).unwrap(), gates.narrow(0, first, count).unwrap())
}

/// What a slot holds.
fn state(states: &Tensor, slot: usize) -> Vec<f32> {
    states.get(slot).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(got: impl Iterator<Item = f32>, want: &Matrix, what: &str) {
    let mut count = 0;
    for (got, want) in got.zip(want.iter().flatten()) {
        assert!((f64::from(got) - want).abs() < 1e-5 * want.abs().max(1.0), "{what}: {got} for {want}");
        count += 1;
    }
    assert_eq!(count, want.iter().map(Vec::len).sum::<usize>());
}

#[test]
fn equals_the_formulas_token_by_token_and_in_chunks() {
    for shape in SHAPES {
        let layer = Layer::new(shape);
        let sequence = layer.sequence(3, 150);
        let (rows, state) = layer.run_in_chunks(&sequence, 150);
        let DeltaShape { key_dim, value_dim, .. } = shape;
        for head in 0..shape.value_heads {
            let tokens = layer.tokens(&sequence, head);
            for (form, (outputs, last)) in [("recurrent", recurrent(&tokens)), ("chunked", chunked(&tokens, 64))] {
                let got = rows.iter().flat_map(|row| &row[head * value_dim..(head + 1) * value_dim]).copied();
                assert_close(got, &outputs, &format!("{form} outputs of head {head} of {shape:?}"));
                let places = (0..key_dim).flat_map(|i| (0..value_dim).map(move |j| (i, j)));
                let got = places
                    .map(|(i, j)| state[((head * shape.columns() + j / LANES) * key_dim + i) * LANES + j % LANES]);
                assert_close(got, &last, &format!("{form} state of head {head} of {shape:?}"));
            }
        }
    }
}

#[test]
fn a_row_is_the_same_bits_however_its_sequence_is_cut() {
    for shape in SHAPES {
        let layer = Layer::new(shape);
        let sequence = layer.sequence(5, 140);
        let whole = layer.run_in_chunks(&sequence, 140);
        for chunk in [1, 7, 64] {
            assert_eq!(layer.run_in_chunks(&sequence, chunk), whole, "{chunk} tokens a step");
        }
    }
}

#[test]
fn a_row_is_the_same_bits_in_any_company() {
    for shape in SHAPES {
        let layer = Layer::new(shape);
        // Three sequences, each with steps of its own size, the first ones of more rows than are made ready at once; whoever
        // has no token left stays away.
        let sequences = [(7, 110, 50), (8, 12, 1), (9, 73, 73)];
        let sequences = sequences.map(|(seed, tokens, chunk)| (layer.sequence(seed, tokens), tokens, chunk));
        let states = layer.states();
        let mut rows: [Vec<Vec<f32>>; 3] = Default::default();
        while rows.iter().zip(&sequences).any(|(rows, (_, tokens, _))| rows.len() < *tokens) {
            let (mut spans, mut parts, mut who, mut first) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for (at, (sequence, tokens, chunk)) in sequences.iter().enumerate() {
                let done = rows[at].len();
                let count = *chunk.min(&(tokens - done));
                if count > 0 {
                    spans.push(StateSpan { rows: first..first + count, slot: 3 - at as u32, fresh: done == 0 });
                    parts.push(part(sequence, done, count));
                    who.push(at);
                    first += count;
                }
            }
            let (inputs, gates): (Vec<Tensor>, Vec<Tensor>) = parts.into_iter().unzip();
            let together = (Tensor::cat(&inputs, 0).unwrap(), Tensor::cat(&gates, 0).unwrap());
            let out = layer.run(&together, &states, spans.clone());
            for (span, at) in spans.iter().zip(who) {
                rows[at].extend_from_slice(&out[span.rows.clone()]);
            }
        }
        for (at, (sequence, tokens, _)) in sequences.iter().enumerate() {
            let alone = layer.run_in_chunks(sequence, *tokens);
            assert_eq!((&rows[at], &state(&states, 3 - at)), (&alone.0, &alone.1), "sequence {at}");
        }
        assert!(state(&states, 0).iter().all(|value| *value == 0.0), "a slot that nobody has");
    }
}

#[test]
fn a_fresh_sequence_does_not_see_what_its_slot_held() {
    let layer = Layer::new(SHAPES[1]);
    let sequence = layer.sequence(11, 6);
    let used = Tensor::full(f32::NAN, layer.shape().states(SLOTS), &Device::Cpu).unwrap();
    let rows = layer.run(&sequence, &used, vec![StateSpan { rows: 0..6, slot: 2, fresh: true }]);
    assert_eq!((rows, state(&used, 2)), layer.run_in_chunks(&sequence, 6));
    assert!(state(&used, 1).iter().all(|value| value.is_nan()), "its neighbour is left alone");
}

#[test]
fn inputs_may_be_columns_of_a_wider_tensor() {
    let layer = Layer::new(SHAPES[1]);
    let (inputs, gates) = layer.sequence(13, 6);
    let wide = Tensor::cat(&[&gates, &inputs, &gates], 1).unwrap();
    let (at, width) = (gates.dim(1).unwrap(), inputs.dim(1).unwrap());
    let parts = (wide.narrow(1, at, width).unwrap(), wide.narrow(1, at + width, at).unwrap());
    let spans = vec![StateSpan { rows: 0..6, slot: 0, fresh: true }];
    assert_eq!(layer.run(&parts, &layer.states(), spans.clone()), layer.run(&(inputs, gates), &layer.states(), spans));
}

#[test]
fn every_level_agrees() {
    let layer = Layer::new(SHAPES[2]);
    let (inputs, gates) = layer.sequence(17, 50);
    let stored = |x: &Tensor| CpuStorage::F32(x.flatten_all().unwrap().to_vec1().unwrap());
    let run = |level| {
        let mut states = layer.states().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let spans = [StateSpan { rows: 0..50, slot: 0, fresh: true }];
        let size = states.len() / SLOTS;
        let (inputs_stored, gates_stored) = (stored(&inputs), stored(&gates));
        let (inputs, gates) =
            (Rows::new(&inputs_stored, inputs.layout()).unwrap(), Rows::new(&gates_stored, gates.layout()).unwrap());
        let of_spans = state_span::states_of(&spans, &mut states, size).unwrap();
        let rows = step(&layer.params, inputs, gates, &spans, of_spans, level);
        (rows, states)
    };
    let levels = simd::levels();
    let (want, _) = run(levels[0]);
    for &level in &levels {
        for (got, want) in run(level).0.iter().zip(&want) {
            assert!((got - want).abs() < 1e-5, "{level:?}: {got} for {want}");
        }
    }
    if let [_, avx2, avx512] = levels[..] {
        assert_eq!(run(avx2), run(avx512), "fused sums are the same bits");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let shape = SHAPES[1];
    let layer = Layer::new(shape);
    assert!(DeltaParams::new(shape, &[0.0; 4], &[0.0; 3]).is_none());
    assert!(DeltaParams::new(DeltaShape { key_heads: 3, ..shape }, &[0.0; 4], &[0.0; 4]).is_none());
    let (inputs, gates) = layer.sequence(19, 4);
    let run = |inputs: &Tensor, gates: &Tensor, states: &Tensor, rows, slot| {
        let spans = Arc::from([StateSpan { rows, slot, fresh: false }]);
        gated_delta(inputs, gates, &layer.params, states, &spans).is_ok()
    };
    assert!(run(&inputs, &gates, &layer.states(), 0..4, 0));
    assert!(!run(&inputs, &gates, &layer.states(), 0..3, 0), "a row of nobody");
    assert!(!run(&inputs, &gates, &layer.states(), 0..4, SLOTS as u32));
    assert!(!run(&gates, &gates, &layer.states(), 0..4, 0));
    assert!(!run(&inputs, &gates.narrow(0, 0, 3).unwrap(), &layer.states(), 0..4, 0));
    assert!(!run(&inputs, &gates, &layer.states().narrow(2, 0, 1).unwrap().contiguous().unwrap(), 0..4, 0));
}
