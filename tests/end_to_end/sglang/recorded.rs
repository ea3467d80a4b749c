//! Recorded traffic of a real serve, read through the whole client.

use engy_miner::backend::{GenerationRequest, StopReason};
use engy_miner::fake_serve::{Dialect, Fault, ScriptedReply};
use half::bf16;
use serde_json::Value;

use super::{answer, greedy, open, seeded};
use crate::site::fixture;

const HIDDEN: usize = 576;

/// The exchange of that name: its request and the bytes of its answer.
fn exchange(name: &str) -> (Value, Vec<u8>) {
    let folder = fixture("sglang");
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let exchanges = manifest.as_array().unwrap();
    let exchange = exchanges.iter().find(|exchange| exchange["name"] == name).unwrap().clone();
    let body = std::fs::read(folder.join(exchange["file"].as_str().unwrap())).unwrap();
    (exchange, body)
}

/// The last event or the body, as plain JSON.
fn last(body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).unwrap();
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    serde_json::from_str(events.last().unwrap_or(text)).unwrap()
}

/// Rows of the answer by a plain reading: the last of the first element, then one each.
fn plain_rows(json: &Value) -> Vec<bf16> {
    let elements = json["meta_info"]["hidden_states"].as_array().unwrap();
    let row = |row: &Value| -> Vec<bf16> {
        // These values are bf16 already, so that any way of rounding is exact.
        row.as_array().unwrap().iter().map(|x| bf16::from_f32(x.as_f64().unwrap() as f32)).collect()
    };
    let first = elements[0].as_array().unwrap().last().unwrap();
    std::iter::once(row(first)).chain(elements[1..].iter().map(row)).flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_answers_give_their_ids_and_rows() {
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    for (name, end) in [
        ("generate_length", StopReason::Length),
        ("generate_one_prompt_token", StopReason::Length),
        ("generate_stop_string", StopReason::StopString),
        ("generate_stream_interval", StopReason::Length),
        ("generate_continuation", StopReason::Length),
    ] {
        let (exchange, body) = exchange(name);
        let request = &exchange["request"];
        let prompt: Vec<u32> = serde_json::from_value(request["input_ids"].clone()).unwrap();
        let most = request["sampling_params"]["max_new_tokens"].as_u64().unwrap() as usize;
        let kind = exchange["content_type"].as_str().unwrap();
        let json = last(&body);
        serve.inject(Fault::Scripted(ScriptedReply::new(200, kind).bytes(body))).await;
        let got = answer(&backend, greedy(&prompt, most, request["stream"] == true)).await.unwrap();
        let ids: Vec<u32> = serde_json::from_value(json["output_ids"].clone()).unwrap();
        assert_eq!((&got.ids, got.reason), (&ids, end), "{name}");
        assert!(got.rows == plain_rows(&json), "{name}: rows");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_refusals_are_the_buyers_fault_or_not() {
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    for (name, client, says) in [
        ("error_too_long", true, "longer than"),
        ("error_total_too_long", true, "maximum context length"),
        ("error_bad_temperature", true, "temperature"),
        ("error_too_long_stream", true, "longer than"),
        ("generate_without_hidden_states", false, "hidden states"),
        ("generate_aborted", false, "by itself"),
    ] {
        let (exchange, body) = exchange(name);
        let status = exchange["status"].as_u64().unwrap() as u16;
        let kind = exchange["content_type"].as_str().unwrap();
        let request = &exchange["request"];
        let prompt: Vec<u32> = serde_json::from_value(request["input_ids"].clone()).unwrap_or(vec![1; 16]);
        serve.inject(Fault::Scripted(ScriptedReply::new(status, kind).bytes(body))).await;
        let request = GenerationRequest { streamed: request["stream"] == true, ..greedy(&prompt, 200, false) };
        let error = answer(&backend, request).await.unwrap_err();
        let is_client = matches!(error, engy_miner::backend::BackendError::Client(_));
        assert!(is_client == client && error.to_string().contains(says), "{name}: {error:?}");
    }
}
