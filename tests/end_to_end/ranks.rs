//! Ranks through the whole program: what they answer together, and what becomes of everyone when one of them fails.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use engy_miner::backend::candle::{CandleBackend, EngineOptions, FaultKind, RankFault};
use engy_miner::backend::{Backend, GenerationEvent, GenerationRequest, Health};
use engy_miner::checkpoint::Checkpoint;
use engy_miner::gateway::{Gateway, GatewayConfig, GatewayHandle};
use engy_miner::protocol::MinerKey;
use engy_miner::verify::{ProofRecord, verify};
use serde_json::Value;

use crate::site::{end, fixture, load, question, tiny_spec};

/// Collectives of a start: a broadcast, a gather, a sum and a barrier.
const GREETING: usize = 4;

/// Collectives of a step of the llama fixture that chooses an id: behind the embedding, twice in each of two layers, before the
/// results are read, and the candidates of the choice with a barrier of their own.
const STEP: usize = 1 + 2 * 2 + 1 + 2;

/// How long a rank waits that has to find out by itself.
const PATIENCE: Duration = Duration::from_millis(200);

/// A model over two ranks with a fault, asked for three ids: they, or what went wrong; and at start already, perhaps.
async fn answer(fault: Option<RankFault>) -> Result<Vec<u32>, String> {
    let options = EngineOptions {
        ranks: 2,
        max_total_tokens: Some(256),
        collective_timeout: PATIENCE,
        rank_fault: fault,
        ..EngineOptions::default()
    };
    let started = tokio::task::spawn_blocking(move || {
        let checkpoint = Checkpoint::open(&fixture("models/tiny-llama")).unwrap();
        CandleBackend::open(&checkpoint, &options, &|_, _| {}).map_err(|error| error.to_string())
    });
    let backend = started.await.unwrap()?;
    let mut generation = backend.generate(GenerationRequest::greedy(vec![5, 6, 7], 3));
    let mut all = Vec::new();
    loop {
        match generation.next().await {
            Some(Ok(GenerationEvent::Tokens { ids, .. })) => all.extend(ids),
            Some(Ok(GenerationEvent::Finished { .. })) => return Ok(all),
            Some(Ok(GenerationEvent::Started { .. } | GenerationEvent::FirstRowMissing)) => {}
            Some(Err(error)) => {
                while backend.health() == Health::Ready {
                    tokio::task::yield_now().await;
                }
                return Err(error.to_string());
            }
            None => return Err("the stream ended without a word".into()),
        }
    }
}

/// Each collective of a start and of three steps, each kind of fault: an error that names a rank, or the right answer, and soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_fails_at_any_collective_ends_the_world_and_one_that_is_late_does_not() {
    let right = answer(None).await.unwrap();
    let all = GREETING + 3 * STEP;
    let began = Instant::now();
    let late = FaultKind::Delay(PATIENCE / 10);
    let cases = (1..=all + 1).flat_map(|collective| {
        [FaultKind::Panic, FaultKind::Error, FaultKind::Hang, late].map(|kind| RankFault {
            rank: collective % 2,
            collective,
            kind,
        })
    });
    let answers = futures::future::join_all(cases.map(|fault| {
        let right = right.clone();
        async move {
            let answer = answer(Some(fault)).await;
            if fault.kind == late || fault.collective > all {
                assert_eq!(answer, Ok(right), "{fault:?}");
            } else {
                let error = answer.unwrap_err();
                assert!(
                    error.contains(&format!("rank {}", fault.rank)) || error.contains("waited"),
                    "{fault:?}: {error}"
                );
            }
        }
    }));
    answers.await;
    assert!(began.elapsed() < Duration::from_secs(60), "ranks wait for one another no longer than they are told to");
}

/// A local gateway with two legs.
async fn gateway() -> (GatewayHandle, String, String) {
    engy_miner::tls::install();
    let mut config = GatewayConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.legs = 2;
    config.miner_key = Some(MinerKey::new("mk-test"));
    let gateway = Gateway::bind(config).await.unwrap();
    let (handle, http, ws) = (gateway.handle(), gateway.http_url(), gateway.ws_url());
    tokio::spawn(gateway.run(std::future::pending()));
    (handle, http, ws)
}

/// `engy-miner mine` on the llama fixture, which is ended after two minutes at most.
fn mine(gateway: &str, state: &std::path::Path, more: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_engy-miner"), "mine", "--gw", gateway]).args(more).env_clear();
    command.arg("--checkpoint").arg(fixture("models/tiny-llama")).arg("--spec").arg(fixture("tiny.toml"));
    command.arg("--state-dir").arg(state).env("MINER_KEY", "mk-test").env("ENGY_LOG", "warn");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_miner_of_four_ranks_answers_and_one_rank_finds_its_proof_right() {
    let (handle, http, ws) = gateway().await;
    let state = tempfile::tempdir().unwrap();
    let mut miner = mine(&ws, state.path(), &["--tp-size", "4", "--devices", "cpu,cpu,cpu,cpu"]).spawn().unwrap();
    handle.wait_for_legs(2).await;
    let client = reqwest::Client::new();
    let url = format!("{http}/v1/chat/completions");
    let response = client.post(url).json(&question("hello", 40)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let record: ProofRecord = client.get(format!("{http}/v1/proofs/{id}")).send().await.unwrap().json().await.unwrap();
    let (checkpoint, alone) = load(&fixture("models/tiny-llama"));
    let root = checkpoint.model_root().unwrap();
    let report = verify(alone.as_ref(), &root, &record.commitment, tiny_spec().toploc).await.unwrap();
    assert!(report.verdict.is_pass() && report.same_root, "{report:?}");
    assert!(report.verification.batches.iter().all(|batch| batch.exp_mismatches == 0), "{report:?}");
    end(&mut miner);
}

/// Three requests are open when a rank dies, reports a fault or hangs: each gets its error, and the process ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_miner_that_loses_a_rank_tells_every_buyer_and_exits() {
    for kind in ["panic", "error", "hang"] {
        let (handle, http, ws) = gateway().await;
        let state = tempfile::tempdir().unwrap();
        // Some forty steps into the answers.
        let fault = format!("1:{}:{kind}", GREETING + 40 * STEP);
        let flags = ["--tp-size", "2", "--collective-timeout", "1", "--max-inflight", "4", "--rank-fault", &fault];
        let miner = mine(&ws, state.path(), &flags).spawn().unwrap();
        handle.wait_for_legs(2).await;
        let client = reqwest::Client::new();
        let ask = |n: usize| {
            let request =
                client.post(format!("{http}/v1/chat/completions")).json(&question(&format!("story {n}"), 1000));
            async move {
                let response = request.send().await.unwrap();
                (response.status().as_u16(), response.json::<Value>().await.unwrap())
            }
        };
        let answers = futures::future::join_all((0..3).map(ask)).await;
        let told = Instant::now();
        for (status, body) in answers {
            let message = body["error"]["message"].as_str().unwrap();
            assert_eq!(status, 502, "{kind}: {body}");
            assert!(message.contains("rank 1") || message.contains("waited"), "{kind}: {message}");
        }
        let output = tokio::task::spawn_blocking(|| miner.wait_with_output()).await.unwrap().unwrap();
        assert!(told.elapsed() < Duration::from_secs(10), "{kind}: it took {:?} to end", told.elapsed());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{kind}: {stderr}");
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("engy-miner: ") && last.contains("rank"), "{kind}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("mk-test"), "{kind}: {stderr}");
    }
}
