//! Many requests at once, and serves that fail in every way.

use std::sync::Arc;
use std::time::Duration;

use engy_miner::backend::Backend;
use engy_miner::backend::sglang::SglangBackend;
use engy_miner::chat::ChatModel;
use engy_miner::checkpoint::Checkpoint;
use engy_miner::fake_serve::{Dialect, Fault, PromptBlock, RandomFaults};
use engy_miner::job::{Limits, Service};
use serde_json::{Value, json};

use super::{answer, greedy, open, rows_of, seeded};
use crate::site::{fixture, serve};

const HIDDEN: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_streams_at_once_lose_nothing() {
    for prompt_block in [PromptBlock::Full, PromptBlock::LastRow] {
        let (a, model) = seeded(Dialect::V0_5_6, HIDDEN, |config| config.prompt_block = prompt_block).await;
        let (b, _) = seeded(Dialect::V0_5_15, HIDDEN, |config| config.prompt_block = prompt_block).await;
        let backend = open(&[&a, &b], HIDDEN, |options| options.chunk = 30).await.unwrap();
        let answers = (0..64_u32).map(|n| {
            let (backend, model) = (Arc::clone(&backend), model.clone());
            async move {
                let prompt: Vec<u32> = (0..5 + n % 7).map(|at| (at * 31 + n) % 1000).collect();
                let got = answer(&backend, greedy(&prompt, 80, true)).await.unwrap();
                let ids = model.greedy(&prompt, 80);
                assert_eq!(got.ids, ids, "request {n}");
                assert!(got.rows == rows_of(&model, &prompt, &ids), "request {n}: rows");
            }
        });
        futures::future::join_all(answers).await;
        assert_eq!(backend.calls(), 0);
        // Both had work.
        assert!([&a, &b].iter().all(|serve| serve.status().generates().count() > 50));
    }
}

/// Most calls fail, in all ways but the one that no client could tell from an honest answer.
fn faults(seed: u64) -> RandomFaults {
    RandomFaults::of_all_kinds(seed, 0.7).without(|fault| matches!(fault, Fault::OtherRow { .. }))
}

/// Two hundred faults, and a cancel here and there: one end each, nothing after a cancel, no place lost, and every answer that is
/// one is the model's own as far as it goes.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_faults_end_two_hundred_answers_once_each() {
    for (seed, dialect) in [(1, Dialect::V0_4_9), (2, Dialect::V0_5_6), (3, Dialect::V0_5_23)] {
        let (serve, model) = seeded(dialect, HIDDEN, |_| ()).await;
        let backend = open(&[&serve], HIDDEN, |options| options.chunk = 8).await.unwrap();
        serve.fail_at_random(Some(faults(seed)));
        let requests = (0..200_u32).map(|n| {
            let (backend, model) = (Arc::clone(&backend), model.clone());
            async move {
                let prompt: Vec<u32> = (0..6 + n % 5).map(|at| (at * 17 + n) % 1000).collect();
                let request = greedy(&prompt, 20, n % 2 == 0);
                if n % 10 == 0 {
                    // Dropped once something has come, or at once.
                    let mut generation = backend.generate(request);
                    if n % 20 == 0 {
                        let _ = generation.next().await;
                    }
                    return None;
                }
                let outcome = answer(&backend, request).await;
                if let Ok(got) = &outcome {
                    // The made-up model's own answer, unless a fault chose another token, from which on it is that text's.
                    let whole: Vec<u32> = prompt.iter().chain(&got.ids).copied().collect();
                    let from = prompt.len() + usize::from(got.first_row_missing);
                    let rows: Vec<_> = (from..whole.len()).flat_map(|at| model.row(&whole[..at])).collect();
                    assert!(got.rows == rows, "request {n}: a row of another token in {got:?}");
                }
                Some(outcome)
            }
        });
        let outcomes: Vec<_> = futures::future::join_all(requests).await.into_iter().flatten().collect();
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!(outcomes.len() == 180 && (60..180).contains(&failed), "{failed} of {}", outcomes.len());
        serve.fail_at_random(None);
        serve.wait_until(|status| status.running + status.waiting == 0).await;
        assert_eq!(backend.calls(), 0, "places are lost");
        let got = answer(&backend, greedy(&[1, 2, 3], 20, true)).await.unwrap();
        assert_eq!(got.ids, model.greedy(&[1, 2, 3], 20));
        serve.shut_down().await;
    }
}

/// A worker whose backend is a serve with the llama fixture's vocabulary.
pub(super) fn service(backend: Arc<SglangBackend>) -> Service {
    let checkpoint = Checkpoint::open(&fixture("models/tiny-llama")).unwrap();
    Service {
        chat: ChatModel::open(&checkpoint).unwrap(),
        model: "tiny".into(),
        model_root: checkpoint.model_root().unwrap(),
        end_ids: checkpoint.end_ids(),
        limits: Limits {
            context: 1024,
            max_input_tokens: 512,
            max_output_tokens: 512,
            default_max_tokens: 16,
            max_request: Duration::from_secs(600),
        },
        greedy: false,
        topk: 16,
        preparing: Service::places(),
        backend,
    }
}

/// The same on the wire: each buyer gets one answer or one error, whatever befalls the serve, and the legs stay up.
#[tokio::test(flavor = "multi_thread")]
async fn buyers_get_one_answer_or_one_error_each_and_legs_stay_up() {
    let (fake, _) = seeded(Dialect::V0_5_6, HIDDEN, |_| ()).await;
    let backend = open(&[&fake], HIDDEN, |options| options.chunk = 8).await.unwrap();
    let (gateway, worker, base) = serve(service(Arc::clone(&backend))).await;
    fake.fail_at_random(Some(faults(4)));
    let http = reqwest::Client::new();
    let asks = (0..100).map(|n| {
        let (http, url) = (http.clone(), format!("{base}/v1/chat/completions"));
        async move {
            let request = json!({"model": "tiny", "messages": [{"role": "user", "content": format!("story {n}")}],
                "max_tokens": 20, "stream": n % 2 == 0});
            let response = http.post(url).json(&request).send().await.unwrap();
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            if n % 2 == 0 && status == 200 {
                let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
                let ends =
                    events.iter().filter(|event| event.contains("finish_reason\":\"") || event.contains("\"error\""));
                assert_eq!(ends.count(), 1, "{text}");
                return status;
            }
            let body: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(status == 200, body["choices"][0]["finish_reason"].is_string(), "{body}");
            status
        }
    });
    let statuses = futures::future::join_all(asks).await;
    assert!(statuses.contains(&200) && statuses.iter().any(|status| *status >= 500));
    fake.fail_at_random(None);
    worker.wait_for_inflight(0).await;
    let status = gateway.status();
    assert_eq!((status.open_legs(), status.bad_frames, status.unknown_corr_ids), (2, 0, 0));
    assert_eq!(backend.calls(), 0);
}

/// A serve that cannot be used is not used.
#[tokio::test(flavor = "multi_thread")]
async fn unfit_serves_are_refused_at_start_with_the_flag_to_set() {
    use engy_miner::fake_serve::HiddenStatesFlag;
    let refusal = async |change: fn(&mut engy_miner::fake_serve::FakeServeConfig), hidden: usize| {
        let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, change).await;
        open(&[&serve], hidden, |_| ()).await.unwrap_err().to_string()
    };
    let off = refusal(|config| config.hidden_states = HiddenStatesFlag::Off, HIDDEN).await;
    assert!(off.contains("--enable-return-hidden-states"), "{off}");
    let speculative = refusal(|config| config.speculative_algorithm = Some("EAGLE".into()), HIDDEN).await;
    assert!(speculative.contains("--speculative-algorithm"), "{speculative}");
    let other = refusal(|_| (), 32).await;
    assert!(other.contains("16") && other.contains("32"), "{other}");
    let key = refusal(|config| config.api_key = Some("sk-right".into()), HIDDEN).await;
    assert!(key.contains("--serve-api-key"), "{key}");
    let (serve, _) = seeded(Dialect::V0_5_6, HIDDEN, |config| config.api_key = Some("sk-right".into())).await;
    assert!(open(&[&serve], HIDDEN, |options| options.api_key = Some("sk-right".into())).await.is_ok());
    let backend = open(&[&serve], HIDDEN, |options| options.api_key = Some("sk-right".into())).await.unwrap();
    assert_eq!(backend.hidden_states(vec![1, 2], 0).await.unwrap().len(), 2, "with the key too");
}
