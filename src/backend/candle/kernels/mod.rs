//! Kernels that the tensor library does not have, or not as they are needed here.

mod dot;
mod elementwise;
mod format;
mod grouped;
mod kv_value;
mod lanes;
mod matmul;
mod matrix;
mod paged_attention;
mod simd;
#[cfg(test)]
mod testing;

pub(super) use elementwise::{HeadNorms, HeadPreparation, Turns, add_rms_norm, prepare_heads, rms_norm, swiglu};
pub(super) use format::Format;
pub(super) use grouped::{Segment, Shares, add_gated, grouped_matmul, weighted_sums};
pub(super) use kv_value::KvValue;
pub(super) use matmul::matmul;
pub(super) use matrix::{Matrix, RowOrder};
pub(super) use paged_attention::{AttentionMap, paged_attention};
