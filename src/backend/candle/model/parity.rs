//! The models against goldens made by the reference implementation (see the READMEs beside the fixtures): chosen ids
//! exactly, fin within [`TOLERANCE`], whatever the prefill chunk and whoever else is in the batch.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::quantized::gguf_file;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use super::config::DecoderConfig;
use crate::backend::candle::plan::BLOCK_TOKENS;
use crate::backend::candle::runner::ModelRunner;
use crate::backend::candle::sampler::Sampler;
use crate::backend::candle::scheduler::{Scheduler, SchedulerConfig, Wanted};
use crate::backend::{SamplingParams, candle::EngineOptions};
use crate::checkpoint::Checkpoint;

/// Engines in float32 agree to about 3e-5 on these fixtures.
const TOLERANCE: f32 = 1e-4;
const STEPS: usize = 48;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

struct Golden {
    prompts: Vec<(Vec<u32>, Vec<u32>)>,
    tensors: HashMap<String, Tensor>,
}

impl Golden {
    fn load(model: &str) -> Self {
        let folder = fixture(model).join("golden");
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("f32.json")).unwrap()).unwrap();
        let ids = |value: &Value| value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        Self {
            prompts: json["prompts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| (ids(&p["prompt_ids"]), ids(&p["chosen_ids"])))
                .collect(),
            tensors: candle_core::safetensors::load(folder.join("f32.safetensors"), &Device::Cpu).unwrap(),
        }
    }

    fn rows(&self, prompt: usize, what: &str) -> Vec<Vec<f32>> {
        self.tensors[&format!("p{prompt}.{what}")].to_vec2().unwrap()
    }
}

struct Machine {
    runner: ModelRunner,
    scheduler: Scheduler,
}

impl Machine {
    fn open(checkpoint: &Checkpoint, prefill_chunk: usize) -> Self {
        let config = DecoderConfig::read(checkpoint).unwrap();
        let model = super::load(checkpoint, &config, &Device::Cpu, &|_, _| {}).unwrap();
        let blocks = 64;
        Self {
            runner: ModelRunner::new(model, config.kv(DType::F32), blocks, &Device::Cpu).unwrap(),
            scheduler: Scheduler::new(SchedulerConfig {
                max_running: EngineOptions::default().max_running,
                prefill_chunk,
                blocks: blocks as u32,
                prefix_blocks: usize::MAX,
                snapshots: None,
            }),
        }
    }

    /// Runs to the end all that was submitted; gives each sequence's fin rows and, for generations, chosen ids.
    fn run(&mut self) -> HashMap<u64, (Vec<Vec<f32>>, Vec<u32>)> {
        let mut answers: HashMap<u64, (Vec<Vec<f32>>, Vec<u32>)> = HashMap::new();
        let mut greedy = Sampler::new(SamplingParams::default(), &[]);
        while let Some((plan, uses)) = self.scheduler.plan() {
            let Some((fin, logits)) = self.runner.forward(&plan).unwrap() else {
                continue;
            };
            let mut logits = logits.into_iter();
            for (use_, row) in uses.iter().zip(fin.to_vec2::<f32>().unwrap()) {
                let (rows, ids) = answers.entry(use_.sequence).or_default();
                rows.push(row);
                if use_.chooses {
                    let id = greedy.choose(logits.next().unwrap()).unwrap();
                    ids.push(id);
                    if ids.len() == STEPS {
                        self.scheduler.remove(use_.sequence);
                    } else {
                        self.scheduler.push(use_.sequence, id);
                    }
                }
            }
        }
        answers
    }
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: rows");
    let worst = got.iter().flatten().zip(want.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < TOLERANCE, "{what}: off by {worst}");
}

/// All prompts of a golden, one after the other and then all in one batch, prompts' rows and answers both.
fn check(checkpoint: &Checkpoint, golden: &Golden, prefill_chunk: usize) {
    let mut machine = Machine::open(checkpoint, prefill_chunk);
    let longest = |prompt: &[u32]| prompt.len() + STEPS;
    for (at, (prompt, chosen)) in golden.prompts.iter().enumerate() {
        machine.scheduler.submit(0, prompt.clone(), prompt.len(), Wanted::RowsFrom(0)).unwrap();
        let (rows, _) = machine.run().remove(&0).unwrap();
        machine.scheduler.remove(0);
        assert_close(&rows, &golden.rows(at, "prefill_fin"), &format!("prefill_fin of p{at}"));
        machine.scheduler.submit(1, prompt.clone(), longest(prompt), Wanted::Next).unwrap();
        let (rows, ids) = machine.run().remove(&1).unwrap();
        assert_eq!(&ids, chosen, "ids of p{at}, alone");
        assert_close(&rows, &golden.rows(at, "step_fin"), &format!("step_fin of p{at}"));
    }
    for (id, (prompt, _)) in (0_u64..).zip(&golden.prompts) {
        machine.scheduler.submit(id, prompt.clone(), longest(prompt), Wanted::Next).unwrap();
    }
    let answers = machine.run();
    for (at, (_, chosen)) in golden.prompts.iter().enumerate() {
        let (rows, ids) = &answers[&(at as u64)];
        assert_eq!(ids, chosen, "ids of p{at}, in company");
        assert_close(rows, &golden.rows(at, "step_fin"), &format!("step_fin of p{at}, in company"));
    }
}

#[test]
fn llama_agrees_with_its_goldens() {
    let checkpoint = Checkpoint::open(&fixture("tiny-llama")).unwrap();
    for chunk in [512, 7, 1] {
        check(&checkpoint, &Golden::load("tiny-llama"), chunk);
    }
}

#[test]
fn qwen3_agrees_with_its_goldens() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3")).unwrap();
    for chunk in [512, 7, 1] {
        check(&checkpoint, &Golden::load("tiny-qwen3"), chunk);
    }
}

#[test]
fn qwen3_moe_agrees_with_its_goldens() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3_moe")).unwrap();
    for chunk in [512, 7, 1] {
        check(&checkpoint, &Golden::load("tiny-qwen3_moe"), chunk);
    }
}

/// The llama fixture as llama.cpp's converter would write it: renamed, query and key rows interleaved, rotation factors
/// as a tensor.
#[test]
fn a_gguf_of_the_llama_fixture_agrees_with_the_same_goldens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    write_gguf(&path);
    check(&Checkpoint::open(&path).unwrap(), &Golden::load("tiny-llama"), 512);
}

fn write_gguf(path: &std::path::Path) {
    let weights =
        candle_core::safetensors::load(fixture("tiny-llama").join("model.safetensors"), &Device::Cpu).unwrap();
    let names = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
    ];
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    for (name, tensor) in weights {
        let stored = names.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let heads = match name.split('.').nth(4) {
            Some("q_proj") => 8,
            Some("k_proj") => 2,
            _ => 0,
        };
        let tensor = if heads > 0 {
            let (rows, columns) = tensor.dims2().unwrap();
            let halves = tensor.reshape((heads, 2, rows / heads / 2, columns)).unwrap().transpose(1, 2).unwrap();
            halves.contiguous().unwrap().reshape((rows, columns)).unwrap()
        } else {
            tensor
        };
        tensors.push((stored, QTensor::quantize(&tensor, GgmlDType::F32).unwrap()));
    }
    // llama3 scaling of the fixture's config: theta 500000, head of 8, factor 32, low 1, high 4, original length 64.
    let factors: Vec<f32> = (0..4)
        .map(|i| {
            let speed = 500_000_f32.powf(-(2.0 * i as f32) / 8.0);
            let turns = 64.0 * speed / (2.0 * std::f32::consts::PI);
            if turns < 1.0 {
                32.0
            } else if turns > 4.0 {
                1.0
            } else {
                let smooth = (turns - 1.0) / 3.0;
                1.0 / ((1.0 - smooth) / 32.0 + smooth)
            }
        })
        .collect();
    let factors = Tensor::new(factors, &Device::Cpu).unwrap();
    tensors.push(("rope_freqs.weight".into(), QTensor::quantize(&factors, GgmlDType::F32).unwrap()));
    let u32 = gguf_file::Value::U32;
    let metadata = [
        ("general.architecture", gguf_file::Value::String("llama".into())),
        ("llama.block_count", u32(2)),
        ("llama.embedding_length", u32(64)),
        ("llama.attention.head_count", u32(8)),
        ("llama.attention.head_count_kv", u32(2)),
        ("llama.feed_forward_length", u32(144)),
        ("llama.context_length", u32(131_072)),
        ("llama.vocab_size", u32(384)),
        ("llama.rope.freq_base", gguf_file::Value::F32(500_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", gguf_file::Value::F32(1e-5)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

#[test]
fn a_tiny_cache_forces_recompute_and_changes_nothing() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3")).unwrap();
    let golden = Golden::load("tiny-qwen3");
    let mut machine = Machine::open(&checkpoint, 16);
    // Room for the longest request alone (40 + 48 tokens) and a little more.
    let blocks = (40 + STEPS).div_ceil(BLOCK_TOKENS) as u32 + 1;
    machine.scheduler = Scheduler::new(SchedulerConfig {
        max_running: 16,
        prefill_chunk: 16,
        blocks,
        prefix_blocks: usize::MAX,
        snapshots: None,
    });
    for (id, (prompt, _)) in (0_u64..).zip(&golden.prompts) {
        machine.scheduler.submit(id, prompt.clone(), prompt.len() + STEPS, Wanted::Next).unwrap();
    }
    let answers = machine.run();
    for (at, (_, chosen)) in golden.prompts.iter().enumerate() {
        let (rows, ids) = &answers[&(at as u64)];
        assert_eq!(ids, chosen);
        assert_close(rows, &golden.rows(at, "step_fin"), &format!("step_fin of p{at}"));
    }
}
