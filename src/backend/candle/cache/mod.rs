//! What sequences leave behind for their next step.
//!
//! `blocks` decides on the host which block belongs to whom; `kv` holds the blocks' keys and values on the device.

pub(super) mod blocks;
pub(super) mod kv;
