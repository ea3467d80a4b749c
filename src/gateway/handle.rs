//! A look into a gateway from beside it, for tests and for programs that run one.

use std::sync::Arc;

use super::pool::Pool;
use crate::protocol::KvReport;

/// What a gateway sees now.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayStatus {
    /// Admitted legs, oldest first.
    pub legs: Vec<LegStatus>,
    /// Frames that could not be read, over all legs.
    pub bad_frames: u64,
    /// Chunks and responses for a request that was not (or no longer) running on their leg.
    pub unknown_corr_ids: u64,
}

/// One admitted leg.
#[derive(Debug, Clone, PartialEq)]
pub struct LegStatus {
    /// Its place, from 0.
    pub index: usize,
    /// The model that it serves.
    pub model: String,
    /// The worker's id.
    pub worker_id: String,
    /// The worker's name.
    pub worker_name: String,
    /// Requests that it takes at once.
    pub max_inflight: usize,
    /// Requests that the gateway has running on it.
    pub inflight: usize,
    /// Requests that the worker says it has running, over all its legs; `None` before the first heartbeat.
    pub reported_inflight: Option<usize>,
    /// The last report on the worker's KV cache.
    pub kv: Option<KvReport>,
    /// True once the worker dialled this index anew: no new work comes here.
    pub retired: bool,
}

impl GatewayStatus {
    /// Legs that take work.
    #[must_use]
    pub fn open_legs(&self) -> usize {
        self.legs.iter().filter(|leg| !leg.retired).count()
    }

    /// Requests running, over all legs.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.legs.iter().map(|leg| leg.inflight).sum()
    }
}

/// Watches a gateway. Clones see the same one.
#[derive(Debug, Clone)]
pub struct GatewayHandle {
    pool: Arc<Pool>,
}

impl GatewayHandle {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { pool }
    }

    /// What the gateway sees now.
    #[must_use]
    pub fn status(&self) -> GatewayStatus {
        self.pool.status()
    }

    /// Returns once `wanted` holds, with the status for which it did. It has no time limit of its own.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&GatewayStatus) -> bool) -> GatewayStatus {
        let mut changes = self.pool.changes();
        loop {
            let status = self.pool.status();
            if wanted(&status) {
                return status;
            }
            // The sender lives as long as the pool that this handle holds.
            drop(changes.changed().await);
        }
    }

    /// Returns once at least `legs` legs take work.
    pub async fn wait_for_legs(&self, legs: usize) -> GatewayStatus {
        self.wait_until(|status| status.open_legs() >= legs).await
    }
}
