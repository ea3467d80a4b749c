//! Requests that go well: plain, streamed, proven, and what buyers may look up.

use serde_json::{Value, json};
use tokio::join;

use super::fake_miner::{FakeMiner, commitment, hello, output, usage};
use super::site::{Site, assert_error, chat, events, within};

#[tokio::test]
async fn a_plain_answer_with_its_proof() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let mut request = chat(false);
    request["max_completion_tokens"] = json!(9);
    request["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let (response, job) = join!(site.ask(&request), async {
        let job = miner.job().await;
        miner.chunk(&job, &json!({"content": "unasked, and ignored"})).await;
        miner.say(&job, "Done.").await;
        job
    });
    let id = job.request_id().to_owned();
    assert!(!job.stream);
    let mut forwarded = job.request;
    assert!(forwarded.as_object_mut().unwrap().remove("engy_request_id").is_some());
    assert_eq!(forwarded, request, "all else is forwarded as it came");

    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-request-id"], id.as_str());
    let body: Value = response.json().await.unwrap();
    let created = body["created"].as_u64().unwrap();
    let mut expected = json!({"id": format!("chatcmpl-{id}"), "object": "chat.completion", "created": created,
        "model": "m"});
    let output = output(&json!({"role": "assistant", "content": "Done."}), "stop");
    expected["choices"] = output["choices"].clone();
    expected["usage"] = usage();
    assert_eq!(body, expected);

    let (status, proof) = site.get_json(&format!("/v1/proofs/{id}")).await;
    assert_eq!(status, 200);
    assert_eq!(
        proof,
        json!({"request_id": id, "model": "m", "worker_name": "name-of-w", "worker_id": "w",
            "commitment": commitment(), "usage": usage(), "created": created})
    );
    let (status, body) = site.get_json("/v1/proofs/r-unheard-of").await;
    assert_eq!(status, 404);
    assert_error(&body, "invalid_request_error", None);
}

#[tokio::test]
async fn a_streamed_answer_with_usage_is_openais_to_the_key() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let mut request = chat(true);
    request["stream_options"] = json!({"include_usage": true});
    request["engy_request_id"] = json!("r-9001");
    let call = json!([{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let deltas = [
        json!({"reasoning_content": "Hm."}),
        json!({"content": "Do"}),
        json!({"content": "ne."}),
        json!({"tool_calls": call}),
    ];
    let (response, ()) = join!(site.ask(&request), async {
        let job = miner.job().await;
        assert!(job.stream);
        assert_eq!(job.request_id(), "r-9001");
        for delta in &deltas {
            miner.chunk(&job, delta).await;
        }
        let message = json!({"role": "assistant", "content": "Done.", "reasoning_content": "Hm.", "tool_calls": call});
        miner.answer(&job, &output(&message, "tool_calls")).await;
    });
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["x-request-id"], "r-9001");
    let body = within(response.text()).await.unwrap();
    let created = events(&body)[0]["created"].as_u64().unwrap();
    let event = |choices: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-r-9001\",\"object\":\"chat.completion.chunk\",\"created\":{created},\
             \"model\":\"m\",\"choices\":[{choices}],\"usage\":{usage}}}\n\n"
        )
    };
    let choice = |delta: &str, finish: &str| {
        let choice = format!("{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}");
        event(&choice, "null")
    };
    let mut expected = choice("{\"role\":\"assistant\",\"content\":\"\"}", "null");
    for delta in &deltas {
        expected += &choice(&delta.to_string(), "null");
    }
    expected += &choice("{}", "\"tool_calls\"");
    expected += &event("", &usage().to_string());
    expected += "data: [DONE]\n\n";
    assert_eq!(body, expected);
    assert_eq!(site.get_json("/v1/proofs/r-9001").await.0, 200);
}

#[tokio::test]
async fn without_include_usage_no_event_speaks_of_usage() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let (response, ()) = join!(site.ask(&chat(true)), async {
        let job = miner.job().await;
        miner.chunk(&job, &json!({"content": "Done."})).await;
        miner.say(&job, "Done.").await;
    });
    let events = events(&within(response.text()).await.unwrap());
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn a_miner_that_does_not_stream_loses_nothing() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let message = json!({"role": "assistant", "content": "Done.", "reasoning_content": "Hm.", "tool_calls": [call]});
    let (response, ()) = join!(site.ask(&chat(true)), async {
        let job = miner.job().await;
        miner.answer(&job, &output(&message, "tool_calls")).await;
    });
    let events = events(&within(response.text()).await.unwrap());
    assert_eq!(events.len(), 3);
    let delta = &events[1]["choices"][0]["delta"];
    assert_eq!((&delta["content"], &delta["reasoning_content"]), (&json!("Done."), &json!("Hm.")));
    assert_eq!((&delta["tool_calls"][0]["index"], &delta["tool_calls"][0]["id"]), (&json!(0), &json!("call_1")));
    assert_eq!(events[2]["choices"][0]["finish_reason"], "tool_calls");
}

/// Entries of these tokens.
fn logprobs(tokens: &[&str]) -> Value {
    let entries = tokens.iter().map(|token| {
        json!({"token": token, "logprob": -0.25, "bytes": token.as_bytes(),
            "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": null}]})
    });
    json!({"content": entries.collect::<Vec<_>>(), "refusal": null})
}

#[tokio::test]
async fn logprobs_reach_the_buyer_plain_and_streamed() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let mut whole = output(&json!({"role": "assistant", "content": "Done."}), "stop");
    whole["choices"][0]["logprobs"] = logprobs(&["Do", "ne", "."]);
    for (stream, chunks) in [(false, 0), (true, 2), (true, 0)] {
        let mut request = chat(stream);
        request["logprobs"] = json!(true);
        request["top_logprobs"] = json!(1);
        let (response, job) = join!(site.ask(&request), async {
            let job = miner.job().await;
            for (text, tokens) in [("Do", &["Do"][..]), ("ne.", &["ne", "."])].into_iter().take(chunks) {
                let chunk = json!({"type": "chunk", "corr_id": job.corr_id, "delta": {"content": text},
                    "logprobs": logprobs(tokens)});
                miner.send(&chunk).await;
            }
            miner.answer(&job, &whole).await;
            job
        });
        assert_eq!((&job.request["logprobs"], &job.request["top_logprobs"]), (&json!(true), &json!(1)));
        let body = within(response.text()).await.unwrap();
        if !stream {
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["choices"], whole["choices"]);
            continue;
        }
        let told: Vec<Value> = events(&body).iter().map(|event| event["choices"][0]["logprobs"].clone()).collect();
        let null = Value::Null;
        let want = match chunks {
            0 => vec![null.clone(), logprobs(&["Do", "ne", "."]), null],
            _ => vec![null.clone(), logprobs(&["Do"]), logprobs(&["ne", "."]), null],
        };
        assert_eq!(told, want);
    }
}

#[tokio::test]
async fn a_request_without_a_model_means_the_only_one() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let request = json!({"messages": []});
    let ((status, body), ()) = join!(site.ask_json(&request), async {
        let job = miner.job().await;
        assert_eq!(job.request["model"], "m");
        miner.say(&job, "Done.").await;
    });
    assert_eq!((status, &body["model"]), (200, &json!("m")));

    let _other = FakeMiner::join(&site.leg(0), &hello("n", "v", 1)).await;
    let (status, body) = site.ask_json(&request).await;
    assert_eq!(status, 400);
    assert_error(&body, "invalid_request_error", None);
}

#[tokio::test]
async fn models_health_and_meta() {
    let site = Site::open().await;
    assert_eq!(site.get_json("/v1/models").await.1, json!({"object": "list", "data": []}));
    let mut miner = site.miner(2).await;
    let _second = FakeMiner::join(&site.leg(1), &hello("a", "v", 1)).await;
    let (_, models) = site.get_json("/v1/models").await;
    let ids: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["a", "m"]);
    assert_eq!(models["data"][0]["object"], "model");
    assert!(models["data"][0]["created"].as_u64().unwrap() > 0);

    assert_eq!(site.get_json("/healthz").await.1, json!({"legs": 2, "inflight": 0}));
    let request = chat(false);
    join!(site.ask(&request), async {
        let job = miner.job().await;
        assert_eq!(site.get_json("/healthz").await.1, json!({"legs": 2, "inflight": 1}));
        miner.say(&job, "Done.").await;
    });
    assert_eq!(site.get_json("/meta").await.1, json!({"workers": 8}));
    assert_eq!(site.get_json("/gw/meta").await.1, json!({"workers": 8}));
}
