//! Flags of the candle engine.

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use super::{at_most, share};
use crate::backend::candle::{DeviceName, EngineOptions, Fp8Activations, KvDtype, RankFault};

/// The engine of the candle backend.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Requests that make progress at once; more wait.
    #[arg(long, env = "ENGY_MAX_RUNNING", value_name = "N", default_value_t = EngineOptions::default().max_running, value_parser = at_most::<usize>(1 << 16))]
    pub max_running_requests: usize,
    /// Prompt tokens a step: small keeps others' tokens coming, large reads prompts faster.
    #[arg(long, env = "ENGY_PREFILL_CHUNK", value_name = "TOKENS", default_value_t = EngineOptions::default().prefill_chunk)]
    pub chunked_prefill_size: usize,
    /// Tokens that the key/value cache holds, over all requests [default: the model's context, within 2 GiB].
    #[arg(long, env = "ENGY_MAX_TOTAL_TOKENS", value_name = "TOKENS", value_parser = at_most::<usize>(1 << 40))]
    pub max_total_tokens: Option<usize>,
    /// Share of the free memory that this cache may take, in place of a number of tokens [default: 2 GiB].
    #[arg(long, env = "ENGY_MEM_FRACTION", value_name = "0..1", conflicts_with = "max_total_tokens", value_parser = share)]
    pub mem_fraction: Option<f64>,
    /// How keys and values are stored: narrower holds more tokens and moves hidden states by its rounding.
    #[arg(long, env = "ENGY_KV_CACHE_DTYPE", value_enum, default_value_t = KvCacheDtype::Auto)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Of these, how many may keep prefixes that come again; 0 turns that off [default: all that no request needs].
    #[arg(long, env = "ENGY_PREFIX_CACHE_TOKENS", value_name = "TOKENS")]
    pub prefix_cache_tokens: Option<usize>,
    /// Room for snapshots of what linear layers remember (hybrid models: a known prefix needs one), bytes.
    #[arg(long, env = "ENGY_STATE_CACHE_BYTES", value_name = "BYTES", default_value_t = EngineOptions::default().state_cache_bytes)]
    pub state_cache_bytes: u64,
    /// What activations look like where they meet block-FP8 weights: dynamic rounds them to eight bits as serves do on units of
    /// eight bits.
    #[arg(long, env = "ENGY_FP8_ACTIVATIONS", value_enum, default_value_t = ActivationDtype::None)]
    pub fp8_activations: ActivationDtype,
    /// Who shares the model.
    #[command(flatten)]
    pub world: WorldArgs,
    /// A drill for whoever watches over the miner: a rank that fails, such as 1:1000:panic, at its thousandth collective.
    #[arg(long, value_name = "RANK:COLLECTIVE:KIND", hide = true)]
    pub rank_fault: Option<RankFault>,
}

/// A world of ranks.
#[derive(Debug, Args)]
pub struct WorldArgs {
    /// Ranks that share the model, each with a part of the weights and of the processor's threads (tensor parallelism).
    #[arg(long, env = "ENGY_TP_SIZE", value_name = "N", default_value_t = 1, value_parser = at_most::<usize>(64))]
    pub tp_size: usize,
    /// Where the ranks run, one entry each: cpu for all, or a GPU for each, as in cuda:0,cuda:1 [default: all on the processor].
    #[arg(long, env = "ENGY_DEVICES", value_name = "DEVICE,...", value_delimiter = ',')]
    pub devices: Option<Vec<DeviceName>>,
    /// How long a rank waits for the others before the program gives up and exits, seconds.
    #[arg(long, env = "ENGY_COLLECTIVE_TIMEOUT", value_name = "SECONDS", default_value_t = EngineOptions::DEFAULT_COLLECTIVE_TIMEOUT.as_secs(), value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub collective_timeout: u64,
}

/// A form of activations in eight-bit products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationDtype {
    /// As they are.
    None,
    /// e4m3, scaled by token and group of 128.
    Dynamic,
}

impl From<ActivationDtype> for Fp8Activations {
    fn from(dtype: ActivationDtype) -> Self {
        match dtype {
            ActivationDtype::None => Self::AsTheyAre,
            ActivationDtype::Dynamic => Self::Dynamic,
        }
    }
}

/// A form of keys and values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// f32 on CPU.
    Auto,
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
    /// 1 byte.
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
}

impl From<KvCacheDtype> for KvDtype {
    fn from(dtype: KvCacheDtype) -> Self {
        match dtype {
            KvCacheDtype::Auto => Self::Auto,
            KvCacheDtype::F32 => Self::F32,
            KvCacheDtype::Bf16 => Self::Bf16,
            KvCacheDtype::Fp8E4m3 => Self::Fp8E4m3,
        }
    }
}
