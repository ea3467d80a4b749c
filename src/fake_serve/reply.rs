//! The JSON around the hidden states: which keys, in which order.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::config::FakeServeConfig;
use super::dialect::Dialect;
use super::request::GenerateRequest;
use super::run::{Answer, Finish};

pub(super) const JSON: &str = "application/json";
pub(super) const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// What stands for hidden states until they are written; no string can contain it, as its quotes would be escaped.
const STAND_IN: &str = "\"hidden_states\":null";
/// The key and its colon.
const KEY_BYTES: usize = "\"hidden_states\":".len();

/// A reply's text before and after the hidden states; all of it is before where there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) before: String,
    pub(super) after: String,
}

/// How much of an answer a stream has told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    events: usize,
    text: usize,
    ids: usize,
}

/// What is told at once: an event, or the whole body.
#[derive(Debug)]
pub(super) struct Telling<'a> {
    pub(super) config: &'a FakeServeConfig,
    pub(super) answer: &'a Answer,
    /// The answer's text so far.
    pub(super) text: &'a str,
    /// Ids that are kept back, at the end.
    pub(super) fewer_ids: usize,
    pub(super) streams: bool,
    pub(super) has_states: bool,
}

impl Telling<'_> {
    /// The reply's frame.
    pub(super) fn frame(&self, told: &mut Told, text_of: impl Fn(&[u32]) -> String) -> Frame {
        let dialect = self.config.dialect;
        let differences = match self.streams {
            true => dialect.differences(self.config.incremental_output),
            false => Default::default(),
        };
        let ids = &self.answer.ids[..self.answer.ids.len().saturating_sub(self.fewer_ids)];
        let from = |difference: bool, told: usize| if difference { told } else { 0 };
        let new_ids = ids.get(from(differences.ids, told.ids)..).unwrap_or_default();
        // Text may get shorter where a stop string ends it.
        let new_text = self.text.get(from(differences.text, told.text)..).unwrap_or_default();
        let logprobs_from = from(differences.logprobs, told.ids);

        let mut reply = Map::new();
        reply.insert("text".into(), new_text.into());
        if dialect.has_output_ids() {
            reply.insert("output_ids".into(), new_ids.into());
        }
        reply.insert("meta_info".into(), self.meta(told, logprobs_from, text_of).into());
        *told = Told { events: told.events + 1, text: self.text.len(), ids: ids.len() };
        Frame::of(&Value::Object(reply))
    }

    fn meta(&self, told: &Told, logprobs_from: usize, text_of: impl Fn(&[u32]) -> String) -> Map<String, Value> {
        let (dialect, answer) = (self.config.dialect, self.answer);
        let mut meta = Map::new();
        let mut tell = |key: &str, value: Value| drop(meta.insert(key.to_owned(), value));
        tell("id", answer.request.rid.clone().into());
        tell("finish_reason", answer.finish.as_ref().map_or(Value::Null, |finish| reason(finish, &answer.request)));
        tell("prompt_tokens", answer.request.prompt.len().into());
        if dialect.has_weight_version() {
            tell("weight_version", "default".into());
        }
        if let Some(key) = dialect.retractions_key() {
            tell(key, 0.into());
        }
        if answer.request.return_logprob {
            self.logprobs(&mut tell, logprobs_from, text_of);
        }
        if dialect.has_details() {
            tell("reasoning_tokens", 0.into());
        }
        tell("completion_tokens", answer.ids.len().into());
        tell("cached_tokens", answer.cached.into());
        if dialect.has_details() {
            tell("cached_tokens_details", Value::Null);
        }
        if self.has_states {
            tell("hidden_states", Value::Null);
        }
        if dialect.has_details() {
            tell("dp_rank", Value::Null);
        }
        if answer.finish.is_some() {
            tell("e2e_latency", answer.started.elapsed().as_secs_f64().into());
        }
        if told.events == 0 && dialect.tells_when_sent() {
            tell("response_sent_to_client_ts", now().into());
        }
        meta
    }

    fn logprobs(&self, tell: &mut impl FnMut(&str, Value), from: usize, text_of: impl Fn(&[u32]) -> String) {
        let Answer { request, ids, logprobs, .. } = self.answer;
        let entry = |logprob: Option<f32>, id: u32| {
            let text = request.text_in_logprobs.then(|| text_of(&[id]));
            json!([logprob, id, text])
        };
        let ids = &ids[..ids.len().saturating_sub(self.fewer_ids)];
        let last = request.prompt.len() - 1;
        let first = request.logprob_start.map_or(last, |start| start.min(last));
        // No model is asked about the prompt: any number will do.
        let input = request.prompt.iter().enumerate().skip(first);
        let input: Vec<Value> = input.map(|(place, &id)| entry((place > first).then_some(-1.0), id)).collect();
        let output = ids.iter().zip(logprobs).skip(from);
        let output: Vec<Value> = output.map(|(&id, told)| entry(Some(told.logprob), id)).collect();
        let length = ids.len();
        let inputs = input.len();
        tell("input_token_logprobs", input.into());
        tell("output_token_logprobs", output.into());
        if self.config.dialect.has_details() {
            tell("output_token_logprobs_length", length.into());
        }
        if request.top_logprobs > 0 {
            let top = |told: &crate::backend::TokenLogprobs| -> Value {
                told.top.iter().map(|&(id, logprob)| entry(Some(logprob), id)).collect()
            };
            tell("input_top_logprobs", vec![Value::Null; inputs].into());
            tell("output_top_logprobs", logprobs.iter().take(length).skip(from).map(top).collect());
        }
    }
}

impl Frame {
    /// Cuts a reply where its hidden states belong.
    fn of(reply: &Value) -> Self {
        let mut before = reply.to_string();
        let after = match before.find(STAND_IN) {
            Some(at) => {
                let after = before.split_off(at + STAND_IN.len());
                before.truncate(at + KEY_BYTES);
                after
            }
            None => String::new(),
        };
        Self { before, after }
    }
}

/// The reply to a request that was aborted before it had a place.
pub(super) fn aborted_in_queue(request: &GenerateRequest, dialect: Dialect, started: Instant) -> Value {
    let reason = json!({"type": "abort", "message": dialect.queued_abort()});
    if !dialect.tells_of_queued_aborts() {
        return json!({"text": "", "meta_info": {
            "id": request.rid, "finish_reason": reason, "prompt_tokens": 0, "completion_tokens": 0}});
    }
    let mut meta = Map::new();
    let mut tell = |key: &str, value: Value| drop(meta.insert(key.to_owned(), value));
    tell("id", request.rid.clone().into());
    tell("finish_reason", reason);
    tell("weight_version", "default".into());
    tell("e2e_latency", started.elapsed().as_secs_f64().into());
    if request.return_logprob {
        tell("input_token_logprobs", json!([]));
        tell("output_token_logprobs", json!([]));
        if dialect.has_details() {
            tell("output_token_logprobs_length", 0.into());
        }
    }
    tell("completion_tokens", 0.into());
    tell("response_sent_to_client_ts", now().into());
    json!({"text": "", "output_ids": [], "meta_info": meta})
}

/// The value of `finish_reason`.
fn reason(finish: &Finish, request: &GenerateRequest) -> Value {
    match finish {
        Finish::StopId(id) => json!({"type": "stop", "matched": id}),
        Finish::StopText(text) => json!({"type": "stop", "matched": text}),
        Finish::Length => json!({"type": "length", "length": request.max_new_tokens}),
        Finish::Abort => json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null}),
        Finish::AbortStatus(status) => {
            let class = match status {
                400 => "BadRequestError",
                503 => "ServiceUnavailableError",
                _ => "InternalServerError",
            };
            json!({"type": "abort", "message": ABORT_MESSAGE, "status_code": status, "err_type": class})
        }
    }
}

/// What the scheduler says when it aborts with a status.
pub(super) const ABORT_MESSAGE: &str = "The scheduler gave the request up.";

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_secs_f64()).unwrap_or_default()
}
