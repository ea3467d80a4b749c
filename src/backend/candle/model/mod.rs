//! Models: from a checkpoint's configuration to a loaded stack of layers.
//!
//! `config` reads both forms of configuration into one [`DecoderConfig`]; `decoder` is the stack that it describes;
//! `layers` are the parts. A configuration that asks for something not computed here is refused by name.

pub(super) mod config;
pub(super) mod decoder;
pub(super) mod layers;
#[cfg(test)]
mod parity;
pub(super) mod tensors;

use candle_core::Device;

use self::config::DecoderConfig;
use self::decoder::Decoder;
use super::weights::{self, GgufHeads, LoadError, ProgressFn};
use crate::checkpoint::Checkpoint;

/// Loads the model of a checkpoint.
pub(super) fn load(
    checkpoint: &Checkpoint,
    config: &DecoderConfig,
    device: &Device,
    progress: &ProgressFn,
) -> Result<Decoder, LoadError> {
    let heads = GgufHeads { query: config.attention.heads, key: config.attention.kv_heads };
    let weights = weights::open(checkpoint, heads, progress)?;
    Decoder::load(config, weights.as_ref(), device)
}
