//! What a worker says of itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::scripted_backend::ScriptedBackend;
use super::site::{KEY, Setup, Site};
use crate::session::Worker;

#[tokio::test]
async fn every_leg_says_the_same_hello() {
    let mut setup = Setup::legs(3);
    setup.max_inflight = Some(7);
    let mut site = Site::with(setup.clone()).await;
    let mut paths = BTreeSet::new();
    let mut hellos = Vec::new();
    for _ in 0..3 {
        let (leg, hello) = site.gateway.leg().await;
        paths.insert(leg.path);
        hellos.push(hello);
    }
    assert_eq!(paths.iter().collect::<Vec<_>>(), ["/gw/0", "/gw/1", "/gw/2"]);
    assert!(hellos.iter().all(|hello| *hello == hellos[0]));
    let hello = &hellos[0];
    let worker_id = hello["worker_id"].as_str().unwrap();
    assert!(worker_id.len() == 32 && worker_id.bytes().all(|b| b.is_ascii_hexdigit()), "{worker_id}");
    assert_eq!(
        [&hello["miner_key"], &hello["model"], &hello["worker_name"], &hello["instance_id"], &hello["versions"]],
        [&json!(KEY), &json!("m"), &json!("rack7-g0"), &json!("rack7-g0"), &json!({})]
    );
    let service = setup.service(ScriptedBackend::new().0);
    assert_eq!((service.model_root.len(), &hello["model_root"]), (64, &json!(service.model_root)));
    assert_eq!(
        hello["capacity"],
        json!({"max_inflight": 3, "max_inflight_total": 7, "max_input_tokens": 2048, "max_output_tokens": 1024,
               "max_request_s": 1800.0}),
        "the share is rounded up, the total undivided"
    );
    assert_eq!(hello["hw"]["cpus"], json!(crate::session::hardware::describe().cpus));
}

#[tokio::test]
async fn capacity_follows_the_legs_where_the_operator_names_none() {
    let mut setup = Setup::legs(8);
    setup.max_inflight = None;
    let mut site = Site::with(setup).await;
    let (_leg, hello) = site.gateway.leg().await;
    let capacity = &hello["capacity"];
    assert_eq!((&capacity["max_inflight"], &capacity["max_inflight_total"]), (&json!(3), &json!(24)));
}

#[tokio::test]
async fn one_leg_dials_the_base_address() {
    let mut site = Site::with(Setup::default()).await;
    assert_eq!(site.gateway.dialled().await.path, "/gw");
}

#[tokio::test]
async fn a_gateway_that_hangs_up_on_a_dial_is_dialled_again() {
    let setup = Setup { rude: 1, ..Setup::default() };
    let mut site = Site::with(setup).await;
    let mut leg = site.gateway.live_leg().await;
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn the_key_shows_in_no_debug_text() {
    let setup = Setup::default();
    let config = setup.config("ws://127.0.0.1:1/gw");
    assert!(!format!("{config:?}").contains(KEY));
    let worker = Worker::new(config, setup.service(ScriptedBackend::new().0));
    let hello = Arc::clone(&worker.shared).hello(1);
    assert!(!format!("{hello:?}").contains(KEY));
}
