//! A gateway under test, with a buyer at hand.

use std::future::Future;
use std::time::Duration;

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::fake_miner::{FakeMiner, hello};
use crate::gateway::{Gateway, GatewayConfig, GatewayError, GatewayHandle};
use crate::protocol::MinerKey;

/// A test that waits this long has failed; no test waits for it to pass.
const TEST_PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn within<F: Future>(event: F) -> F::Output {
    timeout(TEST_PATIENCE, event).await.expect("the event never came")
}

pub(super) fn config() -> GatewayConfig {
    let mut config = GatewayConfig::new(([127, 0, 0, 1], 0).into());
    config.miner_key = Some(MinerKey::new("mk-test"));
    config
}

/// A running gateway. Dropped, it stops.
pub(super) struct Site {
    pub(super) http: String,
    pub(super) ws: String,
    pub(super) handle: GatewayHandle,
    client: reqwest::Client,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), GatewayError>>,
}

impl Site {
    pub(super) async fn open() -> Self {
        Self::with(config()).await
    }

    pub(super) async fn with(config: GatewayConfig) -> Self {
        // Fails for all tests but the first, which installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let gateway = Gateway::bind(config).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        Self {
            http: gateway.http_url(),
            ws: gateway.ws_url(),
            handle: gateway.handle(),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            stop,
            running: tokio::spawn(gateway.run(async move { drop(stopped.await) })),
        }
    }

    /// A miner of `m` on leg 0, with room for `share` requests.
    pub(super) async fn miner(&self, share: usize) -> FakeMiner {
        FakeMiner::join(&self.leg(0), &hello("m", "w", share)).await
    }

    pub(super) fn leg(&self, index: usize) -> String {
        format!("{}/{index}", self.ws)
    }

    pub(super) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.http))
    }

    pub(super) async fn get_json(&self, path: &str) -> (u16, Value) {
        status_and_json(within(self.get(path).send()).await.unwrap()).await
    }

    pub(super) fn post(&self, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.client.post(format!("{}/v1/chat/completions", self.http)).body(body)
    }

    /// A chat request.
    pub(super) fn ask<'a>(&'a self, request: &Value) -> impl Future<Output = Response> + use<'a> {
        let request = self.post(request.to_string());
        async { within(request.send()).await.unwrap() }
    }

    pub(super) fn ask_json<'a>(&'a self, request: &Value) -> impl Future<Output = (u16, Value)> + use<'a> {
        let response = self.ask(request);
        async { status_and_json(response.await).await }
    }

    /// Stops the gateway and waits for its end.
    pub(super) async fn stop(self) -> Result<(), GatewayError> {
        self.stop.send(()).unwrap();
        within(self.running).await.unwrap()
    }
}

async fn status_and_json(response: Response) -> (u16, Value) {
    (response.status().as_u16(), within(response.json()).await.unwrap())
}

/// A chat request for the model `m`.
pub(super) fn chat(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

/// The events of a streamed answer, with the closing `[DONE]` checked and taken off.
pub(super) fn events(body: &str) -> Vec<Value> {
    let mut events: Vec<&str> = body
        .strip_suffix("\n\n")
        .expect("the last event is whole")
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("an event is one data line"))
        .collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Asserts an OpenAI error object with this `type` and `code`.
pub(super) fn assert_error(body: &Value, kind: &str, code: Option<&str>) {
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(code)), "{body}");
}
