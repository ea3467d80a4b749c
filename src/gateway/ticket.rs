//! One request's hold on a slot of a leg.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::pool::{Pool, Worker};
use crate::openai::Piece;
use crate::protocol::Response;

/// What a leg says about one request.
#[derive(Debug)]
pub(super) enum Event {
    /// A piece of the answer.
    Piece(Piece),
    /// The end of it.
    Response(Box<Response>),
    /// An end that could not be read; why.
    Unreadable(String),
    /// The gateway's own end of it: the miner took too long.
    TimedOut,
}

/// A slot taken, and the way to hear what becomes of it.
///
/// However the request ends, dropping this frees the slot; if the miner has not answered by then, it gets a cancel.
#[derive(Debug)]
pub(super) struct Ticket {
    pool: Arc<Pool>,
    leg: u64,
    corr_id: String,
    worker: Arc<Worker>,
    /// Unbounded: a full channel would hold up the leg's other requests, and an answer is bounded by its token budget.
    events: mpsc::UnboundedReceiver<Event>,
    /// A task of its own: a buyer who stops reading must not stop the clock.
    clock: Option<JoinHandle<()>>,
}

impl Ticket {
    pub(super) fn new(
        pool: Arc<Pool>,
        leg: u64,
        corr_id: String,
        worker: Arc<Worker>,
        events: mpsc::UnboundedReceiver<Event>,
    ) -> Self {
        Self { pool, leg, corr_id, worker, events, clock: None }
    }

    /// Ends the request with [`Event::TimedOut`] if it still runs after `limit`.
    pub(super) fn expire_after(&mut self, limit: Duration) {
        let (pool, leg, corr_id) = (Arc::clone(&self.pool), self.leg, self.corr_id.clone());
        let clock = tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            pool.abandon(leg, &corr_id, Some(Event::TimedOut));
        });
        if let Some(older) = self.clock.replace(clock) {
            older.abort();
        }
    }

    /// Who serves the request.
    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The next event; `None` when the leg is lost.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(clock) = self.clock.take() {
            clock.abort();
        }
        self.pool.abandon(self.leg, &self.corr_id, None);
    }
}
