//! Which calls came, which of them live, and how they ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::sleep;

use super::config::AbortMatch;

/// A request that came.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Counts all calls of the serve, from 0.
    pub number: u64,
    /// The path, such as `/generate`.
    pub path: String,
    /// The JSON of its body; null where it has none.
    pub body: Arc<Value>,
    /// Tokens that were made for it so far.
    pub tokens: usize,
    /// How it ended; `None` while it lives.
    pub end: Option<CallEnd>,
}

/// How a call ended, as the serve sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// With an answer, if perhaps a wrong one.
    Finished,
    /// By an `/abort_request`, or by the serve's own giving up.
    Aborted,
    /// The client left before it had all.
    Disconnected,
    /// With an error of this status, 200 for one in a stream.
    Refused(u16),
    /// The serve broke it off.
    Broken,
}

/// What a fake serve sees now.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeStatus {
    /// Answers that are being made, or not yet read by their clients.
    pub running: usize,
    /// Requests that wait for a place.
    pub waiting: usize,
    /// Connections, idle ones included.
    pub connections: usize,
    /// The remembered calls, oldest first.
    pub calls: Vec<Call>,
}

impl ServeStatus {
    /// The remembered calls of one path, oldest first.
    pub fn calls_of(&self, path: &str) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.path == path)
    }

    /// The remembered calls of `/generate`, oldest first.
    pub fn generates(&self) -> impl Iterator<Item = &Call> {
        self.calls_of("/generate")
    }
}

/// How far a live request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Running,
}

/// All calls of a serve.
#[derive(Debug)]
pub(super) struct Calls {
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
    remembered: usize,
    /// How long a request whose client left keeps its place.
    lingers: Duration,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    calls: VecDeque<Call>,
    live: BTreeMap<u64, Live>,
}

#[derive(Debug)]
struct Live {
    rid: String,
    phase: Phase,
    /// Of prompt and answer.
    tokens: usize,
    abort: watch::Sender<bool>,
}

/// Counts of what lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LiveCounts {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) tokens: usize,
}

impl Calls {
    pub(super) fn new(remembered: usize, lingers: Duration) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), changed: watch::Sender::new(()), remembered, lingers })
    }

    /// A call came.
    pub(super) fn begin(self: &Arc<Self>, path: &str, body: Arc<Value>) -> Ticket {
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        if inner.calls.len() >= self.remembered {
            inner.calls.pop_front();
        }
        if self.remembered > 0 {
            inner.calls.push_back(Call { number, path: path.to_owned(), body, tokens: 0, end: None });
        }
        drop(inner);
        self.tell();
        Ticket { calls: Arc::clone(self), number, place: None, ended: false }
    }

    /// Ends the request of this id and those that go with it, or all. False if there is none of this id.
    pub(super) fn abort(&self, rid: &str, all: bool, matching: AbortMatch) -> bool {
        let inner = self.lock();
        // The front of a serve knows the id or does nothing; what is behind it then looks again, less strictly.
        let known = all || inner.live.values().any(|live| live.rid == rid);
        let hit = |live: &&Live| match matching {
            _ if all => true,
            AbortMatch::Exact => live.rid == rid,
            AbortMatch::Prefix => live.rid.starts_with(rid),
        };
        if known {
            inner.live.values().filter(hit).for_each(|live| _ = live.abort.send_replace(true));
        }
        known
    }

    pub(super) fn is_live(&self, rid: &str) -> bool {
        self.lock().live.values().any(|live| live.rid == rid)
    }

    pub(super) fn counts(&self) -> LiveCounts {
        let inner = self.lock();
        let running = inner.live.values().filter(|live| live.phase == Phase::Running).count();
        let tokens = inner.live.values().filter(|live| live.phase == Phase::Running).map(|live| live.tokens).sum();
        LiveCounts { running, waiting: inner.live.len() - running, tokens }
    }

    pub(super) fn remembered(&self) -> Vec<Call> {
        self.lock().calls.iter().cloned().collect()
    }

    /// Changes with each step of each call.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    fn end(&self, number: u64, end: CallEnd) {
        let mut inner = self.lock();
        inner.live.remove(&number);
        if let Some(call) = inner.call(number) {
            call.end = Some(end);
        }
        drop(inner);
        self.tell();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is being answered. Dropped before its end, the client has left.
#[derive(Debug)]
pub(super) struct Ticket {
    calls: Arc<Calls>,
    number: u64,
    place: Option<OwnedSemaphorePermit>,
    ended: bool,
}

impl Ticket {
    /// The request can be counted and aborted from now on.
    pub(super) fn enlist(&self, rid: &str, prompt_tokens: usize, phase: Phase) -> watch::Receiver<bool> {
        let (abort, aborted) = watch::channel(false);
        let live = Live { rid: rid.to_owned(), phase, tokens: prompt_tokens, abort };
        self.calls.lock().live.insert(self.number, live);
        self.calls.tell();
        aborted
    }

    /// The request has its place, and keeps it to its end.
    pub(super) fn runs(&mut self, place: OwnedSemaphorePermit) {
        self.place = Some(place);
        if let Some(live) = self.calls.lock().live.get_mut(&self.number) {
            live.phase = Phase::Running;
        }
        self.calls.tell();
    }

    /// One more token.
    pub(super) fn count_token(&self) {
        let mut inner = self.calls.lock();
        if let Some(live) = inner.live.get_mut(&self.number) {
            live.tokens += 1;
        }
        if let Some(call) = inner.call(self.number) {
            call.tokens += 1;
        }
        drop(inner);
        self.calls.tell();
    }

    /// It is over. Only the first end counts.
    pub(super) fn end(&mut self, end: CallEnd) {
        if !std::mem::replace(&mut self.ended, true) {
            self.place = None;
            self.calls.end(self.number, end);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let lingers = self.calls.lingers;
        match Handle::try_current() {
            Ok(runtime) if !self.ended && !lingers.is_zero() => {
                let (calls, number, place) = (Arc::clone(&self.calls), self.number, self.place.take());
                runtime.spawn(async move {
                    sleep(lingers).await;
                    drop(place);
                    calls.end(number, CallEnd::Disconnected);
                });
            }
            _ => self.end(CallEnd::Disconnected),
        }
    }
}

impl Inner {
    fn call(&mut self, number: u64) -> Option<&mut Call> {
        let first = self.calls.front()?.number;
        self.calls.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(calls: &Calls) -> Vec<(u64, Option<CallEnd>)> {
        calls.remembered().iter().map(|call| (call.number, call.end)).collect()
    }

    #[test]
    fn calls_are_remembered_with_their_ends() {
        let calls = Calls::new(2, Duration::ZERO);
        let [mut first, mut second, third] = [(), (), ()].map(|()| calls.begin("/generate", Arc::default()));
        second.count_token();
        second.end(CallEnd::Finished);
        // Too long ago to be remembered.
        first.end(CallEnd::Aborted);
        assert_eq!(ends(&calls), [(1, Some(CallEnd::Finished)), (2, None)]);
        assert_eq!(calls.remembered()[0].tokens, 1);
        drop(third);
        assert_eq!(ends(&calls)[1], (2, Some(CallEnd::Disconnected)));
    }

    #[test]
    fn an_abort_hits_all_ids_that_begin_like_a_live_one() {
        let calls = Calls::new(9, Duration::ZERO);
        let tickets = ["ab", "abc", "b"].map(|rid| {
            let ticket = calls.begin("/generate", Arc::default());
            let aborted = ticket.enlist(rid, 5, Phase::Running);
            (ticket, aborted)
        });
        let hit = || tickets.each_ref().map(|(_, aborted)| *aborted.borrow());
        assert!(!calls.abort("a", false, AbortMatch::Prefix), "none of that id lives");
        assert!(!calls.abort("", false, AbortMatch::Prefix));
        assert_eq!(hit(), [false; 3]);
        assert!(calls.abort("ab", false, AbortMatch::Exact));
        assert_eq!(hit(), [true, false, false]);
        assert!(calls.abort("ab", false, AbortMatch::Prefix));
        assert_eq!(hit(), [true, true, false]);
        assert!(calls.abort("", true, AbortMatch::Exact));
        assert_eq!(hit(), [true; 3]);
        assert_eq!(calls.counts(), LiveCounts { running: 3, waiting: 0, tokens: 15 });
    }
}
