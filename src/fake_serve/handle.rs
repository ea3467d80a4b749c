//! A look into a fake serve from beside it, and a hand on it.

use std::net::SocketAddr;
use std::sync::Arc;

use super::calls::{Call, ServeStatus};
use super::fault::{Fault, RandomFaults, Scope};
use super::server::{Health, Shared};

/// Watches and disturbs a fake serve. Clones see the same one.
#[derive(Debug, Clone)]
pub struct FakeServeHandle {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeServeHandle {
    pub(super) fn new(addr: SocketAddr, shared: Arc<Shared>) -> Self {
        Self { addr, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base address, such as `http://127.0.0.1:30000`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What it sees now.
    #[must_use]
    pub fn status(&self) -> ServeStatus {
        let counts = self.shared.calls.counts();
        ServeStatus {
            running: counts.running,
            waiting: counts.waiting,
            connections: self.shared.wires.count(),
            calls: self.shared.calls.remembered(),
        }
    }

    /// The remembered calls, oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.remembered()
    }

    /// Returns once `wanted` holds, with the status for which it did. It has no time limit of its own.
    ///
    /// It looks again with each step of a call; connections alone do not wake it.
    pub async fn wait_until(&self, mut wanted: impl FnMut(&ServeStatus) -> bool) -> ServeStatus {
        let mut changes = self.shared.calls.changes();
        loop {
            changes.borrow_and_update();
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            // The sender lives as long as this handle.
            drop(changes.changed().await);
        }
    }

    /// A fault of calls befalls the next call of `/generate` for which none is queued yet; a fault of the serve begins
    /// now.
    pub async fn inject(&self, fault: Fault) {
        if fault.scope() == Scope::Call {
            return self.shared.faults.queue([Some(fault)]);
        }
        match fault {
            Fault::HealthStalls => _ = self.shared.health.send_replace(Health::Silent),
            Fault::Unhealthy => _ = self.shared.health.send_replace(Health::Unwell),
            _ => self.listen(false).await,
        }
    }

    /// What befalls the next calls of `/generate`, one each; `None` leaves a call alone. Faults of the serve have no
    /// place here and do nothing.
    pub fn queue(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.shared.faults.queue(faults);
    }

    /// Calls for which nothing is queued fail at random from now on; `None` ends that.
    pub fn fail_at_random(&self, faults: Option<RandomFaults>) {
        self.shared.faults.at_random(faults);
    }

    /// Ends the faults of the serve and forgets those that wait for calls. A serve that was shut down stays so.
    pub async fn heal(&self) {
        self.shared.faults.clear();
        self.shared.health.send_replace(Health::Well);
        self.listen(true).await;
    }

    /// Lets one [stalled](Fault::Stalls) call go on, now or when it comes to that.
    pub fn release(&self) {
        self.shared.releases.add_permits(1);
    }

    /// Ends the serve: nothing listens, and all connections are reset.
    pub async fn shut_down(&self) {
        self.shared.stopping.send_replace(true);
        let mut listens = self.shared.listens.subscribe();
        // The sender lives as long as this handle.
        drop(listens.wait_for(|listens| !listens).await);
    }

    async fn listen(&self, wanted: bool) {
        if *self.shared.stopping.borrow() {
            return;
        }
        self.shared.wanted.send_replace(wanted);
        let mut listens = self.shared.listens.subscribe();
        drop(listens.wait_for(|listens| *listens == wanted).await);
    }
}
