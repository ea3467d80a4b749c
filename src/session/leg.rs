//! One leg: dial, say hello, serve, and dial again.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::backoff::Backoff;
use super::connection::{Closed, Connection};
use super::worker::{Shared, stopped, turned};
use super::{DIAL_TIMEOUT, SessionError};
use crate::protocol::{MAX_MESSAGE_BYTES, leg_url};

/// A leg and its place among the others.
pub(super) struct Leg {
    shared: Arc<Shared>,
    index: usize,
    count: usize,
    url: String,
    shutdown: watch::Receiver<bool>,
}

/// A leg that is asked to move dials at once, as a deploy wants it; but one that is sent away each time it arrives would
/// dial without pause, so after this many such moves it waits like one that was lost.
const MOST_HASTY_MOVES: u32 = 8;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Leg {
    /// A leg that will dial. Checks the address, so that a typing error is found before anything starts.
    pub(super) fn new(
        shared: Arc<Shared>,
        index: usize,
        count: usize,
        shutdown: watch::Receiver<bool>,
    ) -> Result<Self, SessionError> {
        check_address(&shared.config.gateway)?;
        let url = leg_url(&shared.config.gateway, index, count);
        Ok(Self { shared, index, count, url, shutdown })
    }

    /// Keeps the leg up until the worker shuts down.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        // Connections that the gateway asked to leave; they finish what runs on them.
        let mut draining = JoinSet::new();
        let mut refused = false;
        let mut hasty_moves = 0;
        let mut shutdown = self.shutdown.clone();
        let mut away = self.shared.away();
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut shutdown) => break,
                () = turned(&mut away, false) => {}
            }
            let socket = tokio::select! {
                biased;
                () = stopped(&mut shutdown) => break,
                dialled = self.dial() => dialled,
            };
            match socket {
                Err(error) => tracing::warn!(leg = self.index, url = self.url, %error, "cannot dial the gateway"),
                Ok(socket) => {
                    let (leave, mut asked_to_leave) = oneshot::channel();
                    let connection =
                        Connection::new(Arc::clone(&self.shared), self.index, self.count, self.shutdown.clone(), leave);
                    let mut running = tokio::spawn(connection.run(socket));
                    let closed = tokio::select! {
                        // An idle connection ends at once when it is asked to leave: both are true then, and a plain
                        // end would wait before it dials.
                        biased;
                        Ok(leave) = &mut asked_to_leave => {
                            // The old connection lives on beside the new one until its requests are done.
                            draining.spawn(running);
                            while draining.try_join_next().is_some() {}
                            hasty_moves = if leave.settled { 0 } else { hasty_moves + 1 };
                            if hasty_moves <= MOST_HASTY_MOVES {
                                backoff.reset();
                                continue;
                            }
                            None
                        }
                        closed = &mut running => Some(closed),
                    };
                    match closed {
                        None => tracing::warn!(leg = self.index, "the gateway sent the leg away; dialling again"),
                        Some(Ok(Closed::Shutdown)) => break,
                        Some(Ok(Closed::Away)) => {
                            backoff.reset();
                            continue;
                        }
                        Some(Ok(Closed::Denied(reason))) => {
                            tracing::warn!(leg = self.index, reason, "the gateway refuses the leg");
                            if !std::mem::replace(&mut refused, true) {
                                self.shared.refused(reason);
                            }
                        }
                        Some(Ok(Closed::Lost { admitted, reason })) => {
                            tracing::warn!(leg = self.index, reason, "the leg is down; dialling again");
                            if admitted {
                                backoff.reset();
                            }
                        }
                        Some(Err(panic)) => {
                            tracing::error!(leg = self.index, %panic, "a fault of this program took the leg")
                        }
                    }
                }
            }
            let wait = backoff.next();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopped(&mut shutdown) => break,
            }
        }
        while draining.join_next().await.is_some() {}
    }

    async fn dial(&self) -> Result<Socket, String> {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let dialling = connect_async_with_config(self.url.as_str(), Some(config), true);
        match tokio::time::timeout(DIAL_TIMEOUT, dialling).await {
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", DIAL_TIMEOUT.as_secs())),
        }
    }
}

/// Whether a gateway's address can be dialled at all.
///
/// # Errors
/// When it is no address, or of another scheme.
pub fn check_address(gateway: &str) -> Result<(), SessionError> {
    let wrong = |reason: String| SessionError::Address { address: gateway.into(), reason };
    let request = gateway.into_client_request().map_err(|e| wrong(e.to_string()))?;
    let uri = request.uri();
    match uri.scheme_str() {
        Some("ws" | "wss") => {}
        other => return Err(wrong(format!("it is not ws or wss but {}", other.unwrap_or("nothing")))),
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err(SessionError::Address {
            address: "(with a password in it)".into(),
            reason: "user names and passwords in it would show in logs".into(),
        });
    }
    // An IPv6 address has colons of its own, in brackets.
    let port = authority.rsplit(']').next().unwrap_or(authority).contains(':');
    if port && uri.port_u16().is_none_or(|port| port == 0) {
        return Err(wrong("its port is no number from 1 to 65535".into()));
    }
    if uri.query().is_some() || gateway.contains('#') {
        return Err(wrong("leg numbers are added to its path, so it can have no query and no fragment".into()));
    }
    Ok(())
}
