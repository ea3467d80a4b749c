//! The same answers over every version's dialect, and the same as in this process.

use std::sync::Arc;

use engy_miner::backend::candle::{CandleBackend, EngineOptions};
use engy_miner::backend::{Backend, GenerationRequest, SamplingParams, StopReason};
use engy_miner::checkpoint::Checkpoint;
use engy_miner::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig, Layout, PromptBlock, Seeded};
use engy_miner::proof::{Policy, ProofParams, build_proofs, verify_proofs};

use super::{answer, greedy, open, read, rows_of, seeded};
use crate::site::fixture;

const HIDDEN: usize = 16;

/// Every version, layout and way to ask, in one call and in several.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_models_own_in_every_dialect() {
    let prompt: Vec<u32> = (10..30).collect();
    for dialect in Dialect::ALL {
        for (prompt_block, layout, incremental) in [
            (PromptBlock::Full, Layout::Vectors, false),
            (PromptBlock::LastRow, Layout::Vectors, false),
            (PromptBlock::LastRow, Layout::OneRowMatrices, true),
            (PromptBlock::Full, Layout::Vectors, true),
        ] {
            let (serve, model) = seeded(dialect, HIDDEN, |config| {
                (config.prompt_block, config.layout, config.incremental_output) = (prompt_block, layout, incremental);
            })
            .await;
            let ids = model.greedy(&prompt, 50);
            let rows = rows_of(&model, &prompt, &ids);
            for (chunk, streamed) in [(4096, false), (4096, true), (7, false), (7, true), (1, false)] {
                let backend = open(&[&serve], HIDDEN, |options| options.chunk = chunk).await.unwrap();
                let got = answer(&backend, greedy(&prompt, 50, streamed)).await.unwrap();
                let case = format!("{dialect:?} {prompt_block:?} {layout:?} {incremental} {chunk} {streamed}");
                assert_eq!((&got.ids, got.reason), (&ids, StopReason::Length), "{case}");
                assert!(got.rows == rows && !got.first_row_missing, "{case}: rows");
                assert_eq!(backend.calls(), 0);
            }
            serve.shut_down().await;
        }
    }
}

/// A stop id, a stop string and log-probabilities, plain and streamed.
#[tokio::test(flavor = "multi_thread")]
async fn ends_and_log_probabilities_come_through() {
    let prompt = [3, 4, 5];
    for dialect in Dialect::ALL {
        let (serve, model) = seeded(dialect, HIDDEN, |_| ()).await;
        let backend = open(&[&serve], HIDDEN, |options| options.chunk = 4).await.unwrap();
        let ids = model.greedy(&prompt, 10);
        for streamed in [false, true] {
            let request = GenerationRequest { stop_ids: vec![ids[5]], ..greedy(&prompt, 10, streamed) };
            let got = answer(&backend, request).await.unwrap();
            assert_eq!((&got.ids[..], got.reason), (&ids[..6], StopReason::StopId(ids[5])), "{dialect:?}");
            let request = GenerationRequest { stop: vec![format!("w{}", ids[5])], ..greedy(&prompt, 10, streamed) };
            let got = answer(&backend, request).await.unwrap();
            assert_eq!((&got.ids[..], got.reason), (&ids[..6], StopReason::StopString), "{dialect:?}");
            let request = GenerationRequest { logprobs: Some(3), ..greedy(&prompt, 10, streamed) };
            let got = answer(&backend, request).await.unwrap();
            assert_eq!((got.ids.len(), got.logprobs.len()), (10, 10));
            for (id, logprobs) in got.ids.iter().zip(&got.logprobs) {
                assert!(logprobs.logprob < 0.0 && logprobs.top.len() == 3, "{dialect:?}: {logprobs:?}");
                assert_eq!(logprobs.top[0], (*id, logprobs.logprob), "the made-up model's best is its choice");
            }
        }
        serve.shut_down().await;
    }
}

/// An answer that nothing but its length ends goes on behind the ids that end others at the serve.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_ends_of_its_own_has_none_of_the_serves() {
    for dialect in Dialect::ALL {
        let ids = Seeded::new(HIDDEN, 1000, 7).greedy(&[3, 4, 5], 10);
        let (serve, _) = seeded(dialect, HIDDEN, |config| config.eos_ids = vec![ids[4]]).await;
        let backend = open(&[&serve], HIDDEN, |options| options.chunk = 3).await.unwrap();
        for streamed in [false, true] {
            let got = answer(&backend, greedy(&[3, 4, 5], 10, streamed)).await.unwrap();
            assert_eq!((&got.ids, got.reason), (&ids, StopReason::Length), "{dialect:?} {streamed}");
            let ending = GenerationRequest { stop_ids: vec![ids[4]], ..greedy(&[3, 4, 5], 10, streamed) };
            let got = answer(&backend, ending).await.unwrap();
            assert_eq!((&got.ids[..], got.reason), (&ids[..5], StopReason::StopId(ids[4])), "{dialect:?} {streamed}");
        }
        serve.shut_down().await;
    }
}

/// An answer that nobody proves asks for no rows, and so for no more than one call; neither can a serve without them give any.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_rows_asks_for_none() {
    for dialect in Dialect::ALL {
        for prompt_block in [PromptBlock::Full, PromptBlock::LastRow] {
            let (serve, model) = seeded(dialect, HIDDEN, |config| config.prompt_block = prompt_block).await;
            let backend = open(&[&serve], HIDDEN, |options| options.chunk = 4).await.unwrap();
            let before = serve.calls().len();
            for streamed in [false, true] {
                let request = GenerationRequest { fin: false, ..greedy(&[3, 4, 5], 10, streamed) };
                let got = answer(&backend, request).await.unwrap();
                assert_eq!((got.ids, got.rows.len()), (model.greedy(&[3, 4, 5], 10), 0), "{dialect:?} {streamed}");
            }
            let asked = serve.calls().split_off(before);
            let generated: Vec<_> = asked.iter().filter(|call| call.path == "/generate").collect();
            assert_eq!(generated.len(), 2, "{dialect:?}");
            assert!(generated.iter().all(|call| call.body["return_hidden_states"] == false), "{dialect:?}");
            serve.shut_down().await;
        }
    }
}

/// Drawn tokens cannot be drawn again: continuations go without overlap, and take their first row from the prompt's last.
#[tokio::test(flavor = "multi_thread")]
async fn sampled_answers_go_on_without_computing_a_token_again() {
    let prompt = [3, 4, 5];
    let sampling = SamplingParams { temperature: 1.0, seed: Some(5), ..SamplingParams::default() };
    for (dialect, streamed) in [(Dialect::V0_5_6, false), (Dialect::V0_5_15, true)] {
        let (serve, model) = seeded(dialect, HIDDEN, |_| ()).await;
        let backend = open(&[&serve], HIDDEN, |options| options.chunk = 7).await.unwrap();
        let request = GenerationRequest { sampling: sampling.clone(), ..greedy(&prompt, 20, streamed) };
        let got = answer(&backend, request).await.unwrap();
        assert_eq!(got.ids.len(), 20);
        assert!(got.rows == rows_of(&model, &prompt, &got.ids));
        let asked: Vec<u64> = serve
            .status()
            .generates()
            .map(|call| call.body["sampling_params"]["max_new_tokens"].as_u64().unwrap())
            .collect();
        assert_eq!(asked[2..], [7, 7, 6], "behind the probe's two");
        serve.shut_down().await;
    }
}

/// The engine in this process, and the same engine behind a serve: ids, rows and proofs to the byte, and each verifies the other.
#[tokio::test(flavor = "multi_thread")]
async fn the_candle_engine_behind_a_serve_gives_what_it_gives_here() {
    let params = ProofParams { topk: 16, batch: 32 };
    for model in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe", "tiny-qwen3_5_moe-f32"] {
        let checkpoint = Checkpoint::open(&fixture("models").join(model)).unwrap();
        let options = EngineOptions { max_total_tokens: Some(2048), ..EngineOptions::default() };
        let candle = Arc::new(CandleBackend::open(&checkpoint, &options, &|_, _| {}).unwrap());
        let hidden = candle.info().hidden;
        let text = Arc::new(|ids: &[u32]| ids.iter().map(|id| format!(" {id}")).collect::<String>());
        for dialect in [Dialect::V0_4_9, Dialect::V0_5_6, Dialect::V0_5_23] {
            let engine = Engine::backend(Arc::clone(&candle) as Arc<dyn Backend>, text.clone());
            engy_miner::tls::install();
            let serve = FakeServe::spawn(FakeServeConfig::new(dialect, engine)).await.unwrap();
            let sglang = open(&[&serve], hidden, |options| options.chunk = 25).await.unwrap();
            for (seed, streamed) in [(1_u32, false), (2, true)] {
                let prompt: Vec<u32> = (0..40).map(|at| (at * 37 + seed * 11) % 380).collect();
                let here = read(candle.generate(greedy(&prompt, 60, streamed)), hidden, true).await.unwrap();
                let there = answer(&sglang, greedy(&prompt, 60, streamed)).await.unwrap();
                assert_eq!(here.ids, there.ids, "{model} {dialect:?}");
                assert!(here.rows == there.rows, "{model} {dialect:?}: rows");
                let prove = |rows: &[half::bf16]| build_proofs(rows, hidden, params, None).unwrap();
                let (a, b) = (prove(&here.rows), prove(&there.rows));
                let text =
                    |proofs: &[engy_miner::proof::Proof]| proofs.iter().map(|p| p.to_base64()).collect::<Vec<_>>();
                assert_eq!(text(&a), text(&b), "{model} {dialect:?}");
                for (proofs, rows) in [(a, &there.rows), (b, &here.rows)] {
                    let verification = verify_proofs(proofs, rows, hidden, params, None).unwrap();
                    assert!(Policy::default().judge(&verification).is_pass());
                    assert!(verification.batches.iter().all(|batch| batch.exp_mismatches == 0));
                }
            }
            serve.shut_down().await;
        }
    }
}
