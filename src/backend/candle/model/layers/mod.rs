//! The layers that models are composed of, each written once.
//!
//! All take and give f32 tensors whose first dimension is the flattened batch: one row a token, whichever sequence it
//! belongs to.

mod attention;
mod embedding;
mod gated_delta;
mod linear;
mod mlp;
mod moe;
mod norm;
mod rope;

pub(in crate::backend::candle) use attention::{Attention, AttentionShape};
pub(in crate::backend::candle) use embedding::Embedding;
pub(in crate::backend::candle) use gated_delta::{DeltaShape, GatedDeltaNet};
pub(in crate::backend::candle) use linear::Linear;
pub(in crate::backend::candle) use mlp::Mlp;
pub(in crate::backend::candle) use moe::{MoeShape, SparseMoe};
pub(in crate::backend::candle) use norm::RmsNorm;
pub(in crate::backend::candle) use rope::RopeTable;
