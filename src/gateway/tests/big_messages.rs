//! Whole conversations fit through a leg; what does not fit harms nobody.

use serde_json::{Value, json};
use tokio::join;

use super::site::{Site, assert_error, chat, within};
use crate::protocol::MAX_MESSAGE_BYTES;

#[tokio::test]
async fn messages_larger_than_a_usual_frame_limit_pass_both_ways() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let long = "x".repeat(17 * 1024 * 1024);
    let mut request = chat(false);
    request["messages"][0]["content"] = json!(long);
    let ((status, body), ()) = join!(site.ask_json(&request), async {
        let job = miner.job().await;
        let echo = job.request["messages"][0]["content"].as_str().unwrap().to_owned();
        miner.say(&job, &echo).await;
    });
    assert_eq!(status, 200);
    assert!(body["choices"][0]["message"]["content"] == json!(long));
}

#[tokio::test]
async fn a_request_too_long_for_a_frame_is_refused_and_the_leg_lives() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    // Fits as a body, but not with the frame around it.
    let head = "{\"model\":\"m\",\"messages\":\"";
    let filler = "x".repeat(MAX_MESSAGE_BYTES - head.len() - 2);
    let response = within(site.post(format!("{head}{filler}\"}}")).send()).await.unwrap();
    assert_eq!(response.status(), 413);
    let body: Value = response.json().await.unwrap();
    assert_error(&body, "invalid_request_error", None);
    let ((status, _), ()) = join!(site.ask_json(&chat(false)), async {
        let job = miner.job().await;
        miner.say(&job, "Done.").await;
    });
    assert_eq!(status, 200);
}
