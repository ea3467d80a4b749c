//! The models against goldens made by the reference implementation (see the READMEs beside the fixtures): chosen ids
//! exactly, fin within [`TOLERANCE`], whatever the prefill chunk and whoever else is in the batch.

mod changed;
mod gguf;
mod hybrid;
mod ranks;
mod verification;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use super::config::DecoderConfig;
use super::decoder::Decoder;
use super::shards::Shard;
use super::tensors::tensors;
use crate::backend::candle::candidates::{LogitsWanted, RowLogits};
use crate::backend::candle::parallel::{self, Communicator, Solo, ThreadComm};
use crate::backend::candle::plan::{BLOCK_TOKENS, StepPlan};
use crate::backend::candle::runner::{MemorySize, ModelRunner};
use crate::backend::candle::sampler::Sampler;
use crate::backend::candle::scheduler::{Scheduler, SchedulerConfig, Wanted};
use crate::backend::candle::weights::{self, Fp8Activations, ShardedWeights, WeightSource};
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
    /// The golden files of that name beside a model.
    fn load(model: &str, name: &str) -> Self {
        let folder = fixture(model).join("golden");
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        let ids = |value: &Value| value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let prompts = json["prompts"].as_array().unwrap().iter();
        Self {
            prompts: prompts.map(|p| (ids(&p["prompt_ids"]), ids(&p["chosen_ids"]))).collect(),
            tensors: candle_core::safetensors::load(folder.join(format!("{name}.safetensors")), &Device::Cpu).unwrap(),
        }
    }

    fn rows(&self, prompt: usize, what: &str) -> Vec<Vec<f32>> {
        self.tensors[&format!("p{prompt}.{what}")].to_vec2().unwrap()
    }
}

struct Machine {
    runner: Runner,
    scheduler: Scheduler,
}

type Rows = Vec<Vec<f32>>;

/// One rank, or several that share the model.
enum Runner {
    Solo(Box<ModelRunner<Solo>>),
    Ranks(Vec<ModelRunner<ThreadComm>>),
}

impl Runner {
    /// A step's rows of fin, and its rows of logits.
    fn forward(&self, plan: &StepPlan) -> Option<(Rows, Vec<RowLogits>)> {
        let (fin, logits) = match self {
            Self::Solo(runner) => runner.forward(plan).unwrap()?,
            Self::Ranks(ranks) => std::thread::scope(|scope| {
                let ranks: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| rank.forward(plan).unwrap())).collect();
                let mut answers: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                answers.remove(0)
            })?,
        };
        Some((fin.to_vec2().unwrap(), logits))
    }

    /// The only rank.
    fn solo(&self) -> &ModelRunner<Solo> {
        match self {
            Self::Solo(runner) => runner,
            Self::Ranks(_) => panic!("several ranks"),
        }
    }
}

/// How a machine is set up, where it matters to a test.
#[derive(Debug, Clone, Copy)]
struct Settings {
    prefill_chunk: usize,
    blocks: u32,
    prefix_blocks: usize,
    kv_dtype: DType,
    activations: Fp8Activations,
    ranks: usize,
}

impl Default for Settings {
    /// Whole prompts, and room for the longest golden one.
    fn default() -> Self {
        Self {
            prefill_chunk: 512,
            blocks: 128,
            prefix_blocks: usize::MAX,
            kv_dtype: DType::F32,
            activations: Fp8Activations::default(),
            ranks: 1,
        }
    }
}

impl Settings {
    fn sizes(self, config: &DecoderConfig) -> (Scheduler, MemorySize) {
        let Self { prefill_chunk, blocks, prefix_blocks, kv_dtype, .. } = self;
        let max_running = EngineOptions::default().max_running;
        let snapshots = (config.linear_layers() > 0).then_some(8);
        let config = SchedulerConfig { max_running, prefill_chunk, blocks, prefix_blocks, snapshots };
        let size = MemorySize { blocks: blocks as usize, kv_dtype, states: config.state_slots() };
        (Scheduler::new(config), size)
    }
}

impl Machine {
    fn open(checkpoint: &Checkpoint, prefill_chunk: usize) -> Self {
        Self::with(checkpoint, Settings { prefill_chunk, ..Settings::default() })
    }

    fn with(checkpoint: &Checkpoint, settings: Settings) -> Self {
        let config = DecoderConfig::read(checkpoint).unwrap();
        let weights = weights::open(checkpoint, config.gguf_heads(), settings.activations, &|_, _| {}).unwrap();
        Self::of_weights(weights.as_ref(), &config, settings)
    }

    fn of_weights(weights: &dyn WeightSource, config: &DecoderConfig, settings: Settings) -> Self {
        if settings.ranks == 1 {
            let model = Decoder::load(config, weights, Shard::WHOLE, &Device::Cpu).unwrap();
            return Self::of(model, config, settings);
        }
        let own = config.of_a_rank(settings.ranks).unwrap();
        let tensors = tensors(config, weights.contains("lm_head.weight"));
        let (scheduler, size) = settings.sizes(config);
        let rank = |comm: ThreadComm| {
            let shard = Shard { rank: comm.rank(), world: comm.world() };
            let part = ShardedWeights::new(weights, shard, &tensors);
            let model = Decoder::load(&own, &part, shard, &Device::Cpu).unwrap();
            ModelRunner::new(model, &own, size, comm, &Device::Cpu).unwrap()
        };
        let comms = parallel::world(settings.ranks, Duration::from_secs(60));
        Self { runner: Runner::Ranks(comms.into_iter().map(rank).collect()), scheduler }
    }

    fn of(model: Decoder, config: &DecoderConfig, settings: Settings) -> Self {
        let (scheduler, size) = settings.sizes(config);
        let runner = ModelRunner::new(model, config, size, Solo, &Device::Cpu).unwrap();
        Self { runner: Runner::Solo(Box::new(runner)), scheduler }
    }

    /// Runs all that was submitted, generations for so many steps; gives each sequence's fin rows and, for generations, chosen ids.
    fn run(&mut self, steps: usize) -> HashMap<u64, (Vec<Vec<f32>>, Vec<u32>)> {
        let mut answers: HashMap<u64, (Vec<Vec<f32>>, Vec<u32>)> = HashMap::new();
        let mut greedy = Sampler::new(SamplingParams::default(), &[]);
        while let Some((mut plan, uses)) = self.scheduler.plan() {
            let chosen = plan.outputs.iter_mut().filter(|output| output.logits != LogitsWanted::Nothing);
            chosen.for_each(|output| output.logits = greedy.wants());
            let Some((fin, logits)) = self.runner.forward(&plan) else {
                continue;
            };
            let mut logits = logits.into_iter();
            for (use_, row) in uses.iter().zip(fin) {
                let (rows, ids) = answers.entry(use_.sequence).or_default();
                rows.push(row);
                if use_.chooses {
                    let id = greedy.choose(logits.next().unwrap()).unwrap();
                    ids.push(id);
                    if ids.len() == steps {
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
    check_with(checkpoint, golden, Settings { prefill_chunk, ..Settings::default() });
}

fn check_with(checkpoint: &Checkpoint, golden: &Golden, settings: Settings) {
    let mut machine = Machine::with(checkpoint, settings);
    let longest = |prompt: &[u32]| prompt.len() + STEPS;
    for (at, (prompt, chosen)) in golden.prompts.iter().enumerate() {
        machine.scheduler.submit(0, prompt.clone(), prompt.len(), Wanted::RowsFrom(0)).unwrap();
        let (rows, _) = machine.run(STEPS).remove(&0).unwrap();
        machine.scheduler.remove(0);
        assert_close(&rows, &golden.rows(at, "prefill_fin"), &format!("prefill_fin of p{at}"));
        machine.scheduler.submit(1, prompt.clone(), longest(prompt), Wanted::Next).unwrap();
        let (rows, ids) = machine.run(STEPS).remove(&1).unwrap();
        assert_eq!(&ids, chosen, "ids of p{at}, alone");
        assert_close(&rows, &golden.rows(at, "step_fin"), &format!("step_fin of p{at}"));
    }
    check_together(&mut machine, golden);
}

/// All prompts of a golden in one batch.
fn check_together(machine: &mut Machine, golden: &Golden) {
    for (id, (prompt, _)) in (0_u64..).zip(&golden.prompts) {
        machine.scheduler.submit(id, prompt.clone(), prompt.len() + STEPS, Wanted::Next).unwrap();
    }
    let answers = machine.run(STEPS);
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
        check(&checkpoint, &Golden::load("tiny-llama", "f32"), chunk);
    }
}

#[test]
fn qwen3_agrees_with_its_goldens() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3")).unwrap();
    for chunk in [512, 7, 1] {
        check(&checkpoint, &Golden::load("tiny-qwen3", "f32"), chunk);
    }
}

#[test]
fn qwen3_moe_agrees_with_its_goldens() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3_moe")).unwrap();
    for chunk in [512, 7, 1] {
        check(&checkpoint, &Golden::load("tiny-qwen3_moe", "f32"), chunk);
    }
}

#[test]
fn a_tiny_cache_forces_recompute_and_changes_nothing() {
    let checkpoint = Checkpoint::open(&fixture("tiny-qwen3")).unwrap();
    let golden = Golden::load("tiny-qwen3", "f32");
    // Room for the longest request alone (40 + 48 tokens) and a little more.
    let blocks = (40 + STEPS).div_ceil(BLOCK_TOKENS) as u32 + 1;
    let mut machine = Machine::with(&checkpoint, Settings { prefill_chunk: 16, blocks, ..Settings::default() });
    check_together(&mut machine, &golden);
}
