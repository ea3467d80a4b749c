//! One model over several ranks: the goldens hold, and each rank's tensors are parts of the whole.

use super::hybrid::{BF16, F32, FP8, open};
use super::*;
use crate::backend::candle::kernels::Matrix;
use crate::backend::candle::model::shards::Split;
use crate::backend::candle::model::tensors::TensorSpec;
use crate::backend::candle::weights::{LoadError, SyntheticWeights};

/// Fixtures, and over how many ranks they split.
const SPLITS: [(&str, &[usize]); 5] =
    [("tiny-llama", &[2, 4]), ("tiny-qwen3", &[2]), ("tiny-qwen3_moe", &[2, 4]), (F32, &[2]), (BF16, &[2])];

#[test]
fn ids_and_rows_are_those_of_one_rank() {
    for (model, worlds) in SPLITS {
        for &ranks in worlds {
            for prefill_chunk in [512, 7] {
                let settings = Settings { prefill_chunk, ranks, ..Settings::default() };
                check_with(&open(model), &Golden::load(model, "f32"), settings);
            }
        }
    }
}

#[test]
fn a_model_that_does_not_split_is_refused_with_the_reason() {
    let of_a_rank = |model: &str, world| DecoderConfig::read(&open(model)).unwrap().of_a_rank(world).map(|_| ());
    let refusal = |model, world| of_a_rank(model, world).unwrap_err().to_string();
    assert!(refusal("tiny-llama", 3).contains("8 query heads do not divide over 3"));
    assert!(refusal(F32, 4).contains("2 linear key heads do not divide over 4"));
    // Heads divide, but a rank's part of an expert would share a scale with the other's.
    assert!(of_a_rank(FP8, 2).is_ok());
    let config = DecoderConfig::read(&open(FP8)).unwrap();
    let checkpoint = open(FP8);
    let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
    let tensors = tensors(&config, true);
    let shard = Shard { rank: 0, world: 2 };
    let part = ShardedWeights::new(weights.as_ref(), shard, &tensors);
    let refusal = Decoder::load(&config.of_a_rank(2).unwrap(), &part, shard, &Device::Cpu).unwrap_err().to_string();
    assert!(refusal.contains("split a square of 128 weights"), "{refusal}");
}

fn decoded(matrix: &Matrix) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![0_f32; matrix.columns()]; matrix.rows()];
    for (at, row) in rows.iter_mut().enumerate() {
        matrix.decode_row(at, row);
    }
    rows
}

/// A tensor of any shape as rows.
fn rows(weights: &dyn WeightSource, name: &str, shape: &[usize]) -> Result<Vec<Vec<f32>>, LoadError> {
    Ok(match *shape {
        [len] => decoded(&weights.vector(name, len)?),
        [output, input] => decoded(&weights.matrix(name, output, input)?),
        [count, output, input] => weights.stack(name, count, output, input)?.iter().flat_map(decoded).collect(),
        _ => panic!("a shape {shape:?}"),
    })
}

/// The parts of all ranks, put together again by the rule, are the tensor, and its scales with it.
#[test]
fn every_tensors_parts_put_together_are_the_tensor() {
    let mut seen = 0;
    for (model, worlds) in SPLITS {
        let checkpoint = open(model);
        let config = DecoderConfig::read(&checkpoint).unwrap();
        let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
        seen += check_parts(model, weights.as_ref(), &config, worlds);
    }
    assert!(seen > 300, "{seen} tensors");
    let weights = SyntheticWeights::new(0, Fp8Activations::default(), &|_, _| {});
    for config in wide_models() {
        let seen = check_parts(&config.architecture, &weights, &config, &[2, 4]);
        assert_eq!(seen, 2 * tensors(&config, false).len(), "{}", config.architecture);
    }
}

/// Checks all tensors of a model over these numbers of ranks; how many were there.
fn check_parts(model: &str, weights: &dyn WeightSource, config: &DecoderConfig, worlds: &[usize]) -> usize {
    let mut seen = 0;
    let tensors = tensors(config, weights.contains("lm_head.weight"));
    for (&world, spec) in worlds.iter().flat_map(|world| tensors.iter().map(move |spec| (world, spec))) {
        let Ok(whole) = rows(weights, &spec.name, &spec.shape) else {
            // Fused experts have no tensors of their own; the goldens show that their parts are right.
            assert!(spec.name.contains(".experts."), "{}", spec.name);
            continue;
        };
        let parts: Vec<Vec<Vec<f32>>> = (0..world)
            .map(|rank| {
                let part = ShardedWeights::new(weights, Shard { rank, world }, &tensors);
                rows(&part, &spec.name, &spec.split.shape(&spec.shape, world, None).unwrap()).unwrap()
            })
            .collect();
        assert_eq!(together(&parts, spec, &whole), whole, "{model}: {} over {world}", spec.name);
        seen += 1;
    }
    seen
}

/// What the parts of a tensor make, by its rule.
fn together(parts: &[Vec<Vec<f32>>], spec: &TensorSpec, whole: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let world = parts.len();
    match &spec.split {
        Split::Replicated => {
            assert!(parts.iter().all(|part| part == whole), "{}", spec.name);
            whole.to_vec()
        }
        // A vector's values stand in one row.
        Split::Rows(_) if spec.shape.len() == 1 => vec![parts.iter().flat_map(|part| part[0].clone()).collect()],
        Split::Rows(kinds) => {
            let mut together = Vec::new();
            let mut first = 0;
            for kind in kinds {
                // Where there are fewer units than ranks, neighbours hold the same.
                let copies = (world / kind.units.count.max(1)).max(1);
                let own = kind.rows * copies / world;
                for part in parts.iter().step_by(copies) {
                    together.extend_from_slice(&part[first..first + own]);
                }
                for pair in parts.chunks(copies) {
                    assert!(pair.iter().all(|part| part[first..first + own] == pair[0][first..first + own]));
                }
                first += own;
            }
            together
        }
        Split::Columns(_) => {
            (0..whole.len()).map(|row| parts.iter().flat_map(|part| part[row].iter().copied()).collect()).collect()
        }
    }
}

/// Models of every architecture, each rank of four with whole squares of 128 weights.
fn wide_models() -> [DecoderConfig; 4] {
    let dense = |kind: &str| {
        serde_json::json!({"model_type": kind, "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 512, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 1e4, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 512, "norm_topk_prob": true, "tie_word_embeddings": false})
    };
    let read = |kind| DecoderConfig::read_json(&dense(kind)).unwrap();
    [read("llama"), read("qwen3"), read("qwen3_moe"), wide()]
}

/// A model of Qwen3.6's kind with every width a multiple of what four ranks need: heads of one square each.
fn wide() -> DecoderConfig {
    let config = serde_json::json!({"model_type": "qwen3_5_moe", "text_config": {
        "vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        "full_attention_interval": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}});
    DecoderConfig::read_json(&config).unwrap()
}

/// Over two and four ranks, the last in block-FP8: a prompt's rows and a greedy answer.
#[test]
fn wide_models_of_every_architecture_over_ranks_are_those_of_one_rank() {
    wide_models().iter().for_each(over_ranks_as_over_one);
}

fn over_ranks_as_over_one(config: &DecoderConfig) {
    let weights = SyntheticWeights::new(0, Fp8Activations::default(), &|_, _| {});
    let prompt: Vec<u32> = (0..70).map(|at| at * 37 % config.vocab as u32).collect();
    let run = |ranks| {
        let settings = Settings { ranks, prefill_chunk: 23, ..Settings::default() };
        let mut machine = Machine::of_weights(&weights, config, settings);
        machine.scheduler.submit(0, prompt.clone(), prompt.len(), Wanted::RowsFrom(0)).unwrap();
        machine.scheduler.submit(1, prompt.clone(), prompt.len() + STEPS, Wanted::Next).unwrap();
        let mut answers = machine.run(STEPS);
        (answers.remove(&0).unwrap().0, answers.remove(&1).unwrap())
    };
    let (rows, (answer_rows, ids)) = run(1);
    // A model that says nothing would agree with anything.
    assert!(rows.iter().flatten().any(|x| x.abs() > 0.1) && ids.iter().any(|id| *id != ids[0]), "{ids:?}");
    for ranks in [2, 4] {
        let (got_rows, (got_answer, got_ids)) = run(ranks);
        assert_eq!(got_ids, ids, "over {ranks} ranks");
        assert_close(&got_rows, &rows, &format!("the prompt's rows over {ranks} ranks"));
        assert_close(&got_answer, &answer_rows, &format!("the answer's rows over {ranks} ranks"));
    }
}
