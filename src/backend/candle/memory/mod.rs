//! How much memory a model takes, and how many tokens fit beside it: the arithmetic behind `engy-miner plan` and behind the
//! cache that a start allocates.

mod advice;
#[cfg(test)]
mod tests;
mod workspace;

use serde::Serialize;

use self::workspace::workspace_bytes;
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

/// What a device's driver, its libraries and the ranks' links keep for themselves: a context with its modules is about half a
/// gibibyte on such cards, and channels of collectives and workspaces of products are most of the rest.
const DEVICE_RESERVE: u64 = 1 << 30;

/// Where a model's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The machine's memory, which all ranks share: so many bytes are free, where the system tells.
    Machine(Option<u64>),
    /// A device a rank, each with so many bytes.
    Devices(u64),
}

impl Room {
    /// This machine's memory as it is now.
    #[must_use]
    pub fn here() -> Self {
        Self::Machine(machine::memory().map(|memory| memory.available))
    }
}

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
    /// Memory of the machine that is free now; absent where the system does not tell, and where devices were asked about.
    pub free_bytes: Option<u64>,
    /// Memory of each rank's device, where devices were asked about.
    pub device_bytes: Option<u64>,
    /// Tokens that the cache would hold if all memory beside weights, states and workspace were given to it.
    pub tokens_that_fit: Option<u64>,
    /// Tokens that a start with these options allocates.
    pub cache_tokens: usize,
    /// Bytes of that cache.
    pub cache_bytes: u64,
    /// Snapshots of states that a start makes room for; absent where sequences have no states.
    pub snapshots: Option<u32>,
    /// Bytes of all states: one for each running sequence, and the snapshots.
    pub state_bytes: u64,
    /// What steps compute in, and on devices what their drivers keep.
    pub workspace_bytes: u64,
    /// All of it together.
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
    /// States of the running sequences and the snapshots, bytes.
    pub state_bytes: u64,
    /// What its largest step computes in, bytes; on a device also what the driver keeps.
    pub workspace_bytes: u64,
    /// Tokens whose keys and values fit beside all that.
    pub max_tokens: Option<u64>,
}

/// A checkpoint whose needs are to be planned.
#[derive(Debug)]
pub struct MemoryPlanner {
    inventory: Inventory,
    tensors: Vec<TensorSpec>,
    config: DecoderConfig,
}

impl MemoryPlanner {
    /// Reads a checkpoint's configuration and its files' headers, or its index where the files are not here.
    ///
    /// # Errors
    /// When the model is not supported, a tensor of it is in none of the files, or a file is there and damaged.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::of_model(checkpoint, DecoderConfig::read(checkpoint)?)
    }

    pub(super) fn of_model(checkpoint: &Checkpoint, config: DecoderConfig) -> Result<Self, LoadError> {
        let inventory = Inventory::read(checkpoint)?;
        let tensors = tensors(&config, inventory.contains("lm_head.weight"));
        match tensors.iter().find(|tensor| !inventory.holds(tensor)) {
            Some(tensor) => Err(LoadError::Missing { name: tensor.name.clone() }),
            None => Ok(Self { inventory, tensors, config }),
        }
    }

    /// A model with random weights.
    pub(super) fn synthetic(config: DecoderConfig) -> Self {
        let tensors = tensors(&config, false);
        Self { inventory: Inventory::synthetic(&tensors), tensors, config }
    }

    /// What a start with these options takes.
    ///
    /// # Errors
    /// When the model does not split over the ranks.
    pub fn plan(&self, options: &EngineOptions, room: Room) -> Result<MemoryPlan, LoadError> {
        let Self { config, .. } = self;
        let world = options.ranks.max(1);
        let mut rank = self.rank(options, world)?;
        // Ranks hold equal parts.
        let all = |bytes: u64| bytes.saturating_mul(world as u64);
        let state_bytes_per_sequence = all(rank.state_bytes_per_sequence);
        let snapshots = snapshots(state_bytes_per_sequence, options);
        let states = (options.max_running.max(1) as u64).saturating_add(snapshots.unwrap_or_default().into());
        rank.state_bytes = rank.state_bytes_per_sequence.saturating_mul(states);
        if matches!(room, Room::Devices(_)) {
            rank.workspace_bytes = rank.workspace_bytes.saturating_add(DEVICE_RESERVE);
        }
        let taken = rank.weights_bytes.saturating_add(rank.state_bytes).saturating_add(rank.workspace_bytes);
        // What is left for keys and values, over all ranks.
        let left = match room {
            Room::Machine(free) => free.map(|free| free.saturating_sub(all(taken))),
            Room::Devices(bytes) => Some(all(bytes.saturating_sub(taken))),
        };
        let kv_bytes_per_token = all(rank.kv_bytes_per_token);
        let per_token = kv_bytes_per_token.max(1);
        let cache_tokens = options.max_total_tokens.unwrap_or_else(|| {
            let (budget, contexts) = match (options.mem_fraction, left, room) {
                // More than one context is of use to several requests at once, and only if it was asked for.
                (Some(fraction), Some(left), _) => {
                    ((left as f64 * fraction.clamp(0.0, 1.0)) as u64, options.max_running.max(1))
                }
                // What a device has is there for the model.
                (None, Some(left), Room::Devices(_)) => (left, options.max_running.max(1)),
                _ => (EngineOptions::DEFAULT_CACHE_BYTES, 1),
            };
            let tokens = usize::try_from(budget / per_token).unwrap_or(usize::MAX);
            let tokens = tokens.min(config.context.saturating_mul(contexts));
            // Within the budget, where that is a bound and not a wish.
            if matches!(room, Room::Devices(_)) { tokens / BLOCK_TOKENS * BLOCK_TOKENS } else { tokens }
        });
        let cache_tokens = cache_tokens.max(1).checked_next_multiple_of(BLOCK_TOKENS).unwrap_or(usize::MAX);
        let cache_bytes = kv_bytes_per_token.saturating_mul(cache_tokens as u64);
        let tokens_that_fit = left.map(|left| left / per_token);
        rank.max_tokens = tokens_that_fit;
        Ok(MemoryPlan {
            architecture: config.architecture.clone(),
            weights_bytes: all(rank.weights_bytes),
            kv_bytes_per_token,
            state_bytes_per_sequence,
            model_context: config.context,
            free_bytes: if let Room::Machine(free) = room { free } else { None },
            device_bytes: if let Room::Devices(bytes) = room { Some(bytes) } else { None },
            tokens_that_fit,
            cache_tokens,
            cache_bytes,
            snapshots,
            state_bytes: all(rank.state_bytes),
            workspace_bytes: all(rank.workspace_bytes),
            total_bytes: all(taken).saturating_add(cache_bytes),
            ranks: (0..world).map(|number| RankPlan { rank: number, ..rank }).collect(),
        })
    }

    /// What each of `world` ranks holds of the model. What depends on the number of sequences is left at 0.
    fn rank(&self, options: &EngineOptions, world: usize) -> Result<RankPlan, LoadError> {
        let Self { inventory, tensors, config } = self;
        let mut weights_bytes = 0;
        for tensor in tensors {
            let shape = tensor.split.shape(&tensor.shape, world, inventory.square(tensor));
            let shape = shape.map_err(|reason| self.refusal(world, &format!("{}: {reason}", tensor.name)))?;
            weights_bytes = u64::saturating_add(weights_bytes, inventory.bytes(tensor, &shape));
        }
        let own = config.of_a_rank(world)?;
        Ok(RankPlan {
            rank: 0,
            weights_bytes,
            kv_bytes_per_token: own.kv(options.kv_dtype.dtype()).bytes_per_token() as u64,
            state_bytes_per_sequence: own.state_bytes() as u64,
            state_bytes: 0,
            workspace_bytes: workspace_bytes(&own, options),
            max_tokens: None,
        })
    }

    /// Whether the model splits over so many ranks.
    fn splits(&self, world: usize) -> bool {
        let splits =
            |tensor: &TensorSpec| tensor.split.shape(&tensor.shape, world, self.inventory.square(tensor)).is_ok();
        self.tensors.iter().all(splits)
    }

    fn refusal(&self, world: usize, reason: &str) -> LoadError {
        let sizes: Vec<String> =
            WORLDS.into_iter().filter(|world| self.splits(*world)).map(|n| n.to_string()).collect();
        LoadError::Start(format!(
            "the model does not split over {world} ranks: {reason}; it does over {}",
            sizes.join(", ")
        ))
    }
}

impl MemoryPlan {
    /// Whether the memory that was asked about holds all of it; true where nothing is known.
    #[must_use]
    pub fn fits(&self) -> bool {
        let world = self.ranks.len().max(1) as u64;
        match (self.device_bytes, self.free_bytes) {
            (Some(device), _) => self.total_bytes.div_ceil(world) <= device,
            (None, Some(free)) => self.total_bytes <= free,
            (None, None) => true,
        }
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

/// How many snapshots to make room for.
fn snapshots(bytes_each: u64, options: &EngineOptions) -> Option<u32> {
    if bytes_each == 0 {
        return None;
    }
    let no_prefixes = options.prefix_tokens.is_some_and(|tokens| tokens < BLOCK_TOKENS);
    let bytes = if no_prefixes { 0 } else { options.state_cache_bytes };
    Some(u32::try_from(bytes / bytes_each).unwrap_or(u32::MAX).min(MAX_SNAPSHOTS))
}
