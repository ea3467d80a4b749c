//! Kernels that the tensor library does not have.

mod paged_attention;

pub(super) use paged_attention::{AttentionMap, paged_attention};
