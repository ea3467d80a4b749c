//! The engine that operators run today: an sglang serve, reached over HTTP.
//!
//! A serve speaks JSON alone, hidden states included, and its dialect depends on its version; nothing that it sends is
//! taken on trust.

pub mod reply;
