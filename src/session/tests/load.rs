//! What a worker tells of its load.

use serde_json::{Value, json};

use super::scripted_gateway::Peer;
use super::site::{Setup, Site};
use crate::backend::Load;

/// The next heartbeat that says this count.
async fn broadcast(leg: &mut Peer, inflight: usize) -> Value {
    leg.heartbeat_where(|beat| beat["inflight"] == json!(inflight)).await
}

fn keys(beat: &Value) -> Vec<&str> {
    beat.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn every_change_of_the_load_is_told_on_every_leg_in_short_form() {
    let (mut site, mut legs) = Site::with_two_legs().await;
    // Both admits have been read once both pings are answered.
    for leg in &mut legs {
        leg.ping().await;
    }
    legs[0].serve("c").await;
    let run = site.runs.next().await;
    for leg in &mut legs {
        let beat = broadcast(leg, 1).await;
        assert_eq!((keys(&beat), beat["idle_seconds"].as_f64()), (vec!["type", "inflight", "idle_seconds"], Some(0.0)));
    }
    legs[0].cancel("c").await;
    for leg in &mut legs {
        let beat = broadcast(leg, 0).await;
        assert_eq!(keys(&beat), ["type", "inflight", "idle_seconds"]);
        assert!(beat["idle_seconds"].as_f64().unwrap() >= 0.0);
    }
    run.dropped().await;
    // A request that runs to its end is told as well.
    legs[1].serve("c").await;
    let run = site.runs.next().await;
    broadcast(&mut legs[0], 1).await;
    run.finish();
    broadcast(&mut legs[0], 0).await;
    legs[1].response("c").await;
}

#[tokio::test]
async fn a_leg_that_is_not_admitted_hears_of_no_load() {
    let mut site = Site::with(Setup::legs(2)).await;
    let mut live = site.gateway.live_leg().await;
    let (mut waiting, _) = site.gateway.leg().await;
    live.serve("c").await;
    site.runs.next().await.finish();
    live.response("c").await;
    waiting.send(&json!({"type": "ping"})).await;
    let beat = waiting.heartbeat().await;
    assert!(beat.get("capacity").is_some(), "the first frame is the answer to the ping: {beat}");
}

#[tokio::test]
async fn the_answer_to_a_ping_has_capacity_and_cache_use() {
    let mut site = Site::with(Setup { max_inflight: Some(5), ..Setup::legs(2) }).await;
    let mut leg = site.gateway.live_leg().await;
    let beat = leg.ping().await;
    assert_eq!(beat["capacity"], json!({"max_inflight": 3, "max_inflight_total": 5}));
    assert_eq!(beat.get("kv"), None, "a backend that does not know its limit says nothing of it");
    site.backend.set_load(Load { running: 2, waiting: 1, pending_tokens: 7, kv_used: 250, kv_limit: 1000 });
    leg.serve("c").await;
    let run = site.runs.next().await;
    let beat = leg.ping().await;
    assert_eq!(
        beat["kv"],
        json!({"used": 250, "reqs": 2, "waiting": 1, "pending": 7, "ranks": 1, "limit": 1000, "frac": 0.25})
    );
    assert_eq!((&beat["inflight"], beat["idle_seconds"].as_f64()), (&json!(1), Some(0.0)));
    run.finish();
    leg.response("c").await;
}
