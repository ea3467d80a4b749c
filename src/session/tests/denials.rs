//! Gateways that say no.

use super::site::{Setup, Site, within};
use crate::session::SessionError;
use serde_json::json;

#[tokio::test]
async fn a_worker_that_is_refused_on_every_leg_ends_with_the_reason() {
    let mut site = Site::with(Setup::legs(2)).await;
    let (mut one, _) = site.gateway.leg().await;
    let (mut other, _) = site.gateway.leg().await;
    one.deny("unknown miner key").await;
    one.closed().await;
    // One leg alone proves nothing, however often it is refused: it is dialled again.
    let (mut again, _) = site.gateway.leg().await;
    again.deny("unknown miner key").await;
    again.closed().await;
    let (still, _) = site.gateway.leg().await;
    assert_eq!([&again.path, &still.path], [&one.path; 2]);
    assert!(site.is_running());
    other.deny("unknown miner key").await;
    let gateway = site.gateway.address.clone();
    let Err(error) = site.outcome().await else { panic!("the worker should end in an error") };
    assert!(error.to_string().contains("unknown miner key"), "{error}");
    let reason = "unknown miner key".into();
    assert_eq!(error, SessionError::Denied { gateway, reason });
}

#[tokio::test]
async fn a_denial_without_a_reason_says_so() {
    let mut site = Site::with(Setup::default()).await;
    let (mut leg, _) = site.gateway.leg().await;
    leg.send(&json!({"type": "deny"})).await;
    let Err(SessionError::Denied { reason, .. }) = site.outcome().await else { panic!("the worker should be refused") };
    assert_eq!(reason, "no reason given");
}

#[tokio::test]
async fn a_worker_that_was_ever_admitted_keeps_trying() {
    let (mut site, mut leg) = Site::with_leg().await;
    site.assert_serves(&mut leg).await;
    leg.serve("c").await;
    let run = site.runs.next().await;
    leg.deny("draining").await;
    leg.closed().await;
    run.dropped().await;
    let (mut leg, _) = site.gateway.leg().await;
    leg.deny("still draining").await;
    leg.closed().await;
    let mut leg = site.gateway.live_leg().await;
    site.assert_serves(&mut leg).await;
    site.stop();
    within(site.outcome()).await.unwrap();
}

#[tokio::test]
async fn one_admitted_leg_keeps_the_worker_however_often_the_others_are_refused() {
    let mut site = Site::with(Setup::legs(2)).await;
    let mut live = site.gateway.live_leg().await;
    live.ping().await;
    for _ in 0..3 {
        let (mut refused, _) = site.gateway.leg().await;
        assert_ne!(refused.path, live.path);
        refused.deny("no room").await;
        refused.closed().await;
    }
    site.assert_serves(&mut live).await;
}
