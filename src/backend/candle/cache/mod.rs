//! What sequences leave behind for their next step.
//!
//! `blocks` decides on the host which block belongs to whom, and `prefix` which tokens a block already holds; `kv` holds
//! the blocks' keys and values on the device. `states` and `state` do the same for what linear layers remember: one slot a
//! running sequence, and slots for snapshots, without which a known prefix is of no use to them.

pub(super) mod blocks;
pub(super) mod kv;
mod prefix;
pub(super) mod state;
pub(super) mod states;

pub(super) use prefix::NodeId;
