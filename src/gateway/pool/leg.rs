//! One admitted leg: whose it is, what it takes and what runs on it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use tokio::sync::mpsc;

use crate::gateway::handle::LegStatus;
use crate::gateway::inspect::unix_now;
use crate::gateway::ticket::Event;
use crate::protocol::{GatewayFrame, Hello, KvReport};

/// What a leg's socket is asked to send.
#[derive(Debug)]
pub(in crate::gateway) enum Outgoing {
    /// A small frame.
    Frame(GatewayFrame),
    /// A serve frame, written by whoever made it: it may be large, and its size had to be checked.
    Serve(Utf8Bytes),
    /// The websocket's close, after which nothing follows.
    Close,
}

/// Who is behind a leg.
#[derive(Debug)]
pub(in crate::gateway) struct Worker {
    pub(in crate::gateway) model: String,
    pub(in crate::gateway) worker_id: String,
    pub(in crate::gateway) worker_name: String,
}

/// A leg's state, kept under the pool's lock.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) index: usize,
    pub(super) worker: Arc<Worker>,
    pub(super) admitted_at: u64,
    pub(super) max_inflight: usize,
    /// Set when the worker dialled this index anew: finish what runs, take nothing more.
    pub(super) retired: bool,
    /// When this leg was last chosen, counted in serves.
    pub(super) last_serve: u64,
    pub(super) reported_inflight: Option<usize>,
    pub(super) kv: Option<KvReport>,
    pub(super) outgoing: mpsc::UnboundedSender<Outgoing>,
    pub(super) inflight: HashMap<String, mpsc::UnboundedSender<Event>>,
}

impl Leg {
    /// The state of a leg that has just said `hello`.
    pub(super) fn new(index: usize, hello: &Hello, outgoing: mpsc::UnboundedSender<Outgoing>) -> Self {
        Self {
            index,
            worker: Arc::new(Worker {
                model: hello.model.clone(),
                worker_id: hello.worker_id.clone(),
                worker_name: hello.worker_name.clone(),
            }),
            admitted_at: unix_now(),
            max_inflight: hello.capacity.max_inflight,
            retired: false,
            last_serve: 0,
            reported_inflight: None,
            kv: None,
            outgoing,
            inflight: HashMap::new(),
        }
    }

    /// True while it can take one more request.
    pub(super) fn has_room(&self) -> bool {
        self.inflight.len() < self.max_inflight
    }

    /// Less loaded first; among equals the one that has rested longest, which is round robin.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        // a/b against c/d without division; 128 bits hold the product of any two counts.
        let scaled = |leg: &Self, by: &Self| leg.inflight.len() as u128 * by.max_inflight as u128;
        scaled(self, other).cmp(&scaled(other, self)).then(self.last_serve.cmp(&other.last_serve))
    }

    /// Asks a retired leg without work to close.
    pub(super) fn close_if_done(&self) {
        if self.retired && self.inflight.is_empty() {
            // A failed send means that the socket is gone already.
            let _ = self.outgoing.send(Outgoing::Close);
        }
    }
    /// What there is to see of it.
    pub(super) fn status(&self) -> LegStatus {
        LegStatus {
            index: self.index,
            model: self.worker.model.clone(),
            worker_id: self.worker.worker_id.clone(),
            worker_name: self.worker.worker_name.clone(),
            max_inflight: self.max_inflight,
            inflight: self.inflight.len(),
            reported_inflight: self.reported_inflight,
            kv: self.kv,
            retired: self.retired,
        }
    }
}
