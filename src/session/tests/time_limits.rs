//! A connection's clock, on paused time.

use std::time::Duration;

use serde_json::json;

use super::site::Setup;
use super::wire::{HOUR, ROOMY, Wire};
use crate::session::connection::{CLOSE_TIMEOUT, Closed};
use crate::session::{DEAD_AFTER, DRAIN_GRACE, HEARTBEAT, PING};

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_silent_is_given_up() {
    let wire = Wire::open(Setup::default(), ROOMY).await;
    // The peer's end exists and is never read: not even a pong comes.
    let (closed, after) = wire.closed().await;
    let Closed::Lost { admitted, reason } = closed else { panic!("the connection should be lost, not {closed:?}") };
    assert!(!admitted && reason.contains("nothing heard for 60 s"), "{reason}");
    assert!((DEAD_AFTER..=DEAD_AFTER + PING).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_falls_silent_takes_its_requests_along() {
    let mut wire = Wire::live(Setup::default()).await;
    wire.peer.serve("c").await;
    let run = wire.runs.next().await;
    let worker = wire.worker.clone();
    let (closed, after) = wire.closed().await;
    assert!(matches!(closed, Closed::Lost { admitted: true, .. }), "{closed:?}");
    assert!(after <= DEAD_AFTER + PING, "{after:?}");
    run.dropped().await;
    worker.wait_for_inflight(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_stops_reading_is_given_up() {
    // Too small for a hello: the first write never ends.
    let wire = Wire::open(Setup::default(), 64).await;
    let (closed, after) = wire.closed().await;
    let Closed::Lost { admitted, reason } = closed else { panic!("the connection should be lost, not {closed:?}") };
    assert!(!admitted && reason.contains("read nothing for 60 s"), "{reason}");
    assert!(after <= DEAD_AFTER + PING + CLOSE_TIMEOUT, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_only_answers_pings_is_alive_and_hears_a_heartbeat_each_30_s() {
    let mut wire = Wire::live(Setup::default()).await;
    for beats in 1..=20 {
        let beat = wire.peer.heartbeat().await;
        assert_eq!(beat["capacity"], json!({"max_inflight": 4, "max_inflight_total": 4}));
        assert_eq!(wire.started.elapsed().as_secs(), (HEARTBEAT * beats).as_secs());
    }
    assert!(!wire.connection.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_ends_in_a_timeout() {
    let setup = Setup { max_request: Duration::from_secs(45), ..Setup::default() };
    let mut wire = Wire::live(setup).await;
    wire.peer.serve("c").await;
    let mut run = wire.runs.next().await;
    run.say("so far");
    let response = wire.peer.response("c").await;
    assert_eq!(wire.started.elapsed().as_secs(), 45);
    assert_eq!(response["error"]["status"], 504);
    assert!(response["error"]["message"].as_str().unwrap().contains("longer than 45 s"));
    assert_eq!((&response["commitment"], &response["output"]), (&json!(null), &json!({})));
    run.dropped().await;
    wire.worker.wait_for_inflight(0).await;
    wire.peer.serve("next").await;
    wire.runs.next().await.finish();
    assert!(wire.peer.response("next").await["commitment"].is_object());
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_is_being_left_beats_on_and_is_cut_off_after_its_grace() {
    let mut wire = Wire::live(Setup { max_request: HOUR, ..Setup::default() }).await;
    wire.peer.serve("c").await;
    let run = wire.runs.next().await;
    wire.peer.reconnect().await;
    (&mut wire.asked_to_leave).await.unwrap();
    let mut whole = 0;
    while let Some(frame) = wire.peer.next().await {
        assert_eq!(frame["type"], "heartbeat", "{frame}");
        whole += u64::from(frame.get("capacity").is_some());
    }
    assert!(whole >= DRAIN_GRACE.as_secs() / HEARTBEAT.as_secs() - 1, "{whole} heartbeats");
    run.dropped().await;
    let (closed, after) = wire.closed().await;
    assert!(matches!(closed, Closed::Lost { admitted: true, .. }), "{closed:?}");
    assert_eq!(after.as_secs(), DRAIN_GRACE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_cuts_off_a_socket_that_is_being_left_after_its_own_grace() {
    let mut wire = Wire::live(Setup { shutdown_grace: Duration::from_secs(45), ..Setup::default() }).await;
    wire.peer.serve("c").await;
    let run = wire.runs.next().await;
    wire.peer.reconnect().await;
    (&mut wire.asked_to_leave).await.unwrap();
    wire.shutdown.send_replace(true);
    wire.peer.closed().await;
    run.dropped().await;
    let (closed, after) = wire.closed().await;
    assert!(matches!(closed, Closed::Shutdown), "{closed:?}");
    assert_eq!(after.as_secs(), 45);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_request_and_not_for_its_grace() {
    let mut wire = Wire::live(Setup::default()).await;
    wire.peer.serve("c").await;
    let run = wire.runs.next().await;
    wire.shutdown.send_replace(true);
    // Shows that the shutdown was noticed before the request ends.
    wire.peer.ping().await;
    run.finish();
    wire.peer.response("c").await;
    wire.peer.closed().await;
    let (closed, after) = wire.closed().await;
    assert!(matches!(closed, Closed::Shutdown), "{closed:?}");
    assert!(after < Duration::from_secs(1), "{after:?}");
}
