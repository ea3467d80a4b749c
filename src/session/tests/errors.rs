//! Requests that end in an error, and whose fault it is said to be.

use half::bf16;
use serde_json::{Value, json};

use super::scripted_backend::{END, HIDDEN, Run, tokens};
use super::scripted_gateway::{Peer, chat};
use super::site::Site;
use crate::backend::{BackendError, FinRows, GenerationEvent, StopReason};

/// Waits for a response without answer or proof; gives its error.
async fn failure(leg: &mut Peer, corr_id: &str) -> (u16, String, String) {
    let response = leg.response(corr_id).await;
    assert_eq!((&response["commitment"], &response["output"]), (&Value::Null, &json!({})));
    let error = &response["error"];
    let text = |key: &str| error[key].as_str().unwrap().to_owned();
    (u16::try_from(error["status"].as_u64().unwrap()).unwrap(), text("type"), text("message"))
}

// Field case FC-K03 first.
#[tokio::test]
async fn wrong_requests_are_the_buyers_fault_and_never_reach_the_backend() {
    let (mut site, mut leg) = Site::with_leg().await;
    let user = json!({"role": "user", "content": "hi"});
    let wrong = [
        (json!({"messages": [], "max_tokens": 8}), "messages is empty"),
        (json!({"prompt": "hi"}), "messages is missing"),
        (json!({"messages": [user], "temperature": "hot"}), "temperature"),
        (json!({"messages": [user], "max_tokens": 0}), "max_tokens"),
        (json!({"messages": [{"role": "user", "content": "a ".repeat(5000)}]}), "takes at most 2048"),
        (Value::Null, "messages is missing"),
    ];
    let count = wrong.len() as u64;
    for (at, (request, says)) in wrong.into_iter().enumerate() {
        let corr_id = format!("c-{at}");
        leg.serve_request(&corr_id, request, at % 2 == 1).await;
        let (status, kind, message) = failure(&mut leg, &corr_id).await;
        assert_eq!((status, kind.as_str()), (400, "invalid_request_error"));
        assert!(message.contains(says), "{message}");
    }
    leg.send(&json!({"type": "serve", "corr_id": "bare"})).await;
    assert_eq!(failure(&mut leg, "bare").await.0, 400);
    assert_eq!((site.backend.calls(), site.count(|c| &c.failed)), (0, count + 1));
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn a_wrong_request_keeps_its_name() {
    let (_site, mut leg) = Site::with_leg().await;
    leg.serve_request("c", json!({"engy_request_id": "r-7", "messages": []}), false).await;
    assert_eq!(leg.response("c").await["request_id"], "r-7");
}

#[tokio::test]
async fn a_wrong_request_is_answered_although_every_slot_is_taken() {
    let (mut site, mut leg) = Site::with_leg().await;
    let mut runs = Vec::new();
    for corr_id in ["c1", "c2", "c3", "c4"] {
        leg.serve(corr_id).await;
        runs.push(site.runs.next().await);
    }
    leg.serve_request("c5", json!({"messages": []}), false).await;
    assert_eq!(failure(&mut leg, "c5").await.0, 400);
    assert_eq!(runs.iter().filter(|run| !run.is_dropped()).count(), 4);
}

#[tokio::test]
async fn errors_of_the_backend_keep_their_fault() {
    let (mut site, mut leg) = Site::with_leg().await;
    let why = || "why".to_owned();
    for (error, want) in [
        (BackendError::Client(why()), (400, "invalid_request_error")),
        (BackendError::Busy(why()), (503, "service_unavailable")),
        (BackendError::Unavailable(why()), (503, "service_unavailable")),
        (BackendError::Broken(why()), (500, "server_error")),
    ] {
        leg.serve("c").await;
        site.runs.next().await.tell(Err(error));
        let (status, kind, message) = failure(&mut leg, "c").await;
        assert_eq!((status, kind.as_str()), want);
        assert!(message.contains("why"), "{message}");
        site.wait_for_inflight(0).await;
    }
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn long_messages_are_cut() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve("c").await;
    site.runs.next().await.tell(Err(BackendError::Client("é".repeat(600))));
    assert_eq!(failure(&mut leg, "c").await.2, "é".repeat(500));
}

/// Something goes wrong in a generation: gives what the message must say.
type Fault = fn(Run) -> &'static str;

#[tokio::test]
async fn an_answer_that_cannot_be_proven_is_none() {
    let faults: [Fault; 7] = [
        |mut run| {
            let mut rows = run.random_rows(2);
            rows[HIDDEN + 3] = bf16::NAN;
            run.tell(tokens(&[65, 66], rows));
            run.finish();
            "cannot be proven"
        },
        |mut run| {
            run.say("fine so far");
            let mut rows = run.random_rows(1);
            rows[0] = bf16::INFINITY;
            run.tell(tokens(&[END], rows));
            run.end(StopReason::StopId(END));
            "cannot be proven"
        },
        |mut run| {
            let rows = run.random_rows(1);
            run.tell(tokens(&[65, 66], rows));
            // And one more with its row.
            run.finish();
            "3 tokens with 2 rows"
        },
        |mut run| {
            let rows = run.random_rows(1);
            run.tell(tokens(&[], rows));
            run.finish();
            "0 tokens with 1 rows"
        },
        |run| {
            let fin = FinRows::new(8, vec![bf16::ONE; 8]).unwrap();
            run.tell(Ok(GenerationEvent::Tokens { ids: vec![65], fin, logprobs: vec![] }));
            run.finish();
            "cannot be proven"
        },
        |mut run| {
            run.say("half an ans");
            drop(run);
            "without a reason"
        },
        |mut run| {
            run.say("half an ans");
            run.tell(Err(BackendError::Broken("the device is lost".into())));
            "the device is lost"
        },
    ];
    let (mut site, mut leg) = Site::with_leg().await;
    for fault in faults {
        leg.serve("c").await;
        let says = fault(site.runs.next().await);
        let (status, kind, message) = failure(&mut leg, "c").await;
        assert_eq!((status, kind.as_str()), (500, "server_error"));
        assert!(message.contains(says), "{message}");
        site.wait_for_inflight(0).await;
    }
    site.assert_serves(&mut leg).await;
    assert_eq!((site.count(|c| &c.answered), site.count(|c| &c.failed)), (1, 7));
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_in_an_error() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_stream("c").await;
    let mut run = site.runs.next().await;
    run.say("half");
    run.tell(Err(BackendError::Broken("why".into())));
    let (text, response) = leg.streamed("c").await;
    assert_eq!((text.as_str(), &response["commitment"]), ("half", &Value::Null));
    assert_eq!(response["error"]["status"], 500);
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn an_answer_is_no_longer_than_asked_for_and_allowed() {
    let (mut site, mut leg) = Site::with_leg().await;
    for (max_tokens, want) in [(json!(7), 7), (json!(100_000), 1024), (Value::Null, 32)] {
        let mut request = chat();
        request["max_tokens"] = max_tokens;
        leg.serve_request("c", request, false).await;
        let run = site.runs.next().await;
        assert_eq!(run.request.max_tokens, want);
        run.finish();
        leg.response("c").await;
    }
}
