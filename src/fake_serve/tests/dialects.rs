//! The tables of what each version says.

use super::*;
use crate::fake_serve::FakeServeConfig;

const TOKENS: usize = 5;

/// Each event's text, ids, log-probabilities and rows, counted.
async fn events_of(dialect: Dialect, switch: bool, interval: Option<usize>) -> Vec<Value> {
    let asker = start(FakeServeConfig { incremental_output: switch, ..config(dialect) }).await;
    let request = ask_stream(&[1, 2, 3], TOKENS);
    let request = interval
        .iter()
        .fold(request, |request, &interval| with(request, "/sampling_params/stream_interval", interval.into()));
    let got = asker.generate(&request).await;
    assert_eq!(got.content_type.as_deref(), Some("text/event-stream; charset=utf-8"));
    let (events, done) = got.events();
    assert!(done && got.whole);
    events
}

fn length(value: &Value) -> usize {
    value.as_array().unwrap().len()
}

#[tokio::test]
async fn replies_have_the_keys_of_their_version() {
    let logprobs = ["input_token_logprobs", "output_token_logprobs"];
    for dialect in Dialect::ALL {
        let reply = start(config(dialect)).await.generate(&ask(&[1, 2], 2)).await.json();
        let ids = if dialect == Dialect::V0_4_9 { vec![] } else { vec!["output_ids"] };
        assert_eq!(keys(&reply), [&["text"][..], &ids, &["meta_info"]].concat(), "{dialect}");
        let meta: &[&[&str]] = match dialect {
            Dialect::V0_4_9 => &[&logprobs, &["completion_tokens", "cached_tokens", "hidden_states", "e2e_latency"]],
            Dialect::V0_5_2 => &[
                &["weight_version"],
                &logprobs,
                &["completion_tokens", "cached_tokens", "hidden_states", "e2e_latency"],
            ],
            Dialect::V0_5_6 => &[
                &["weight_version", "total_retractions"],
                &logprobs,
                &["completion_tokens", "cached_tokens", "hidden_states", "e2e_latency", "response_sent_to_client_ts"],
            ],
            Dialect::V0_5_10 | Dialect::V0_5_15 | Dialect::V0_5_23 => &[
                &["weight_version"],
                if dialect == Dialect::V0_5_10 { &["total_retractions"] } else { &["num_retractions"] },
                &logprobs,
                &["output_token_logprobs_length", "reasoning_tokens", "completion_tokens", "cached_tokens"],
                &["cached_tokens_details", "hidden_states", "dp_rank", "e2e_latency", "response_sent_to_client_ts"],
            ],
        };
        let first: &[&str] = &["id", "finish_reason", "prompt_tokens"];
        assert_eq!(keys(&reply["meta_info"]), [&[first], meta].concat().concat(), "{dialect}");
    }
}

#[tokio::test]
async fn streams_tell_wholes_or_differences_as_their_version_does() {
    let whole = model().greedy(&[1, 2, 3], TOKENS);
    for dialect in Dialect::ALL {
        for switch in [false, true] {
            let events = events_of(dialect, switch, None).await;
            assert_eq!(events.len(), TOKENS, "{dialect}");
            let is_new = |version| switch && dialect >= version;
            let mut text = String::new();
            for (index, event) in events.iter().enumerate() {
                let (at, meta) = (format!("{dialect} {switch} {index}"), &event["meta_info"]);
                let so_far = index + 1;
                assert_eq!(meta["completion_tokens"], so_far, "{at}");
                // Hidden states are told whole, always.
                assert_eq!(length(&meta["hidden_states"]), so_far, "{at}");
                assert_eq!(length(&meta["hidden_states"][0]), 3, "{at}");
                let told = if is_new(Dialect::V0_5_15) { 1 } else { so_far };
                assert_eq!(length(&meta["output_token_logprobs"]), told, "{at}");
                let new_ids = dialect == Dialect::V0_5_2 || is_new(Dialect::V0_5_6);
                let ids = if new_ids { &whole[index..so_far] } else { &whole[..so_far] };
                let expected = if dialect == Dialect::V0_4_9 { Value::Null } else { json!(ids) };
                assert_eq!(event["output_ids"], expected, "{at}");
                let piece = format!(" w{}", whole[index]);
                text.push_str(&piece);
                assert_eq!(event["text"], if is_new(Dialect::V0_5_10) { &piece[..] } else { &text }, "{at}");
                assert_eq!(meta["finish_reason"].is_null(), so_far < TOKENS, "{at}");
                assert_eq!(keys(meta).contains(&"e2e_latency"), so_far == TOKENS, "{at}");
                let sent = index == 0 && dialect >= Dialect::V0_5_6;
                assert_eq!(keys(meta).contains(&"response_sent_to_client_ts"), sent, "{at}");
            }
        }
    }
}

#[tokio::test]
async fn an_interval_leaves_the_first_event_and_the_last() {
    for dialect in Dialect::ALL {
        let counts = |events: &[Value]| -> Vec<Value> {
            events.iter().map(|event| event["meta_info"]["completion_tokens"].clone()).collect()
        };
        assert_eq!(counts(&events_of(dialect, false, Some(64)).await), [1, TOKENS], "{dialect}");
        assert_eq!(counts(&events_of(dialect, false, Some(2)).await), [1, 3, 5], "{dialect}");
        let incremental = events_of(dialect, true, Some(3)).await;
        assert_eq!(counts(&incremental), [1, 4, 5]);
        if dialect >= Dialect::V0_5_10 {
            let joined: String = incremental.iter().map(|event| event["text"].as_str().unwrap()).collect();
            let whole: String = model().greedy(&[1, 2, 3], TOKENS).iter().map(|id| format!(" w{id}")).collect();
            assert_eq!(joined, whole);
        }
    }
}

#[tokio::test]
async fn an_abort_in_the_queue_looks_as_in_its_version() {
    for dialect in Dialect::ALL {
        let asker = start(FakeServeConfig { max_running: 1, ..config(dialect) }).await;
        asker.serve.inject(Fault::Stalls { after: 1 }).await;
        let (first, waits) = (with(ask(&[1], 3), "/rid", "first".into()), with(ask(&[2], 3), "/rid", "waits".into()));
        let script = async {
            asker.serve.wait_until(|status| status.running == 1).await;
            let queued = async {
                asker.serve.wait_until(|status| status.waiting == 1).await;
                asker.abort("waits").await;
            };
            let (got, ()) = tokio::join!(asker.generate(&waits), queued);
            asker.serve.release();
            got
        };
        let (finished, got) = tokio::join!(asker.generate(&first), script);
        assert_eq!(finished.json()["meta_info"]["finish_reason"]["type"], "length");
        let (reply, old) = (got.json(), dialect < Dialect::V0_5_6);
        let message = if old { "Abort before prefill" } else { "Abort in waiting queue" };
        assert_eq!(reply["meta_info"]["finish_reason"], json!({"type": "abort", "message": message}), "{dialect}");
        assert_eq!(reply["meta_info"]["completion_tokens"], 0);
        assert_eq!(keys(&reply).contains(&"output_ids"), !old);
        assert_eq!(keys(&reply["meta_info"]).contains(&"prompt_tokens"), old);
    }
}

#[tokio::test]
async fn a_full_queue_is_503_or_an_event() {
    for dialect in Dialect::ALL {
        let asker = start(FakeServeConfig { max_running: 1, max_queued: Some(0), ..config(dialect) }).await;
        asker.serve.inject(Fault::Stalls { after: 1 }).await;
        let refused = async {
            asker.serve.wait_until(|status| status.running == 1).await;
            let got = asker.generate(&with(ask(&[2], 3), "/rid", "second".into())).await;
            let streamed = asker.generate(&with(ask_stream(&[2], 3), "/rid", "third".into())).await;
            asker.serve.release();
            (got, streamed)
        };
        let (_, (got, streamed)) = tokio::join!(asker.generate(ask(&[1], 3)), refused);
        let body = json!({"object": "error", "message": "The request queue is full.", "type": "503", "param": null, "code": 503});
        assert_eq!((got.status, got.json()), (503, body), "{dialect}");
        if dialect >= Dialect::V0_5_6 {
            let reason = &streamed.events().0[0]["meta_info"]["finish_reason"];
            assert_eq!((&reason["type"], &reason["status_code"]), (&"abort".into(), &503.into()), "{dialect}");
        } else {
            assert!(!streamed.whole && streamed.body.is_empty(), "{dialect}");
        }
    }
}

#[tokio::test]
async fn aborts_with_a_status_are_events_or_broken_streams() {
    for dialect in Dialect::ALL {
        for status in [400, 500, 503] {
            let asker = faulty(dialect, Fault::AbortStatus { after: 2, status }).await;
            let got = asker.generate(&ask(&[1], 5)).await;
            assert_eq!(got.status, status);
            assert_eq!(keys(&got.json())[0], if status == 400 { "error" } else { "object" });
            asker.serve.inject(Fault::AbortStatus { after: 2, status }).await;
            let got = asker.generate(&ask_stream(&[1], 5)).await;
            if dialect >= Dialect::V0_5_6 {
                let (events, done) = got.events();
                let reason = &events.last().unwrap()["meta_info"]["finish_reason"];
                assert!(done && reason["type"] == "abort" && reason["status_code"] == status, "{reason}");
            } else {
                assert_eq!(got.whole, status == 400, "{dialect} {status}");
                assert_eq!(got.text().contains("\"error\""), status == 400);
            }
        }
    }
}

#[tokio::test]
async fn a_live_id_is_refused_where_the_version_does() {
    for dialect in Dialect::ALL {
        let asker = faulty(dialect, Fault::Stalls { after: 1 }).await;
        let second = async {
            asker.serve.wait_until(|status| status.running == 1).await;
            let got = asker.generate(&ask(&[2], 2)).await;
            asker.serve.release();
            got
        };
        let (_, got) = tokio::join!(asker.generate(ask(&[1], 2)), second);
        assert_eq!(got.status, if dialect >= Dialect::V0_5_10 { 400 } else { 200 }, "{dialect}");
    }
}

#[tokio::test]
async fn other_paths_are_those_of_the_version() {
    for dialect in Dialect::ALL {
        let asker = start(config(dialect)).await;
        for (path, from) in [
            ("/health", Dialect::V0_4_9),
            ("/health_generate", Dialect::V0_4_9),
            ("/get_model_info", Dialect::V0_4_9),
            ("/get_server_info", Dialect::V0_4_9),
            ("/flush_cache", Dialect::V0_4_9),
            ("/model_info", Dialect::V0_5_6),
            ("/server_info", Dialect::V0_5_6),
            ("/v1/loads", Dialect::V0_5_10),
            ("/ready", Dialect::V0_5_23),
        ] {
            let got = asker.get(path).await;
            assert_eq!(got.status, if dialect >= from { 200 } else { 404 }, "{dialect} {path}");
        }
        assert_eq!(asker.get("/get_load").await.status, if dialect < Dialect::V0_5_23 { 200 } else { 404 });
        let info = asker.get("/get_server_info").await.json();
        assert_eq!(info["version"], dialect.version());
        assert!(info["fake_serve"].as_str().unwrap().contains("no sglang"));
        let newest = dialect == Dialect::V0_5_23;
        assert_eq!(keys(&info).contains(&"launch_command"), newest);
        assert_eq!(keys(&info).contains(&"return_hidden_states_mode"), newest);
        let switches = ["stream_output", "incremental_streaming_output"].map(|switch| keys(&info).contains(&switch));
        let renamed = dialect >= Dialect::V0_5_10;
        assert_eq!(switches, [!renamed, renamed]);
        let model = asker.get("/get_model_info").await.json();
        assert_eq!(keys(&model)[0], "model_path");
        assert_eq!(keys(&model).contains(&"weight_version"), dialect >= Dialect::V0_5_2);
        assert_eq!(keys(&model).contains(&"has_image_understanding"), dialect >= Dialect::V0_5_6);
        assert_eq!(keys(&model).contains(&"architectures"), renamed);
        assert_eq!(keys(&model).contains(&"served_model_name"), newest);
    }
}

#[tokio::test]
async fn load_is_told_as_in_the_version() {
    for dialect in Dialect::ALL {
        let asker = faulty(dialect, Fault::Stalls { after: 2 }).await;
        let look = async {
            asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 2)).await;
            let old = asker.get("/get_load").await;
            let new = asker.get("/v1/loads").await;
            let flushed = asker.get("/flush_cache").await.status;
            asker.serve.release();
            (old, new, flushed)
        };
        let (_, (old, new, flushed)) = tokio::join!(asker.generate(ask(&[1, 2, 3], 4)), look);
        assert_eq!(flushed, 400, "not while something runs");
        if dialect < Dialect::V0_5_6 {
            assert_eq!(old.json(), json!({"load": 5}));
        } else if dialect < Dialect::V0_5_23 {
            let load = &old.json()[0];
            assert_eq!(
                (&load["num_reqs"], &load["num_waiting_reqs"], &load["num_tokens"]),
                (&1.into(), &0.into(), &5.into())
            );
        }
        if dialect >= Dialect::V0_5_10 {
            let load = &new.json()["loads"][0];
            assert_eq!((&load["num_running_reqs"], &load["num_used_tokens"]), (&1.into(), &5.into()));
        }
    }
}
