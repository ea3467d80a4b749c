//! Requests that go wrong: each ends with the right status, or, once a stream has begun, in the stream.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::join;

use super::fake_miner::{FakeMiner, hello};
use super::site::{Site, assert_error, chat, config, events, within};

/// What a buyer gets, plain and streamed, when a miner ends the request with this frame.
async fn ended_with(frame: Value) -> (u16, Value) {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let mut seen = Vec::new();
    for stream in [false, true] {
        let request = chat(stream);
        let (answer, ()) = join!(site.ask_json(&request), async {
            let job = miner.job().await;
            let mut frame = frame.clone();
            frame["type"] = json!("response");
            frame["corr_id"] = json!(job.corr_id);
            miner.send(&frame).await;
        });
        assert_eq!(site.handle.status().inflight(), 0);
        seen.push(answer);
    }
    assert_eq!(seen[0], seen[1], "a stream that has not begun fails like a plain request");
    seen.swap_remove(0)
}

#[tokio::test]
async fn a_client_fault_is_relayed() {
    let error = json!({"message": "messages: no user turn", "type": "invalid_request_error", "status": 400});
    let frame = json!({"request_id": "r", "commitment": null, "output": {}, "error": error});
    let (status, body) = ended_with(frame).await;
    assert_eq!(status, 400);
    assert_eq!(
        body,
        json!({"error": {"message": "messages: no user turn", "type": "invalid_request_error", "code": null}})
    );
}

#[tokio::test]
async fn other_errors_are_the_miners_fault() {
    for error in [
        json!("boom"),
        json!({"message": "boom"}),
        json!({"message": "boom", "type": "server_error", "status": 503}),
        json!({"message": "boom", "type": "", "status": null}),
    ] {
        let frame = json!({"request_id": "r", "commitment": null, "output": {}, "error": error});
        let (status, body) = ended_with(frame).await;
        assert_eq!(status, 502, "{error}");
        assert_error(&body, "server_error", Some("miner_error"));
        assert_eq!(body["error"]["message"], "boom");
    }
}

#[tokio::test]
async fn responses_that_are_no_answer_end_the_request_at_once() {
    let usage = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    for frame in [
        json!({"request_id": "r", "commitment": null, "output": {}}),
        json!({"request_id": "r", "commitment": null, "output": {"choices": [], "usage": usage}}),
        json!({"request_id": "r", "commitment": {"model_root": "0"}, "output": {}}),
        json!({"output": 7}),
    ] {
        let (status, body) = ended_with(frame.clone()).await;
        assert_eq!(status, 502, "{frame}");
        assert_error(&body, "server_error", Some("bad_miner_response"));
    }
}

#[tokio::test]
async fn an_error_after_the_first_chunk_comes_in_the_stream() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let (response, ()) = join!(site.ask(&chat(true)), async {
        let job = miner.job().await;
        miner.chunk(&job, &json!({"content": "Do"})).await;
        miner.fail(&job, &json!({"message": "boom", "type": "server_error", "status": null})).await;
    });
    assert_eq!(response.status(), 200);
    let events = events(&within(response.text()).await.unwrap());
    assert_eq!(events.len(), 3);
    assert_eq!(events[1]["choices"][0]["delta"], json!({"content": "Do"}));
    assert_error(&events[2], "server_error", Some("miner_error"));
}

#[tokio::test]
async fn a_lost_leg_ends_its_requests() {
    let site = Site::open().await;
    let mut miner = site.miner(2).await;
    let (plain, stream) = (chat(false), chat(true));
    let ((status, body), response, ()) = join!(site.ask_json(&plain), site.ask(&stream), async move {
        let (a, b) = (miner.job().await, miner.job().await);
        let streamed = if a.stream { a } else { b };
        miner.chunk(&streamed, &json!({"content": "Do"})).await;
        drop(miner);
    });
    assert_eq!(status, 502);
    assert_error(&body, "server_error", Some("miner_lost"));
    let events = events(&within(response.text()).await.unwrap());
    assert_error(events.last().unwrap(), "server_error", Some("miner_lost"));
    assert!(site.handle.status().legs.is_empty());
}

#[tokio::test]
async fn a_slow_miner_is_cancelled_and_its_buyer_told() {
    let mut config = config();
    config.request_timeout = Duration::from_millis(20);
    let site = Site::with(config).await;
    let mut miner = site.miner(1).await;
    let ((status, body), ()) = join!(site.ask_json(&chat(false)), async {
        let job = miner.job().await;
        assert_eq!(miner.next().await.unwrap(), json!({"type": "cancel", "corr_id": job.corr_id}));
    });
    assert_eq!(status, 504);
    assert_error(&body, "server_error", Some("timeout"));
    assert_eq!(site.handle.status().inflight(), 0);
}

#[tokio::test]
async fn nobody_to_serve_the_request() {
    let mut config = config();
    config.free_leg_wait = Duration::from_millis(10);
    let site = Site::with(config).await;
    let request = chat(false);
    let (status, body) = site.ask_json(&request).await;
    assert_eq!(status, 503);
    assert_error(&body, "server_error", Some("no_miner"));

    let mut miner = FakeMiner::join(&site.leg(0), &hello("other", "w", 1)).await;
    let (status, body) = site.ask_json(&request).await;
    assert_eq!(status, 404);
    assert_error(&body, "invalid_request_error", Some("model_not_found"));
    assert!(body["error"]["message"].as_str().unwrap().contains("other"));

    let request = json!({"model": "other", "messages": []});
    join!(site.ask(&request), async {
        let job = miner.job().await;
        let (status, body) = site.ask_json(&request).await;
        assert_eq!(status, 429);
        assert_error(&body, "rate_limit_error", Some("rate_limit_exceeded"));
        miner.say(&job, "Done.").await;
    });
}

#[tokio::test]
async fn requests_that_cannot_be_read() {
    let site = Site::open().await;
    let _miner = site.miner(1).await;
    for body in ["", "{", "[]", "{\"model\": 1}", "{\"model\": \"m\", \"stream\": \"yes\"}"] {
        let response = within(site.post(body).send()).await.unwrap();
        assert_eq!(response.status(), 400, "{body}");
        assert_error(&response.json().await.unwrap(), "invalid_request_error", None);
    }
    for (path, expected) in [("/v1/chat/completions", 405), ("/v1/nothing", 404), ("/gw/8", 404), ("/gw", 404)] {
        let (status, body) = site.get_json(path).await;
        assert_eq!(status, expected, "{path}");
        assert_error(&body, "invalid_request_error", None);
    }
}
