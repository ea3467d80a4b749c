//! How much memory a model takes, and how many tokens fit beside it: the arithmetic behind `engy-miner plan` and behind the
//! cache that a start allocates.

use serde::Serialize;

use super::EngineOptions;
use super::model::config::DecoderConfig;
use super::model::tensors::{TensorSpec, tensors};
use super::plan::BLOCK_TOKENS;
use super::weights::{Inventory, LoadError};
use crate::checkpoint::Checkpoint;
use crate::machine;

/// Numbers of ranks that a refusal looks at for ones that work.
const WORLDS: [usize; 8] = [1, 2, 3, 4, 6, 8, 16, 32];

/// Snapshots are for conversations and forks under way, not for an archive: small models get no more than this.
const MAX_SNAPSHOTS: u32 = 1024;

/// What a start with some options takes. Bytes, over all ranks unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPlan {
    /// The model's architecture.
    pub architecture: String,
    /// Weights as they stand in memory: as stored, or widened where products cannot read the stored form.
    pub weights_bytes: u64,
    /// One token's keys and values over all layers.
    pub kv_bytes_per_token: u64,
    /// What the linear layers of one sequence remember, whatever its length.
    pub state_bytes_per_sequence: u64,
    /// Longest sequence that the model was made for, tokens.
    pub model_context: usize,
    /// Memory that is free now; absent where the system does not tell.
    pub free_bytes: Option<u64>,
    /// Tokens that the cache would hold if all free memory beside weights and states were given to it.
    pub tokens_that_fit: Option<u64>,
    /// Tokens that a start with these options allocates.
    pub cache_tokens: usize,
    /// Bytes of that cache.
    pub cache_bytes: u64,
    /// Snapshots of states that a start makes room for; absent where sequences have no states.
    pub snapshots: Option<u32>,
    /// Bytes of all states: one for each running sequence, and the snapshots.
    pub state_bytes: u64,
    /// Weights, states and cache together.
    pub total_bytes: u64,
    /// Each rank's part.
    pub ranks: Vec<RankPlan>,
}

/// One rank's part of a [`MemoryPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RankPlan {
    /// Its number, from 0.
    pub rank: usize,
    /// Weights, bytes.
    pub weights_bytes: u64,
    /// Keys and values of one token, bytes.
    pub kv_bytes_per_token: u64,
    /// State of one sequence, bytes.
    pub state_bytes_per_sequence: u64,
}

impl MemoryPlan {
    /// The plan of a checkpoint, from its configuration and its files' headers, or its index where the files
    /// are not here.
    ///
    /// # Errors
    /// When the model is not supported or does not split over the ranks, or a file is there and damaged.
    pub fn of(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Self, LoadError> {
        let free = machine::memory().map(|memory| memory.available);
        Self::with_memory(checkpoint, &DecoderConfig::read(checkpoint)?, options, free)
    }

    /// The plan on a machine with so much free memory.
    pub(super) fn with_memory(
        checkpoint: &Checkpoint,
        config: &DecoderConfig,
        options: &EngineOptions,
        free: Option<u64>,
    ) -> Result<Self, LoadError> {
        let inventory = Inventory::read(checkpoint)?;
        let tensors = tensors(config, inventory.contains("lm_head.weight"));
        Self::of_weights(&inventory, &tensors, config, options, free)
    }

    /// The plan of a model with random weights.
    pub(super) fn synthetic(
        config: &DecoderConfig,
        options: &EngineOptions,
        free: Option<u64>,
    ) -> Result<Self, LoadError> {
        let tensors = tensors(config, false);
        Self::of_weights(&Inventory::synthetic(&tensors), &tensors, config, options, free)
    }

    fn of_weights(
        inventory: &Inventory,
        tensors: &[TensorSpec],
        config: &DecoderConfig,
        options: &EngineOptions,
        free: Option<u64>,
    ) -> Result<Self, LoadError> {
        let world = options.ranks.max(1);
        let rank = RankPlan::of(inventory, tensors, config, options, world)?;
        // Ranks hold equal parts.
        let all = |bytes: u64| bytes.saturating_mul(world as u64);
        let RankPlan { weights_bytes, kv_bytes_per_token, state_bytes_per_sequence, .. } = rank;
        let (weights_bytes, kv_bytes_per_token) = (all(weights_bytes), all(kv_bytes_per_token));
        let state_bytes_per_sequence = all(state_bytes_per_sequence);
        let snapshots = snapshots(state_bytes_per_sequence, options);
        let states = (options.max_running.max(1) as u64).saturating_add(snapshots.unwrap_or_default().into());
        let state_bytes = state_bytes_per_sequence.saturating_mul(states);
        let room = free.map(|free| free.saturating_sub(weights_bytes).saturating_sub(state_bytes));
        let per_token = kv_bytes_per_token.max(1);
        let cache_tokens = options.max_total_tokens.unwrap_or_else(|| {
            let (budget, contexts) = match (options.mem_fraction, room) {
                // More than one context is of use to several requests at once, and only if it was asked for.
                (Some(fraction), Some(room)) => {
                    ((room as f64 * fraction.clamp(0.0, 1.0)) as u64, options.max_running.max(1))
                }
                _ => (EngineOptions::DEFAULT_CACHE_BYTES, 1),
            };
            usize::try_from(budget / per_token).unwrap_or(usize::MAX).min(config.context.saturating_mul(contexts))
        });
        let cache_tokens = cache_tokens.max(1).checked_next_multiple_of(BLOCK_TOKENS).unwrap_or(usize::MAX);
        let cache_bytes = kv_bytes_per_token.saturating_mul(cache_tokens as u64);
        Ok(Self {
            architecture: config.architecture.clone(),
            weights_bytes,
            kv_bytes_per_token,
            state_bytes_per_sequence,
            model_context: config.context,
            free_bytes: free,
            tokens_that_fit: room.map(|room| room / per_token),
            cache_tokens,
            cache_bytes,
            snapshots,
            state_bytes,
            total_bytes: weights_bytes.saturating_add(cache_bytes).saturating_add(state_bytes),
            ranks: (0..world).map(|number| RankPlan { rank: number, ..rank }).collect(),
        })
    }

    /// Blocks of the cache, if this machine can hold it: a refused allocation would end the process without a word.
    pub(super) fn cache_blocks(&self) -> Result<u32, LoadError> {
        let Self { cache_tokens: tokens, cache_bytes: bytes, state_bytes, .. } = self;
        if let Some(free) = self.free_bytes.filter(|free| bytes.saturating_add(*state_bytes) > *free) {
            return Err(LoadError::Start(format!(
                "a key/value cache of {tokens} tokens takes {bytes} bytes, states {state_bytes}, and {free} are free; lower \
                 --max-total-tokens, --max-running-requests or --state-cache-bytes"
            )));
        }
        // Slots are numbered in 32 bits.
        u32::try_from(tokens / BLOCK_TOKENS)
            .ok()
            .filter(|blocks| blocks.checked_mul(BLOCK_TOKENS as u32).is_some())
            .ok_or_else(|| LoadError::Start(format!("a key/value cache of {tokens} tokens is too large")))
    }
}

impl RankPlan {
    /// What each of `world` ranks holds.
    fn of(
        inventory: &Inventory,
        tensors: &[TensorSpec],
        config: &DecoderConfig,
        options: &EngineOptions,
        world: usize,
    ) -> Result<Self, LoadError> {
        let refuse = |reason: String| {
            let fit = |world: &usize| {
                let split =
                    |tensor: &TensorSpec| tensor.split.shape(&tensor.shape, *world, inventory.square(tensor)).is_ok();
                tensors.iter().all(split)
            };
            let sizes: Vec<String> = WORLDS.iter().filter(|world| fit(world)).map(usize::to_string).collect();
            LoadError::Start(format!(
                "the model does not split over {world} ranks: {reason}; it does over {}",
                sizes.join(", ")
            ))
        };
        let mut weights_bytes = 0;
        for tensor in tensors {
            let shape = tensor.split.shape(&tensor.shape, world, inventory.square(tensor));
            let shape = shape.map_err(|reason| refuse(format!("{}: {reason}", tensor.name)))?;
            weights_bytes = u64::saturating_add(weights_bytes, inventory.bytes(tensor, &shape));
        }
        let own = config.of_a_rank(world)?;
        Ok(Self {
            rank: 0,
            weights_bytes,
            kv_bytes_per_token: own.kv(options.kv_dtype.dtype()).bytes_per_token() as u64,
            state_bytes_per_sequence: own.state_bytes() as u64,
        })
    }
}

/// How many snapshots to make room for.
fn snapshots(bytes_each: u64, options: &EngineOptions) -> Option<u32> {
    if bytes_each == 0 {
        return None;
    }
    let no_prefixes = options.prefix_tokens.is_some_and(|tokens| tokens < BLOCK_TOKENS);
    let bytes = if no_prefixes { 0 } else { options.state_cache_bytes };
    Some(u32::try_from(bytes / bytes_each).unwrap_or(u32::MAX).min(MAX_SNAPSHOTS))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::*;
    use crate::backend::candle::KvDtype;

    fn plan(checkpoint: &Path, options: &EngineOptions, free: Option<u64>) -> Result<MemoryPlan, LoadError> {
        let checkpoint = Checkpoint::open(checkpoint).unwrap();
        MemoryPlan::with_memory(&checkpoint, &DecoderConfig::read(&checkpoint)?, options, free)
    }

    fn tiny_llama() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-llama")
    }

    #[test]
    fn a_folder_takes_the_bytes_of_its_tensors() {
        let plan = plan(&tiny_llama(), &EngineOptions::default(), Some(1 << 30)).unwrap();
        // The file but for its header (8 bytes of length, then JSON): every tensor in it is used.
        let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap());
        assert_eq!(plan.weights_bytes, file.len() as u64 - 8 - header);
        // Two layers, keys and values of two heads of eight, four bytes each.
        assert_eq!((plan.kv_bytes_per_token, plan.state_bytes_per_sequence), (2 * 2 * 2 * 8 * 4, 0));
        assert_eq!(plan.tokens_that_fit, Some(((1 << 30) - plan.weights_bytes) / plan.kv_bytes_per_token));
    }

    #[test]
    fn the_cache_follows_its_flags() {
        let with = |change: fn(&mut EngineOptions)| {
            let mut options = EngineOptions::default();
            change(&mut options);
            plan(&tiny_llama(), &options, Some(1 << 20)).unwrap()
        };
        assert_eq!(with(|o| o.max_total_tokens = Some(100)).cache_tokens, 112, "whole blocks of 16");
        let half = with(|o| o.mem_fraction = Some(0.5));
        let room = (1 << 20) - half.weights_bytes;
        assert!(
            half.cache_bytes <= room / 2 + 16 * half.kv_bytes_per_token && half.cache_bytes > room * 2 / 5,
            "{half:?}"
        );
        assert_eq!(with(|o| o.kv_dtype = KvDtype::Bf16).kv_bytes_per_token, 2 * 2 * 2 * 8 * 2);
        // The default is one whole context, which this machine of one mebibyte refuses to allocate.
        let default = with(|_| ());
        assert_eq!(default.cache_tokens, default.model_context);
        let refusal = default.cache_blocks().unwrap_err().to_string();
        assert!(refusal.contains("33554432 bytes") && refusal.contains("1048576 are free"), "{refusal}");
        assert_eq!(half.cache_blocks().unwrap() as usize, half.cache_tokens / 16);
        let absurd = with(|o| o.max_total_tokens = Some(usize::MAX));
        assert!(absurd.cache_blocks().is_err());
    }

    /// From configuration and index alone: the sums that the model's description gives.
    #[test]
    fn qwen36_in_fp8_takes_what_its_description_says() {
        let dir = tempfile::tempdir().unwrap();
        let config = include_str!("../../../models/qwen3.6-35b-a3b.config.json");
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let config = DecoderConfig::read(&Checkpoint::open(dir.path()).unwrap()).unwrap();
        // The release quantises every projection but these.
        let plain = ["embed_tokens", "lm_head", "in_proj_a", "in_proj_b", "conv1d", "mlp.gate.", "shared_expert_gate"];
        let mut map = serde_json::Map::new();
        for tensor in tensors(&config, true) {
            if tensor.shape.len() == 2 && !plain.iter().any(|part| tensor.name.contains(part)) {
                map.insert(format!("{}_scale_inv", tensor.name), "layers-0.safetensors".into());
            }
            map.insert(tensor.name, "layers-0.safetensors".into());
        }
        let index = json!({ "weight_map": map });
        std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
        let options = EngineOptions { kv_dtype: KvDtype::Bf16, max_running: 4, ..EngineOptions::default() };
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let over = |ranks| {
            let options = EngineOptions { ranks, ..options.clone() };
            MemoryPlan::with_memory(&checkpoint, &config, &options, None)
        };
        let plan = over(1).unwrap();
        let (experts, shared_experts) = (32_212_254_720_u64, 125_829_120);
        let (recurrent, attention) = (1_006_632_960, 272_629_760);
        let (scales, router, tables) = (4_103_680, 41_943_040, 2_034_237_440);
        // Linear layers: a and b, filters, A_log, dt_bias, gated norm; attention: two head norms; all: norms, shared gates.
        let small = 2 * (30 * (2 * 32 * 2048 + 8192 * 4 + 32 + 32 + 128) + 10 * 2 * 256 + 40 * 3 * 2048 + 2048);
        let quantised = experts + shared_experts + recurrent + attention;
        assert_eq!(plan.weights_bytes, quantised + scales + router + tables + small);
        assert_eq!(plan.kv_bytes_per_token, 20_480);
        // Matrices and the convolution's tails, both in f32 on CPU.
        assert_eq!(plan.state_bytes_per_sequence, 62_914_560 + 2 * 1_474_560);
        let snapshots = EngineOptions::DEFAULT_STATE_CACHE_BYTES / plan.state_bytes_per_sequence;
        assert_eq!((plan.snapshots, snapshots), (Some(16), 16));
        assert_eq!(plan.state_bytes, (4 + snapshots) * plan.state_bytes_per_sequence);
        // Four ranks: 8.97e9 bytes each, one key head each and so held twice, a quarter of the states.
        let four = over(4).unwrap();
        assert_eq!(four.ranks.len(), 4);
        let rank = four.ranks[3];
        let split = experts / 4 + shared_experts / 4 + recurrent / 4 + tables / 4;
        // Of 272,629,760 bytes of attention, queries and outputs are 251,658,240.
        let heads = 251_658_240 / 4 + (272_629_760 - 251_658_240) / 2;
        assert!(rank.weights_bytes.abs_diff(split + heads + router) < 12_000_000, "{rank:?}");
        assert!(rank.weights_bytes.abs_diff(8_970_000_000) < 20_000_000, "{rank:?}");
        assert_eq!((rank.rank, rank.kv_bytes_per_token), (3, 10_240));
        assert_eq!(rank.state_bytes_per_sequence, plan.state_bytes_per_sequence / 4);
        let two = over(2).unwrap().ranks[1];
        assert_eq!(two.kv_bytes_per_token, 10_240);
        assert!(two.weights_bytes < plan.weights_bytes / 2 + router);
        let refusal = over(8).unwrap_err().to_string();
        assert!(refusal.contains("64 of the values of a feed-forward block's width"), "{refusal}");
        assert!(refusal.contains("it does over 1, 2, 4"), "{refusal}");
        assert!(over(3).is_err());
    }
}
