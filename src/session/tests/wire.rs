//! One connection over a pipe: frames reach the miner without the operating system in between.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::scripted_backend::{Runs, ScriptedBackend};
use super::scripted_gateway::Peer;
use super::site::Setup;
use crate::session::connection::{Closed, Connection, Leave};
use crate::session::{Worker, WorkerHandle};

/// More than a pipe ever has to hold in these tests.
pub(super) const ROOMY: usize = 1 << 20;
/// Longer than anything in these tests may take.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// A connection with no leg around it.
pub(super) struct Wire {
    pub(super) peer: Peer<DuplexStream>,
    pub(super) connection: JoinHandle<Closed>,
    pub(super) runs: Runs,
    pub(super) worker: WorkerHandle,
    pub(super) shutdown: watch::Sender<bool>,
    pub(super) asked_to_leave: oneshot::Receiver<Leave>,
    pub(super) started: Instant,
}

impl Wire {
    pub(super) async fn open(setup: Setup, pipe: usize) -> Self {
        let (backend, runs) = ScriptedBackend::new();
        let worker = Worker::new(setup.config("ws://gw.example/gw"), setup.service(backend));
        let (ours, theirs) = duplex(pipe);
        let (shutdown, stopping) = watch::channel(false);
        let (leave, asked_to_leave) = oneshot::channel();
        let connection = Connection::new(Arc::clone(&worker.shared), 0, 1, stopping, leave);
        let miner_end = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        Self {
            peer: Peer {
                path: "/gw".into(),
                socket: WebSocketStream::from_raw_socket(theirs, Role::Server, None).await,
            },
            connection: tokio::spawn(connection.run(miner_end)),
            runs,
            worker: worker.handle(),
            shutdown,
            asked_to_leave,
            started: Instant::now(),
        }
    }

    /// Hears the hello and lets it in.
    pub(super) async fn live(setup: Setup) -> Self {
        let mut wire = Self::open(setup, ROOMY).await;
        assert_eq!(wire.peer.next().await.unwrap()["type"], "hello");
        wire.peer.send(&json!({"type": "admit"})).await;
        wire.peer.ping().await;
        wire
    }

    /// How the connection ended, and after how long.
    pub(super) async fn closed(self) -> (Closed, Duration) {
        let closed = timeout(HOUR, self.connection).await.expect("the connection should end");
        (closed.unwrap(), self.started.elapsed())
    }
}
