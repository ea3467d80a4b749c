//! A miner that does what the test says.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::site::within;
use crate::protocol::MAX_MESSAGE_BYTES;

/// A hello with the key `mk-test`, for a leg that takes `share` requests.
pub(in crate::gateway) fn hello(model: &str, worker_id: &str, share: usize) -> Value {
    json!({"type": "hello", "miner_key": "mk-test", "model": model, "model_root": "0".repeat(64), "versions": {},
        "worker_name": format!("name-of-{worker_id}"), "instance_id": format!("name-of-{worker_id}"),
        "worker_id": worker_id, "hw": {},
        "capacity": {"max_inflight": share, "max_inflight_total": share * 8, "max_input_tokens": 229_376,
            "max_output_tokens": 32_768, "max_request_s": 1800.0}})
}

/// A commitment to three tokens.
pub(super) fn commitment() -> Value {
    json!({"model_root": "0".repeat(64), "output_token_ids": [3957, 13, 248_046],
        "toploc": {"proofs": ["/9k="], "topk": 128, "decode_batching_size": 32, "skip_prefill": true, "n_tokens": 3,
            "prompt_ids": [248_045, 846, 198]}})
}

/// Counts for three tokens in, of which two were cached, and three out.
pub(super) fn usage() -> Value {
    json!({"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 2}})
}

/// The output of an answer with this message.
pub(super) fn output(message: &Value, finish_reason: &str) -> Value {
    json!({"choices": [{"index": 0, "finish_reason": finish_reason, "message": message}], "usage": usage()})
}

/// A serve frame's two parts.
pub(super) struct Job {
    pub(super) corr_id: String,
    pub(super) request: Value,
    pub(super) stream: bool,
}

impl Job {
    pub(super) fn request_id(&self) -> &str {
        self.request["engy_request_id"].as_str().unwrap()
    }
}

pub(super) struct FakeMiner {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl FakeMiner {
    /// Dials and says nothing.
    pub(super) async fn dial(url: &str) -> Self {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let (socket, _) = within(connect_async_with_config(url, Some(config), true)).await.unwrap();
        Self { socket }
    }

    /// Dials, says hello and is let in.
    pub(super) async fn join(url: &str, hello: &Value) -> Self {
        let mut miner = Self::dial(url).await;
        miner.send(hello).await;
        assert_eq!(miner.next().await.unwrap(), json!({"type": "admit"}));
        miner
    }

    pub(super) async fn send(&mut self, frame: &Value) {
        self.send_raw(Message::text(frame.to_string())).await;
    }

    pub(super) async fn send_raw(&mut self, message: Message) {
        within(self.socket.send(message)).await.unwrap();
    }

    /// The gateway's next frame, `None` once it closed the leg.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            match within(self.socket.next()).await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => return None,
                other => panic!("unexpected on a leg: {other:?}"),
            }
        }
    }

    pub(super) async fn job(&mut self) -> Job {
        let mut frame = self.next().await.expect("a serve frame");
        assert_eq!(frame["type"], "serve", "{frame}");
        Job {
            corr_id: frame["corr_id"].as_str().unwrap().to_owned(),
            stream: frame["stream"].as_bool().unwrap(),
            request: frame["request"].take(),
        }
    }

    pub(super) async fn chunk(&mut self, job: &Job, delta: &Value) {
        self.send(&json!({"type": "chunk", "corr_id": job.corr_id, "delta": delta})).await;
    }

    /// Ends a job with an output and a commitment.
    pub(super) async fn answer(&mut self, job: &Job, output: &Value) {
        self.send(&json!({"type": "response", "corr_id": job.corr_id, "request_id": job.request_id(),
            "commitment": commitment(), "output": output}))
            .await;
    }

    /// Ends a job with the text `content`.
    pub(super) async fn say(&mut self, job: &Job, content: &str) {
        let message = json!({"role": "assistant", "content": content});
        self.answer(job, &output(&message, "stop")).await;
    }

    /// Ends a job with an error.
    pub(super) async fn fail(&mut self, job: &Job, error: &Value) {
        self.send(&json!({"type": "response", "corr_id": job.corr_id, "request_id": job.request_id(),
            "commitment": null, "output": {}, "error": error}))
            .await;
    }
}
