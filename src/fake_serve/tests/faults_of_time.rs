//! Slowness, silence, and streams with holes.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::fake_serve::{CallEnd, Pace, RandomFaults, ScriptedReply, ServeStatus};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn first_bytes_and_events_take_their_time() {
    let asker = faulty(Dialect::V0_5_6, Fault::SlowFirstByte(2 * MINUTE)).await;
    let begun = Instant::now();
    assert_eq!(asker.generate(&ask_stream(&[1], 3)).await.events().0.len(), 3);
    assert!((2 * MINUTE..3 * MINUTE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    asker.serve.inject(Fault::SlowEvents(MINUTE)).await;
    let begun = Instant::now();
    assert_eq!(asker.generate(&ask(&[1], 3)).await.status, 200);
    assert!((3 * MINUTE..4 * MINUTE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    asker.serve.inject(Fault::Scripted(ScriptedReply::stream().pause(MINUTE).event(&json!({})))).await;
    let begun = Instant::now();
    assert_eq!(asker.generate(&ask(&[1], 3)).await.events().0.len(), 1);
    assert!(begun.elapsed() >= MINUTE);
}

#[tokio::test(start_paused = true)]
async fn prompts_and_tokens_have_a_pace() {
    let pace = Pace { prompt_token: Duration::from_secs(1), token: Duration::from_secs(10) };
    let asker = start(FakeServeConfig { pace, ..config(Dialect::V0_5_6) }).await;
    let begun = Instant::now();
    asker.generate(&ask(&[1, 2, 3, 4], 5)).await;
    let expected = Duration::from_secs(4 + 40);
    assert!((expected..expected + MINUTE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_wedged_engine_is_deaf_to_aborts() {
    let asker = faulty(Dialect::V0_5_6, Fault::Wedged { after: 2 }).await;
    let request = ask_stream(&[1], 9);
    let script = async {
        asker.serve.wait_until(|status| status.generates().any(|call| call.tokens == 2)).await;
        asker.abort("0123456789abcdef").await;
        // Its HTTP side is well.
        assert_eq!(asker.get("/health").await.status, 200);
        assert_eq!(asker.get("/get_load").await.json()[0]["num_reqs"], 1);
        assert_eq!(asker.serve.status().running, 1);
    };
    tokio::select! {
        _ = asker.generate(&request) => panic!("it is wedged"),
        () = script => {}
    }
    let status = asker.serve.wait_until(|status| status.running == 0).await;
    assert_eq!(status.generates().next().unwrap().end, Some(CallEnd::Disconnected));
}

#[tokio::test]
async fn an_error_comes_in_the_middle_of_a_stream() {
    for (dialect, code) in [(Dialect::V0_5_6, Value::Null), (Dialect::V0_5_23, 400.into())] {
        let asker = faulty(dialect, Fault::ErrorEvent { after: 2 }).await;
        let got = asker.generate(&ask_stream(&[1], 5)).await;
        let (events, done) = got.events();
        assert!(got.status == 200 && done && events.len() == 3, "{}", events.len());
        assert_eq!(events[2]["error"]["code"], code);
        let (read, events) = got.stream().unwrap();
        assert!(read == rows(&[1], 2));
        assert!(matches!(&events[2], StreamEvent::Reply(reply) if reply.error.is_some()));
        asker.serve.inject(Fault::ErrorEvent { after: 0 }).await;
        assert_eq!(asker.generate(&ask(&[1], 5)).await.status, 400);
    }
}

#[tokio::test]
async fn a_serve_gives_up_in_the_middle_of_a_stream() {
    let asker = faulty(Dialect::V0_5_6, Fault::GivesUp { after: 2 }).await;
    let (events, done) = asker.generate(&ask_stream(&[1], 5)).await.events();
    let reasons: Vec<_> = events.iter().map(|event| event["meta_info"]["finish_reason"]["type"].clone()).collect();
    assert!(done && reasons == [Value::Null, Value::Null, "abort".into()], "{reasons:?}");
}

#[tokio::test]
async fn skipped_events_leave_no_gap_in_what_is_told() {
    for (dialect, switch) in [(Dialect::V0_5_2, false), (Dialect::V0_5_6, false), (Dialect::V0_5_15, true)] {
        let asker = start(FakeServeConfig { incremental_output: switch, ..config(dialect) }).await;
        asker.serve.inject(Fault::SkippedEvents { of: 3 }).await;
        let got = asker.generate(&ask_stream(&[1], 8)).await;
        let (events, done) = got.events();
        let counts: Vec<_> = events.iter().map(|event| event["meta_info"]["completion_tokens"].clone()).collect();
        assert!(done && counts == [3, 6, 8], "{counts:?}");
        let ids: Vec<u64> = events
            .iter()
            .flat_map(|event| event["output_ids"].as_array().unwrap())
            .map(|id| id.as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), if dialect == Dialect::V0_5_6 { 3 + 6 + 8 } else { 8 });
        assert!(got.stream().unwrap().0 == rows(&[1], 8));
    }
}

#[tokio::test]
async fn some_events_have_no_new_text() {
    for (dialect, switch) in [(Dialect::V0_5_6, false), (Dialect::V0_5_10, true)] {
        let asker = start(FakeServeConfig { incremental_output: switch, ..config(dialect) }).await;
        asker.serve.inject(Fault::EmptyDeltas).await;
        let (events, _) = asker.generate(&ask_stream(&[1], 6)).await.events();
        let texts: Vec<&str> = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
        assert_eq!(texts.len(), 6);
        let whole: String = model().greedy(&[1], 6).iter().map(|id| format!(" w{id}")).collect();
        if switch {
            assert!(texts[1].is_empty() && texts.concat() == whole, "{texts:?}");
        } else {
            assert!(texts[1] == texts[0] && texts[5] == whole, "{texts:?}");
        }
    }
}

#[tokio::test]
async fn random_faults_befall_a_share_of_calls() {
    let asker = start(config(Dialect::V0_5_6)).await;
    asker.serve.fail_at_random(Some(RandomFaults::new(1, 0.5, vec![Fault::Busy])));
    let mut busy = 0;
    for _ in 0..60 {
        busy += u32::from(asker.generate(&ask(&[1], 1)).await.status == 503);
    }
    assert!((15..45).contains(&busy), "{busy}");
    asker.serve.heal().await;
    assert_eq!(asker.generate(&ask(&[1], 1)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_all_kinds_leave_nothing_behind() {
    for dialect in Dialect::ALL {
        let asker = start(config(dialect)).await;
        asker.serve.fail_at_random(Some(RandomFaults::of_all_kinds(7, 0.9)));
        let asks = (0..100u32).map(|number| {
            let request = with(ask_stream(&[1, number], 6), "/rid", format!("{number:04}").into());
            asker.try_post("/generate", with(request, "/stream", number.is_multiple_of(2).into()))
        });
        futures::future::join_all(asks).await;
        let ended = |status: &ServeStatus| status.generates().all(|call| call.end.is_some());
        let status = asker.serve.wait_until(ended).await;
        assert_eq!((status.running, status.waiting, status.generates().count()), (0, 0, 100), "{dialect}");
        asker.serve.heal().await;
        assert!(asker.generate(&ask(&[1], 3)).await.reply().unwrap().0 == rows(&[1], 3));
    }
}
