//! Another source's weights, changed on purpose.

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{LoadError, WeightSource, WeightsChange};
use crate::backend::candle::kernels::{Format, Matrix, RowOrder};
use crate::backend::candle::model::config::{DecoderConfig, FeedForwardKind};
use crate::checkpoint::SharedBytes;

/// Values that are rounded by one largest magnitude.
const GROUP: usize = 32;

/// The seed of all noise: a change of one width is one model.
const NOISE_SEED: u64 = 1;

/// Weights that are not what the checkpoint says. It stands before weights are split over ranks, so that all numbers of ranks get
/// the same ones.
pub(in crate::backend::candle) struct ChangedWeights<'a> {
    weights: &'a dyn WeightSource,
    change: WeightsChange,
    /// What the names of the changed layer's tensors begin with, where the change is about one layer.
    layer: Option<String>,
}

impl<'a> ChangedWeights<'a> {
    /// The model's weights with a change, which is said aloud.
    ///
    /// # Errors
    /// When the model has no such layer or expert, or a number of the change is out of range.
    pub(in crate::backend::candle) fn new(
        weights: &'a dyn WeightSource,
        change: WeightsChange,
        config: &DecoderConfig,
    ) -> Result<Self, LoadError> {
        check(change, config)
            .map_err(|reason| LoadError::Start(format!("weights cannot be changed by {change}: {reason}")))?;
        tracing::warn!(
            %change,
            "THE WEIGHTS ARE CHANGED ON PURPOSE: this is not the checkpoint's model, and verifiers may reject its answers"
        );
        let layer = change.layer().map(|layer| format!("{}.layers.{layer}.", config.prefix));
        Ok(Self { weights, change, layer })
    }

    /// A tensor's name within the changed layer.
    fn in_layer<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(self.layer.as_deref()?)
    }

    /// Whether a tensor gets other values than are stored.
    fn rewrites(&self, name: &str) -> bool {
        match self.change {
            WeightsChange::Rounded { .. }
            | WeightsChange::Bf16
            | WeightsChange::Redrawn { .. }
            | WeightsChange::Noise { .. } => {
                !["embed_tokens", "lm_head", "conv1d"].iter().any(|part| name.contains(part))
            }
            // The projections whose outputs are added to what passes through.
            WeightsChange::WithoutLayer { .. } => self
                .in_layer(name)
                .is_some_and(|name| ["o_proj", "out_proj", "down_proj"].iter().any(|part| name.contains(part))),
            WeightsChange::ReversedExpert { .. } => false,
        }
    }

    /// Whether the rows of a matrix, number `part` of its tensor, are to stand in reverse order.
    fn reverses(&self, name: &str, part: usize) -> bool {
        let WeightsChange::ReversedExpert { expert, .. } = self.change else { return false };
        let experts = self.in_layer(name).and_then(|name| name.strip_prefix("mlp.experts."));
        match experts.and_then(|name| name.split_once('.')) {
            Some((number, tensor)) => tensor == "down_proj.weight" && number.parse() == Ok(expert),
            None => experts == Some("down_proj") && part == expert,
        }
    }

    /// What becomes of a matrix, number `part` of its tensor.
    fn changed(&self, name: &str, part: usize, stored: Matrix) -> Result<Matrix, LoadError> {
        if self.reverses(name, part) {
            let reversed: Vec<_> = (0..stored.rows()).rev().map(|row| row..row + 1).collect();
            return stored.rows_of(&reversed).ok_or_else(|| unfit(name, &stored));
        }
        if !self.rewrites(name) {
            return Ok(stored);
        }
        self.weights.read(name, &stored)?;
        let change = self.change;
        let mut values = vec![0_f32; stored.rows() * stored.columns()];
        values.par_chunks_exact_mut(stored.columns()).enumerate().for_each(|(at, row)| {
            stored.decode_row(at, row);
            // A row has numbers of its own, whichever thread comes to it.
            let generator = |seed| generator(seed, name, part, at);
            match change {
                WeightsChange::Rounded { bits } => round(row, bits),
                WeightsChange::Bf16 => row.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
                WeightsChange::Redrawn { seed } => redraw(row, generator(seed)),
                WeightsChange::Noise { share } => disturb(row, share, generator(NOISE_SEED)),
                WeightsChange::WithoutLayer { .. } => row.fill(0.0),
                WeightsChange::ReversedExpert { .. } => {}
            }
        });
        let bytes = SharedBytes::owned(values.into_iter().flat_map(f32::to_le_bytes).collect());
        Matrix::new(bytes, Format::F32, stored.rows(), stored.columns(), RowOrder::Plain)
            .ok_or_else(|| unfit(name, &stored))
    }
}

impl WeightSource for ChangedWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        // What was rewritten was read for that.
        if self.rewrites(name) { Ok(()) } else { self.weights.read(name, matrix) }
    }

    fn rounds_activations(&self) -> bool {
        self.weights.rounds_activations()
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        self.changed(name, 0, self.weights.matrix(name, output, input)?)
    }

    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
        let stored = self.weights.stack(name, count, output, input)?;
        stored.into_iter().enumerate().map(|(part, matrix)| self.changed(name, part, matrix)).collect()
    }

    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
        self.weights.vector(name, len)
    }
}

/// Whether a model can be changed so.
fn check(change: WeightsChange, config: &DecoderConfig) -> Result<(), String> {
    change.check()?;
    let Some(layer) = change.layer() else { return Ok(()) };
    if layer >= config.layers {
        return Err(format!("there is no layer {layer}; the model's are 0 to {}", config.layers - 1));
    }
    match (change, config.feed_forward(layer)) {
        (WeightsChange::ReversedExpert { .. }, FeedForwardKind::Dense { .. }) => {
            Err(format!("layer {layer} has no experts; name a layer that has some"))
        }
        (WeightsChange::ReversedExpert { expert, .. }, FeedForwardKind::Sparse(shape)) if expert >= shape.experts => {
            Err(format!("layer {layer} has no expert {expert}; its experts are 0 to {}", shape.experts - 1))
        }
        _ => Ok(()),
    }
}

fn unfit(name: &str, stored: &Matrix) -> LoadError {
    LoadError::Config(format!("{name}: {} rows of {} values cannot be changed", stored.rows(), stored.columns()))
}

/// Random numbers for one row of one matrix.
fn generator(seed: u64, name: &str, part: usize, row: usize) -> ChaCha8Rng {
    let key = Sha256::new().chain_update(seed.to_le_bytes()).chain_update((part as u64).to_le_bytes());
    let mut generator = ChaCha8Rng::from_seed(key.chain_update(name).finalize().into());
    generator.set_stream(row as u64);
    generator
}

/// A number from a bell curve of width 1, near enough: the sum of twelve even ones. No logarithm is in it, so it is the same bits
/// on any machine.
fn bell(generator: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| generator.random::<f32>()).sum::<f32>() - 6.0
}

fn round(row: &mut [f32], bits: u32) {
    let steps = ((1_u32 << (bits - 1)) - 1) as f32;
    for group in row.chunks_mut(GROUP) {
        let step = group.iter().fold(0_f32, |most, x| most.max(x.abs())) / steps;
        for x in group.iter_mut().filter(|_| step > 0.0) {
            *x = (*x / step).round() * step;
        }
    }
}

fn redraw(row: &mut [f32], mut generator: ChaCha8Rng) {
    let size = (row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32).sqrt();
    row.fill_with(|| size * bell(&mut generator));
}

fn disturb(row: &mut [f32], share: f32, mut generator: ChaCha8Rng) {
    for x in row {
        *x *= 1.0 + share * bell(&mut generator);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, name: &str, part: usize, row: usize) -> Vec<f32> {
        let mut values = [3.0, -3.0, 3.0, -3.0].repeat(256);
        redraw(&mut values, generator(seed, name, part, row));
        values
    }

    #[test]
    fn groups_are_rounded_to_steps_of_their_largest() {
        // The largest of the first group is 7, so a step is 1; of the second, 0.875 and 0.125; the third is zero.
        let mut row = [0.0; 2 * GROUP + 3];
        row[..6].copy_from_slice(&[-7.0, 6.4, 0.5, 0.49, -0.5, -1.6]);
        row[GROUP..GROUP + 3].copy_from_slice(&[0.875, 0.06, -0.2]);
        round(&mut row, 4);
        assert_eq!(row[..7], [-7.0, 6.0, 1.0, 0.0, -1.0, -2.0, 0.0]);
        assert_eq!(row[GROUP..GROUP + 4], [0.875, 0.0, -0.25, 0.0]);
        assert_eq!(row[2 * GROUP..], [0.0; 3]);
        let mut row = [4.0, -1.9, 2.1, -6.0];
        round(&mut row, 3);
        assert_eq!(row, [4.0, -2.0, 2.0, -6.0]);
        let mut row = [127.0, -0.4, 0.6];
        round(&mut row, 8);
        assert_eq!(row, [127.0, 0.0, 1.0]);
    }

    #[test]
    fn redrawn_rows_are_as_large_as_they_were_and_each_has_its_own_numbers() {
        let one = drawn(1, "a.weight", 0, 0);
        assert_eq!(one, drawn(1, "a.weight", 0, 0));
        let size = (one.iter().map(|x| x * x).sum::<f32>() / one.len() as f32).sqrt();
        assert!((2.8..3.2).contains(&size), "{size}");
        let mean = one.iter().sum::<f32>() / one.len() as f32;
        assert!(mean.abs() < 0.3, "{mean}");
        for other in [
            drawn(2, "a.weight", 0, 0),
            drawn(1, "b.weight", 0, 0),
            drawn(1, "a.weight", 1, 0),
            drawn(1, "a.weight", 0, 1),
        ] {
            assert!(one.iter().zip(&other).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn noise_is_a_share_of_each_value() {
        let mut row = [2.0, -4.0, 0.0, 1.0].repeat(256);
        let before = row.clone();
        disturb(&mut row, 0.125, generator(NOISE_SEED, "a.weight", 0, 0));
        let shares: Vec<f32> =
            row.iter().zip(&before).filter(|(_, x)| **x != 0.0).map(|(changed, x)| changed / x - 1.0).collect();
        let width = (shares.iter().map(|x| x * x).sum::<f32>() / shares.len() as f32).sqrt();
        assert!((0.115..0.135).contains(&width), "{width}");
        assert!(row.iter().zip(&before).all(|(changed, x)| (*x == 0.0) == (*changed == 0.0)));
    }
}
