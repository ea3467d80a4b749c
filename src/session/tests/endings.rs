//! How a worker ends.

use std::time::Duration;

use serde_json::json;

use super::scripted_backend::ScriptedBackend;
use super::scripted_gateway::chat;
use super::site::{Setup, Site};
use crate::session::{SessionError, Worker};

#[tokio::test]
async fn a_shutdown_lets_requests_finish_and_refuses_new_ones() {
    let (mut site, [mut busy, mut idle]) = Site::with_two_legs().await;
    busy.serve_stream("c1").await;
    let mut run = site.runs.next().await;
    run.say("one ");
    site.stop();
    // A leg without work closes at once, which shows that the shutdown has begun.
    idle.closed().await;
    busy.serve("c2").await;
    let mut text = String::new();
    let refused = loop {
        let frame = busy.answer().await;
        match frame["delta"]["content"].as_str() {
            Some(piece) => text.push_str(piece),
            None => break frame,
        }
    };
    assert_eq!((&refused["corr_id"], &refused["error"]["status"]), (&json!("c2"), &json!(503)));
    run.say("two");
    run.finish();
    let (rest, response) = busy.streamed("c1").await;
    assert_eq!(text + &rest, "one two");
    assert_eq!(response["commitment"]["toploc"]["n_tokens"], 8);
    busy.closed().await;
    assert_eq!((site.worker.inflight(), site.backend.calls()), (0, 1));
    assert!(site.gateway.is_quiet(), "nobody dials in a shutdown");
    site.outcome().await.unwrap();
}

#[tokio::test]
async fn a_request_that_waits_for_a_slot_is_served_in_a_shutdown() {
    let mut site = Site::with(Setup { max_inflight: Some(1), ..Setup::legs(2) }).await;
    let [mut busy, mut idle] = [site.gateway.live_leg().await, site.gateway.live_leg().await];
    for corr_id in ["c1", "c2"] {
        busy.serve(corr_id).await;
        busy.ping().await;
    }
    site.stop();
    idle.closed().await;
    for corr_id in ["c1", "c2"] {
        site.runs.next().await.finish();
        busy.response(corr_id).await;
    }
    site.outcome().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_waits_no_longer_than_its_grace() {
    let mut site = Site::with(Setup { shutdown_grace: Duration::from_millis(50), ..Setup::default() }).await;
    let mut leg = site.gateway.live_leg().await;
    leg.serve("c").await;
    let run = site.runs.next().await;
    site.stop();
    leg.closed().await;
    run.dropped().await;
    site.wait_for_inflight(0).await;
    site.outcome().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_a_worker_that_nobody_answers() {
    let mut site = Site::with(Setup { rude: usize::MAX, ..Setup::legs(3) }).await;
    site.stop();
    site.outcome().await.unwrap();
}

#[tokio::test]
async fn a_dead_backend_ends_the_worker() {
    let (mut site, mut leg) = Site::with_leg().await;
    site.assert_serves(&mut leg).await;
    site.backend.die("the device is lost");
    leg.closed().await;
    let Err(error) = site.outcome().await else { panic!("the worker should end in an error") };
    assert_eq!(error, SessionError::Backend { kind: "scripted", reason: "the device is lost".into() });
    assert!(error.to_string().contains("scripted backend has stopped: the device is lost"));
}

#[tokio::test]
async fn an_address_that_cannot_be_dialled_is_said_before_anything_starts() {
    for address in ["http://gw.example/gw", "gw.example", "", "wss://"] {
        let setup = Setup::default();
        let service = setup.service(ScriptedBackend::new().0);
        let worker = Worker::new(setup.config(address), service);
        let error = worker.run(std::future::pending()).await.unwrap_err();
        assert!(matches!(error, SessionError::Address { .. }), "{address:?}: {error}");
        assert!(error.to_string().contains("wss://host/gw"));
    }
}

#[tokio::test]
async fn a_worker_outlives_its_gateway() {
    let (mut site, leg) = Site::with_leg().await;
    drop(leg);
    let mut leg = site.gateway.live_leg().await;
    leg.serve_request("c", chat(), false).await;
    site.runs.next().await.finish();
    leg.response("c").await;
    site.stop();
    leg.closed().await;
    site.outcome().await.unwrap();
}
