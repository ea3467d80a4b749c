//! Models whose weights are changed on purpose: over any number of ranks the same ones, and what a change says, no more.

use super::gguf::write_gguf;
use super::hybrid::{BF16, F32, FP8, open};
use super::*;
use crate::backend::candle::kernels::Matrix;
use crate::backend::candle::model::config::FeedForwardKind;
use crate::backend::candle::weights::{ChangedWeights, LoadError, SyntheticWeights, WeightsChange};
use crate::backend::candle::{CandleBackend, SyntheticModel};

fn change(text: &str) -> WeightsChange {
    text.parse().unwrap()
}

/// The checkpoint's weights with a change, shown to `look`.
fn with_changed<T>(
    checkpoint: &Checkpoint,
    text: &str,
    look: impl FnOnce(&ChangedWeights<'_>, &DecoderConfig) -> T,
) -> T {
    let config = DecoderConfig::read(checkpoint).unwrap();
    let weights = weights::open(checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
    look(&ChangedWeights::new(weights.as_ref(), change(text), &config).unwrap(), &config)
}

/// A prompt's rows, a greedy answer's rows, and its ids.
fn answer(checkpoint: &Checkpoint, text: &str, prompt: &[u32], ranks: usize) -> (Rows, Rows, Vec<u32>) {
    let mut machine = with_changed(checkpoint, text, |weights, config| {
        Machine::of_weights(weights, config, Settings { ranks, ..Settings::default() })
    });
    machine.scheduler.submit(0, prompt.to_vec(), prompt.len(), Wanted::RowsFrom(0)).unwrap();
    machine.scheduler.submit(1, prompt.to_vec(), prompt.len() + STEPS, Wanted::Next).unwrap();
    let mut answers = machine.run(STEPS);
    let (rows, ids) = answers.remove(&1).unwrap();
    (answers.remove(&0).unwrap().0, rows, ids)
}

#[test]
fn any_number_of_ranks_gets_the_same_weights() {
    let changes = ["int4", "seed:1", "noise:0.1", "without-layer:1"];
    let with_experts = ["int4", "seed:1", "noise:0.1", "without-layer:1", "reversed-expert:0:1"];
    let cases: [(&str, &[usize], &[&str]); 4] = [
        ("tiny-llama", &[2, 4], &changes),
        ("tiny-qwen3", &[2], &changes),
        ("tiny-qwen3_moe", &[2, 4], &with_experts),
        (BF16, &[2], &with_experts),
    ];
    for (model, worlds, changes) in cases {
        let (checkpoint, golden) = (open(model), Golden::load(model, "f32"));
        // Long enough for all experts to be of use.
        let longest = golden.prompts.iter().enumerate().max_by_key(|(_, (prompt, _))| prompt.len());
        let (at, (prompt, _)) = longest.unwrap();
        for text in changes {
            let (prompt_rows, rows, ids) = answer(&checkpoint, text, prompt, 1);
            let plain = golden.rows(at, "prefill_fin");
            let off = prompt_rows.iter().flatten().zip(plain.iter().flatten()).any(|(a, b)| (a - b).abs() > TOLERANCE);
            assert!(off, "{model}: {text} changes nothing");
            for &ranks in worlds {
                let (got_prompt_rows, got_rows, got_ids) = answer(&checkpoint, text, prompt, ranks);
                assert_eq!(got_ids, ids, "{model}, {text} over {ranks} ranks");
                assert_close(
                    &got_prompt_rows,
                    &prompt_rows,
                    &format!("{model}, {text}: the prompt over {ranks} ranks"),
                );
                assert_close(&got_rows, &rows, &format!("{model}, {text}: the answer over {ranks} ranks"));
            }
        }
    }
}

/// What stands behind a layer is what stood before it, to the bit.
#[test]
fn a_layer_that_is_left_out_adds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write_gguf(&dir.path().join("tiny.gguf"));
    let gguf = Checkpoint::open(&dir.path().join("tiny.gguf")).unwrap();
    let folders = ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe", F32, BF16, FP8].map(open);
    for checkpoint in folders.iter().chain([&gguf]) {
        let layers = DecoderConfig::read(checkpoint).unwrap().layers;
        for layer in 1..layers {
            let mut machine = with_changed(checkpoint, &format!("without-layer:{layer}"), |weights, config| {
                Machine::of_weights(weights, config, Settings::default())
            });
            machine.scheduler.submit(0, (1..40).collect(), 39, Wanted::Next).unwrap();
            let (plan, _) = machine.scheduler.plan().unwrap();
            let outputs = machine.runner.solo().layer_outputs(&plan).unwrap();
            let outputs: Vec<Rows> = outputs.iter().map(|rows| rows.to_vec2().unwrap()).collect();
            for at in 1..layers {
                assert_eq!(outputs[at] == outputs[at - 1], at == layer, "{checkpoint:?}: layer {at} without {layer}");
            }
        }
    }
}

/// A source whose layers are called by the number before theirs: the first is gone.
struct Shifted<'a>(&'a dyn WeightSource);

impl Shifted<'_> {
    fn stored(name: &str) -> String {
        match name.strip_prefix("model.layers.").and_then(|name| name.split_once('.')) {
            Some((layer, part)) => format!("model.layers.{}.{part}", layer.parse::<usize>().unwrap() + 1),
            None => name.into(),
        }
    }
}

impl WeightSource for Shifted<'_> {
    fn contains(&self, name: &str) -> bool {
        self.0.contains(&Self::stored(name))
    }

    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        self.0.read(&Self::stored(name), matrix)
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        self.0.matrix(&Self::stored(name), output, input)
    }

    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
        self.0.stack(&Self::stored(name), count, output, input)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
        self.0.vector(&Self::stored(name), len)
    }
}

#[test]
fn a_model_without_a_layer_is_the_model_of_the_others() {
    for model in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe"] {
        let checkpoint = open(model);
        let prompt = &Golden::load(model, "f32").prompts[0].0;
        let mut config = DecoderConfig::read(&checkpoint).unwrap();
        let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
        config.layers -= 1;
        let mut shorter = Machine::of_weights(&Shifted(weights.as_ref()), &config, Settings::default());
        shorter.scheduler.submit(1, prompt.clone(), prompt.len() + STEPS, Wanted::Next).unwrap();
        let (rows, ids) = shorter.run(STEPS).remove(&1).unwrap();
        let (_, got_rows, got_ids) = answer(&checkpoint, "without-layer:0", prompt, 1);
        assert_eq!((got_ids, got_rows), (ids, rows), "{model}");
    }
}

fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0_f32; matrix.rows() * matrix.columns()];
    for (at, row) in values.chunks_exact_mut(matrix.columns()).enumerate() {
        matrix.decode_row(at, row);
    }
    values
}

/// All tensors of a model but its vectors, one by one.
fn matrices(weights: &dyn WeightSource, config: &DecoderConfig) -> HashMap<String, Vec<f32>> {
    let tensors = tensors(config, weights.contains("lm_head.weight")).into_iter();
    let values = tensors.filter_map(|spec| {
        let matrices = match *spec.shape.as_slice() {
            [output, input] => weights.matrix(&spec.name, output, input).map(|matrix| vec![matrix]),
            [count, output, input] => weights.stack(&spec.name, count, output, input),
            _ => return None,
        };
        Some((spec.name, matrices.unwrap().iter().flat_map(decoded).collect()))
    });
    values.collect()
}

#[test]
fn the_same_change_is_the_same_weights_and_only_projections_change() {
    let checkpoint = open(FP8);
    let of = |text: &str| with_changed(&checkpoint, text, |weights, config| matrices(weights, config));
    let config = DecoderConfig::read(&checkpoint).unwrap();
    let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
    let plain = matrices(weights.as_ref(), &config);
    let kept = |name: &str| name.contains("embed_tokens") || name == "lm_head.weight" || name.contains("conv1d");
    for text in ["int4", "seed:1", "noise:0.01"] {
        let (changed, again) = (of(text), of(text));
        for (name, values) in &plain {
            assert_eq!(changed[name] == *values, kept(name), "{text}: {name}");
            assert_eq!(changed[name], again[name], "{text}: {name}");
        }
    }
    let (one, other) = (of("seed:1"), of("seed:2"));
    assert!(one.iter().all(|(name, values)| (other[name] == *values) == kept(name)));
    // One tensor, and of it the order of its rows alone.
    let reversed = of("reversed-expert:0:1");
    let changed: Vec<_> = plain.iter().filter(|(name, values)| reversed[*name] != **values).collect();
    let [(name, values)] = changed.as_slice() else { panic!("{} tensors", changed.len()) };
    assert!(name.ends_with("layers.0.mlp.experts.1.down_proj.weight"), "{name}");
    let columns = values.len() / config.hidden;
    let backwards: Vec<f32> = values.chunks_exact(columns).rev().flatten().copied().collect();
    assert_eq!(reversed[*name], backwards);
}

/// All experts in one tensor, or each in its own: it is the same expert that changes.
#[test]
fn an_expert_is_found_in_a_tensor_of_all_experts_too() {
    let checkpoint = open(BF16);
    let config = DecoderConfig::read(&checkpoint).unwrap();
    let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
    let changed = ChangedWeights::new(weights.as_ref(), change("reversed-expert:2:5"), &config).unwrap();
    let FeedForwardKind::Sparse(shape) = config.feed_forward(2) else { panic!("a dense layer") };
    let name = format!("{}.layers.2.mlp.experts.down_proj", config.prefix);
    let stack = |weights: &dyn WeightSource| -> Vec<Vec<f32>> {
        let stack = weights.stack(&name, shape.experts, config.hidden, shape.intermediate).unwrap();
        stack.iter().map(decoded).collect()
    };
    for (expert, (got, plain)) in stack(&changed).iter().zip(stack(weights.as_ref())).enumerate() {
        assert_eq!(*got == plain, expert != 5, "expert {expert}");
    }
}

#[test]
fn what_a_model_cannot_change_is_refused_at_start() {
    let start = |model: &str, text: &str| {
        let options = EngineOptions {
            max_total_tokens: Some(256),
            weights_change: Some(change(text)),
            ..EngineOptions::default()
        };
        CandleBackend::open(&open(model), &options, &|_, _| {})
    };
    for (model, text, said) in [
        ("tiny-llama", "without-layer:2", "without-layer:2: there is no layer 2; the model's are 0 to 1"),
        ("tiny-llama", "reversed-expert:0:0", "layer 0 has no experts"),
        (FP8, "reversed-expert:4:0", "there is no layer 4"),
        (FP8, "reversed-expert:0:99", "layer 0 has no expert 99"),
    ] {
        let error = start(model, text).unwrap_err();
        assert!(matches!(error, LoadError::Start(_)) && error.to_string().contains(said), "{error}");
    }
    assert!(start("tiny-llama", "without-layer:1").is_ok());
    // Numbers that no text gives.
    let config = DecoderConfig::read(&open("tiny-llama")).unwrap();
    let weights = SyntheticWeights::new(0, Fp8Activations::default(), &|_, _| {});
    for wrong in [WeightsChange::Rounded { bits: 1 }, WeightsChange::Noise { share: f32::NAN }] {
        assert!(ChangedWeights::new(&weights, wrong, &config).is_err(), "{wrong}");
    }
}

/// Through the whole engine: other rows of the same tokens, from a synthetic model too.
#[tokio::test]
async fn an_engine_with_changed_weights_gives_other_rows() {
    let shape: SyntheticModel = "qwen3.6-35b-a3b:layers=2,experts=2".parse().unwrap();
    let rows = async |synthetic: bool, weights_change| {
        let options = EngineOptions { max_total_tokens: Some(256), weights_change, ..EngineOptions::default() };
        let backend = match synthetic {
            true => CandleBackend::synthetic(&shape, &options, &|_, _| {}),
            false => CandleBackend::open(&open("tiny-llama"), &options, &|_, _| {}),
        };
        crate::backend::Backend::hidden_states(&backend.unwrap(), vec![1, 2, 3], 0).await.unwrap()
    };
    for synthetic in [false, true] {
        let plain = rows(synthetic, None).await;
        for text in ["noise:0.1", "without-layer:0"] {
            assert!(rows(synthetic, Some(change(text))).await != plain, "{text}, synthetic: {synthetic}");
        }
    }
}
