//! Where calls meet, and where a serve says more, less or other than it was asked for.

use std::time::Duration;

use engy_miner::backend::{BackendError, GenerationRequest, SamplingParams, StopReason};
use engy_miner::fake_serve::{CallEnd, Dialect, Fault, ScriptedReply};
use serde_json::{Value, json};

use super::{Answer, answer, greedy, open, rows_of, seeded};

const HIDDEN: usize = 2;

/// A serve looks at its budget first: an id that ends answers, as the last of a call, comes back as `length`.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_ends_answers_ends_them_at_the_border_of_a_call_too() {
    let drawn = SamplingParams { temperature: 1.0, seed: Some(5), ..SamplingParams::default() };
    let (serve, model) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    for sampling in [SamplingParams::default(), drawn] {
        for streamed in [false, true] {
            let request = GenerationRequest { sampling: sampling.clone(), ..greedy(&[3, 4, 5], 20, streamed) };
            let whole = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
            let ids = answer(&whole, request.clone()).await.unwrap().ids;
            for (chunk, max_tokens) in [(6, 20), (4096, 6)] {
                let backend = open(&[&serve], HIDDEN, |options| options.chunk = chunk).await.unwrap();
                let calls = serve.status().generates().count();
                let request = GenerationRequest { stop_ids: vec![ids[5]], max_tokens, ..request.clone() };
                let got = answer(&backend, request).await.unwrap();
                assert_eq!((&got.ids[..], got.reason), (&ids[..6], StopReason::StopId(ids[5])), "{sampling:?}");
                assert!(got.rows == rows_of(&model, &[3, 4, 5], &ids[..6]));
                assert_eq!(serve.status().generates().count(), calls + 1);
            }
        }
    }
}

/// Without an end where `reason` is null.
fn event(ids: &[u32], states: &Value, reason: &Value) -> Value {
    let logprobs: Vec<Value> = ids.iter().map(|id| json!([0, id, null])).collect();
    json!({"meta_info": {"finish_reason": reason, "completion_tokens": ids.len(), "output_token_logprobs": logprobs,
        "hidden_states": states}})
}

async fn of_script(script: ScriptedReply, streamed: bool) -> Result<Answer, BackendError> {
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    serve.inject(Fault::Scripted(script)).await;
    let got = tokio::time::timeout(Duration::from_secs(20), answer(&backend, greedy(&[1, 2, 3], 16, streamed)));
    got.await.unwrap()
}

/// Rows are told apart by their place alone, so a stream in which that moves cannot be proven.
#[tokio::test]
async fn a_first_row_that_comes_or_goes_between_two_events_is_an_error() {
    let (with, without) = (json!([[[1, 2]], [3, 4], [5, 6]]), json!([[], [3, 4], [5, 6]]));
    for (before, after) in [(json!([[[1, 2]]]), &without), (json!([[], [3, 4]]), &with)] {
        let told = before.as_array().unwrap().len();
        let script = ScriptedReply::events(&[
            event(&[11, 12, 13][..told], &before, &Value::Null),
            event(&[11, 12, 13], after, &json!({"type": "stop"})),
        ]);
        let error = of_script(script, true).await.unwrap_err().to_string();
        assert!(error.contains("the first row"), "{error}");
    }
}

/// Neither rows without end nor more tokens than were asked for are waited out.
#[tokio::test]
async fn more_than_was_asked_for_is_an_error_at_once() {
    let rows = format!(r#"{{"meta_info": {{"hidden_states": [[[1, 1]]{}"#, ", [1, 1]".repeat(40));
    let script = ScriptedReply::new(200, "application/json").bytes(rows).pause(Duration::from_secs(3600));
    let error = of_script(script, false).await.unwrap_err();
    assert!(matches!(&error, BackendError::Broken(why) if why.contains("more rows")), "{error:?}");
    let ids: Vec<u32> = (11..31).collect();
    let script =
        ScriptedReply::stream().event(&event(&ids, &Value::Null, &Value::Null)).pause(Duration::from_secs(3600));
    let error = of_script(script, true).await.unwrap_err().to_string();
    assert!(error.contains("20 tokens where 16 were asked for"), "{error}");
}

/// A stream has begun before a serve knows that its queue is full, or that it dies: nobody has seen anything of it.
#[tokio::test]
async fn a_stream_that_is_lost_before_its_first_token_is_asked_for_once_more() {
    let (a, model) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let (b, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&a, &b], HIDDEN, |options| options.chunk = 4).await.unwrap();
    let full = json!({"type": "abort", "message": "The request queue is full.", "status_code": 503});
    let lost = || ScriptedReply::stream().reset();
    for script in [ScriptedReply::events(&[event(&[], &Value::Null, &full)]), lost()] {
        let calls = b.status().generates().count();
        a.inject(Fault::Scripted(script)).await;
        let got = answer(&backend, greedy(&[1, 2, 3], 3, true)).await.unwrap();
        assert_eq!(got.ids, model.greedy(&[1, 2, 3], 3));
        assert_eq!(b.status().generates().count(), calls + 1);
    }
    // In the midst of an answer too.
    a.queue([None, Some(Fault::Scripted(lost()))]);
    let got = answer(&backend, greedy(&[1, 2, 3], 10, true)).await.unwrap();
    assert_eq!(got.ids, model.greedy(&[1, 2, 3], 10));
    assert!(got.rows == rows_of(&model, &[1, 2, 3], &got.ids));
    // Not twice, and not behind a token.
    a.inject(Fault::Scripted(lost())).await;
    b.inject(Fault::Scripted(lost())).await;
    assert!(answer(&backend, greedy(&[1, 2, 3], 3, true)).await.is_err());
    let calls = b.status().generates().count();
    a.inject(Fault::Scripted(ScriptedReply::stream().event(&event(&[11], &Value::Null, &Value::Null)).reset())).await;
    let error = answer(&backend, greedy(&[1, 2, 3], 3, true)).await.unwrap_err().to_string();
    assert!(error.contains("after 1 tokens"), "{error}");
    assert_eq!(b.status().generates().count(), calls);
}

/// An answer that ends without a reason may go on at the serve.
#[tokio::test]
async fn an_answer_without_an_end_is_aborted() {
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    let script = ScriptedReply::events(&[event(&[11], &json!([[[1, 2]]]), &Value::Null)]);
    serve.inject(Fault::Scripted(script)).await;
    let error = answer(&backend, greedy(&[1, 2, 3], 3, true)).await.unwrap_err().to_string();
    assert!(error.contains("without a reason"), "{error}");
    let status = serve.wait_until(|status| status.calls_of("/abort_request").next().is_some()).await;
    assert_eq!(
        status.calls_of("/abort_request").next().unwrap().body["rid"],
        status.generates().last().unwrap().body["rid"]
    );
    assert!(!matches!(status.generates().last().unwrap().end, Some(CallEnd::Aborted)), "it had ended there");
}
