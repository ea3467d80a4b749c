//! Proofs that an answer came from the checkpoint it names (TOPLOC).
//!
//! - **In:** the final hidden state of each answer token, the row `lm_head` reads:
//!   BF16, `[hidden]`, one at a time, in order.
//! - **Out:** one [`Proof`] for every 32 rows (258 bytes, 344 base64 characters at top-k
//!   128), or the [`Verdict`] on somebody's proofs, given recomputed rows.
//! - **Never:** a proof over NaN or infinity, a null proof (modulus 0) in place of an
//!   error, a panic from a row or from a received proof, or a second copy of the answer's
//!   activations in memory.
//!
//! The data's way: `batches` cuts rows into batches, `select` keeps the top k of a batch
//! by magnitude (`heap` and `nth_element` settle ties as torch does), `proof` finds the
//! modulus and asks `polynomial` (over `field`) for the curve through the points.
//! `builder` and `verify` are the two ends (`answer` is the former for rows that come among other work); `policy` turns checks into a verdict.
//! `docs/proof.md` states the format and its rules.

mod answer;
mod batches;
mod builder;
mod error;
mod field;
mod heap;
mod nth_element;
mod params;
mod policy;
mod polynomial;
#[allow(clippy::module_inception)] // the room is named for the thing this file defines
mod proof;
mod select;
mod verify;

pub use answer::AnswerProofs;
pub use builder::{ProofBuilder, build_proofs};
pub use error::ProofError;
pub use params::{DEFAULT_BATCH, DEFAULT_TOPK, ProofParams};
pub use policy::{DEFAULT_MAX_MISMATCHES, DEFAULT_PASS_RATIO, Outcome, Policy, Verdict};
pub use proof::{PRIME, Proof};
pub use verify::{BatchCheck, MantissaError, Verification, Verifier, check_batch, verify_proofs};
