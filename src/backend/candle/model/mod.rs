//! Models: from a checkpoint's configuration to a loaded stack of layers.
//!
//! `config` reads both forms of configuration into one [`DecoderConfig`]; `decoder` is the stack that it describes;
//! `layers` are the parts. A configuration that asks for something not computed here is refused by name.

pub(super) mod config;
pub(super) mod decoder;
pub(super) mod layers;
#[cfg(test)]
mod parity;
mod phases;
pub(super) mod shards;
pub(super) mod tensors;
