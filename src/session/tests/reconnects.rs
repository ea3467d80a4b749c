//! Legs that move, and legs that break.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use super::scripted_gateway::Peer;
use super::site::{Setup, Site};

fn content(response: &serde_json::Value) -> &str {
    response["output"]["choices"][0]["message"]["content"].as_str().unwrap()
}

// Field case FC-W07.
#[tokio::test]
async fn a_leg_that_is_asked_to_move_dials_anew_and_finishes_on_the_old_socket() {
    let mut site = Site::with(Setup::default()).await;
    let (mut old, first_hello) = site.gateway.leg().await;
    old.send(&json!({"type": "admit"})).await;
    old.serve_stream("c1").await;
    let mut run = site.runs.next().await;
    run.say("o");
    assert_eq!(old.answer().await["delta"]["content"], "o");
    old.reconnect().await;
    let (mut new, second_hello) = site.gateway.leg().await;
    assert_eq!((new.path.as_str(), &second_hello), (old.path.as_str(), &first_hello));
    new.send(&json!({"type": "admit"})).await;
    // The same id on the new socket is another request.
    new.serve("c1").await;
    let mut other = site.runs.next().await;
    other.say("new");
    other.finish();
    assert_eq!(content(&new.response("c1").await), "new");
    assert!(!run.is_dropped());
    // The old socket still hears pings and cancels.
    old.ping().await;
    run.say("ld");
    run.finish();
    let (text, response) = old.streamed("c1").await;
    assert_eq!((text.as_str(), content(&response)), ("ld", "old"));
    old.closed().await;
    site.assert_serves(&mut new).await;
    assert!(site.gateway.is_quiet(), "one reconnect frame, one dial");
}

#[tokio::test]
async fn a_request_can_be_cancelled_on_a_socket_that_is_being_left() {
    let (mut site, mut old) = Site::with_leg().await;
    old.serve("c1").await;
    let run = site.runs.next().await;
    old.reconnect().await;
    old.reconnect().await;
    let mut new = site.gateway.live_leg().await;
    old.cancel("c1").await;
    run.dropped().await;
    old.closed().await;
    site.assert_serves(&mut new).await;
    assert!(site.gateway.is_quiet(), "a second reconnect frame on one socket is none");
}

#[tokio::test]
async fn a_socket_that_is_being_left_may_break() {
    let (mut site, mut old) = Site::with_leg().await;
    old.serve("c1").await;
    let run = site.runs.next().await;
    old.reconnect().await;
    let mut new = site.gateway.live_leg().await;
    drop(old);
    run.dropped().await;
    site.assert_serves(&mut new).await;
    assert!(site.gateway.is_quiet());
}

#[tokio::test]
async fn an_idle_leg_that_is_asked_to_move_dials_at_once() {
    const MOVES: u32 = 8;
    let (mut site, mut leg) = Site::with_leg().await;
    let started = Instant::now();
    for _ in 0..MOVES {
        leg.reconnect().await;
        leg.closed().await;
        leg = site.gateway.live_leg().await;
    }
    // The shortest wait of the back-off is 250 ms. Even if the machine is busy, 8 moves without one take less than half
    // of what they would take with one each.
    let taken = started.elapsed();
    assert!(taken < MOVES * Duration::from_millis(250) / 2, "{taken:?}");
    site.assert_serves(&mut leg).await;
    // One that is sent away each time it arrives waits in the end, or it would dial without pause.
    let started = Instant::now();
    leg.reconnect().await;
    leg.closed().await;
    let mut leg = site.gateway.live_leg().await;
    assert!(started.elapsed() >= Duration::from_millis(250));
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn a_leg_that_breaks_cancels_its_requests_and_is_dialled_again() {
    let polite = |leg: Peer| async {
        let mut leg = leg;
        leg.send_raw(Message::Close(None)).await;
        leg.closed().await;
    };
    let mut site = Site::with(Setup::default()).await;
    let (mut leg, hello) = site.gateway.leg().await;
    for round in 0..2 {
        leg.send(&json!({"type": "admit"})).await;
        leg.serve("c1").await;
        let mut one = site.runs.next().await;
        leg.serve_stream("c2").await;
        let two = site.runs.next().await;
        one.say("lost");
        if round == 0 {
            drop(leg);
        } else {
            polite(leg).await;
        }
        one.dropped().await;
        two.dropped().await;
        site.wait_for_inflight(0).await;
        let again;
        (leg, again) = site.gateway.leg().await;
        assert_eq!(again, hello);
    }
    leg.send(&json!({"type": "admit"})).await;
    site.assert_serves(&mut leg).await;
    assert!(site.is_running());
}

#[tokio::test]
async fn a_leg_that_breaks_leaves_the_others_alone() {
    let (mut site, [one, mut other]) = Site::with_two_legs().await;
    other.serve("c").await;
    let run = site.runs.next().await;
    let path = one.path.clone();
    drop(one);
    assert_eq!(site.gateway.live_leg().await.path, path);
    assert!(!run.is_dropped());
    run.finish();
    other.response("c").await;
}
