//! Listens, and leads each call to its place.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::calls::{CallEnd, Calls};
use super::config::{FakeServeConfig, PromptBlock};
use super::control;
use super::fault::{ErrorForm, FaultPlan};
use super::generate::generate;
use super::handle::FakeServeHandle;
use super::request::GenerateRequest;
use super::row::Row;
use super::wire::{FakeListener, Wire, Wires};
use crate::backend::BackendError;

/// Sequences that the prefix cache remembers.
const REMEMBERED_PREFIXES: usize = 256;
/// The largest body of a call that is not a generation.
const MAX_CONTROL_BYTES: usize = 1 << 20;

/// What every call needs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: FakeServeConfig,
    pub(super) calls: Arc<Calls>,
    /// One for each request that may run.
    pub(super) places: Arc<Semaphore>,
    pub(super) faults: FaultPlan,
    pub(super) health: watch::Sender<Health>,
    pub(super) wires: Wires,
    /// Whether it is to listen, and whether it does.
    pub(super) wanted: watch::Sender<bool>,
    pub(super) listens: watch::Sender<bool>,
    /// Turns true once, at the end.
    pub(super) stopping: watch::Sender<bool>,
    /// One for each stalled call that may go on.
    pub(super) releases: Semaphore,
    prefixes: Mutex<VecDeque<Vec<u32>>>,
}

/// What `/health` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    Silent,
    Unwell,
}

impl Shared {
    /// Returns once a stalled call may go on.
    pub(super) async fn released(&self) {
        if let Ok(release) = self.releases.acquire().await {
            release.forget();
        }
    }

    /// Tokens of the prompt for which nothing is computed: all but the last at most.
    pub(super) fn cached_tokens(&self, prompt: &[u32]) -> usize {
        if !self.config.radix_cache {
            return 0;
        }
        let common = |known: &Vec<u32>| known.iter().zip(prompt).take_while(|(known, id)| known == id).count();
        let prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        prefixes.iter().map(common).max().unwrap_or_default().min(prompt.len() - 1)
    }

    /// Puts a sequence into the prefix cache.
    pub(super) fn remember(&self, prompt: &[u32], ids: &[u32]) {
        if !self.config.radix_cache {
            return;
        }
        let mut prefixes = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        if prefixes.len() == REMEMBERED_PREFIXES {
            prefixes.pop_front();
        }
        prefixes.push_back([prompt, ids].concat());
    }

    /// Rows of the prompt that come back beside row 0.
    pub(super) async fn rows_of_prompt(
        &self,
        request: &GenerateRequest,
        cached: usize,
    ) -> Result<Vec<Row>, BackendError> {
        let wanted = matches!(self.config.prompt_block, PromptBlock::Full | PromptBlock::OfAnother);
        if !wanted || !request.hidden_states {
            return Ok(Vec::new());
        }
        self.config.engine.rows(&request.prompt[..request.prompt.len() - 1], cached).await
    }
}

/// A stand-in for an sglang serve that listens. Calls queue up until [`run`](Self::run) answers them.
#[derive(Debug)]
pub struct FakeServe {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeServe {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// When the address cannot be had, for example because it is taken.
    pub async fn bind(config: FakeServeConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            calls: Calls::new(config.remembered_calls, config.notices_disconnects_after),
            places: Arc::new(Semaphore::new(config.max_running.max(1))),
            faults: FaultPlan::default(),
            health: watch::Sender::new(Health::Well),
            wires: Wires::default(),
            wanted: watch::Sender::new(true),
            listens: watch::Sender::new(true),
            stopping: watch::Sender::new(false),
            releases: Semaphore::new(0),
            prefixes: Mutex::default(),
            config,
        });
        Ok(Self { listener, addr, shared })
    }

    /// Listens and answers from a task of its own, until [`shut_down`](FakeServeHandle::shut_down).
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub async fn spawn(config: FakeServeConfig) -> io::Result<FakeServeHandle> {
        let serve = Self::bind(config).await?;
        let handle = serve.handle();
        tokio::spawn(serve.run(std::future::pending()));
        Ok(handle)
    }

    /// A look into this serve and a hand on it, also while it runs.
    #[must_use]
    pub fn handle(&self) -> FakeServeHandle {
        FakeServeHandle::new(self.addr, Arc::clone(&self.shared))
    }

    /// Answers until `shutdown` ends, or the handle shuts it down. Then all connections are reset.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let Self { listener, addr, shared } = self;
        let (wanted, listens) = (shared.wanted.subscribe(), shared.listens.clone());
        let listener = FakeListener::new(listener, addr, shared.wires.clone(), wanted, listens);
        let service = router(Arc::clone(&shared)).into_make_service_with_connect_info::<Wire>();
        let mut stopping = shared.stopping.subscribe();
        tokio::select! {
            _ = axum::serve(listener, service) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = shutdown => {}
        }
        shared.listens.send_replace(false);
        shared.wires.reset_all();
        shared.calls.tell();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let dialect = shared.config.dialect;
    let mut router = Router::new()
        .route("/health", get(control::health))
        .route("/health_generate", get(control::health_generate))
        .route("/get_model_info", get(control::model_info))
        .route("/get_server_info", get(control::server_info))
        .route("/flush_cache", get(control::flush_cache).post(control::flush_cache))
        .route("/abort_request", post(control::abort_request));
    if dialect.has_short_names() {
        router = router.route("/model_info", get(control::model_info)).route("/server_info", get(control::server_info));
    }
    if dialect.has_get_load() {
        router = router.route("/get_load", get(control::get_load));
    }
    if dialect.has_v1_loads() {
        router = router.route("/v1/loads", get(control::v1_loads));
    }
    if dialect.has_ready() {
        router = router.route("/ready", get(control::ready));
    }
    router
        .fallback(control::not_found)
        .layer(from_fn_with_state(Arc::clone(&shared), remembered))
        .route("/generate", post(generate).put(generate))
        .layer(from_fn_with_state(Arc::clone(&shared), admitted))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

/// Asks for the API key, where there is one, but not for health.
async fn admitted(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let open = request.uri().path().starts_with("/health");
    match &shared.config.api_key {
        Some(key) if !open && !shows(request.headers(), key) => ErrorForm::Unauthorized.response(),
        _ => next.run(request).await,
    }
}

fn shows(headers: &HeaderMap, key: &str) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    shown.and_then(|shown| shown.strip_prefix("Bearer ")) == Some(key)
}

/// Remembers calls other than generations, which see to that themselves.
async fn remembered(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let (parts, body) = request.into_parts();
    let body: Bytes = to_bytes(body, MAX_CONTROL_BYTES).await.unwrap_or_default();
    let json = serde_json::from_slice(&body).unwrap_or_default();
    let mut ticket = shared.calls.begin(&path, Arc::new(json));
    let response = next.run(Request::from_parts(parts, body.into())).await;
    let status = response.status();
    ticket.end(if status.is_success() { CallEnd::Finished } else { CallEnd::Refused(status.as_u16()) });
    response
}
