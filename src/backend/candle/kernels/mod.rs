//! Kernels that the tensor library does not have, or not as they are needed here.

mod causal_conv;
mod copy_slots;
mod dot;
mod e4m3;
mod elementwise;
mod format;
mod fp8_activations;
mod gated_delta;
mod gates;
mod grouped;
mod kv_value;
mod lanes;
mod matmul;
mod matrix;
mod narrow;
mod paged_attention;
mod rows;
mod simd;
mod state_span;
#[cfg(test)]
mod testing;

pub(super) use causal_conv::{CONV_TOKENS, ConvWeights, causal_conv, conv_tails};
pub(super) use copy_slots::copy_slots;
pub(super) use e4m3::first_nan;
pub(super) use elementwise::{HeadNorms, HeadPreparation, Turns, add_rms_norm, prepare_heads, rms_norm, swiglu};
pub(super) use format::{Format, SQUARE};
pub(super) use fp8_activations::quantise_activations;
pub(super) use gated_delta::{DeltaParams, DeltaShape, gated_delta};
pub(super) use gates::{gated_norm, sigmoid_gate};
pub(super) use grouped::{Segment, Shares, add_gated, grouped_matmul, weighted_sums};
pub(super) use kv_value::KvValue;
pub(super) use matmul::matmul;
pub(super) use matrix::{Matrix, RowOrder};
pub(super) use narrow::narrow_rows;
pub(super) use paged_attention::{AttentionMap, paged_attention};
pub(super) use state_span::StateSpan;
