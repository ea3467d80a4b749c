//! Frames that are no frames, and far too many of them.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::scripted_gateway::chat;
use super::site::{Site, within};

// Field case FC-W03.
#[tokio::test]
async fn bad_frames_do_not_end_a_leg_nor_what_runs_on_it() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve("c1").await;
    let mut run = site.runs.next().await;
    for text in ["{\"type\":\"rebalance\",\"x\":1}", "{\"type\":", "[]"] {
        leg.send_raw(Message::text(text)).await;
    }
    leg.send_raw(Message::binary(json!({"type": "ping"}).to_string().into_bytes())).await;
    leg.ping().await;
    assert_eq!(site.count(|c| &c.bad_frames), 3);
    run.say("Done.");
    run.finish();
    let response = leg.response("c1").await;
    assert_eq!(response["output"]["choices"][0]["message"]["content"], "Done.");
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn frames_of_a_known_type_and_wrong_fields_are_counted_too() {
    let (mut site, mut leg) = Site::with_leg().await;
    let bad = [
        Message::text(""),
        Message::text("null"),
        Message::text("{\"type\":7}"),
        Message::text("{\"type\":\"serve\"}"),
        Message::text("{\"type\":\"serve\",\"corr_id\":7,\"request\":{}}"),
        Message::text("{\"type\":\"cancel\"}"),
        Message::text("{\"type\":\"deny\",\"reason\":{}}"),
        Message::text("[".repeat(100_000)),
        Message::binary(vec![0, 159, 146, 150]),
    ];
    let count = bad.len() as u64;
    for message in bad {
        leg.send_raw(message).await;
    }
    leg.ping().await;
    assert_eq!((site.count(|c| &c.bad_frames), site.backend.calls()), (count, 0));
    site.assert_serves(&mut leg).await;
}

/// A serve whose request cannot be read is answered by its id: silence would be held against the miner.
#[tokio::test]
async fn a_serve_that_cannot_be_read_is_the_buyers_fault() {
    let (mut site, mut leg) = Site::with_leg().await;
    for frame in [
        "{\"type\":\"serve\",\"corr_id\":\"c\",\"stream\":\"yes\"}",
        "{\"type\":\"serve\",\"corr_id\":\"c\",\"request\":{\"temperature\":1e999}}",
    ] {
        leg.send_raw(Message::text(frame)).await;
        let response = leg.response("c").await;
        assert_eq!(response["error"]["status"], 400, "{response}");
    }
    assert_eq!((site.count(|c| &c.bad_frames), site.backend.calls()), (2, 0));
    // Half an emoji, as clients cut them, is read as a replacement character.
    leg.send_raw(Message::text(
        "{\"type\":\"serve\",\"corr_id\":\"c\",\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\"}]}}",
    ))
    .await;
    site.runs.next().await.finish();
    assert!(leg.response("c").await["commitment"].is_object());
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn websocket_pings_are_answered_by_websocket_pongs() {
    let (_site, mut leg) = Site::with_leg().await;
    leg.send_raw(Message::Ping(b"still there?".to_vec().into())).await;
    let pong = within(async {
        loop {
            match leg.socket.next().await.unwrap().unwrap() {
                Message::Pong(bytes) => return bytes,
                Message::Text(_) => {}
                other => panic!("unexpected on a leg: {other:?}"),
            }
        }
    });
    assert_eq!(pong.await.as_ref(), b"still there?");
}

// Field case FC-W05.
#[tokio::test]
async fn frames_behind_a_flood_of_pings_are_served() {
    const PINGS: usize = 5000;
    let (mut site, leg) = Site::with_leg().await;
    let (mut to_miner, mut from_miner) = leg.socket.split();
    let text = |frame: Value| Message::text(frame.to_string());
    let serve = |corr_id: &str| text(json!({"type": "serve", "corr_id": corr_id, "request": chat()}));
    let script = async {
        for _ in 0..PINGS {
            to_miner.feed(text(json!({"type": "ping"}))).await.unwrap();
        }
        to_miner.send(serve("c1")).await.unwrap();
        let run = site.runs.next().await;
        to_miner.send(text(json!({"type": "cancel", "corr_id": "c1"}))).await.unwrap();
        run.dropped().await;
        to_miner.send(serve("c2")).await.unwrap();
        site.runs.next().await.finish();
        to_miner
    };
    let heartbeats = async {
        let mut whole = 0;
        while let Some(message) = from_miner.next().await {
            let Message::Text(text) = message.unwrap() else {
                continue;
            };
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["type"] != "heartbeat" {
                assert_eq!((&frame["type"], &frame["corr_id"]), (&json!("response"), &json!("c2")));
                break;
            }
            whole += usize::from(frame.get("capacity").is_some());
        }
        whole
    };
    let (_to_miner, whole) = within(async { tokio::join!(script, heartbeats) }).await;
    assert!((1..=PINGS).contains(&whole), "{whole} heartbeats");
    assert_eq!((site.count(|c| &c.cancelled), site.count(|c| &c.bad_frames)), (1, 0));
    site.wait_for_inflight(0).await;
}
