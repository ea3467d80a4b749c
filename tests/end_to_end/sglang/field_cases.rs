//! Failures from the field, each with the outcome that is right.

use std::time::Duration;

use engy_miner::backend::{Backend, BackendError, StopReason};
use engy_miner::fake_serve::{CallEnd, Dialect, ErrorForm, Fault, ScriptedReply};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{answer, greedy, open, seeded};

/// A reply with these hidden states and ids.
fn reply(hidden_states: &Value, ids: &[u32], reason: &str) -> Value {
    let logprobs: Vec<Value> = ids.iter().map(|id| json!([0, id, null])).collect();
    json!({"meta_info": {"hidden_states": hidden_states, "output_token_logprobs": logprobs, "finish_reason": {"type": reason},
        "cached_tokens": 0}})
}

/// What a client makes of one scripted reply.
async fn of_reply(hidden: usize, max_tokens: usize, script: &Value) -> Result<(Vec<u32>, StopReason), BackendError> {
    let (serve, _) = seeded(Dialect::V0_5_6, hidden, |_| ()).await;
    let backend = open(&[&serve], hidden, |_| ()).await.unwrap();
    serve.inject(Fault::Scripted(ScriptedReply::json(script))).await;
    answer(&backend, greedy(&[1, 2, 3], max_tokens, false)).await.map(|answer| (answer.ids, answer.reason))
}

/// FC-S01: a call that one serve refuses is sent to another; a lone serve is asked again.
#[tokio::test]
async fn fc_s01_a_refused_call_is_sent_once_more() {
    let (a, model) = seeded(Dialect::V0_5_6, 4, |_| ()).await;
    let (b, _) = seeded(Dialect::V0_5_6, 4, |_| ()).await;
    let backend = open(&[&a, &b], 4, |_| ()).await.unwrap();
    let calls = |serve: &engy_miner::fake_serve::FakeServeHandle| serve.status().generates().count() - 2;
    a.inject(Fault::Busy).await;
    let got = answer(&backend, greedy(&[1, 2, 3], 3, false)).await.unwrap();
    assert_eq!(got.ids, model.greedy(&[1, 2, 3], 3));
    assert_eq!((calls(&a), calls(&b)), (1, 1));
    // Both refuse: an error, and no third try.
    a.inject(Fault::Busy).await;
    b.inject(Fault::Error(ErrorForm::Detail)).await;
    let error = answer(&backend, greedy(&[1, 2, 3], 3, true)).await.unwrap_err();
    assert!(matches!(error, BackendError::Busy(_)), "{error:?}");
    assert_eq!((calls(&a), calls(&b)), (2, 2));
    // A buyer's fault is no refusal.
    a.inject(Fault::Error(ErrorForm::Value)).await;
    let error = answer(&backend, greedy(&[1, 2, 3], 3, false)).await.unwrap_err();
    assert!(matches!(error, BackendError::Client(_)), "{error:?}");
    assert_eq!((calls(&a), calls(&b)), (3, 2));
    let alone = open(&[&b], 4, |_| ()).await.unwrap();
    b.inject(Fault::Busy).await;
    assert_eq!(answer(&alone, greedy(&[1, 2, 3], 3, false)).await.unwrap().ids, got.ids);
}

/// FC-S03: a serve whose hidden states are all empty.
#[tokio::test]
async fn fc_s03_empty_hidden_states_are_an_error_that_says_what_to_check() {
    let script = reply(&json!([[], [], []]), &[11, 12, 13], "stop");
    let error = of_reply(2, 16, &script).await.unwrap_err();
    assert!(matches!(&error, BackendError::Broken(message) if message.contains("hidden states")), "{error:?}");
}

/// FC-S05: rows that speculative decoding lost.
#[tokio::test]
async fn fc_s05_fewer_rows_than_tokens_are_an_error_that_names_both() {
    let script = reply(&json!([[[1, 1]], [2, 2], [3, 3]]), &[11, 12, 13, 14, 15], "stop");
    let error = of_reply(2, 16, &script).await.unwrap_err().to_string();
    assert!(error.contains("rows 3 < tokens 5"), "{error}");
}

/// FC-S07: a value that is no number.
#[tokio::test]
async fn fc_s07_a_null_in_a_row_is_an_error_and_never_0() {
    let script = reply(&json!([[[0.5, null, 1.0]], [0.25, 0.5, 1.0]]), &[11, 12], "stop");
    let error = of_reply(3, 16, &script).await.unwrap_err().to_string();
    assert!(error.contains("non-finite"), "{error}");
}

/// FC-S06: the first row is missing where a chunk ends: the answer goes on, whole, and all but its first token is proven.
#[tokio::test]
async fn fc_s06_a_missing_first_row_ends_no_answer() {
    let (serve, model) = seeded(Dialect::V0_5_6, 2, |_| ()).await;
    for streamed in [false, true] {
        let backend = open(&[&serve], 2, |options| options.chunk = 4).await.unwrap();
        serve.inject(Fault::MissingRow { row: 0 }).await;
        let got = answer(&backend, greedy(&[1, 2, 3], 8, streamed)).await.unwrap();
        let ids = model.greedy(&[1, 2, 3], 8);
        assert_eq!((&got.ids, got.reason, got.first_row_missing), (&ids, StopReason::Length, true));
        let rows = super::rows_of(&model, &[1, 2, 3], &ids);
        assert!(got.rows == rows[2..], "the rows of all tokens but the first");
    }
}

/// FC-S09: the serve clips near its context's edge.
#[tokio::test]
async fn fc_s09_an_answer_that_is_cut_early_is_cut_and_not_stopped() {
    let rows: Vec<Value> = (1..14).map(|n| json!([n, n])).collect();
    let mut states = vec![json!([[0, 1]])];
    states.extend(rows);
    let ids: Vec<u32> = (21..35).collect();
    let got = of_reply(2, 16, &reply(&states.into(), &ids, "length")).await.unwrap();
    assert_eq!(got, (ids, StopReason::Length));
}

/// FC-S11: events that tell what is new, without a count.
#[tokio::test]
async fn fc_s11_incremental_events_add_up() {
    let (serve, _) = seeded(Dialect::V0_5_15, 2, |_| ()).await;
    let backend = open(&[&serve], 2, |_| ()).await.unwrap();
    let event = |text: &str, id: u32, last: bool| {
        let mut event = reply(&Value::Null, &[id], "stop");
        event["text"] = text.into();
        if last {
            event["meta_info"]["hidden_states"] = json!([[[1, 2]], [3, 4], [5, 6]]);
        } else {
            event["meta_info"]["finish_reason"] = Value::Null;
        }
        event
    };
    let events = [event("One", 11, false), event(" two", 12, false), event(" three", 13, true)];
    serve.inject(Fault::Scripted(ScriptedReply::events(&events))).await;
    let got = answer(&backend, greedy(&[1, 2, 3], 16, true)).await.unwrap();
    assert_eq!((got.ids, got.rows.len() / 2), (vec![11, 12, 13], 3));
}

/// FC-S13: the serve gives up by itself.
#[tokio::test]
async fn fc_s13_an_abort_that_nobody_asked_for_is_an_error() {
    let script = reply(&json!([[[1, 2]], [3, 4]]), &[11, 12], "abort");
    let error = of_reply(2, 16, &script).await.unwrap_err();
    assert!(matches!(&error, BackendError::Broken(message) if message.contains("by itself")), "{error:?}");
}

/// FC-S14: silence of minutes is normal, and a cancel does not wait for the next byte.
#[tokio::test(start_paused = true)]
async fn fc_s14_long_silence_is_waited_for_and_cancels_are_not() {
    let (serve, _) = seeded(Dialect::V0_5_6, 2, |_| ()).await;
    let backend = open(&[&serve], 2, |_| ()).await.unwrap();
    let slow = || {
        let states = json!([[[1, 2]], [3, 4], [5, 6]]);
        let event = |count: usize, reason: Value| {
            let mut event = reply(&json!(states.as_array().unwrap()[..count]), &[11, 12, 13][..count], "stop");
            event["meta_info"]["finish_reason"] = reason;
            event["meta_info"]["completion_tokens"] = count.into();
            event
        };
        let pause = Duration::from_secs(40);
        let script = ScriptedReply::stream().pause(Duration::from_secs(95)).event(&event(1, Value::Null)).pause(pause);
        let script = script.event(&event(2, Value::Null)).pause(pause);
        Fault::Scripted(script.event(&event(3, json!({"type": "stop"}))).bytes("data: [DONE]\n\n"))
    };
    serve.inject(slow()).await;
    let began = Instant::now();
    assert_eq!(answer(&backend, greedy(&[1, 2, 3], 16, true)).await.unwrap().ids, [11, 12, 13]);
    assert!(began.elapsed() >= Duration::from_secs(175));
    // A second one is cancelled in the midst of the silence.
    serve.inject(slow()).await;
    let mut generation = backend.generate(greedy(&[1, 2, 3], 16, true));
    assert!(tokio::time::timeout(Duration::from_secs(20), generation.next()).await.is_err(), "nothing comes yet");
    let cancelled = Instant::now();
    drop(generation);
    let status = serve.wait_until(|status| status.calls_of("/abort_request").next().is_some()).await;
    assert!(cancelled.elapsed() < Duration::from_secs(1));
    let named = status.calls_of("/abort_request").next().unwrap().body["rid"].clone();
    assert_eq!(named, status.generates().last().unwrap().body["rid"]);
    assert_eq!(backend.calls(), 0, "its place is free at once");
}

/// A cancel reaches calls that run and calls that wait, once each.
#[tokio::test]
async fn a_cancelled_call_is_aborted_once_whether_it_runs_or_waits() {
    let (serve, model) = seeded(Dialect::V0_5_6, 4, |config| config.max_running = 1).await;
    for streamed in [false, true] {
        let backend = open(&[&serve], 4, |_| ()).await.unwrap();
        let before = serve.status().calls.len();
        serve.inject(Fault::Stalls { after: 2 }).await;
        let running = backend.generate(greedy(&[1, 2, 3], 50, streamed));
        serve.wait_until(|status| status.running == 1).await;
        let waiting = backend.generate(greedy(&[4, 5, 6], 50, streamed));
        serve.wait_until(|status| status.waiting == 1).await;
        drop(waiting);
        drop(running);
        let status = serve
            .wait_until(|status| {
                let calls = &status.calls[before..];
                let aborts = calls.iter().filter(|call| call.path == "/abort_request").count();
                aborts == 2 && status.running + status.waiting == 0
            })
            .await;
        for call in status.calls[before..].iter().filter(|call| call.path == "/generate") {
            assert!(matches!(call.end, Some(CallEnd::Aborted | CallEnd::Disconnected)), "{call:?}");
        }
        assert_eq!(backend.calls(), 0);
        let got = answer(&backend, greedy(&[1, 2], 3, streamed)).await.unwrap();
        assert_eq!(got.ids, model.greedy(&[1, 2], 3));
    }
}
