//! Over real sockets, read with a plain HTTP client and with the project's own reader of replies.

mod asking;
mod dialects;
mod engines;
mod faults_of_bytes;
mod faults_of_rows;
mod faults_of_time;
mod living;
mod modes;
mod recorded;

use std::borrow::Borrow;

use half::bf16;
use serde_json::{Value, json};

use super::{Dialect, Engine, FakeServe, FakeServeConfig, FakeServeHandle, Fault, Seeded};
use crate::backend::sglang::reply::{Reply, ReplyError, ReplyReader, StreamEvent, StreamReader};

/// Values of a row in most tests.
const HIDDEN: usize = 8;

fn model() -> Seeded {
    Seeded::new(HIDDEN, 1000, 5)
}

fn config(dialect: Dialect) -> FakeServeConfig {
    FakeServeConfig::new(dialect, Engine::seeded(model()))
}

async fn start(config: FakeServeConfig) -> Asker {
    crate::tls::install();
    let serve = FakeServe::spawn(config).await.unwrap();
    Asker { serve, http: reqwest::Client::builder().no_proxy().build().unwrap() }
}

/// A serve of a dialect, with one fault in its next call.
async fn faulty(dialect: Dialect, fault: Fault) -> Asker {
    let asker = start(config(dialect)).await;
    asker.serve.inject(fault).await;
    asker
}

/// A serve and a client.
struct Asker {
    serve: FakeServeHandle,
    http: reqwest::Client,
}

/// What a client got.
#[derive(Debug, Clone, PartialEq)]
struct Got {
    status: u16,
    content_type: Option<String>,
    body: Vec<u8>,
    /// The body has its proper end.
    whole: bool,
}

impl Asker {
    async fn get(&self, path: &str) -> Got {
        Got::read(self.http.get(format!("{}{path}", self.serve.url())).send().await.unwrap()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Got {
        self.try_post(path, body).await.unwrap()
    }

    async fn try_post(&self, path: &str, body: impl Borrow<Value>) -> reqwest::Result<Got> {
        let sent = self.http.post(format!("{}{path}", self.serve.url())).json(body.borrow()).send().await?;
        Ok(Got::read(sent).await)
    }

    async fn generate(&self, body: impl Borrow<Value>) -> Got {
        self.try_post("/generate", body).await.unwrap()
    }

    async fn abort(&self, rid: &str) {
        let got = self.post("/abort_request", &json!({"rid": rid})).await;
        assert_eq!((got.status, got.body.len()), (200, 0));
    }
}

impl Got {
    async fn read(mut response: reqwest::Response) -> Self {
        let content_type = response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        let mut got = Self { status: response.status().as_u16(), content_type, body: Vec::new(), whole: false };
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => got.body.extend_from_slice(&chunk),
                Ok(None) => break got.whole = true,
                Err(_) => break,
            }
        }
        got
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The events of a stream, each as JSON, and whether the mark of its end came.
    fn events(&self) -> (Vec<Value>, bool) {
        let text = self.text();
        let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
        let done = events.pop_if(|last| *last == "data: [DONE]").is_some();
        let json = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        (events.into_iter().map(json).collect(), done)
    }

    /// The body as the project's reader sees it.
    fn reply(&self) -> Result<(Vec<Vec<bf16>>, Reply), ReplyError> {
        let (mut rows, mut reader) = (Vec::new(), ReplyReader::new(HIDDEN));
        reader.push(&self.body, &mut |row| rows.push(row.to_vec()))?;
        Ok((rows, reader.finish()?))
    }

    /// The stream as the project's reader sees it.
    fn stream(&self) -> Result<(Vec<Vec<bf16>>, Vec<StreamEvent>), ReplyError> {
        let (mut rows, mut events, mut reader) = (Vec::new(), Vec::new(), StreamReader::new(HIDDEN));
        let mut bytes = &self.body[..];
        while let Some(event) = reader.next(&mut bytes, &mut |row| rows.push(row.to_vec()))? {
            events.push(event);
        }
        events.extend(reader.finish()?);
        Ok((rows, events))
    }
}

/// A greedy request for hidden states.
fn ask(prompt: &[u32], tokens: usize) -> Value {
    json!({
        "rid": "0123456789abcdef", "input_ids": prompt, "return_hidden_states": true, "return_logprob": true,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens}})
}

/// The same, streamed.
fn ask_stream(prompt: &[u32], tokens: usize) -> Value {
    with(ask(prompt, tokens), "/stream", true.into())
}

/// JSON with one value set, by its pointer.
fn with(mut json: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    json
}

/// The names of an object's keys, in order.
fn keys(json: &Value) -> Vec<&str> {
    json.as_object().unwrap().keys().map(String::as_str).collect()
}

/// The rows of the answer to `prompt`: the first `tokens` of them.
fn rows(prompt: &[u32], tokens: usize) -> Vec<Vec<bf16>> {
    let ids = model().greedy(prompt, tokens);
    (0..tokens).map(|row| model().row(&[prompt, &ids[..row]].concat())).collect()
}
