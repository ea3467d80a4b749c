//! Listens, and leads each connection to its place.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::buyer_error::BuyerError;
use super::completions::chat_completions;
use super::config::{GatewayConfig, MAX_LEGS};
use super::error::GatewayError;
use super::handle::GatewayHandle;
use super::pool::Pool;
use super::proofs::ProofStore;
use super::{inspect, socket};
use crate::protocol::MAX_MESSAGE_BYTES;

/// The largest request body: it has to fit into one frame.
const MAX_BODY_BYTES: usize = MAX_MESSAGE_BYTES;

/// How long a stopping gateway waits for its buyers to read what they are still owed and its legs to leave.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// What every connection needs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: GatewayConfig,
    pub(super) pool: Arc<Pool>,
    pub(super) proofs: ProofStore,
    /// Turns true once, when the gateway stops.
    pub(super) stopping: watch::Sender<bool>,
}

impl Shared {
    pub(super) fn new(config: GatewayConfig) -> Arc<Self> {
        Arc::new(Self { config, pool: Pool::new(), proofs: ProofStore::default(), stopping: watch::Sender::new(false) })
    }
}

/// A gateway that listens. Connections queue up until [`run`](Self::run) serves them.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Gateway {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// When the number of legs is out of range or the address cannot be had, for example because it is taken.
    pub async fn bind(config: GatewayConfig) -> Result<Self, GatewayError> {
        if !(1..=MAX_LEGS).contains(&config.legs) {
            return Err(GatewayError::Legs { legs: config.legs });
        }
        let fail = |source| GatewayError::Listen { addr: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(fail)?;
        let addr = listener.local_addr().map_err(fail)?;
        Ok(Self { listener, addr, shared: Shared::new(config) })
    }

    /// Where it listens, with the real port where port 0 was asked for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// What a miner on this machine takes as its gateway, for example `ws://127.0.0.1:8800/gw`.
    #[must_use]
    pub fn ws_url(&self) -> String {
        format!("ws://{}/gw", reachable(self.addr))
    }

    /// What a buyer on this machine takes as the base address, without `/v1`.
    #[must_use]
    pub fn http_url(&self) -> String {
        format!("http://{}", reachable(self.addr))
    }

    /// A look into this gateway, also while it runs.
    #[must_use]
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle::new(Arc::clone(&self.shared.pool))
    }

    /// Serves until `shutdown` ends. Then it takes no more connections and closes all legs; requests that run on them
    /// end with an error, which their buyers have a few seconds to read.
    ///
    /// # Errors
    ///
    /// When connections can no longer be accepted.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), GatewayError> {
        let Self { listener, addr, shared } = self;
        info!(%addr, legs = shared.config.legs, "gateway listens");
        // A piece of a stream is small and must not wait for the next one.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                debug!(%error, "a connection without TCP_NODELAY");
            }
        });
        let on_shutdown = {
            let shared = Arc::clone(&shared);
            async move {
                shutdown.await;
                shared.stopping.send_replace(true);
            }
        };
        let serve = async {
            let served = axum::serve(listener, router(Arc::clone(&shared))).with_graceful_shutdown(on_shutdown).await;
            // Each leg's socket listens for the stop until it has said goodbye.
            shared.stopping.closed().await;
            served.map_err(|source| GatewayError::Serve { addr, source })
        };
        let give_up = async {
            // Subscribed for this statement alone, not to be waited for as a socket.
            let _ = shared.stopping.subscribe().wait_for(|stopping| *stopping).await;
            sleep(STOP_WITHIN).await;
        };
        tokio::select! {
            served = serve => served,
            () = give_up => {
                warn!("connections were cut off at the gateway's stop");
                Ok(())
            }
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/gw", get(only_leg))
        .route("/gw/{index}", get(leg))
        .route("/gw/meta", get(inspect::meta))
        .route("/meta", get(inspect::meta))
        .route("/healthz", get(inspect::health))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(inspect::models))
        .route("/v1/proofs/{request_id}", get(inspect::proof))
        .fallback(inspect::no_such_path)
        .method_not_allowed_fallback(inspect::wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared)
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// `/gw`: the leg of a gateway that has one.
async fn only_leg(State(shared): State<Arc<Shared>>, upgrade: Upgrade) -> Result<Response, BuyerError> {
    match shared.config.legs {
        1 => open_leg(0, upgrade, shared),
        legs => Err(no_such_leg(legs)),
    }
}

/// `/gw/{index}`.
async fn leg(
    State(shared): State<Arc<Shared>>,
    Path(index): Path<String>,
    upgrade: Upgrade,
) -> Result<Response, BuyerError> {
    match index.parse() {
        Ok(index) if index < shared.config.legs => open_leg(index, upgrade, shared),
        _ => Err(no_such_leg(shared.config.legs)),
    }
}

fn open_leg(index: usize, upgrade: Upgrade, shared: Arc<Shared>) -> Result<Response, BuyerError> {
    let upgrade = upgrade.map_err(|rejection| {
        let message = format!("a leg is a websocket: {}", rejection.body_text());
        BuyerError::client(rejection.status(), message)
    })?;
    Ok(upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_upgrade(move |socket| async move { socket::run(socket, index, &shared).await }))
}

fn no_such_leg(legs: usize) -> BuyerError {
    let known = match legs {
        1 => "/gw".to_owned(),
        legs => format!("/gw/0 to /gw/{}", legs - 1),
    };
    BuyerError::client(StatusCode::NOT_FOUND, format!("no such leg: this gateway has {known}, as /gw/meta tells"))
}

/// An address to dial for one listened on: "all addresses" cannot be dialled.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_told_can_be_dialled() {
        let told = |addr: &str| reachable(addr.parse().unwrap()).to_string();
        assert_eq!(told("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(told("[::]:80"), "[::1]:80");
        assert_eq!(told("10.1.2.3:80"), "10.1.2.3:80");
    }
}
