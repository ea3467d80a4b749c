//! What a step computes in, beside what it reads and remembers.

use crate::backend::candle::EngineOptions;
use crate::backend::candle::model::config::{DecoderConfig, FeedForwardKind, MixerKind};

/// Bytes of a value in a step: activations are f32.
const VALUE_BYTES: usize = 4;

/// Rows of the hidden width that stand at once: the stream of sums, its norm, what a block gives and what the ranks' sum of it is.
const STREAMS: usize = 4;

/// The most that one step of a rank has in hand at once, from its shapes: the widest mixer or feed-forward block for each row,
/// the rows of the stream, and the logits of those who choose. A bound to plan by, not a measurement.
pub(super) fn workspace_bytes(own: &DecoderConfig, options: &EngineOptions) -> u64 {
    let layer = |layer| {
        let mixer = match own.mixer(layer) {
            MixerKind::Attention(shape) => {
                let queries = shape.heads * shape.head_dim;
                let gates = if shape.gated { queries } else { 0 };
                // Queries, their gates, keys, values, and what the heads attend to.
                2 * queries + gates + 2 * shape.kv_heads * shape.head_dim
            }
            // The joined projection before and behind the convolution, the gates, and what the heads read out.
            MixerKind::GatedDelta(shape) => 2 * shape.channels() + 2 * shape.values() + 2 * shape.value_heads,
        };
        let feed_forward = match own.feed_forward(layer) {
            // Gate, up, and their product.
            FeedForwardKind::Dense { intermediate } => 3 * intermediate,
            FeedForwardKind::Sparse(shape) => {
                let chosen = shape.per_token * (3 * shape.intermediate + own.hidden);
                chosen + 3 * shape.shared.unwrap_or(0) + shape.experts
            }
        };
        mixer.max(feed_forward)
    };
    let widest = (0..own.layers).map(layer).max().unwrap_or(0);
    let rows = options.prefill_chunk.saturating_add(options.max_running);
    let row = (STREAMS * own.hidden + widest).saturating_mul(VALUE_BYTES);
    let logits = options.max_running.saturating_mul(own.vocab).saturating_mul(VALUE_BYTES);
    (rows as u64).saturating_mul(row as u64).saturating_add(logits as u64)
}
