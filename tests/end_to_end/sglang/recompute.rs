//! The rows of a given text, by serves that return them and by those that do not.

use std::sync::Arc;
use std::time::Duration;

use engy_miner::backend::sglang::SglangBackend;
use engy_miner::backend::{Backend, BackendError};
use engy_miner::fake_serve::{Dialect, FakeServeConfig, Fault, Layout, PromptBlock, ScriptedReply, Seeded};
use half::bf16;
use serde_json::json;

use super::{open, seeded};

const HIDDEN: usize = 16;

/// A text that shares no prefix with the probe's question.
fn text(tokens: u32) -> Vec<u32> {
    (10..10 + tokens).collect()
}

async fn rows(backend: &SglangBackend, tokens: &[u32], from: usize) -> Result<Vec<bf16>, BackendError> {
    let rows = backend.hidden_states(tokens.to_vec(), from).await?;
    assert_eq!((rows.len(), rows.hidden()), (tokens.len() - from, HIDDEN));
    Ok(rows.iter().flatten().copied().collect())
}

/// The made-up model's own.
fn plain(model: &Seeded, tokens: &[u32], from: usize) -> Vec<bf16> {
    (from..tokens.len()).flat_map(|at| model.row(&tokens[..=at])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_the_models_own_in_every_dialect() {
    for dialect in Dialect::ALL {
        for layout in [Layout::Vectors, Layout::OneRowMatrices] {
            let (serve, model) = seeded(dialect, HIDDEN, |config| config.layout = layout).await;
            let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
            for (tokens, from) in [(1, 0), (2, 0), (2, 1), (700, 0), (700, 650), (700, 699)] {
                let tokens = text(tokens);
                let got = rows(&backend, &tokens, from).await.unwrap();
                assert!(got == plain(&model, &tokens, from), "{dialect:?} {layout:?} {} from {from}", tokens.len());
            }
            let status = serve.status();
            let body = &status.generates().last().unwrap().body;
            assert_eq!((&body["stream"], &body["return_hidden_states"]), (&false.into(), &true.into()));
            assert_eq!(body["sampling_params"]["max_new_tokens"], 1);
            assert_eq!((status.calls_of("/abort_request").count(), backend.calls()), (0, 0));
            serve.shut_down().await;
        }
    }
}

/// What a serve would have to be started with, by how it was.
#[tokio::test(flavor = "multi_thread")]
async fn serves_that_do_not_return_all_rows_are_refused_with_the_remedy() {
    let text = text(20);
    for dialect in Dialect::ALL {
        let refusal = async |change: fn(&mut FakeServeConfig), before: usize| {
            let (serve, _) = seeded(dialect, HIDDEN, change).await;
            let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
            for _ in 0..before {
                rows(&backend, &text, 5).await.unwrap();
            }
            let error = rows(&backend, &text, 5).await.unwrap_err();
            assert!(matches!(error, BackendError::Broken(_)), "{dialect:?}: {error:?}");
            serve.shut_down().await;
            error.to_string()
        };
        let trimmed = refusal(|config| config.prompt_block = PromptBlock::LastRow, 0).await;
        assert!(trimmed.contains("1 of the prompt's 20 tokens") && trimmed.contains("trims its replies"), "{trimmed}");
        let missing = refusal(|config| config.prompt_block = PromptBlock::Missing, 0).await;
        assert!(
            missing.contains("0 of the prompt's 20 tokens") && missing.contains("--disable-radix-cache"),
            "{missing}"
        );
        let cached = refusal(|config| config.radix_cache = true, 1).await;
        assert!(cached.contains("19 tokens of the text") && cached.contains("--disable-radix-cache"), "{cached}");
        let divided = refusal(|config| config.chunked_prefill_size = Some(8), 0).await;
        assert!(
            divided.contains("of the prompt's 20 tokens") && divided.contains("--chunked-prefill-size -1"),
            "{divided}"
        );
    }
    // A text of one part is whole.
    let (serve, model) = seeded(Dialect::V0_5_23, HIDDEN, |config| config.chunked_prefill_size = Some(20)).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    assert!(rows(&backend, &text, 5).await.unwrap() == plain(&model, &text, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_wrong_are_errors_by_their_fault() {
    let (serve, model) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    let text = text(20);
    for (fault, says) in [
        (Fault::CutPrompt { to: 12 }, "12 tokens of a prompt of 20: start it without --allow-auto-truncate"),
        (Fault::ExtraRow, "more rows of hidden states than the 20 tokens"),
        (Fault::NoHiddenStates, "--enable-return-hidden-states"),
        (Fault::EmptyElements, "0 of the prompt's 20 tokens"),
        (Fault::LastOnly, "the last token alone"),
        (Fault::NullValue { row: 0, column: 3 }, "row 19 of the hidden states is non-finite in column 3"),
        (Fault::Width { values: 8 }, "row 19 of the hidden states has 8 values"),
        (Fault::GivesUp { after: 0 }, "by itself"),
        (Fault::Batch, "a batch"),
        (Fault::CutBody { bytes: 900 }, "ends after 900 bytes"),
        (Fault::Garbage, "not JSON"),
    ] {
        serve.inject(fault.clone()).await;
        let error = rows(&backend, &text, 5).await.unwrap_err();
        assert!(matches!(&error, BackendError::Broken(why) if why.contains(says)), "{fault:?}: {error:?}");
    }
    // As many rows as tokens, some of them another request's; and an answer that may go on.
    let states = json!([vec![vec![1.0; HIDDEN]; 20]]);
    for (meta, says) in [
        (
            json!({"cached_tokens": 3, "finish_reason": {"type": "length"}, "hidden_states": states}),
            "3 tokens of the text",
        ),
        (json!({"cached_tokens": 0, "finish_reason": null, "hidden_states": states}), "without a reason"),
        (json!({"finish_reason": {"type": "new"}, "hidden_states": states}), "a reason that is not known"),
    ] {
        serve.inject(Fault::Scripted(ScriptedReply::json(&json!({"text": "", "meta_info": meta})))).await;
        let error = rows(&backend, &text, 5).await.unwrap_err();
        assert!(matches!(&error, BackendError::Broken(why) if why.contains(says)), "{error:?}");
    }
    // What the model can read, a serve has no right to call the text's fault.
    serve.inject(Fault::ErrorEvent { after: 0 }).await;
    assert!(matches!(rows(&backend, &text, 5).await, Err(BackendError::Unavailable(_))));
    // Once more where it was not taken, and not twice.
    for fault in [Fault::Busy, Fault::ResetBeforeReply, Fault::ResetAfter { bytes: 2000 }] {
        serve.queue([Some(fault.clone())]);
        assert!(rows(&backend, &text, 5).await.unwrap() == plain(&model, &text, 5), "{fault:?}");
        serve.queue([Some(fault.clone()), Some(fault.clone())]);
        let error = rows(&backend, &text, 5).await.unwrap_err();
        assert!(!matches!(error, BackendError::Client(_)), "{fault:?}: {error:?}");
    }
    assert_eq!(backend.calls(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_no_model_reads_are_their_senders_fault() {
    let (serve, model) = seeded(Dialect::V0_5_6, HIDDEN, |config| config.context = 1024).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    let calls = serve.status().generates().count();
    let client = async |tokens: Vec<u32>, from: usize, says: &str| {
        let error = backend.hidden_states(tokens, from).await.unwrap_err();
        assert!(matches!(&error, BackendError::Client(why) if why.contains(says)), "{error:?}");
    };
    client(Vec::new(), 0, "no tokens").await;
    client(vec![1, 2, 3], 3, "from position 3 were asked of 3 tokens").await;
    client(vec![1, 1000, 3], 0, "token id 1000 is outside the vocabulary of 1000").await;
    client(vec![1; (1 << 20) + 1], 0, "more than the model's context of 1048576").await;
    assert_eq!(serve.status().generates().count(), calls, "nobody was asked");
    // The model could read these: serves keep back six tokens of their context.
    for length in [1019, 1023, 5000] {
        let error = backend.hidden_states(vec![1; length], 0).await.unwrap_err();
        let BackendError::Unavailable(why) = &error else { panic!("{error:?}") };
        assert!(why.contains("longer --context-length") && why.contains(&format!("{length} tokens")), "{why}");
    }
    let longest = vec![1; 1018];
    assert!(rows(&backend, &longest, 1000).await.unwrap() == plain(&model, &longest, 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recompute_that_is_dropped_ends_at_the_serve() {
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |_| ()).await.unwrap();
    serve.inject(Fault::Stalls { after: 0 }).await;
    let recompute = tokio::spawn(backend.hidden_states(text(20), 0));
    serve.wait_until(|status| status.running == 1).await;
    recompute.abort();
    let status = serve.wait_until(|status| status.running == 0).await;
    let rid = &status.generates().last().unwrap().body["rid"];
    let status = serve.wait_until(|status| status.calls_of("/abort_request").next().is_some()).await;
    assert_eq!(&status.calls_of("/abort_request").next().unwrap().body["rid"], rid);
    assert!(recompute.await.unwrap_err().is_cancelled());
    assert_eq!(backend.calls(), 0);
}

/// A recompute holds a row for each token of its text, and one that may be chosen.
#[tokio::test(flavor = "multi_thread")]
async fn a_serve_holds_no_more_rows_of_texts_than_it_may() {
    let (serve, model) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&serve], HIDDEN, |options| options.max_live_rows = Some(41)).await.unwrap();
    let text = text(20);
    serve.inject(Fault::Stalls { after: 0 }).await;
    let recompute = || {
        let (backend, text) = (Arc::clone(&backend), text.clone());
        tokio::spawn(async move { rows(&backend, &text, 5).await.unwrap() })
    };
    let first = recompute();
    serve.wait_until(|status| status.running == 1).await;
    let calls = serve.status().generates().count();
    let second = recompute();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((serve.status().generates().count(), backend.calls()), (calls, 2), "21 rows more are too many");
    serve.release();
    for recompute in [first, second] {
        assert!(recompute.await.unwrap() == plain(&model, &text, 5));
    }
}
