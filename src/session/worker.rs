//! A worker: all its legs, and what they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::leg::Leg;
use super::{MAX_INFLIGHT, MAX_LEGS, SessionError, WorkerConfig, hardware, hello_capacity, share};
use crate::backend::Health;
use crate::job::Service;
use crate::protocol::{Capacity, Heartbeat, Hello, KvReport};
use crate::telemetry::one_line;

/// How often the backend's health is looked at.
const HEALTH_CHECK: Duration = Duration::from_secs(1);

/// A miner's worker, ready to run.
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    shutdown: watch::Sender<bool>,
}

/// Shows what a running worker does. Cheap to clone.
#[derive(Clone)]
pub struct WorkerHandle {
    shared: Arc<Shared>,
}

/// Events that an operator wants to see counted.
#[derive(Debug, Default)]
pub struct Counters {
    /// Frames that were no frames, or of an unknown type.
    pub bad_frames: AtomicU64,
    /// Serve frames whose id was already in use on their leg.
    pub duplicate_ids: AtomicU64,
    /// Requests that were answered.
    pub answered: AtomicU64,
    /// Requests that ended in an error frame.
    pub failed: AtomicU64,
    /// Requests that the gateway cancelled.
    pub cancelled: AtomicU64,
}

/// What the legs of a worker share.
pub(super) struct Shared {
    pub(super) config: WorkerConfig,
    pub(super) service: Service,
    pub(super) counters: Counters,
    /// Free slots.
    slots: Semaphore,
    total: usize,
    /// Requests that hold a slot; every change wakes every leg.
    inflight: watch::Sender<usize>,
    /// Whether a gateway has ever admitted a leg.
    ever_admitted: AtomicBool,
    /// Why legs were refused the first time they were, one entry a leg.
    refusals: watch::Sender<Vec<String>>,
    /// Whether the backend takes no requests for now: no leg is up then.
    away: watch::Sender<bool>,
    /// When the last request ended, milliseconds from the start.
    last_end: AtomicU64,
    started: Instant,
}

/// A slot, held while a request runs.
pub(super) struct Slot<'a> {
    shared: &'a Shared,
    _permit: tokio::sync::SemaphorePermit<'a>,
}

impl Worker {
    /// A worker for this service.
    #[must_use]
    pub fn new(config: WorkerConfig, service: Service) -> Self {
        let total = config.max_inflight.clamp(1, MAX_INFLIGHT);
        let shared = Shared {
            slots: Semaphore::new(total),
            total,
            inflight: watch::Sender::new(0),
            ever_admitted: AtomicBool::new(false),
            refusals: watch::Sender::new(Vec::new()),
            away: watch::Sender::new(false),
            last_end: AtomicU64::new(0),
            started: Instant::now(),
            counters: Counters::default(),
            config,
            service,
        };
        Self { shared: Arc::new(shared), shutdown: watch::Sender::new(false) }
    }

    /// A view of the worker that outlives [`Worker::run`].
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle { shared: Arc::clone(&self.shared) }
    }

    /// Serves until `shutdown` resolves, then lets running requests finish within the configured grace.
    ///
    /// # Errors
    /// When the address is unusable, the gateway refuses every leg before it admitted any, or the backend dies.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), SessionError> {
        let count = self.shared.config.legs.clamp(1, MAX_LEGS);
        // Before any leg is started: what is sent before the subscription counts as seen, and a leg says only once that it was
        // refused.
        let mut refusals = self.shared.refusals.subscribe();
        let mut legs = JoinSet::new();
        for index in 0..count {
            let leg = Leg::new(Arc::clone(&self.shared), index, count, self.shutdown.subscribe())?;
            legs.spawn(leg.run());
        }
        let mut health = tokio::time::interval(HEALTH_CHECK);
        tokio::pin!(shutdown);
        let outcome = loop {
            tokio::select! {
                () = &mut shutdown => break Ok(()),
                Some(Err(panic)) = legs.join_next() => tracing::error!(%panic, "a fault of this program took a leg"),
                Ok(()) = refusals.changed() => {
                    let refusals = refusals.borrow_and_update();
                    if refusals.len() >= count && !self.shared.ever_admitted.load(Ordering::Relaxed) {
                        break Err(SessionError::Denied {
                            gateway: self.shared.config.gateway.clone(),
                            reason: refusals.first().cloned().unwrap_or_default(),
                        });
                    }
                }
                _ = health.tick() => {
                    match self.shared.service.backend.health() {
                        Health::Ready => self.shared.set_away(None),
                        Health::Away(reason) => self.shared.set_away(Some(&reason)),
                        Health::Dead(reason) => {
                            let kind = self.shared.service.backend.info().kind;
                            break Err(SessionError::Backend { kind, reason });
                        }
                    }
                }
            }
        };
        self.shutdown.send_replace(true);
        let rest = async { while legs.join_next().await.is_some() {} };
        if tokio::time::timeout(self.shared.config.shutdown_grace, rest).await.is_err() {
            tracing::warn!("requests were still running after the shutdown grace; they are cut off");
        }
        outcome
    }
}

impl WorkerHandle {
    /// Requests that hold a slot now.
    #[must_use]
    pub fn inflight(&self) -> usize {
        *self.shared.inflight.borrow()
    }

    /// Resolves once the number of requests that hold a slot is `count`.
    pub async fn wait_for_inflight(&self, count: usize) {
        // The sender lives in `shared`, which this handle holds.
        let _ = self.shared.inflight.subscribe().wait_for(|now| *now == count).await;
    }

    /// What has been counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Shared {
    /// Waits for a free slot.
    pub(super) async fn slot(&self) -> Option<Slot<'_>> {
        let permit = self.slots.acquire().await.ok()?;
        self.inflight.send_modify(|count| *count += 1);
        Some(Slot { shared: self, _permit: permit })
    }

    pub(super) fn load(&self) -> watch::Receiver<usize> {
        self.inflight.subscribe()
    }

    /// A gateway's words as they may be shown: on one line, and without the key that it may repeat.
    pub(super) fn quote(&self, words: &str) -> String {
        one_line(&self.config.key.redact(words))
    }

    /// Takes the legs down while the backend is away, for the reason given, and lets them up again.
    fn set_away(&self, reason: Option<&str>) {
        let changed = self.away.send_if_modified(|away| std::mem::replace(away, reason.is_some()) != reason.is_some());
        match reason {
            Some(reason) if changed => {
                tracing::error!(reason, "the backend is away; the legs are down until it is back")
            }
            None if changed => tracing::info!("the backend is back; dialling"),
            _ => {}
        }
    }

    /// Tells whether the backend is away.
    pub(super) fn away(&self) -> watch::Receiver<bool> {
        self.away.subscribe()
    }

    /// A leg is live.
    pub(super) fn admitted(&self) {
        self.ever_admitted.store(true, Ordering::Relaxed);
    }

    /// A leg was refused for the first time.
    pub(super) fn refused(&self, reason: String) {
        self.refusals.send_modify(|refusals| refusals.push(reason));
    }

    pub(super) fn hello(&self, legs: usize) -> Hello {
        let WorkerConfig { key, identity, .. } = &self.config;
        Hello {
            miner_key: key.clone(),
            model: self.service.model.clone(),
            model_root: self.service.model_root.clone(),
            versions: serde_json::Map::new(),
            worker_name: identity.worker_name.clone(),
            instance_id: identity.worker_name.clone(),
            worker_id: identity.worker_id.clone(),
            hw: hardware::describe(),
            capacity: hello_capacity(self.total, legs, &self.service.limits),
        }
    }

    /// A whole heartbeat, with capacity and cache use.
    pub(super) fn heartbeat(&self, legs: usize) -> Heartbeat {
        let load = self.service.backend.load();
        let kv = (load.kv_limit > 0).then(|| KvReport {
            used: load.kv_used as u64,
            reqs: load.running as u64,
            waiting: load.waiting as u64,
            pending: load.pending_tokens as u64,
            ranks: 1,
            limit: load.kv_limit as u64,
            frac: load.kv_used as f64 / load.kv_limit as f64,
        });
        Heartbeat {
            capacity: Some(Capacity { max_inflight: share(self.total, legs), max_inflight_total: self.total }),
            kv,
            ..self.load_broadcast()
        }
    }

    /// The short form that follows every change of the load.
    pub(super) fn load_broadcast(&self) -> Heartbeat {
        let inflight = *self.inflight.borrow();
        let last_end = Duration::from_millis(self.last_end.load(Ordering::Relaxed));
        let idle = self.started.elapsed().saturating_sub(last_end);
        Heartbeat {
            inflight,
            idle_seconds: if inflight > 0 { 0.0 } else { idle.as_secs_f64() },
            capacity: None,
            kv: None,
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let now = u64::try_from(self.shared.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.shared.last_end.store(now, Ordering::Relaxed);
        self.shared.inflight.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Resolves once the worker shuts down, or is gone.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    turned(shutdown, true).await;
}

/// Resolves once a switch stands as wanted, or whoever turns it is gone.
pub(super) async fn turned(switch: &mut watch::Receiver<bool>, to: bool) {
    let _ = switch.wait_for(|now| *now == to).await;
}
