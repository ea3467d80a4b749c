//! The admitted legs: who is here, how loaded, and which one takes the next request.
//!
//! One lock holds all of it, for moments only: nothing waits inside. Every change that somebody may wait for (a leg
//! more or less, a slot taken or freed, a frame counted) bumps a version that can be watched.

mod admitted;
mod leg;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub(in crate::gateway) use self::admitted::AdmittedLeg;
use self::leg::Leg;
pub(in crate::gateway) use self::leg::{Outgoing, Worker};
use super::handle::GatewayStatus;
use super::ticket::{Event, Ticket};
use crate::protocol::{GatewayFrame, Hello};

/// Why a request gets no leg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) enum Refusal {
    /// No leg is admitted.
    NoMiner,
    /// Legs are here, none for this model; these are served.
    UnknownModel(Vec<String>),
    /// All legs of the model are full.
    Full,
}

/// How long a request may wait.
#[derive(Debug, Clone, Copy)]
pub(in crate::gateway) struct Patience {
    /// For a free slot.
    pub(in crate::gateway) for_leg: Duration,
    /// For the end of the answer, once it has a slot.
    pub(in crate::gateway) for_answer: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    legs: BTreeMap<u64, Leg>,
    next_leg: u64,
    next_corr: u64,
    serves: u64,
    bad_frames: u64,
    unknown_corr_ids: u64,
}

impl Inner {
    /// Legs that take work.
    fn open_legs(&self) -> impl Iterator<Item = (&u64, &Leg)> {
        self.legs.iter().filter(|(_, leg)| !leg.retired)
    }

    fn models(&self) -> Vec<String> {
        let models: BTreeSet<&String> = self.open_legs().map(|(_, leg)| &leg.worker.model).collect();
        models.into_iter().cloned().collect()
    }

    /// Starts a request on the least loaded leg of `model` and says which that is.
    fn start(
        &mut self,
        model: &str,
        corr_id: &str,
        serve: &Utf8Bytes,
        events: mpsc::UnboundedSender<Event>,
    ) -> Result<(u64, Arc<Worker>), Refusal> {
        self.serves += 1;
        loop {
            let chosen = self
                .legs
                .iter_mut()
                .filter(|(_, leg)| !leg.retired && leg.worker.model == model && leg.has_room())
                .min_by(|(_, a), (_, b)| a.compare(b));
            let Some((id, leg)) = chosen else {
                return Err(self.refusal(model));
            };
            let id = *id;
            if leg.outgoing.send(Outgoing::Serve(serve.clone())).is_ok() {
                leg.last_serve = self.serves;
                leg.inflight.insert(corr_id.to_owned(), events);
                return Ok((id, Arc::clone(&leg.worker)));
            }
            // Its socket has just ended; the next best one takes the request.
            self.legs.remove(&id);
        }
    }

    /// Why no leg of `model` has room.
    fn refusal(&self, model: &str) -> Refusal {
        let served = self.models();
        if served.is_empty() {
            Refusal::NoMiner
        } else if served.iter().any(|name| name == model) {
            Refusal::Full
        } else {
            Refusal::UnknownModel(served)
        }
    }
}

/// All admitted legs.
#[derive(Debug)]
pub(in crate::gateway) struct Pool {
    inner: Mutex<Inner>,
    version: watch::Sender<u64>,
}

impl Pool {
    pub(in crate::gateway) fn new() -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Inner::default()), version: watch::Sender::new(0) })
    }

    /// Looks without changing.
    fn look(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something and tells whoever watches.
    fn change<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> R {
        let result = change(&mut self.look());
        self.tell();
        result
    }

    fn tell(&self) {
        self.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// Wakes at each change from now on.
    pub(in crate::gateway) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Lets a leg in. A leg that the same worker holds on the same index is retired: the worker dialled anew.
    pub(in crate::gateway) fn admit(
        self: &Arc<Self>,
        index: usize,
        hello: &Hello,
        outgoing: mpsc::UnboundedSender<Outgoing>,
    ) -> AdmittedLeg {
        let leg = Leg::new(index, hello, outgoing);
        // Before anything can be served on it, so that admit is the leg's first frame.
        let _ = leg.outgoing.send(Outgoing::Frame(GatewayFrame::Admit));
        let id = self.change(|inner| {
            for old in inner.legs.values_mut() {
                if old.index == index && old.worker.worker_id == leg.worker.worker_id {
                    old.retired = true;
                    old.close_if_done();
                }
            }
            let id = inner.next_leg;
            inner.next_leg += 1;
            inner.legs.insert(id, leg);
            id
        });
        AdmittedLeg { pool: Arc::clone(self), id }
    }

    /// A corr_id that no other request of this gateway has.
    pub(in crate::gateway) fn next_corr_id(&self) -> String {
        let mut inner = self.look();
        inner.next_corr += 1;
        format!("c-{}", inner.next_corr)
    }

    /// The model that a request without one means: the only one served.
    pub(in crate::gateway) fn only_model(&self) -> Result<Option<String>, Refusal> {
        match self.look().models().as_slice() {
            [] => Err(Refusal::NoMiner),
            [model] => Ok(Some(model.clone())),
            _ => Ok(None),
        }
    }

    /// Sends `serve` on the least loaded leg of `model`, as soon as one has a free slot.
    pub(in crate::gateway) async fn dispatch(
        self: &Arc<Self>,
        model: &str,
        corr_id: &str,
        serve: &Utf8Bytes,
        patience: Patience,
    ) -> Result<Ticket, Refusal> {
        let mut changes = self.changes();
        let tries = async {
            loop {
                match self.try_dispatch(model, corr_id, serve) {
                    // The sender lives as long as this pool does, so a closed channel cannot happen.
                    Err(Refusal::Full) => drop(changes.changed().await),
                    settled => return settled,
                }
            }
        };
        let mut ticket = timeout(patience.for_leg, tries).await.unwrap_or(Err(Refusal::Full))?;
        ticket.expire_after(patience.for_answer);
        Ok(ticket)
    }

    fn try_dispatch(self: &Arc<Self>, model: &str, corr_id: &str, serve: &Utf8Bytes) -> Result<Ticket, Refusal> {
        let (events, receiver) = mpsc::unbounded_channel();
        let (leg, worker) = self.look().start(model, corr_id, serve, events)?;
        self.tell();
        let pool = Arc::clone(self);
        Ok(Ticket::new(pool, leg, corr_id.to_owned(), worker, receiver))
    }

    /// Ends a request from this side: frees its slot, tells the miner to stop, and leaves `last_word` for whoever
    /// still listens. Does nothing when the miner has answered already.
    pub(in crate::gateway) fn abandon(&self, leg: u64, corr_id: &str, last_word: Option<Event>) {
        let request = {
            let mut inner = self.look();
            let Some(leg) = inner.legs.get_mut(&leg) else { return };
            let Some(request) = leg.inflight.remove(corr_id) else {
                return;
            };
            let cancel = GatewayFrame::Cancel { corr_id: corr_id.to_owned() };
            let _ = leg.outgoing.send(Outgoing::Frame(cancel));
            leg.close_if_done();
            request
        };
        if let Some(last_word) = last_word {
            let _ = request.send(last_word);
        }
        self.tell();
    }

    /// Models of the legs that take work, each with when its first leg was admitted.
    pub(in crate::gateway) fn models_since(&self) -> BTreeMap<String, u64> {
        let mut models = BTreeMap::new();
        for (_, leg) in self.look().open_legs() {
            let since: &mut u64 = models.entry(leg.worker.model.clone()).or_insert(leg.admitted_at);
            *since = leg.admitted_at.min(*since);
        }
        models
    }

    /// What there is to see now.
    pub(in crate::gateway) fn status(&self) -> GatewayStatus {
        let inner = self.look();
        GatewayStatus {
            legs: inner.legs.values().map(Leg::status).collect(),
            bad_frames: inner.bad_frames,
            unknown_corr_ids: inner.unknown_corr_ids,
        }
    }

    fn remove(&self, leg: u64) {
        // With the leg go the senders of its requests, which is how these learn that it is lost.
        self.change(|inner| inner.legs.remove(&leg));
    }
}
