//! Legs: who is let in, who takes work, what ends one and what does not.

use serde_json::{Value, json};
use tokio::join;
use tokio_tungstenite::tungstenite::Message;

use super::fake_miner::{FakeMiner, hello};
use super::site::{Site, chat, config, within};
use crate::gateway::{Gateway, GatewayError};

async fn denied(site: &Site, first: &Value) -> String {
    let mut miner = FakeMiner::dial(&site.leg(0)).await;
    miner.send(first).await;
    let frame = miner.next().await.unwrap();
    assert_eq!(frame["type"], "deny");
    assert_eq!(miner.next().await, None, "a denied leg is closed");
    frame["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_hello_that_will_not_do_is_denied_with_the_reason() {
    let site = Site::open().await;
    let mut frame = hello("m", "w", 1);
    frame["miner_key"] = json!("mk-wrong");
    assert_eq!(denied(&site, &frame).await, "unknown miner key");
    let mut frame = hello("m", "w", 1);
    frame["capacity"].as_object_mut().unwrap().remove("max_inflight_total");
    assert!(denied(&site, &frame).await.contains("max_inflight_total"));
    assert!(denied(&site, &hello("m", "w", 0)).await.contains("max_inflight is 0"));
    assert!(denied(&site, &json!({"type": "heartbeat", "inflight": 0, "idle_seconds": 0})).await.contains("hello"));
    assert!(site.handle.status().legs.is_empty());
}

#[tokio::test]
async fn one_leg_has_the_base_address() {
    let mut config = config();
    config.legs = 1;
    config.miner_key = None;
    let site = Site::with(config).await;
    assert_eq!(site.get_json("/meta").await.1, json!({"workers": 1}));
    let _by_base = FakeMiner::join(&site.ws, &hello("m", "a", 1)).await;
    let _by_index = FakeMiner::join(&site.leg(0), &hello("m", "b", 1)).await;
    assert_eq!(within(site.handle.wait_for_legs(2)).await.open_legs(), 2);
    assert!(tokio_tungstenite::connect_async(site.leg(1)).await.is_err(), "there is no leg 1");
}

#[tokio::test]
async fn requests_spread_over_legs() {
    let site = Site::open().await;
    let mut legs = [
        FakeMiner::join(&site.leg(0), &hello("m", "w", 2)).await,
        FakeMiner::join(&site.leg(1), &hello("m", "w", 2)).await,
    ];
    let request = chat(false);
    let answers = async { join!(site.ask(&request), site.ask(&request), site.ask(&request), site.ask(&request)) };
    let ((a, b, c, d), ()) = join!(answers, async {
        let status = within(site.handle.wait_until(|status| status.inflight() == 4)).await;
        assert_eq!([status.legs[0].inflight, status.legs[1].inflight], [2, 2]);
        for leg in &mut legs {
            for _ in 0..2 {
                let job = leg.job().await;
                leg.say(&job, "Done.").await;
            }
        }
    });
    assert!([a, b, c, d].iter().all(|response| response.status() == 200));
    assert_eq!(site.handle.status().inflight(), 0);
}

#[tokio::test]
async fn bad_frames_do_not_end_a_leg() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let bad = [
        Message::text("{"),
        Message::text("null"),
        Message::text("{\"type\":\"rebalance\"}"),
        Message::text("{\"type\":\"heartbeat\",\"inflight\":-1}"),
        Message::text("{\"type\":\"chunk\",\"corr_id\":7}"),
        Message::text(hello("m", "w", 1).to_string()),
        Message::binary(vec![0, 159, 146, 150]),
    ];
    let count = bad.len() as u64;
    for message in bad {
        miner.send_raw(message).await;
    }
    within(site.handle.wait_until(|status| status.bad_frames == count)).await;
    let ((status, _), ()) = join!(site.ask_json(&chat(false)), async {
        let job = miner.job().await;
        miner.say(&job, "Done.").await;
    });
    assert_eq!(status, 200);
}

#[tokio::test]
async fn heartbeats_are_taken_down() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    miner
        .send(&json!({"type": "heartbeat", "inflight": 3, "idle_seconds": 0.0,
            "kv": {"used": 5, "reqs": 1, "waiting": 0, "pending": 0, "ranks": 1, "limit": 50, "frac": 0.1}}))
        .await;
    let status = within(site.handle.wait_until(|status| status.legs[0].kv.is_some())).await;
    assert_eq!(status.legs[0].reported_inflight, Some(3));
    assert_eq!(status.legs[0].max_inflight, 1, "a heartbeat without capacity leaves it as it is");
}

#[tokio::test]
async fn a_redial_takes_over_and_the_old_leg_may_finish() {
    let site = Site::open().await;
    let mut old = site.miner(2).await;
    let request = chat(false);
    let (first, second) = join!(site.ask_json(&request), async {
        let first = old.job().await;
        let mut new = site.miner(2).await;
        let status = site.handle.status();
        assert_eq!((status.legs.len(), status.open_legs()), (2, 1));
        let (second, ()) = join!(site.ask_json(&request), async {
            let job = new.job().await;
            new.say(&job, "new").await;
        });
        old.say(&first, "old").await;
        assert_eq!(old.next().await, None, "its work done, the old leg is closed");
        within(site.handle.wait_until(|status| status.legs.len() == 1)).await;
        second
    });
    assert_eq!(first.1["choices"][0]["message"]["content"], "old");
    assert_eq!(second.1["choices"][0]["message"]["content"], "new");
}

#[tokio::test]
async fn a_taken_port_is_said_plainly() {
    let site = Site::open().await;
    let mut config = config();
    config.listen = site.http.strip_prefix("http://").unwrap().parse().unwrap();
    let error = Gateway::bind(config.clone()).await.unwrap_err();
    assert!(matches!(error, GatewayError::Listen { .. }));
    let text = error.to_string();
    assert!(text.contains(&config.listen.to_string()) && text.contains("choose another port"), "{text}");
    config.legs = 0;
    assert!(matches!(Gateway::bind(config).await.unwrap_err(), GatewayError::Legs { legs: 0 }));
}

#[tokio::test]
async fn a_stop_closes_legs_and_ends_requests() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let buyer = tokio::spawn(site.post(chat(false).to_string()).send());
    let _job = miner.job().await;
    let (stopped, ()) = join!(site.stop(), async {
        assert_eq!(miner.next().await, None);
        drop(miner);
        assert_eq!(within(buyer).await.unwrap().unwrap().status(), 502);
    });
    stopped.unwrap();
}
