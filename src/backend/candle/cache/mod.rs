//! What sequences leave behind for their next step.
//!
//! `blocks` decides on the host which block belongs to whom, and `prefix` which tokens a block already holds; `kv` holds
//! the blocks' keys and values on the device.

pub(super) mod blocks;
pub(super) mod kv;
mod prefix;

pub(super) use prefix::NodeId;
