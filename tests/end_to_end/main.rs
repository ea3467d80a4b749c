//! The whole way of a request over real sockets, and the program as a user runs it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests say what they expect by unwrapping it")]

mod agent_loop;
mod batching;
mod cli;
mod forms;
mod golden;
mod logprobs;
mod overhead;
mod ranks;
mod scripted_model;
mod serving;
mod sglang;
mod site;
mod verifying;
