//! The miner's side of the protocol: legs to a gateway, and the requests that come over them.
//!
//! In: a [`Service`](crate::job::Service) that answers requests, and a gateway's address. Out: frames. A [`Worker`] dials one leg to each
//! gateway worker (`meta` asks how many); a leg dials, says hello and lives as a `connection`; each serve frame becomes
//! a job of its own. What must never happen: one bad frame takes a leg, one bad leg takes the worker, or anything is sent
//! for a request after its cancel.

mod backoff;
mod connection;
mod hardware;
pub mod identity;
mod leg;
mod meta;
mod reading;
mod worker;

use std::time::Duration;

pub use self::identity::Identity;
pub use self::leg::check_address;
pub use self::meta::legs as ask_for_legs;
pub use self::worker::{Counters, Worker, WorkerHandle};

use crate::protocol::{HelloCapacity, MinerKey};

/// Requests at once where the operator names no number, per leg: three slots a leg passed every onboarding probe, two
/// passed three of four.
pub const DEFAULT_SLOTS_PER_LEG: usize = 3;
/// Legs where the gateway does not say: what production runs. One would be refused at onboarding.
pub const DEFAULT_LEGS: usize = 8;
/// More legs than any gateway has: a larger number is a mistake.
pub const MAX_LEGS: usize = 64;
/// More requests at once than any machine serves: a larger number is a mistake.
pub const MAX_INFLIGHT: usize = 65_536;
/// The gateway drops a leg that is silent for 90 s.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Websocket pings find dead peers that a heartbeat alone would not.
const PING: Duration = Duration::from_secs(15);
/// A peer that sends nothing for this long, not even a pong, is gone.
const DEAD_AFTER: Duration = Duration::from_secs(60);
/// How long a dial may take, TLS and websocket handshakes included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an old connection may finish its requests after a reconnect frame: the longest request there is.
const DRAIN_GRACE: Duration = Duration::from_secs(1800);

/// What a worker is told before it starts.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The gateway's websocket address, `wss://host/gw`.
    pub gateway: String,
    /// The operator's key.
    pub key: MinerKey,
    /// Who this worker is.
    pub identity: Identity,
    /// Legs to dial: what [`ask_for_legs`] found, or the operator says.
    pub legs: usize,
    /// Requests at once over all legs.
    pub max_inflight: usize,
    /// How long a shutdown waits for running requests.
    pub shutdown_grace: Duration,
}

/// Why a worker ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The gateway's address cannot be used.
    #[error("the gateway address {address:?} is wrong: {reason}; give --gw an address like wss://host/gw")]
    Address {
        /// As given.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// Every leg was refused before any was admitted.
    #[error("the gateway {gateway} refuses this worker: {reason}")]
    Denied {
        /// Which gateway.
        gateway: String,
        /// In its words.
        reason: String,
    },
    /// The backend is dead.
    #[error("the {kind} backend has stopped: {reason}")]
    Backend {
        /// Which.
        kind: &'static str,
        /// Its own account.
        reason: String,
    },
}

/// The share of `total` requests that each of `legs` legs declares: rounded up, so that no slot goes unused.
fn share(total: usize, legs: usize) -> usize {
    total.div_ceil(legs.max(1)).max(1)
}

fn hello_capacity(total: usize, legs: usize, limits: &crate::job::Limits) -> HelloCapacity {
    HelloCapacity {
        max_inflight: share(total, legs),
        max_inflight_total: Some(total),
        max_input_tokens: Some(limits.max_input_tokens),
        max_output_tokens: Some(limits.max_output_tokens),
        max_request_s: Some(limits.max_request.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests;
