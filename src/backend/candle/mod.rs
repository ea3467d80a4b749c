//! The in-process backend: the model runs here, and fin goes from its last norm straight to the reader.
//!
//! `weights` and `model` turn a checkpoint into layers; `scheduler` decides each step as plain data (`plan`); `runner`
//! computes it on a device, with `cache` as its memory and `kernels` for what the tensor library lacks; `sampler`
//! and `logprobs` read its logits; `engine` is the thread that does this in a loop and talks to readers. Only this room
//! knows the tensor library.

mod cache;
mod engine;
mod kernels;
mod logprobs;
mod model;
mod plan;
mod runner;
mod sampler;
mod scheduler;
mod weights;

use candle_core::{DType, Device};
use futures::FutureExt;
use futures::future::BoxFuture;

use self::engine::{EngineConfig, EngineHandle};
use self::model::config::DecoderConfig;
use self::plan::BLOCK_TOKENS;
use self::runner::ModelRunner;
use self::scheduler::SchedulerConfig;
pub use self::weights::{LoadError, ProgressFn};

use super::{Backend, BackendError, BackendInfo, FinRows, Generation, GenerationRequest, Health, Load};
use crate::checkpoint::Checkpoint;
use crate::machine;

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
}

impl EngineOptions {
    /// Default size of the key/value cache on CPU. Pages of it are taken from the system only when they are first
    /// used, so an idle engine does not hold it.
    pub const DEFAULT_CACHE_BYTES: usize = 2 << 30;
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
        }
    }
}

/// A model in this process.
#[derive(Debug, Clone)]
pub struct CandleBackend {
    info: BackendInfo,
    engine: EngineHandle,
}

impl CandleBackend {
    /// Loads a checkpoint and starts the engine. Blocks while weights load; `progress` is told of bytes done and in
    /// all.
    ///
    /// # Errors
    /// When the checkpoint's model is not supported, its files are damaged or incomplete, or memory is short.
    pub fn open(checkpoint: &Checkpoint, options: &EngineOptions, progress: &ProgressFn) -> Result<Self, LoadError> {
        let device = Device::Cpu;
        let config = DecoderConfig::read(checkpoint)?;
        let blocks = cache_blocks(&config, options)?;
        // What the cache cannot hold is no context, whatever the model was made for.
        let context = config.context.min(blocks as usize * BLOCK_TOKENS);
        let tensor_error = |source| LoadError::Tensor { name: "the key/value cache".into(), source };
        let model = model::load(checkpoint, &config, &device, progress)?;
        let runner = ModelRunner::new(model, config.kv(options.kv_dtype.dtype()), blocks as usize, &device)
            .map_err(tensor_error)?;
        let engine = engine::start(
            Box::new(runner),
            EngineConfig {
                scheduler: SchedulerConfig {
                    max_running: options.max_running.max(1),
                    prefill_chunk: options.prefill_chunk.max(1),
                    blocks,
                    prefix_blocks: options.prefix_tokens.map_or(usize::MAX, |tokens| tokens / BLOCK_TOKENS),
                },
                hidden: config.hidden,
                vocab: config.vocab,
                context,
            },
        )
        .map_err(|e| tensor_error(candle_core::Error::wrap(e)))?;
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
        })
    }
}

impl Backend for CandleBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn generate(&self, request: GenerationRequest) -> Generation {
        self.engine.generate(request)
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

/// Blocks of the key/value cache.
fn cache_blocks(config: &DecoderConfig, options: &EngineOptions) -> Result<u32, LoadError> {
    let bytes_per_token = config.kv(options.kv_dtype.dtype()).bytes_per_token().max(1);
    let free = machine::memory().map(|memory| memory.available);
    let budget = match (options.mem_fraction, free) {
        (Some(fraction), Some(free)) => (free as f64 * fraction.clamp(0.0, 1.0)) as usize,
        _ => EngineOptions::DEFAULT_CACHE_BYTES,
    };
    // More than one context is of use to several requests at once, and only if it was asked for.
    let contexts = if options.mem_fraction.is_some() { options.max_running.max(1) } else { 1 };
    let default = || (budget / bytes_per_token).min(config.context.saturating_mul(contexts));
    let tokens = options.max_total_tokens.unwrap_or_else(default);
    let bytes = tokens.saturating_mul(bytes_per_token) as u64;
    // A refused allocation would end the process without a word.
    if let Some(available) = free.filter(|available| bytes > *available) {
        return Err(LoadError::Config(format!(
            "a key/value cache of {tokens} tokens takes {bytes} bytes and {available} are free; lower --max-total-tokens"
        )));
    }
    let blocks = tokens.div_ceil(BLOCK_TOKENS).max(1);
    // Slots are numbered in 32 bits.
    u32::try_from(blocks)
        .ok()
        .filter(|blocks| blocks.checked_mul(BLOCK_TOKENS as u32).is_some())
        .ok_or_else(|| LoadError::Config(format!("a key/value cache of {tokens} tokens is too large")))
}
