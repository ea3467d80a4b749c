//! The sglang backend against stand-ins for serves of all versions, and against recorded traffic.

mod doctor;
mod edges;
mod equality;
mod faults;
mod field_cases;
mod legs;
mod recompute;
mod recorded;
mod returns;
mod verifying;

use std::sync::Arc;

use engy_miner::backend::sglang::{Expected, ServedModel, SglangBackend, SglangError, SglangOptions};
use engy_miner::backend::{
    Backend, BackendError, Generation, GenerationEvent, GenerationRequest, StopReason, TokenLogprobs,
};
use engy_miner::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig, FakeServeHandle, Seeded};
use half::bf16;

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    /// Flattened.
    rows: Vec<bf16>,
    logprobs: Vec<TokenLogprobs>,
    cached: usize,
    first_row_missing: bool,
    reason: StopReason,
}

/// Reads a generation to its end and checks the order of its events on the way.
async fn read(mut generation: Generation, hidden: usize, fin: bool) -> Result<Answer, BackendError> {
    let mut answer = Answer {
        ids: Vec::new(),
        rows: Vec::new(),
        logprobs: Vec::new(),
        cached: 0,
        first_row_missing: false,
        reason: StopReason::Length,
    };
    let mut started = false;
    loop {
        match generation.next().await.unwrap() {
            Ok(GenerationEvent::Started { cached_tokens }) => {
                assert!(!std::mem::replace(&mut started, true) && answer.ids.is_empty());
                answer.cached = cached_tokens;
            }
            Ok(GenerationEvent::FirstRowMissing) => {
                assert!(!answer.first_row_missing && answer.rows.is_empty());
                answer.first_row_missing = true;
            }
            Ok(GenerationEvent::Tokens { ids, fin, logprobs }) => {
                assert!(started && (logprobs.is_empty() || logprobs.len() == ids.len()));
                answer.ids.extend(ids);
                answer.logprobs.extend(logprobs);
                answer.rows.extend(fin.iter().flatten());
                let due = answer.ids.len() - usize::from(answer.first_row_missing);
                assert!(answer.rows.len() / hidden <= due, "a row before its id");
            }
            Ok(GenerationEvent::Finished { reason, .. }) => {
                let rows = answer.rows.len() / hidden;
                let due = if fin { answer.ids.len() } else { 0 };
                assert_eq!(rows + usize::from(answer.first_row_missing), due);
                assert!(generation.next().await.is_none(), "something behind the end");
                answer.reason = reason;
                return Ok(answer);
            }
            Err(error) => {
                assert!(generation.next().await.is_none(), "something behind an error");
                return Err(error);
            }
        }
    }
}

/// A serve with a made-up model, and a change to how it was started.
async fn seeded(
    dialect: Dialect,
    hidden: usize,
    change: impl FnOnce(&mut FakeServeConfig),
) -> (FakeServeHandle, Seeded) {
    engy_miner::tls::install();
    let model = Seeded::new(hidden, 1000, 7);
    let mut config = FakeServeConfig::new(dialect, Engine::seeded(model.clone()));
    change(&mut config);
    (FakeServe::spawn(config).await.unwrap(), model)
}

/// The client of some serves of one model.
async fn open(
    serves: &[&FakeServeHandle],
    hidden: usize,
    change: impl FnOnce(&mut SglangOptions),
) -> Result<Arc<SglangBackend>, SglangError> {
    let mut options = SglangOptions {
        urls: serves.iter().map(|serve| serve.url()).collect(),
        api_key: None,
        chunk: SglangOptions::DEFAULT_CHUNK,
        max_live_rows: None,
    };
    change(&mut options);
    let model = ServedModel { architecture: "fake".into(), hidden, vocab: 1000, context: 1 << 20 };
    let (checkpoint, prompt) = ("fake-model".to_owned(), vec![1, 2, 3, 4, 5]);
    let expected = Expected { hidden, context: 1024, checkpoint, at_once: 8, prompt, recomputes: false };
    Ok(Arc::new(SglangBackend::open(&options, model, expected).await?))
}

fn greedy(prompt: &[u32], max_tokens: usize, streamed: bool) -> GenerationRequest {
    GenerationRequest { streamed, ..GenerationRequest::greedy(prompt.to_vec(), max_tokens) }
}

/// The rows of an answer of the made-up model.
fn rows_of(model: &Seeded, prompt: &[u32], ids: &[u32]) -> Vec<bf16> {
    let mut tokens = prompt.to_vec();
    let mut rows = Vec::new();
    for id in ids {
        rows.extend(model.row(&tokens));
        tokens.push(*id);
    }
    rows
}

async fn answer(backend: &SglangBackend, request: GenerationRequest) -> Result<Answer, BackendError> {
    let fin = request.fin;
    read(backend.generate(request), backend.info().hidden, fin).await
}
