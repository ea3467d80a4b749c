//! Proofs that are judged over a serve.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use engy_miner::backend::Backend;
use engy_miner::backend::candle::{CandleBackend, EngineOptions};
use engy_miner::backend::sglang::SglangBackend;
use engy_miner::checkpoint::Checkpoint;
use engy_miner::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig, FakeServeHandle, PromptBlock};
use engy_miner::verify::{ProofRecord, verify};

use super::{faults::service, open};
use crate::site::{Site, fixture, question, serve, tiny_spec};

/// A serve on an engine of this process.
async fn behind_a_serve(
    candle: &Arc<CandleBackend>,
    dialect: Dialect,
    change: impl FnOnce(&mut FakeServeConfig),
) -> FakeServeHandle {
    engy_miner::tls::install();
    let text = Arc::new(|ids: &[u32]| ids.iter().map(|id| format!(" {id}")).collect::<String>());
    let engine = Engine::backend(Arc::clone(candle) as Arc<dyn Backend>, text);
    let mut config = FakeServeConfig::new(dialect, engine);
    change(&mut config);
    FakeServe::spawn(config).await.unwrap()
}

/// The engine in this process, and the same engine behind a serve: rows of a text to the bit.
#[tokio::test(flavor = "multi_thread")]
async fn the_candle_engine_behind_a_serve_recomputes_what_it_recomputes_here() {
    for model in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe", "tiny-qwen3_5_moe-f32"] {
        let checkpoint = Checkpoint::open(&fixture("models").join(model)).unwrap();
        let options = EngineOptions { max_total_tokens: Some(2048), ..EngineOptions::default() };
        let candle = Arc::new(CandleBackend::open(&checkpoint, &options, &|_, _| {}).unwrap());
        for dialect in Dialect::ALL {
            let serve = behind_a_serve(&candle, dialect, |_| ()).await;
            let sglang = open(&[&serve], candle.info().hidden, |_| ()).await.unwrap();
            for (length, from) in [(1, 0), (2, 1), (90, 0), (90, 39)] {
                let tokens: Vec<u32> = (0..length).map(|at| (at * 37 + 11) % 380).collect();
                let here = candle.hidden_states(tokens.clone(), from).await.unwrap();
                let there = sglang.hidden_states(tokens, from).await.unwrap();
                assert!(here == there, "{model} {dialect:?}: {length} from {from}");
            }
            serve.shut_down().await;
        }
    }
}

/// Nothing differs, neither exponents nor mantissas.
async fn agrees(backend: &dyn Backend, record: &ProofRecord, root: &str) {
    let report = verify(backend, root, &record.commitment, tiny_spec().toploc).await.unwrap();
    assert!(report.verdict.is_pass() && report.same_root, "{report:?}");
    assert_eq!(report.verification.batches.len(), 3, "70 tokens, 32 a batch");
    for batch in &report.verification.batches {
        assert_eq!(
            (batch.exp_mismatches, batch.mantissa.as_ref().map(|error| error.mean)),
            (0, Some(0.0)),
            "{batch:?}"
        );
    }
}

/// A miner with its own engine judged over a serve, and a miner over a serve judged by an engine, and over another serve.
#[tokio::test(flavor = "multi_thread")]
async fn proofs_pass_over_a_serve_and_proofs_of_a_serve_pass_here() {
    let site = Site::start().await;
    let hidden = site.backend.info().hidden;
    let (_, ours) = site.ask(&question("prove this", 70)).await;
    for (mining, judging) in [(Dialect::V0_5_6, Dialect::V0_4_9), (Dialect::V0_4_9, Dialect::V0_5_23)] {
        // As operators trim them; a recompute needs the whole.
        let mined = behind_a_serve(&site.backend, mining, |config| config.prompt_block = PromptBlock::LastRow).await;
        let judged = behind_a_serve(&site.backend, judging, |_| ()).await;
        let miner: Arc<SglangBackend> = open(&[&mined], hidden, |options| options.chunk = 25).await.unwrap();
        let judge = open(&[&judged], hidden, |_| ()).await.unwrap();
        let (gateway, worker, base) = serve(service(miner)).await;
        let over = Site {
            gateway,
            worker,
            backend: Arc::clone(&site.backend),
            model_root: site.model_root.clone(),
            http: reqwest::Client::new(),
            base,
        };
        let (_, theirs) = over.ask(&question("prove that", 70)).await;
        agrees(judge.as_ref(), &ours, &site.model_root).await;
        agrees(site.backend.as_ref(), &theirs, &site.model_root).await;
        agrees(judge.as_ref(), &theirs, &site.model_root).await;
    }
}

async fn verify_command(serve: &FakeServeHandle, proof: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engy-miner"));
    command.args(["verify", "--backend", "sglang", "--serve-url", &serve.url()]).env_clear();
    command.arg("--checkpoint").arg(fixture("models/tiny-llama")).arg("--spec").arg(fixture("tiny.toml")).arg(proof);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The program: 0 for a proof that passes, 3 for one that fails, 1 where the serve cannot judge.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_judges_over_a_serve() {
    let site = Site::start().await;
    let response = site.post(&question("prove this", 40)).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let url = format!("{}/v1/proofs/{id}", site.base);
    let mut record: serde_json::Value = site.http.get(url).send().await.unwrap().json().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let proof = folder.path().join("proof.json");
    std::fs::write(&proof, record.to_string()).unwrap();
    let whole = behind_a_serve(&site.backend, Dialect::V0_5_6, |_| ()).await;
    let output = verify_command(&whole, &proof).await;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout} {stderr}");
    assert!(stdout.contains("batch 1: 0 of ") && stdout.contains("mantissa error mean 0.000"), "{stdout}");
    assert!(!stderr.contains("trim the serve"), "what is wanted is not warned of: {stderr}");
    assert!(whole.status().generates().all(|call| call.body["stream"] == false));

    let trimmed =
        behind_a_serve(&site.backend, Dialect::V0_5_6, |config| config.prompt_block = PromptBlock::LastRow).await;
    let output = verify_command(&trimmed, &proof).await;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no rows of the prompt") && stderr.contains("trims its replies"), "{stderr}");

    record["commitment"]["output_token_ids"].as_array_mut().unwrap().reverse();
    std::fs::write(&proof, record.to_string()).unwrap();
    let output = verify_command(&whole, &proof).await;
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
}
