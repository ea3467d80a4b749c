//! Cancels: at once, silent, and without a mark on what follows.

use serde_json::json;

use super::scripted_gateway::chat;
use super::site::{Setup, Site};
use super::wire::Wire;

// Field case FC-W01.
#[tokio::test]
async fn a_request_that_waits_for_a_slot_is_cancelled_before_it_starts() {
    let mut site = Site::with(Setup { max_inflight: Some(1), ..Setup::default() }).await;
    let mut leg = site.gateway.live_leg().await;
    leg.serve("c1").await;
    let mut first = site.runs.next().await;
    leg.serve("c2").await;
    leg.ping().await;
    assert_eq!((site.worker.inflight(), site.backend.calls()), (1, 1));
    leg.cancel("c2").await;
    leg.ping().await;
    first.say("one");
    first.finish();
    assert_eq!(leg.response("c1").await["error"], json!(null));
    site.wait_for_inflight(0).await;
    site.assert_serves(&mut leg).await;
    assert_eq!(site.backend.calls(), 2, "c1 and the last, never c2");
    assert_eq!((site.count(|c| &c.cancelled), site.count(|c| &c.answered)), (1, 2));
}

#[tokio::test]
async fn a_slot_goes_to_the_request_that_has_waited_longest() {
    let mut site = Site::with(Setup { max_inflight: Some(1), ..Setup::default() }).await;
    let mut leg = site.gateway.live_leg().await;
    leg.serve("c1").await;
    let first = site.runs.next().await;
    for corr_id in ["c2", "c3"] {
        leg.serve(corr_id).await;
        leg.ping().await;
    }
    // The slot of a cancelled request is the next one's at once.
    leg.cancel("c1").await;
    first.dropped().await;
    for corr_id in ["c2", "c3"] {
        site.runs.next().await.finish();
        leg.response(corr_id).await;
    }
    site.wait_for_inflight(0).await;
}

#[tokio::test]
async fn a_cancel_drops_the_generation_and_frees_the_slot() {
    let (mut site, mut leg) = Site::with_leg().await;
    for stream in [false, true] {
        leg.serve_request("c", chat(), stream).await;
        let mut run = site.runs.next().await;
        run.say("never");
        if stream {
            assert_eq!(leg.answer().await["type"], "chunk");
        }
        site.wait_for_inflight(1).await;
        leg.cancel("c").await;
        run.dropped().await;
        site.wait_for_inflight(0).await;
        run.say("late");
        run.finish();
        if !stream {
            site.assert_serves(&mut leg).await;
        }
    }
    // Of the streamed one, chunks may have been on their way before the cancel was read; nothing comes after this.
    leg.send(&json!({"type": "ping"})).await;
    loop {
        let frame = leg.next().await.unwrap();
        assert_ne!(frame["type"], "response", "{frame}");
        if frame.get("capacity").is_some() {
            break;
        }
    }
    site.assert_serves(&mut leg).await;
    assert_eq!(site.count(|c| &c.cancelled), 2);
}

#[tokio::test]
async fn late_frames_of_a_cancelled_request_do_not_pass_for_those_of_the_next_with_its_id() {
    // Over a pipe, so that the cancel reaches the connection while the first request's frames still wait in it.
    let mut wire = Wire::live(Setup::default()).await;
    for _ in 0..30 {
        wire.peer.serve_stream("c").await;
        let mut old = wire.runs.next().await;
        old.say(&"x".repeat(50));
        old.finish();
        wire.peer.cancel("c").await;
        wire.peer.serve_stream("c").await;
        let mut new = wire.runs.next().await;
        new.say("yyy");
        new.finish();
        // Some of the first's frames may rightly have left before the cancel was read, but none after the second began.
        let mut text = String::new();
        loop {
            let frame = wire.peer.answer().await;
            let message = &frame["output"]["choices"][0]["message"];
            if message["content"] == "yyy" {
                break;
            }
            match frame["delta"]["content"].as_str() {
                Some("y") => text.push('y'),
                _ => assert_eq!(text, "", "after the second began: {frame}"),
            }
        }
        assert_eq!(text, "yyy");
        wire.worker.wait_for_inflight(0).await;
    }
}

#[tokio::test]
async fn a_running_id_that_is_used_again_gets_only_its_own_frames() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_stream("c").await;
    let mut old = site.runs.next().await;
    old.say("x");
    assert_eq!(leg.answer().await["delta"]["content"], "x");
    leg.cancel("c").await;
    leg.serve_stream("c").await;
    let mut new = site.runs.next().await;
    old.say("x");
    old.finish();
    new.say("yyy");
    new.finish();
    assert_eq!(leg.streamed("c").await.0, "yyy");
    site.assert_serves(&mut leg).await;
    assert_eq!(site.worker.inflight(), 0);
}

#[tokio::test]
async fn a_cancel_of_nothing_is_nothing() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.cancel("never").await;
    site.assert_serves(&mut leg).await;
    leg.cancel("next").await;
    site.assert_serves(&mut leg).await;
    assert_eq!(site.count(|c| &c.cancelled), 0);
}

#[tokio::test]
async fn ids_belong_to_their_leg() {
    let (mut site, mut legs) = Site::with_two_legs().await;
    let [here, there] = &mut legs;
    here.serve("c").await;
    let cancelled = site.runs.next().await;
    there.serve("c").await;
    let kept = site.runs.next().await;
    here.cancel("c").await;
    cancelled.dropped().await;
    assert!(!kept.is_dropped());
    kept.finish();
    there.response("c").await;
    site.assert_serves(here).await;
}

#[tokio::test]
async fn a_second_serve_of_an_id_in_use_is_ignored_and_counted() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve("c").await;
    let mut run = site.runs.next().await;
    leg.serve("c").await;
    leg.ping().await;
    assert_eq!((site.count(|c| &c.duplicate_ids), site.backend.calls()), (1, 1));
    run.say("first");
    run.finish();
    let response = leg.response("c").await;
    assert_eq!(response["output"]["choices"][0]["message"]["content"], "first");
    site.assert_serves(&mut leg).await;
}
