//! What a leg's socket tells the pool.

use std::sync::Arc;

use super::Pool;
use super::leg::Outgoing;
use crate::gateway::ticket::Event;
use crate::protocol::{GatewayFrame, Heartbeat};

/// An admitted leg's hold on its place in the pool, kept by its socket. Dropped, the leg is gone.
#[derive(Debug)]
pub(in crate::gateway) struct AdmittedLeg {
    pub(super) pool: Arc<Pool>,
    pub(super) id: u64,
}

impl AdmittedLeg {
    /// Hands a piece of an answer to its request.
    pub(in crate::gateway) fn event(&self, corr_id: &str, event: Event) {
        let known = self
            .pool
            .look()
            .legs
            .get(&self.id)
            .and_then(|leg| leg.inflight.get(corr_id))
            .is_some_and(|request| request.send(event).is_ok());
        if !known {
            self.count_unknown();
        }
    }

    /// Hands the end of an answer to its request and frees the slot.
    pub(in crate::gateway) fn last_event(&self, corr_id: &str, event: Event) {
        let known = self.pool.change(|inner| {
            let leg = inner.legs.get_mut(&self.id)?;
            let request = leg.inflight.remove(corr_id)?;
            leg.close_if_done();
            request.send(event).ok()
        });
        if known.is_none() {
            self.count_unknown();
        }
    }

    /// Takes down what a heartbeat says. What it leaves out keeps its last value.
    pub(in crate::gateway) fn heartbeat(&self, beat: &Heartbeat) {
        self.pool.change(|inner| {
            let Some(leg) = inner.legs.get_mut(&self.id) else {
                return;
            };
            leg.reported_inflight = Some(beat.inflight);
            leg.kv = beat.kv.or(leg.kv);
            if let Some(capacity) = beat.capacity {
                leg.max_inflight = capacity.max_inflight;
            }
        });
    }

    /// Asks for a sign of life.
    pub(in crate::gateway) fn ping(&self) {
        if let Some(leg) = self.pool.look().legs.get(&self.id) {
            let _ = leg.outgoing.send(Outgoing::Frame(GatewayFrame::Ping));
        }
    }

    /// Counts a frame that could not be read.
    pub(in crate::gateway) fn count_bad(&self) {
        self.pool.change(|inner| inner.bad_frames += 1);
    }

    fn count_unknown(&self) {
        self.pool.change(|inner| inner.unknown_corr_ids += 1);
    }
}

impl Drop for AdmittedLeg {
    fn drop(&mut self) {
        self.pool.remove(self.id);
    }
}
