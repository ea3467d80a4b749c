//! The in-process backend: the model runs here, and fin goes from its last norm straight to the reader.
//!
//! `weights` and `model` turn a checkpoint into layers; `scheduler` decides each step as plain data (`plan`); `runner`
//! computes it on a device, with `cache` as its memory and `kernels` for what the tensor library lacks; `candidates`,
//! `sampler` and `logprobs` read its logits; `engine` is the thread that does this in a loop and talks to readers. Only this room
//! knows the tensor library.

mod cache;
mod candidates;
mod device;
mod engine;
mod kernels;
mod logprobs;
mod memory;
mod model;
mod parallel;
mod plan;
mod runner;
mod sampler;
mod scheduler;
mod synthetic;
mod weights;

use std::time::Duration;

use candle_core::{DType, Device};
use futures::FutureExt;
use futures::future::BoxFuture;

pub use self::device::{DeviceError, DeviceName, Devices};
use self::engine::{EngineConfig, EngineHandle};
pub use self::memory::{MemoryPlan, MemoryPlanner, RankPlan, Room};
use self::model::config::DecoderConfig;
use self::model::decoder::Decoder;
use self::model::shards::Shard;
use self::model::tensors::tensors;
pub use self::parallel::{CollectiveTime, FaultKind, Measurement, RankFault};
use self::parallel::{Communicator, Drilled, MakeRunner, Ranks, Solo, greet};
use self::plan::{BLOCK_TOKENS, StepError, StepOutput, StepPlan, StepRunner};
use self::runner::{MemorySize, ModelRunner};
use self::scheduler::SchedulerConfig;
pub use self::synthetic::SyntheticModel;
use self::weights::{ChangedWeights, ShardedWeights, SyntheticWeights, WeightSource};
pub use self::weights::{Fp8Activations, LoadError, ProgressFn, WeightsChange};

use super::{Backend, BackendError, BackendInfo, FinRows, Generation, GenerationRequest, Health, Load};
use crate::checkpoint::Checkpoint;
use crate::guide::{GuideError, Guides, ReadVocabulary};

/// How the engine shares a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Sequences that make progress at once; more wait.
    pub max_running: usize,
    /// Prompt tokens a step. Small keeps the others' tokens coming, large reads prompts faster.
    pub prefill_chunk: usize,
    /// Tokens that the key/value cache holds, over all sequences. `None`: what the model's context or
    /// [`EngineOptions::DEFAULT_CACHE_BYTES`] allows, whichever is less.
    pub max_total_tokens: Option<usize>,
    /// Share of the free memory that the cache may take where `max_total_tokens` says nothing; `None`:
    /// [`EngineOptions::DEFAULT_CACHE_BYTES`].
    pub mem_fraction: Option<f64>,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Of these, how many may keep prefixes that come again; `None`: all that no sequence needs, 0: none.
    pub prefix_tokens: Option<usize>,
    /// Bytes for snapshots of what linear layers remember, without which a hybrid model cannot take up a known prefix.
    pub state_cache_bytes: u64,
    /// What activations look like where they meet block-FP8 weights.
    pub fp8_activations: Fp8Activations,
    /// Ranks that share the model, each with its part of the weights.
    pub ranks: usize,
    /// How long a rank waits for the others within a step before the world is given up.
    pub collective_timeout: Duration,
    /// A fault that one of the ranks shall have: a drill.
    pub rank_fault: Option<RankFault>,
    /// How the weights shall differ from the checkpoint's: a control, to see what verifiers make of a miner with other weights.
    pub weights_change: Option<WeightsChange>,
}

/// How keys and values are stored. Narrower ones hold more tokens and move fin by their rounding, so a proof is best
/// verified with what it was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDtype {
    /// f32 on CPU, where everything is computed in it.
    Auto,
    /// 4 bytes, exact.
    F32,
    /// 2 bytes.
    Bf16,
    /// 1 byte, saturating at 448, without scales.
    Fp8E4m3,
}

impl KvDtype {
    fn dtype(self) -> DType {
        match self {
            Self::Auto | Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::Fp8E4m3 => DType::F8E4M3,
        }
    }

    /// Bytes of a stored value.
    fn bytes(self) -> usize {
        self.dtype().size_in_bytes()
    }
}

impl EngineOptions {
    /// Default size of the key/value cache on CPU. Pages of it are taken from the system only when they are first
    /// used, so an idle engine does not hold it.
    pub const DEFAULT_CACHE_BYTES: u64 = 2 << 30;

    /// Default patience among ranks: longer than the longest step on the slowest machine, and short enough that buyers still wait.
    pub const DEFAULT_COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);

    /// Default room for snapshots: sixteen of Qwen3.6's. Taken from the system when first used, too.
    pub const DEFAULT_STATE_CACHE_BYTES: u64 = 1 << 30;
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_running: 16,
            // On CPU a step of 512 prompt tokens takes well under a second for the demo model; larger steps gain
            // nothing there and would stall those who decode.
            prefill_chunk: 512,
            max_total_tokens: None,
            mem_fraction: None,
            kv_dtype: KvDtype::Auto,
            prefix_tokens: None,
            state_cache_bytes: Self::DEFAULT_STATE_CACHE_BYTES,
            fp8_activations: Fp8Activations::default(),
            ranks: 1,
            collective_timeout: Self::DEFAULT_COLLECTIVE_TIMEOUT,
            rank_fault: None,
            weights_change: None,
        }
    }
}

/// A model in this process.
#[derive(Debug, Clone)]
pub struct CandleBackend {
    info: BackendInfo,
    engine: EngineHandle,
    guides: Option<Guides>,
}

impl CandleBackend {
    /// Loads a checkpoint and starts the engine. Blocks while weights load; `progress` is told of bytes done and in
    /// all.
    ///
    /// # Errors
    /// When the checkpoint's model is not supported, its files are damaged or incomplete, or memory is short.
    pub fn open(checkpoint: &Checkpoint, options: &EngineOptions, progress: &ProgressFn) -> Result<Self, LoadError> {
        let config = DecoderConfig::read(checkpoint)?;
        let plan = MemoryPlanner::of_model(checkpoint, config.clone())?.plan(options, Room::here())?;
        let weights = weights::open(checkpoint, config.gguf_heads(), options.fp8_activations, progress)?;
        Self::start(config, weights.as_ref(), &plan, options)
    }

    /// Makes a model of a real one's shape with random weights in memory and starts the engine: for benchmarks.
    ///
    /// # Errors
    /// When memory is short.
    pub fn synthetic(
        model: &SyntheticModel,
        options: &EngineOptions,
        progress: &ProgressFn,
    ) -> Result<Self, LoadError> {
        let config = DecoderConfig::read_json(model.config())?;
        let plan = MemoryPlanner::synthetic(config.clone()).plan(options, Room::here())?;
        if let Some(free) = plan.free_bytes.filter(|free| plan.total_bytes > *free) {
            let total = plan.total_bytes;
            return Err(LoadError::Start(format!(
                "this shape takes {total} bytes and {free} are free; take fewer layers"
            )));
        }
        let weights = SyntheticWeights::new(plan.weights_bytes, options.fp8_activations, progress);
        Self::start(config, &weights, &plan, options)
    }

    fn start(
        config: DecoderConfig,
        weights: &dyn WeightSource,
        plan: &MemoryPlan,
        options: &EngineOptions,
    ) -> Result<Self, LoadError> {
        let blocks = plan.cache_blocks()?;
        let changed = options.weights_change.map(|change| ChangedWeights::new(weights, change, &config)).transpose()?;
        let weights = changed.as_ref().map_or(weights, |changed| changed);
        // What the cache cannot hold is no context, whatever the model was made for.
        let context = config.context.min(blocks as usize * BLOCK_TOKENS);
        let scheduler = SchedulerConfig {
            max_running: options.max_running.max(1),
            prefill_chunk: options.prefill_chunk.max(1),
            blocks,
            prefix_blocks: options.prefix_tokens.map_or(usize::MAX, |tokens| tokens / BLOCK_TOKENS),
            snapshots: plan.snapshots,
        };
        let size =
            MemorySize { blocks: blocks as usize, kv_dtype: options.kv_dtype.dtype(), states: scheduler.state_slots() };
        let runner: Box<dyn StepRunner + Send> = match plan.ranks.len() {
            0 | 1 => {
                let model = Decoder::load(&config, weights, Shard::WHOLE, &Device::Cpu)?;
                let runner = ModelRunner::new(model, &config, size, Solo, &Device::Cpu);
                Box::new(runner.map_err(out_of_memory)?)
            }
            world => Box::new(ranks(&config, weights, size, world, options)?),
        };
        let engine =
            engine::start(runner, EngineConfig { scheduler, hidden: config.hidden, vocab: config.vocab, context })
                .map_err(|error| out_of_memory(candle_core::Error::wrap(error)))?;
        Ok(Self {
            info: BackendInfo {
                kind: "candle",
                architecture: config.architecture,
                hidden: config.hidden,
                vocab: config.vocab,
                context,
                max_running: options.max_running.max(1),
            },
            engine,
            guides: None,
        })
    }

    /// Lets answers be held to a form; `read` gives the model's vocabulary when the first one is. Without, requests that ask for
    /// one are refused.
    #[must_use]
    pub fn with_vocabulary(mut self, read: Box<ReadVocabulary>) -> Self {
        self.guides = Some(Guides::new(self.info.vocab, read));
        self
    }
}

fn out_of_memory(source: candle_core::Error) -> LoadError {
    LoadError::Tensor { name: "the layers' memory".into(), source }
}

/// A world of ranks on this machine's processor.
fn ranks(
    config: &DecoderConfig,
    weights: &dyn WeightSource,
    size: MemorySize,
    world: usize,
    options: &EngineOptions,
) -> Result<Ranks, LoadError> {
    let own = config.of_a_rank(world)?;
    let tensors = tensors(config, weights.contains("lm_head.weight"));
    let threads = (rayon::current_num_threads() / world).max(1);
    let comms = parallel::world(world, options.collective_timeout);
    let makers = comms.into_iter().map(|comm| {
        let shard = Shard { rank: comm.rank(), world: comm.world() };
        let part = ShardedWeights::new(weights, shard, &tensors);
        let model = Decoder::load(&own, &part, shard, &Device::Cpu)?;
        let own = own.clone();
        let comm = Drilled::new(comm, options.rank_fault);
        let make: MakeRunner<LoadError> = Box::new(move |_| {
            let name = format!("rank-{}", comm.rank());
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = pool.thread_name(move |number| format!("{name}-{number}")).build();
            let pool = pool.map_err(|error| out_of_memory(candle_core::Error::wrap(error)))?;
            let first_meeting = greet(&comm, &[own.hidden, own.layers, own.vocab, size.blocks], &Device::Cpu);
            first_meeting
                .map_err(|error| LoadError::Start(format!("ranks cannot start: rank {}: {error}", comm.rank())))?;
            let runner = ModelRunner::new(model, &own, size, comm, &Device::Cpu).map_err(out_of_memory)?;
            Ok(Box::new(Pooled { pool, runner }) as Box<dyn StepRunner>)
        });
        Ok(make)
    });
    let makers = makers.collect::<Result<_, LoadError>>()?;
    Ranks::start(makers, |reason| LoadError::Start(format!("ranks cannot start: {reason}")))
}

/// A rank on threads of its own: ranks that shared some would wait for one another on them.
struct Pooled<R> {
    pool: rayon::ThreadPool,
    runner: R,
}

impl<R: StepRunner + Send> StepRunner for Pooled<R> {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.pool.install(|| self.runner.run(plan))
    }
}

impl From<GuideError> for BackendError {
    fn from(error: GuideError) -> Self {
        match &error {
            GuideError::Form(_) => Self::Client(error.to_string()),
            GuideError::Failed(_) => Self::Broken(error.to_string()),
        }
    }
}

impl Backend for CandleBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn generate(&self, mut request: GenerationRequest) -> Generation {
        let (sender, generation) = Generation::channel();
        let Some(constraint) = request.constraint.take() else {
            self.engine.generate(request, sender, None);
            return generation;
        };
        let Some(guides) = &self.guides else {
            let reason = "answers are not held to a form here: the engine was started without a vocabulary";
            return Generation::refused(BackendError::Client(reason.into()));
        };
        let (engine, waiting) = (self.engine.clone(), sender.clone());
        guides.prepare(
            constraint,
            move || waiting.is_cancelled(),
            move |guide| match guide {
                Ok(guide) => engine.generate(request, sender, Some(guide)),
                Err(error) => sender.send(Err(error.into())),
            },
        );
        generation
    }

    fn hidden_states(&self, tokens: Vec<u32>, from: usize) -> BoxFuture<'static, Result<FinRows, BackendError>> {
        let engine = self.engine.clone();
        async move { engine.rows(tokens, from).await }.boxed()
    }

    fn health(&self) -> Health {
        match self.engine.ended() {
            None => Health::Ready,
            Some(why) => Health::Dead(why.to_owned()),
        }
    }

    fn load(&self) -> Load {
        self.engine.load()
    }
}
