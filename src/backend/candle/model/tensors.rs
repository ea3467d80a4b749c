//! Every tensor of a model by name, shape and split, from its configuration alone.
//!
//! What a loader asks for and how ranks share it, as data: so that the room that a model takes is known without its weights, and
//! a test can hold the two against each other.

use super::config::{DecoderConfig, FeedForwardKind, MixerKind};
use super::layers::{AttentionShape, DeltaShape, MoeShape};
use super::shards::{Part, Split, Units};
use crate::backend::candle::kernels::CONV_TOKENS;

/// A tensor that a model is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::candle) struct TensorSpec {
    pub(in crate::backend::candle) name: String,
    /// `[output, input]` of a matrix, `[n]` of a vector.
    pub(in crate::backend::candle) shape: Vec<usize>,
    /// How ranks share it.
    pub(in crate::backend::candle) split: Split,
}

impl TensorSpec {
    /// The tensor of all experts together in which releases may keep this one, where it is an expert's.
    pub(in crate::backend::candle) fn joined_name(&self) -> Option<String> {
        let (experts, rest) = self.name.split_once(".experts.")?;
        let (_, rest) = rest.split_once('.')?;
        let fused = match rest {
            "gate_proj.weight" | "up_proj.weight" => "gate_up_proj",
            "down_proj.weight" => "down_proj",
            _ => return None,
        };
        Some(format!("{experts}.experts.{fused}"))
    }
}

/// The tensors of a model, in the order in which it uses them. `has_output` says whether a model whose output is tied to
/// its embedding comes with an output table all the same.
pub(in crate::backend::candle) fn tensors(config: &DecoderConfig, has_output: bool) -> Vec<TensorSpec> {
    let (prefix, hidden) = (config.prefix, config.hidden);
    let mut list = List(Vec::new());
    let vocabulary = Split::rows(config.vocab, Units::own(config.vocab, "vocabulary entries"));
    list.add(format!("{prefix}.embed_tokens.weight"), [config.vocab, hidden], vocabulary.clone());
    for layer in 0..config.layers {
        let prefix = format!("{prefix}.layers.{layer}");
        list.replicated(format!("{prefix}.input_layernorm.weight"), [hidden]);
        match config.mixer(layer) {
            MixerKind::Attention(shape) => list.attention(&format!("{prefix}.self_attn"), shape),
            MixerKind::GatedDelta(shape) => list.gated_delta(&format!("{prefix}.linear_attn"), shape),
        }
        list.replicated(format!("{prefix}.post_attention_layernorm.weight"), [hidden]);
        match config.feed_forward(layer) {
            FeedForwardKind::Dense { intermediate } => list.mlp(&format!("{prefix}.mlp"), hidden, intermediate),
            FeedForwardKind::Sparse(shape) => list.moe(&format!("{prefix}.mlp"), hidden, shape),
        }
    }
    list.replicated(format!("{prefix}.norm.weight"), [hidden]);
    if has_output || !config.tied {
        list.add("lm_head.weight".into(), [config.vocab, hidden], vocabulary);
    }
    list.0
}

struct List(Vec<TensorSpec>);

impl List {
    fn add<const N: usize>(&mut self, name: String, shape: [usize; N], split: Split) {
        self.0.push(TensorSpec { name, shape: shape.into(), split });
    }

    fn replicated<const N: usize>(&mut self, name: String, shape: [usize; N]) {
        self.add(name, shape, Split::Replicated);
    }

    fn attention(&mut self, prefix: &str, shape: AttentionShape) {
        let AttentionShape { hidden, heads, kv_heads, head_dim, head_norm, gated } = shape;
        let (own, keys) = (Units::own(heads, "query heads"), kv_heads * head_dim);
        // A head's queries and gates stand together, so heads stay whole.
        let queries = if gated { 2 * heads * head_dim } else { heads * head_dim };
        let shared = Split::rows(keys, Units::shared(kv_heads, "key heads"));
        self.add(format!("{prefix}.q_proj.weight"), [queries, hidden], Split::rows(queries, own));
        self.add(format!("{prefix}.k_proj.weight"), [keys, hidden], shared.clone());
        self.add(format!("{prefix}.v_proj.weight"), [keys, hidden], shared);
        self.add(format!("{prefix}.o_proj.weight"), [hidden, heads * head_dim], Split::Columns(own));
        if head_norm.is_some() {
            self.replicated(format!("{prefix}.q_norm.weight"), [head_dim]);
            self.replicated(format!("{prefix}.k_norm.weight"), [head_dim]);
        }
    }

    fn gated_delta(&mut self, prefix: &str, shape: DeltaShape) {
        let DeltaShape { hidden, key_heads, value_heads, value_dim, .. } = shape;
        let key = Units::own(key_heads, "linear key heads");
        let value = Units::own(value_heads, "linear value heads");
        let (keys, values, channels) = (shape.keys(), shape.values(), shape.channels());
        let joined = Split::Rows(vec![
            Part { rows: keys, units: key },
            Part { rows: keys, units: key },
            Part { rows: values, units: value },
        ]);
        let a_head = Split::rows(value_heads, value);
        self.add(format!("{prefix}.in_proj_qkv.weight"), [channels, hidden], joined.clone());
        self.add(format!("{prefix}.in_proj_z.weight"), [values, hidden], Split::rows(values, value));
        self.add(format!("{prefix}.in_proj_a.weight"), [value_heads, hidden], a_head.clone());
        self.add(format!("{prefix}.in_proj_b.weight"), [value_heads, hidden], a_head.clone());
        // Depthwise: one filter a channel.
        self.add(format!("{prefix}.conv1d.weight"), [channels, 1, CONV_TOKENS], joined);
        self.add(format!("{prefix}.A_log"), [value_heads], a_head.clone());
        self.add(format!("{prefix}.dt_bias"), [value_heads], a_head);
        self.replicated(format!("{prefix}.norm.weight"), [value_dim]);
        self.add(format!("{prefix}.out_proj.weight"), [hidden, values], Split::Columns(value));
    }

    fn mlp(&mut self, prefix: &str, hidden: usize, intermediate: usize) {
        let width = Units::own(intermediate, "values of a feed-forward block's width");
        let rows = Split::rows(intermediate, width);
        self.add(format!("{prefix}.gate_proj.weight"), [intermediate, hidden], rows.clone());
        self.add(format!("{prefix}.up_proj.weight"), [intermediate, hidden], rows);
        self.add(format!("{prefix}.down_proj.weight"), [hidden, intermediate], Split::Columns(width));
    }

    fn moe(&mut self, prefix: &str, hidden: usize, shape: MoeShape) {
        self.replicated(format!("{prefix}.gate.weight"), [shape.experts, hidden]);
        for expert in 0..shape.experts {
            self.mlp(&format!("{prefix}.experts.{expert}"), hidden, shape.intermediate);
        }
        if let Some(intermediate) = shape.shared {
            self.mlp(&format!("{prefix}.shared_expert"), hidden, intermediate);
            self.replicated(format!("{prefix}.shared_expert_gate.weight"), [1, hidden]);
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
    use crate::backend::candle::model::shards::Shard;
    use crate::backend::candle::weights::{self, Fp8Activations, LoadError, WeightSource};
    use crate::checkpoint::Checkpoint;

    /// Notes what a model asks for.
    struct Recorder<'a> {
        weights: Box<dyn WeightSource + 'a>,
        asked: RefCell<Vec<(String, Vec<usize>)>>,
    }

    impl Recorder<'_> {
        fn note(&self, name: &str, shape: &[usize]) {
            self.asked.borrow_mut().push((name.into(), shape.into()));
        }
    }

    impl WeightSource for Recorder<'_> {
        fn contains(&self, name: &str) -> bool {
            self.weights.contains(name)
        }

        fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
            self.weights.read(name, matrix)
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
        for name in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe", "tiny-qwen3_5_moe-fp8"] {
            let checkpoint = Checkpoint::open(&fixtures.join(name)).unwrap();
            let config = DecoderConfig::read(&checkpoint).unwrap();
            let weights =
                weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
            let recorder = Recorder { weights, asked: RefCell::default() };
            Decoder::load(&config, &recorder, Shard::WHOLE, &candle_core::Device::Cpu).unwrap();
            let mut asked = recorder.asked.into_inner();
            let table = tensors(&config, recorder.weights.contains("lm_head.weight"));
            let mut table: Vec<_> = table.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
            asked.sort();
            table.sort();
            assert_eq!(asked, table, "{name}");
        }
    }
}
