//! Every tensor of a model by name and shape, from its configuration alone.
//!
//! What a loader asks for, as data: so that the room that a model takes is known without its weights, and a test can hold
//! the two against each other.

use super::config::{DecoderConfig, FeedForwardKind, MixerKind};
use super::layers::{AttentionShape, DeltaShape, MoeShape};
use crate::backend::candle::kernels::CONV_TOKENS;

/// A tensor that a model is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::candle) struct TensorSpec {
    pub(in crate::backend::candle) name: String,
    /// `[output, input]` of a matrix, `[n]` of a vector.
    pub(in crate::backend::candle) shape: Vec<usize>,
}

/// The tensors of a model, in the order in which it uses them. `has_output` says whether a model whose output is tied to
/// its embedding comes with an output table all the same.
pub(in crate::backend::candle) fn tensors(config: &DecoderConfig, has_output: bool) -> Vec<TensorSpec> {
    let (prefix, hidden) = (config.prefix, config.hidden);
    let mut list = List(Vec::new());
    list.matrix(format!("{prefix}.embed_tokens.weight"), config.vocab, hidden);
    for layer in 0..config.layers {
        let prefix = format!("{prefix}.layers.{layer}");
        list.vector(format!("{prefix}.input_layernorm.weight"), hidden);
        match config.mixer(layer) {
            MixerKind::Attention(shape) => list.attention(&format!("{prefix}.self_attn"), shape),
            MixerKind::GatedDelta(shape) => list.gated_delta(&format!("{prefix}.linear_attn"), shape),
        }
        list.vector(format!("{prefix}.post_attention_layernorm.weight"), hidden);
        match config.feed_forward(layer) {
            FeedForwardKind::Dense { intermediate } => list.mlp(&format!("{prefix}.mlp"), hidden, intermediate),
            FeedForwardKind::Sparse(shape) => list.moe(&format!("{prefix}.mlp"), hidden, shape),
        }
    }
    list.vector(format!("{prefix}.norm.weight"), hidden);
    if has_output || !config.tied {
        list.matrix("lm_head.weight".into(), config.vocab, hidden);
    }
    list.0
}

struct List(Vec<TensorSpec>);

impl List {
    fn matrix(&mut self, name: String, output: usize, input: usize) {
        self.0.push(TensorSpec { name, shape: vec![output, input] });
    }

    fn vector(&mut self, name: String, len: usize) {
        self.0.push(TensorSpec { name, shape: vec![len] });
    }

    fn attention(&mut self, prefix: &str, shape: AttentionShape) {
        let AttentionShape { hidden, heads, kv_heads, head_dim, head_norm, gated } = shape;
        let queries = if gated { 2 * heads * head_dim } else { heads * head_dim };
        self.matrix(format!("{prefix}.q_proj.weight"), queries, hidden);
        self.matrix(format!("{prefix}.k_proj.weight"), kv_heads * head_dim, hidden);
        self.matrix(format!("{prefix}.v_proj.weight"), kv_heads * head_dim, hidden);
        self.matrix(format!("{prefix}.o_proj.weight"), hidden, heads * head_dim);
        if head_norm.is_some() {
            self.vector(format!("{prefix}.q_norm.weight"), head_dim);
            self.vector(format!("{prefix}.k_norm.weight"), head_dim);
        }
    }

    fn gated_delta(&mut self, prefix: &str, shape: DeltaShape) {
        let DeltaShape { hidden, value_heads, value_dim, .. } = shape;
        self.matrix(format!("{prefix}.in_proj_qkv.weight"), shape.channels(), hidden);
        self.matrix(format!("{prefix}.in_proj_z.weight"), shape.values(), hidden);
        self.matrix(format!("{prefix}.in_proj_a.weight"), value_heads, hidden);
        self.matrix(format!("{prefix}.in_proj_b.weight"), value_heads, hidden);
        // Depthwise: one filter a channel.
        self.0.push(TensorSpec {
            name: format!("{prefix}.conv1d.weight"),
            shape: vec![shape.channels(), 1, CONV_TOKENS],
        });
        self.vector(format!("{prefix}.A_log"), value_heads);
        self.vector(format!("{prefix}.dt_bias"), value_heads);
        self.vector(format!("{prefix}.norm.weight"), value_dim);
        self.matrix(format!("{prefix}.out_proj.weight"), hidden, shape.values());
    }

    fn mlp(&mut self, prefix: &str, hidden: usize, intermediate: usize) {
        self.matrix(format!("{prefix}.gate_proj.weight"), intermediate, hidden);
        self.matrix(format!("{prefix}.up_proj.weight"), intermediate, hidden);
        self.matrix(format!("{prefix}.down_proj.weight"), hidden, intermediate);
    }

    fn moe(&mut self, prefix: &str, hidden: usize, shape: MoeShape) {
        self.matrix(format!("{prefix}.gate.weight"), shape.experts, hidden);
        for expert in 0..shape.experts {
            self.mlp(&format!("{prefix}.experts.{expert}"), hidden, shape.intermediate);
        }
        if let Some(intermediate) = shape.shared {
            self.mlp(&format!("{prefix}.shared_expert"), hidden, intermediate);
            self.matrix(format!("{prefix}.shared_expert_gate.weight"), 1, hidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;
    use crate::backend::candle::kernels::Matrix;
    use crate::backend::candle::model::decoder::Decoder;
    use crate::backend::candle::weights::{self, Fp8Activations, LoadError, WeightSource};
    use crate::checkpoint::Checkpoint;

    /// Notes what a model asks for.
    struct Recorder<'a> {
        weights: Box<dyn WeightSource + 'a>,
        asked: RefCell<Vec<TensorSpec>>,
    }

    impl Recorder<'_> {
        fn note(&self, name: &str, shape: &[usize]) {
            self.asked.borrow_mut().push(TensorSpec { name: name.into(), shape: shape.into() });
        }
    }

    impl WeightSource for Recorder<'_> {
        fn contains(&self, name: &str) -> bool {
            self.weights.contains(name)
        }

        fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
            self.note(name, &[output, input]);
            self.weights.matrix(name, output, input)
        }

        fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
            self.note(name, &[count, output, input]);
            self.weights.stack(name, count, output, input)
        }

        fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
            self.note(name, &[len]);
            self.weights.vector(name, len)
        }
    }

    #[test]
    fn the_table_is_what_loaders_ask_for() {
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
        for name in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe"] {
            let checkpoint = Checkpoint::open(&fixtures.join(name)).unwrap();
            let config = DecoderConfig::read(&checkpoint).unwrap();
            let weights =
                weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
            let recorder = Recorder { weights, asked: RefCell::default() };
            Decoder::load(&config, &recorder, &candle_core::Device::Cpu).unwrap();
            let mut asked = recorder.asked.into_inner();
            let mut table = tensors(&config, recorder.weights.contains("lm_head.weight"));
            asked.sort();
            table.sort();
            assert_eq!(asked, table, "{name}");
        }
    }
}
