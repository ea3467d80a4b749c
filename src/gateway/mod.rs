//! The pool's side of the protocol on one machine: a gateway for development and tests.
//!
//! In come miners' websocket legs (`/gw/{i}`) and buyers' OpenAI-shaped HTTP requests; out go frames to the miners and
//! completions, plain or streamed, to the buyers. What a miner committed to stays readable under `/v1/proofs/{id}`.
//!
//! The way of a request: `completions` reads it with `request`, takes a `ticket` on the least loaded leg from the
//! `pool`, and turns the leg's frames into one answer or, with `sse`, into a stream. A leg's life is `socket`:
//! `admission` judges its hello, then frames flow between its websocket and the pool.
//!
//! What must never happen here: a frame or a body that panics or ends more than itself, a slot that stays taken after
//! its request, a miner that works on for a buyer who left, a miner key in a log.

mod admission;
mod buyer_error;
mod completions;
mod config;
mod error;
mod handle;
mod inspect;
mod pool;
mod proofs;
mod request;
mod server;
mod socket;
mod sse;
mod ticket;

#[cfg(test)]
mod tests;

pub use config::{DEFAULT_LEGS, FREE_LEG_WAIT, GatewayConfig, MAX_LEGS, REQUEST_TIMEOUT};
pub use error::GatewayError;
pub use handle::{GatewayHandle, GatewayStatus, LegStatus};
pub use server::Gateway;
