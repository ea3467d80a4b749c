//! Requests that live: aborts, departures, counts; and a serve that goes down and comes back.

use std::time::Duration;

use super::*;
use crate::fake_serve::{AbortMatch, CallEnd};

fn request(rid: &str) -> Value {
    with(ask(&[1, 2], 50), "/rid", rid.into())
}

/// How the calls of `/generate` ended, oldest first.
fn ends(asker: &Asker) -> Vec<Option<CallEnd>> {
    asker.serve.status().generates().map(|call| call.end).collect()
}

#[tokio::test]
async fn an_abort_ends_a_running_answer_with_what_there_is() {
    for stream in [false, true] {
        let asker = faulty(Dialect::V0_5_6, Fault::Stalls { after: 3 }).await;
        let abort = async {
            let status = asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 3)).await;
            assert_eq!((status.running, status.waiting), (1, 0));
            asker.abort("mine").await;
        };
        let (got, ()) = tokio::join!(asker.generate(with(request("mine"), "/stream", stream.into())), abort);
        let reply = if stream { got.events().0.pop().unwrap() } else { got.json() };
        let reason = json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
        assert_eq!((&reply["meta_info"]["finish_reason"], got.status), (&reason, 200));
        assert_eq!(reply["output_ids"].as_array().unwrap().len(), 3);
        let status = asker.serve.wait_until(|status| status.running == 0).await;
        let call = status.generates().next().unwrap();
        assert_eq!((call.end, &call.body["rid"], call.tokens), (Some(CallEnd::Aborted), &"mine".into(), 3));
        assert_eq!(status.calls_of("/abort_request").next().unwrap().body, json!({"rid": "mine"}).into());
    }
}

#[tokio::test]
async fn an_abort_hits_ids_that_begin_alike_or_not() {
    for (abort_match, survivors) in [(AbortMatch::Prefix, 0), (AbortMatch::Exact, 1)] {
        let asker = start(FakeServeConfig { abort_match, ..config(Dialect::V0_5_6) }).await;
        asker.serve.queue([Some(Fault::Stalls { after: 1 }), Some(Fault::Stalls { after: 1 })]);
        let abort = async {
            asker.serve.wait_until(|status| status.generates().filter(|call| call.tokens == 1).count() == 2).await;
            asker.abort("ab").await;
            asker.serve.wait_until(|status| status.running == survivors).await;
            asker.serve.release();
        };
        let (ab, abc) = (request("ab"), request("abc"));
        let (_, longer, ()) = tokio::join!(asker.generate(&ab), asker.generate(&abc), abort);
        let reason = &longer.json()["meta_info"]["finish_reason"]["type"];
        assert_eq!(reason, if survivors == 0 { "abort" } else { "length" });
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    for stream in [false, true] {
        let asker = faulty(Dialect::V0_5_6, Fault::Stalls { after: 1 }).await;
        let request = with(request("x"), "/stream", stream.into());
        tokio::select! {
            _ = asker.generate(&request) => panic!("it stalls"),
            _ = asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 1)) => {}
        }
        asker.serve.wait_until(|status| status.running == 0).await;
        assert_eq!(ends(&asker), [Some(CallEnd::Disconnected)]);
    }
}

#[tokio::test]
async fn a_departure_may_be_noticed_late() {
    let asker =
        start(FakeServeConfig { notices_disconnects_after: Duration::from_millis(100), ..config(Dialect::V0_5_6) })
            .await;
    asker.serve.inject(Fault::Stalls { after: 1 }).await;
    tokio::select! {
        _ = asker.generate(request("x")) => panic!("it stalls"),
        _ = asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 1)) => {}
    }
    let left = std::time::Instant::now();
    asker.serve.wait_until(|status| status.running == 0).await;
    assert!(left.elapsed() >= Duration::from_millis(90));
    assert_eq!(ends(&asker), [Some(CallEnd::Disconnected)]);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_loses_its_place_there() {
    let asker = start(FakeServeConfig { max_running: 1, ..config(Dialect::V0_5_6) }).await;
    asker.serve.inject(Fault::Stalls { after: 1 }).await;
    let (first, second) = (request("first"), request("second"));
    let script = async {
        asker.serve.wait_until(|status| status.running == 1).await;
        tokio::select! {
            _ = asker.generate(&second) => panic!("there is no place"),
            _ = asker.serve.wait_until(|status| status.waiting == 1) => {}
        }
        asker.serve.wait_until(|status| status.waiting == 0).await;
        asker.serve.release();
    };
    let (got, ()) = tokio::join!(asker.generate(&first), script);
    assert_eq!(got.status, 200);
    let status = asker.serve.wait_until(|status| status.running == 0).await;
    let ends: Vec<_> = status.generates().map(|call| call.end).collect();
    assert_eq!(ends, [Some(CallEnd::Finished), Some(CallEnd::Disconnected)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_share_the_places() {
    let asker = start(FakeServeConfig { max_running: 4, ..config(Dialect::V0_5_6) }).await;
    let asks = (0..64u32).map(|number| {
        let request = with(ask_stream(&[number], 10), "/rid", format!("{number:04}").into());
        let asker = &asker;
        async move {
            let (read, events) = asker.generate(&request).await.stream().unwrap();
            assert!(read == rows(&[number], 10) && events.last() == Some(&StreamEvent::Done));
        }
    });
    futures::future::join_all(asks).await;
    let status = asker.serve.wait_until(|status| status.running == 0).await;
    assert!(status.generates().all(|call| call.end == Some(CallEnd::Finished) && call.tokens == 10));
    assert_eq!(status.generates().count(), 64);
}

#[tokio::test]
async fn a_serve_goes_down_and_comes_back_on_the_same_port() {
    let asker = faulty(Dialect::V0_5_6, Fault::Stalls { after: 1 }).await;
    let down = async {
        asker.serve.wait_until(|status| status.running == 1).await;
        asker.serve.inject(Fault::Down).await;
    };
    let (lost, ()) = tokio::join!(asker.try_post("/generate", request("x")), down);
    assert!(lost.is_err(), "{lost:?}");
    let refused = asker.try_post("/generate", &request("y")).await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    asker.serve.wait_until(|status| status.running == 0).await;
    asker.serve.heal().await;
    assert_eq!(asker.generate(&request("z")).await.status, 200);
}

#[tokio::test]
async fn health_stalls_while_load_is_told() {
    let asker = faulty(Dialect::V0_5_6, Fault::HealthStalls).await;
    let healthy = asker.get("/health");
    let look = async {
        asker.serve.wait_until(|status| status.calls_of("/health").count() == 1).await;
        assert_eq!(asker.get("/get_load").await.status, 200);
        assert_eq!(asker.serve.status().calls_of("/health").next().unwrap().end, None);
        asker.serve.heal().await;
    };
    let (got, ()) = tokio::join!(healthy, look);
    assert_eq!(got.status, 200);
}

#[tokio::test]
async fn a_serve_that_starts_says_so_where_its_version_can() {
    for (dialect, status) in [(Dialect::V0_4_9, 200), (Dialect::V0_5_6, 503), (Dialect::V0_5_23, 503)] {
        let asker = faulty(dialect, Fault::Unhealthy).await;
        assert_eq!(asker.get("/health").await.status, status);
        if dialect == Dialect::V0_5_23 {
            assert_eq!(asker.get("/ready").await.status, 503);
        }
        asker.serve.heal().await;
        assert_eq!(asker.get("/health").await.status, 200);
    }
}

#[tokio::test]
async fn a_serve_that_is_shut_down_answers_no_more() {
    let asker = start(config(Dialect::V0_5_6)).await;
    assert_eq!(asker.get("/health").await.status, 200);
    asker.serve.shut_down().await;
    asker.serve.heal().await;
    assert!(asker.try_post("/generate", request("x")).await.unwrap_err().is_connect());
}
