//! A gateway, a worker on a tiny model, and a buyer, all in one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use engy_miner::backend::Backend;
use engy_miner::backend::candle::{CandleBackend, EngineOptions};
use engy_miner::chat::{ChatModel, Tokenizer};
use engy_miner::checkpoint::Checkpoint;
use engy_miner::gateway::{Gateway, GatewayConfig, GatewayHandle};
use engy_miner::job::{Limits, Service};
use engy_miner::protocol::MinerKey;
use engy_miner::session::{Identity, Worker, WorkerConfig, WorkerHandle, ask_for_legs};
use engy_miner::spec::ModelSpec;
use engy_miner::verify::ProofRecord;
use serde_json::{Value, json};

pub(crate) const LEGS: usize = 2;

/// A folder under `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn tiny_spec() -> ModelSpec {
    ModelSpec::from_file(&fixture("tiny.toml")).unwrap()
}

pub(crate) fn load(path: &Path) -> (Checkpoint, Arc<CandleBackend>) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let options = EngineOptions { max_total_tokens: Some(4096), ..EngineOptions::default() };
    let backend = CandleBackend::open(&checkpoint, &options, &|_, _| {}).unwrap();
    // Some fixtures have no tokenizer, and only forms need one.
    let its = checkpoint.clone();
    let backend =
        backend.with_vocabulary(Box::new(move || Ok(Tokenizer::open(&its).unwrap().vocabulary(its.end_ids()))));
    (checkpoint, Arc::new(backend))
}

/// Ends a program that `timeout` watches over: that passes a termination on, where it could not pass on a kill.
pub(crate) fn end(child: &mut Child) {
    let _ = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    let _ = child.wait();
}

/// Starts a gateway and a worker of this service, and waits until all legs are live. The address is for buyers.
pub(crate) async fn serve(service: Service) -> (GatewayHandle, WorkerHandle, String) {
    let key = MinerKey::new("mk-test");
    let mut config = GatewayConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.legs = LEGS;
    config.miner_key = Some(key.clone());
    let gateway = Gateway::bind(config).await.unwrap();
    let (handle, base, ws_url) = (gateway.handle(), gateway.http_url(), gateway.ws_url());
    tokio::spawn(gateway.run(std::future::pending()));
    let worker = WorkerConfig {
        gateway: ws_url.clone(),
        key,
        identity: Identity::ephemeral("test"),
        legs: ask_for_legs(&ws_url).await,
        max_inflight: 6,
        shutdown_grace: Duration::from_secs(5),
    };
    let worker = Worker::new(worker, service);
    let worker_handle = worker.handle();
    tokio::spawn(worker.run(std::future::pending()));
    handle.wait_for_legs(LEGS).await;
    (handle, worker_handle, base)
}

pub(crate) struct Site {
    pub(crate) gateway: GatewayHandle,
    pub(crate) worker: WorkerHandle,
    pub(crate) backend: Arc<CandleBackend>,
    pub(crate) model_root: String,
    pub(crate) http: reqwest::Client,
    pub(crate) base: String,
}

impl Site {
    /// Starts everything on the llama fixture and waits until all legs are live.
    pub(crate) async fn start() -> Self {
        engy_miner::tls::install();
        let (checkpoint, backend) = load(&fixture("models/tiny-llama"));
        let spec = tiny_spec();
        let model_root = checkpoint.model_root().unwrap();
        let service = Service {
            chat: ChatModel::open(&checkpoint).unwrap(),
            model: spec.name.clone(),
            model_root: model_root.clone(),
            end_ids: checkpoint.end_ids(),
            limits: Limits {
                context: spec.context,
                max_input_tokens: spec.max_input_tokens,
                max_output_tokens: spec.max_output_tokens,
                default_max_tokens: 16,
                max_request: Duration::from_secs_f64(spec.max_request_s),
            },
            greedy: false,
            topk: spec.toploc.k,
            preparing: Service::places(),
            backend: Arc::clone(&backend) as Arc<dyn Backend>,
        };
        let (gateway, worker, base) = serve(service).await;
        Self { gateway, worker, backend, model_root, http: reqwest::Client::new(), base }
    }

    pub(crate) async fn post(&self, body: &Value) -> reqwest::Response {
        self.http.post(format!("{}/v1/chat/completions", self.base)).json(body).send().await.unwrap()
    }

    /// A plain answer: the completion and its kept proof.
    pub(crate) async fn ask(&self, body: &Value) -> (Value, ProofRecord) {
        let response = self.post(body).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
        let completion = response.json().await.unwrap();
        (completion, self.proof(&id).await)
    }

    pub(crate) async fn proof(&self, request_id: &str) -> ProofRecord {
        self.http.get(format!("{}/v1/proofs/{request_id}", self.base)).send().await.unwrap().json().await.unwrap()
    }
}

/// A request for `max_tokens` greedy tokens.
pub(crate) fn question(text: &str, max_tokens: usize) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens})
}

/// The events of a streamed answer, without the closing `[DONE]`, which must be there.
pub(crate) async fn events(response: reqwest::Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let mut events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}
