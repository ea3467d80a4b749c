//! A worker under test with both its neighbours.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::scripted_backend::{Runs, ScriptedBackend};
use super::scripted_gateway::{Peer, ScriptedGateway};
use crate::chat::ChatModel;
use crate::checkpoint::Checkpoint;
use crate::job::{Limits, Service};
use crate::protocol::MinerKey;
use crate::session::DEFAULT_SLOTS_PER_LEG;
use crate::session::{Identity, SessionError, Worker, WorkerConfig, WorkerHandle};

/// A test that waits this long has failed; no test waits for it to pass.
const TEST_PATIENCE: Duration = Duration::from_secs(60);

pub(super) const KEY: &str = "mk-secret";
pub(super) const TOPK: usize = 4;

pub(super) async fn within<F: Future>(event: F) -> F::Output {
    timeout(TEST_PATIENCE, event).await.expect("the event never came")
}

/// What tests vary.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) legs: usize,
    pub(super) max_inflight: Option<usize>,
    pub(super) shutdown_grace: Duration,
    pub(super) max_request: Duration,
    pub(super) greedy: bool,
    /// Dials that the gateway hangs up on.
    pub(super) rude: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            legs: 1,
            max_inflight: Some(4),
            shutdown_grace: TEST_PATIENCE,
            max_request: Duration::from_secs(1800),
            greedy: false,
            rude: 0,
        }
    }
}

impl Setup {
    pub(super) fn legs(legs: usize) -> Self {
        Self { legs, ..Self::default() }
    }

    pub(super) fn config(&self, gateway: &str) -> WorkerConfig {
        WorkerConfig {
            gateway: gateway.into(),
            key: MinerKey::new(KEY),
            identity: Identity::ephemeral("rack7-g0"),
            legs: self.legs,
            max_inflight: self.max_inflight.unwrap_or(DEFAULT_SLOTS_PER_LEG * self.legs),
            shutdown_grace: self.shutdown_grace,
        }
    }

    pub(super) fn service(&self, backend: Arc<ScriptedBackend>) -> Service {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-llama");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        Service {
            backend,
            chat: ChatModel::open(&checkpoint).unwrap(),
            model: "m".into(),
            model_root: checkpoint.model_root().unwrap(),
            end_ids: checkpoint.end_ids(),
            limits: Limits {
                context: 4096,
                max_input_tokens: 2048,
                max_output_tokens: 1024,
                default_max_tokens: 32,
                max_request: self.max_request,
            },
            greedy: self.greedy,
            topk: TOPK,
            preparing: Service::places(),
        }
    }
}

/// A running worker. Dropped, it stops.
pub(super) struct Site {
    pub(super) gateway: ScriptedGateway,
    pub(super) backend: Arc<ScriptedBackend>,
    pub(super) runs: Runs,
    pub(super) worker: WorkerHandle,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), SessionError>>,
}

impl Site {
    pub(super) async fn with(setup: Setup) -> Self {
        let gateway = ScriptedGateway::open(setup.rude).await;
        let (backend, runs) = ScriptedBackend::new();
        let worker = Worker::new(setup.config(&gateway.address), setup.service(Arc::clone(&backend)));
        let (stop, stopped) = oneshot::channel::<()>();
        Self {
            gateway,
            backend,
            runs,
            worker: worker.handle(),
            stop: Some(stop),
            running: tokio::spawn(worker.run(async { drop(stopped.await) })),
        }
    }

    /// A worker with one leg, and that leg let in.
    pub(super) async fn with_leg() -> (Self, Peer) {
        let mut site = Self::with(Setup::default()).await;
        let leg = site.gateway.live_leg().await;
        (site, leg)
    }

    /// A worker with two legs, both let in.
    pub(super) async fn with_two_legs() -> (Self, [Peer; 2]) {
        let mut site = Self::with(Setup::legs(2)).await;
        let legs = [site.gateway.live_leg().await, site.gateway.live_leg().await];
        (site, legs)
    }

    /// Tells the worker to shut down.
    pub(super) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// How the worker ended, once it has.
    pub(super) async fn outcome(self) -> Result<(), SessionError> {
        let _stop = self.stop;
        within(self.running).await.unwrap()
    }

    /// True while the worker has not ended.
    pub(super) fn is_running(&self) -> bool {
        !self.running.is_finished()
    }

    pub(super) fn count(&self, counter: impl Fn(&crate::session::Counters) -> &AtomicU64) -> u64 {
        counter(self.worker.counters()).load(Ordering::Relaxed)
    }

    pub(super) async fn wait_for_inflight(&self, count: usize) {
        within(self.worker.wait_for_inflight(count)).await;
    }

    /// Serves one more request to its end, and sees its frames and no others: whatever was ended before stays silent.
    pub(super) async fn assert_serves(&mut self, leg: &mut Peer) {
        leg.serve("next").await;
        let mut run = self.runs.next().await;
        run.say("Done.");
        run.finish();
        let response = leg.response("next").await;
        assert_eq!(response["output"]["choices"][0]["message"]["content"], "Done.");
        self.wait_for_inflight(0).await;
    }
}
