//! engy-miner: a miner for verifiable inference.
//!
//! A gateway sends chat requests over websocket legs; the miner answers each with a completion and a TOPLOC proof that
//! the named checkpoint produced it: a locality-sensitive hash of the final hidden states (*fin*). A validator recomputes
//! and compares.
//!
//! # The way of a request
//!
//! ```text
//! gateway ──serve──▶ session ──▶ job ──▶ chat      messages to prompt ids
//!                       ▲         │  ──▶ backend   prompt ids to (id, row of fin), one by one
//!                       │         │  ──▶ proof     rows to proofs, 32 at a time
//!                       │         │  ──▶ chat      ids to text, deltas, message
//!                    response ◀───┘
//! ```
//!
//! # The rooms
//!
//! - [`cli`], [`commands`]: flags, and one file a subcommand.
//! - [`session`]: the miner's side of the protocol: legs, heartbeats, requests.
//! - [`job`]: one request, from JSON to an answer with its proof.
//! - [`chat`]: templates, tokenizer, detokenizer, stop strings, thoughts and tool calls, messages.
//! - [`proof`]: TOPLOC: building and checking proofs.
//! - [`backend`]: the [`Backend`](backend::Backend) trait, and the candle engine behind it.
//! - [`guide`]: holds answers to a form: JSON under a schema, calls of given tools.
//! - [`verify`]: the validator's recompute.
//! - [`overhead`]: what a proof costs, backend by backend, measured.
//! - [`gateway`]: a local gateway for development and tests.
//! - [`fake_serve`]: a stand-in for an sglang serve, for tests, measurements and trying out.
//! - [`checkpoint`], [`spec`]: a model on disk; what the network promises of it.
//! - [`protocol`], [`openai`]: shapes on the wire.
//! - [`machine`], [`telemetry`], [`tls`]: the world around.
//!
//! Dependencies point one way: `commands -> session -> job -> {chat, proof, backend}`, and `{chat, backend} -> guide`. `proof`,
//! `chat` and `guide` know nothing of sockets or backends, and only `backend::candle` knows the tensor library.

pub mod backend;
pub mod chat;
pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod fake_serve;
pub mod gateway;
pub mod guide;
pub mod job;
pub mod machine;
pub mod openai;
pub mod overhead;
pub mod proof;
pub mod protocol;
pub mod session;
pub mod spec;
pub mod telemetry;
pub mod tls;
pub mod verify;
