//! Buyers who leave: the miner is told at once, and the slot is free again.

use serde_json::json;

use super::fake_miner::{FakeMiner, Job};
use super::site::{Site, chat, within};

/// The miner hears the cancel; what it still sends is counted; the slot serves the next buyer.
async fn assert_let_go(site: &Site, miner: &mut FakeMiner, job: &Job) {
    assert_eq!(miner.next().await.unwrap(), json!({"type": "cancel", "corr_id": job.corr_id}));
    within(site.handle.wait_until(|status| status.inflight() == 0)).await;
    miner.chunk(job, &json!({"content": "late"})).await;
    miner.say(job, "late").await;
    within(site.handle.wait_until(|status| status.unknown_corr_ids == 2)).await;
    assert_eq!(site.get_json(&format!("/v1/proofs/{}", job.request_id())).await.0, 404);
    let ((status, _), ()) = tokio::join!(site.ask_json(&chat(false)), async {
        let next = miner.job().await;
        assert_ne!(next.corr_id, job.corr_id);
        miner.say(&next, "Done.").await;
    });
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_buyer_who_hangs_up_on_a_plain_request() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let buyer = tokio::spawn(site.post(chat(false).to_string()).send());
    let job = miner.job().await;
    buyer.abort();
    assert_let_go(&site, &mut miner, &job).await;
}

#[tokio::test]
async fn a_buyer_who_hangs_up_before_the_first_chunk() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let buyer = tokio::spawn(site.post(chat(true).to_string()).send());
    let job = miner.job().await;
    buyer.abort();
    assert_let_go(&site, &mut miner, &job).await;
}

#[tokio::test]
async fn a_buyer_who_hangs_up_in_mid_stream() {
    let site = Site::open().await;
    let mut miner = site.miner(1).await;
    let request = chat(true);
    let (mut response, job) = tokio::join!(site.ask(&request), async {
        let job = miner.job().await;
        miner.chunk(&job, &json!({"content": "Do"})).await;
        job
    });
    assert!(within(response.chunk()).await.unwrap().is_some());
    drop(response);
    assert_let_go(&site, &mut miner, &job).await;
}
