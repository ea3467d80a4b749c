//! The frames that a gateway and a miner exchange: one JSON object a websocket text message, told apart by `type`.
//!
//! Shapes only, no I/O. Reading is lenient (unknown keys are ignored, an unknown `type` becomes
//! [`GatewayFrame::Unknown`]), because a gateway is newer than its miners; writing is exact.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::openai::{ChoiceLogprobs, Completion, Delta, readable_or_none};

/// A message may hold a whole conversation: 229,376 prompt tokens are about 1.5 MB of JSON, and a reply carries the
/// ids and proofs beside the text. The usual 1 MiB limit of websocket libraries closes the leg on such a prompt.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// A miner's frame, to the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MinerFrame {
    /// The first frame on each leg.
    Hello(Box<Hello>),
    /// Every 30 s, in answer to a ping, and whenever the load changes.
    Heartbeat(Heartbeat),
    /// A piece of a streamed answer.
    Chunk(Chunk),
    /// The end of a request: exactly one a serve, unless it was cancelled.
    Response(Box<Response>),
}

/// A gateway's frame, to the miner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GatewayFrame {
    /// The leg is live.
    Admit,
    /// The leg is refused.
    Deny {
        /// Why, in the gateway's words.
        #[serde(default)]
        reason: Option<String>,
    },
    /// Start a request.
    Serve(Serve),
    /// Stop a request at once and send nothing more for it.
    Cancel {
        /// The request's id on this leg.
        corr_id: String,
    },
    /// Answer with a heartbeat.
    Ping,
    /// The gateway is about to go away: dial anew, finish what runs here.
    Reconnect,
    /// A type this version does not know. Ignored.
    #[serde(other)]
    Unknown,
}

/// Who dials in, with what, and how much it takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The operator's secret key.
    pub miner_key: MinerKey,
    /// The served model's name, for example `qwen3.6-35b-a3b`.
    pub model: String,
    /// 64 hex digits that name the checkpoint; see [`Checkpoint::model_root`](crate::checkpoint::Checkpoint::model_root).
    pub model_root: String,
    /// Reserved; always an empty object today.
    #[serde(default)]
    pub versions: Map<String, Value>,
    /// The worker's name, stable over restarts.
    pub worker_name: String,
    /// The same again: older gateways read this key.
    #[serde(default)]
    pub instance_id: String,
    /// 32 hex digits; the control plane knows the worker by it.
    pub worker_id: String,
    /// The machine, for display.
    #[serde(default)]
    pub hw: Hardware,
    /// What the worker takes.
    pub capacity: HelloCapacity,
}

/// An operator's secret. It crosses the wire in a hello and shows itself nowhere else: its `Debug` form is blank, it has
/// no `Display`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MinerKey(String);

impl FromStr for MinerKey {
    type Err = Infallible;

    fn from_str(key: &str) -> Result<Self, Infallible> {
        Ok(Self::new(key))
    }
}

impl MinerKey {
    /// Wraps a key.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The text without this key: for words of a gateway, which may repeat what it was told.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "[miner key]") }
    }

    /// True where there is nothing but white space.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Debug for MinerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MinerKey(..)")
    }
}

/// The machine behind a worker. Shown to people; nothing routes by it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hardware {
    /// Host name.
    pub host: String,
    /// Logical CPUs.
    pub cpus: usize,
    /// Main memory, GiB, one decimal.
    pub ram_gb: f64,
    /// One GPU's name, or empty.
    pub gpu: String,
    /// GPUs that this worker uses.
    pub gpu_count: usize,
    /// One GPU's memory, GiB.
    pub gpu_mem_gb: f64,
    /// A line such as `4x NVIDIA GeForce RTX 4090`.
    pub gpus: String,
    /// How the model is spread over them: `tp`, or empty.
    pub parallelism: String,
}

/// Capacity as a hello declares it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HelloCapacity {
    /// This leg's share of the requests at once.
    pub max_inflight: usize,
    /// The whole worker's, undivided, the same on every leg.
    #[serde(default)]
    pub max_inflight_total: Option<usize>,
    /// Longest prompt, tokens. Miners of other lanes leave this and the next two out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<usize>,
    /// Longest answer, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<usize>,
    /// Longest time for a request, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_request_s: Option<f64>,
}

/// The load of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Requests that run now, over all legs.
    pub inflight: usize,
    /// Seconds since the last request ended, 0 while one runs.
    pub idle_seconds: f64,
    /// Left out of a load broadcast: the gateway keeps the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Left out where the backend cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvReport>,
}

/// Capacity as a heartbeat repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// This leg's share.
    pub max_inflight: usize,
    /// The whole worker's.
    pub max_inflight_total: usize,
}

/// How full the backend's key/value cache is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KvReport {
    /// Tokens held.
    pub used: u64,
    /// Requests running.
    pub reqs: u64,
    /// Requests waiting.
    pub waiting: u64,
    /// Prompt tokens not yet computed.
    pub pending: u64,
    /// Ranks that this sums over.
    pub ranks: u64,
    /// Tokens that fit.
    pub limit: u64,
    /// `used / limit`.
    pub frac: f64,
}

/// A request to be served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Serve {
    /// The request's id on this leg: every answer names it.
    pub corr_id: String,
    /// OpenAI-shaped, read by [`JobRequest`](crate::job::JobRequest).
    #[serde(default)]
    pub request: Value,
    /// Whether chunks are wanted before the response.
    #[serde(default, deserialize_with = "null_is_false")]
    pub stream: bool,
}

/// A piece of a streamed answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// The request it belongs to.
    pub corr_id: String,
    /// What to append.
    pub delta: Delta,
    /// Log-probabilities of the tokens that this chunk brings, where they were asked for.
    #[serde(default, deserialize_with = "readable_or_none", skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// The end of a request: an answer with its proof, or an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request it belongs to.
    pub corr_id: String,
    /// The request's name beyond this leg: its `engy_request_id`, or one made here.
    pub request_id: String,
    /// What was computed, provably. `null` beside an error.
    #[serde(default, deserialize_with = "empty_is_none")]
    pub commitment: Option<Commitment>,
    /// The whole answer, also when it was streamed; an empty object beside an error.
    pub output: Output,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorField>,
}

/// The `output` of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// An answer.
    Completion(Box<Completion>),
    /// Nothing, or something that is no completion.
    Other(Map<String, Value>),
}

impl Output {
    /// The empty object that stands beside an error.
    #[must_use]
    pub fn none() -> Self {
        Self::Other(Map::new())
    }
}

/// What a miner commits to: which checkpoint, which tokens, and the proof that the one made the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commitment {
    /// Names the checkpoint, as in the hello.
    pub model_root: String,
    /// Every generated token in order, the end-of-sequence token included.
    pub output_token_ids: Vec<u32>,
    /// The proof.
    pub toploc: ToplocCommitment,
}

/// A TOPLOC proof with all that a verifier needs beside the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToplocCommitment {
    /// One base64 proof a batch of tokens, in order.
    pub proofs: Vec<String>,
    /// Points a proof.
    pub topk: usize,
    /// Tokens a batch.
    pub decode_batching_size: usize,
    /// Always true here: the prompt's own rows are not proven.
    pub skip_prefill: bool,
    /// Rows proven; equals the number of output tokens.
    pub n_tokens: usize,
    /// The rendered prompt, so that a verifier computes on the same ids.
    pub prompt_ids: Vec<u32>,
}

/// An error as a response carries it: an object, or (older miners) a bare text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ErrorField {
    /// The object form. A 4xx `status` is relayed to the buyer and not held against the worker.
    Object(ErrorObject),
    /// The text form.
    Text(String),
}

/// An error with whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// What happened, at most [`MAX_ERROR_CHARS`] characters.
    pub message: String,
    /// A class, for example `invalid_request_error`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// 4xx: the buyer's fault. Anything else counts against the worker.
    #[serde(default)]
    pub status: Option<u16>,
}

/// Longer messages are cut: the gateway keeps 500 characters.
pub const MAX_ERROR_CHARS: usize = 500;

impl ErrorObject {
    /// An error object whose message fits the protocol.
    #[must_use]
    pub fn new(message: &str, kind: &str, status: Option<u16>) -> Self {
        Self { message: message.chars().take(MAX_ERROR_CHARS).collect(), kind: kind.to_owned(), status }
    }
}

impl Response {
    /// The response of a request that failed.
    #[must_use]
    pub fn failure(corr_id: String, request_id: String, error: ErrorObject) -> Self {
        Self { corr_id, request_id, commitment: None, output: Output::none(), error: Some(ErrorField::Object(error)) }
    }
}

/// Answer of `GET /meta`, beside the websocket address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Gateway workers: a miner dials one leg to each.
    pub workers: usize,
}

/// The address of leg `index` of `legs` under the gateway's base address: the base itself where there is one leg.
#[must_use]
pub fn leg_url(gateway: &str, index: usize, legs: usize) -> String {
    let base = gateway.trim_end_matches('/');
    if legs <= 1 { base.to_owned() } else { format!("{base}/{index}") }
}

/// The address of `/meta` for a gateway's websocket address (`ws` becomes `http`, `wss` becomes `https`).
#[must_use]
pub fn meta_url(gateway: &str) -> String {
    let base = gateway.trim_end_matches('/');
    let http = match base.strip_prefix("ws") {
        Some(rest) => format!("http{rest}"),
        None => base.to_owned(),
    };
    format!("{http}/meta")
}

fn null_is_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Lanes without proofs send `{}` where a commitment stands: read it as none.
fn empty_is_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Commitment>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Field {
        Full(Commitment),
        Empty(Map<String, Value>),
    }
    match Option::<Field>::deserialize(deserializer)? {
        Some(Field::Full(commitment)) => Ok(Some(commitment)),
        Some(Field::Empty(fields)) if !fields.is_empty() => {
            Err(serde::de::Error::custom("the commitment lacks fields of a TOPLOC commitment"))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_the_gateway_frames_of_the_protocol() {
        let frame = |value: Value| serde_json::from_value::<GatewayFrame>(value).unwrap();
        assert_eq!(frame(json!({"type": "admit", "extra": {"x": 1}})), GatewayFrame::Admit);
        assert_eq!(frame(json!({"type": "deny", "reason": "no"})), GatewayFrame::Deny { reason: Some("no".into()) });
        assert_eq!(frame(json!({"type": "ping"})), GatewayFrame::Ping);
        assert_eq!(frame(json!({"type": "reconnect"})), GatewayFrame::Reconnect);
        assert_eq!(frame(json!({"type": "rebalance", "x": 1})), GatewayFrame::Unknown);
        let GatewayFrame::Serve(serve) =
            frame(json!({"type": "serve", "corr_id": "c-41", "request": {"max_tokens": 4}}))
        else {
            panic!("a serve frame")
        };
        assert_eq!((serve.corr_id.as_str(), serve.stream), ("c-41", false));
        let unset = frame(json!({"type": "serve", "corr_id": "c", "request": {}, "stream": null}));
        assert!(matches!(unset, GatewayFrame::Serve(Serve { stream: false, .. })));
    }

    #[test]
    fn writes_the_hello_of_the_protocol() {
        let hello = MinerFrame::Hello(Box::new(Hello {
            miner_key: MinerKey::new("mk-EXAMPLE"),
            model: "qwen3.6-35b-a3b".into(),
            model_root: "0".repeat(64),
            versions: Map::new(),
            worker_name: "rack7-g0".into(),
            instance_id: "rack7-g0".into(),
            worker_id: "0".repeat(32),
            hw: Hardware::default(),
            capacity: HelloCapacity {
                max_inflight: 3,
                max_inflight_total: Some(24),
                max_input_tokens: Some(229_376),
                max_output_tokens: Some(32_768),
                max_request_s: Some(1800.0),
            },
        }));
        assert!(!format!("{hello:?}").contains("mk-"), "a hello does not show its key");
        let value = serde_json::to_value(hello).unwrap();
        assert_eq!(value["type"], "hello");
        assert_eq!(value["miner_key"], "mk-EXAMPLE");
        assert_eq!(value["versions"], json!({}));
        assert_eq!(
            value["capacity"],
            json!({"max_inflight": 3, "max_inflight_total": 24, "max_input_tokens": 229376,
                   "max_output_tokens": 32768, "max_request_s": 1800.0})
        );
    }

    #[test]
    fn a_load_broadcast_leaves_capacity_and_kv_out() {
        let beat = MinerFrame::Heartbeat(Heartbeat { inflight: 2, idle_seconds: 0.0, capacity: None, kv: None });
        assert_eq!(serde_json::to_string(&beat).unwrap(), r#"{"type":"heartbeat","inflight":2,"idle_seconds":0.0}"#);
    }

    #[test]
    fn an_error_response_has_a_null_commitment_and_an_empty_output() {
        let error = ErrorObject::new(&"x".repeat(600), "invalid_request_error", Some(400));
        let value = serde_json::to_value(Response::failure("c".into(), "r".into(), error)).unwrap();
        assert_eq!(value["commitment"], Value::Null);
        assert_eq!(value["output"], json!({}));
        assert_eq!(value["error"]["status"], 400);
        assert_eq!(value["error"]["message"].as_str().unwrap().len(), MAX_ERROR_CHARS);
    }

    #[test]
    fn reads_the_responses_of_other_miners() {
        let read = |value: Value| serde_json::from_value::<Response>(value).unwrap();
        let empty = read(json!({"corr_id": "c", "request_id": "r", "commitment": {}, "output": {}, "error": "boom"}));
        assert_eq!(empty.commitment, None);
        assert_eq!(empty.error, Some(ErrorField::Text("boom".into())));
        let full = read(json!({"corr_id": "c-41", "request_id": "r-9001",
            "commitment": {"model_root": "00", "output_token_ids": [3957, 13, 248046],
              "toploc": {"proofs": ["/9k="], "topk": 128, "decode_batching_size": 32, "skip_prefill": true,
                         "n_tokens": 3, "prompt_ids": [248045, 846, 198]}},
            "output": {"choices": [{"index": 0, "finish_reason": "stop",
                                    "message": {"role": "assistant", "content": "Done."}}],
              "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
                        "prompt_tokens_details": {"cached_tokens": 2}}}}));
        assert_eq!(full.commitment.unwrap().output_token_ids.len(), 3);
        assert!(matches!(full.output, Output::Completion(_)));
    }

    #[test]
    fn addresses_of_legs_and_meta() {
        assert_eq!(leg_url("wss://gw.example/gw", 3, 8), "wss://gw.example/gw/3");
        assert_eq!(leg_url("wss://gw.example/gw/", 0, 1), "wss://gw.example/gw");
        assert_eq!(meta_url("wss://gw.example/gw"), "https://gw.example/gw/meta");
        assert_eq!(meta_url("ws://127.0.0.1:9/gw"), "http://127.0.0.1:9/gw/meta");
    }
}
