//! Against the traffic of a real 0.5.6 serve: the same requests must get answers of the same shape.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sglang"));
    std::fs::read(folder.join(name)).unwrap()
}

fn exchanges() -> Vec<Value> {
    serde_json::from_slice(&fixture("manifest.json")).unwrap()
}

/// A serve with the recorded one's limits, whose fourth token is the stop string that was recorded.
async fn recorded_serve() -> Asker {
    let text = |ids: &[u32]| -> String {
        ids.iter()
            .enumerate()
            .map(|(place, id)| if place == 3 { " France".into() } else { format!(" w{id}") })
            .collect()
    };
    let model = Seeded { context: 2048, text: Some(Arc::new(text)), ..Seeded::new(576, 49_152, 1) };
    start(FakeServeConfig {
        max_running: 4,
        max_total_tokens: 4096,
        model_path: "SmolLM2-135M-Instruct".into(),
        ..FakeServeConfig::new(Dialect::V0_5_6, Engine::seeded(model))
    })
    .await
}

/// The request of an exchange, with its long prompt written out.
fn request(exchange: &Value) -> Value {
    let mut request = exchange["request"].clone();
    if let Some(times) = request.pointer("/input_ids/times").and_then(Value::as_u64) {
        request["input_ids"] = vec![request["input_ids"]["repeat"].clone(); times as usize].into();
    }
    request
}

/// The same keys in the same order, and values of the same kind. Lists of numbers as long as each other, log-probabilities
/// too.
fn assert_shape(made: &Value, recorded: &Value, at: &str) {
    match (made, recorded) {
        (Value::Object(one), Value::Object(other)) => {
            assert_eq!(keys(made), keys(recorded), "{at}");
            for ((key, one), (_, other)) in one.iter().zip(other) {
                assert_shape(one, other, &format!("{at}/{key}"));
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            assert_eq!(one.len(), other.len(), "{at}");
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                assert_shape(one, other, &format!("{at}/{index}"));
            }
        }
        _ => {
            let kind = |value: &Value| std::mem::discriminant(value);
            assert_eq!(kind(made), kind(recorded), "{at}: {made} for {recorded}");
            assert_eq!(made.is_f64(), recorded.is_f64(), "{at}: {made} for {recorded}");
        }
    }
}

#[tokio::test]
async fn each_recorded_request_gets_an_answer_of_the_recorded_shape() {
    let asker = recorded_serve().await;
    let mut seen = 0;
    for exchange in exchanges() {
        let text = |key: &str| exchange[key].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        if name == "generate_aborted" {
            continue;
        }
        let got = match exchange["method"].as_str() {
            Some("GET") => asker.get(&text("path")).await,
            _ => asker.post(&text("path"), &request(&exchange)).await,
        };
        assert_eq!(u64::from(got.status), exchange["status"], "{name}: {}", got.text());
        assert_eq!(got.content_type.as_deref(), exchange["content_type"].as_str(), "{name}");
        let recorded = exchange["file"].as_str().map(fixture).unwrap_or_default();
        if recorded.is_empty() || name.starts_with("error_") {
            assert_eq!(got.text(), String::from_utf8(recorded).unwrap(), "{name}");
        } else if name == "get_server_info" {
            assert_server_info(got.json(), &serde_json::from_slice(&recorded).unwrap());
        } else if name == "generate_stream_interval" {
            let recorded = Got { body: recorded, ..got.clone() };
            let ((made, made_done), (recorded, done)) = (got.events(), recorded.events());
            assert_eq!(made_done, done);
            assert_shape(&json!(made), &json!(recorded), &name);
        } else {
            assert_shape(&got.json(), &serde_json::from_slice(&recorded).unwrap(), &name);
        }
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}

#[tokio::test]
async fn an_aborted_answer_has_the_recorded_shape() {
    let asker = recorded_serve().await;
    asker.serve.inject(Fault::Stalls { after: 69 }).await;
    let exchange = exchanges().into_iter().find(|exchange| exchange["name"] == "generate_aborted").unwrap();
    let request = request(&exchange);
    let rid = request["rid"].as_str().unwrap();
    let abort = async {
        asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 69)).await;
        asker.abort(rid).await;
    };
    let (got, ()) = tokio::join!(asker.generate(&request), abort);
    assert_eq!(got.status, 200);
    let recorded: Value = serde_json::from_slice(&fixture("generate_aborted.body")).unwrap();
    assert_shape(&got.json(), &recorded, "generate_aborted");
    assert_eq!(got.json()["meta_info"]["finish_reason"], recorded["meta_info"]["finish_reason"]);
}

/// All that the recorded serve told of itself, and one key more, which no real serve has.
fn assert_server_info(mut made: Value, recorded: &Value) {
    let confession = made.as_object_mut().unwrap().shift_remove("fake_serve").unwrap();
    assert!(confession.as_str().unwrap().contains("no sglang"), "{confession}");
    assert_eq!(keys(&made), keys(recorded));
    assert_eq!(keys(&made["internal_states"][0]), keys(&recorded["internal_states"][0]));
    for key in ["version", "context_length", "max_total_num_tokens", "max_req_input_len", "chunked_prefill_size"] {
        assert_eq!(made[key], recorded[key], "{key}");
    }
    for key in ["disable_radix_cache", "enable_return_hidden_states", "stream_output", "speculative_algorithm"] {
        assert_eq!(made[key], recorded[key], "{key}");
    }
}
