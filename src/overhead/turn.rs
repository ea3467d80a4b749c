//! One turn: so many requests at once through one backend, and what they took.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::answer::{Answer, AnswerError};
use super::results::Proofs;
use crate::backend::{Backend, GenerationRequest};
use crate::machine;

/// What a turn consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// A prompt for each request; all are sent at once.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens of each answer.
    pub new_tokens: usize,
    /// Whether answers are proven.
    pub proofs: Proofs,
    /// Whether they are asked for token by token.
    pub streamed: bool,
    /// Points of a proof.
    pub topk: usize,
}

/// What a turn took, in the process that has the proofs made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Tokens of all answers.
    pub tokens: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// From the first request to the last response, seconds.
    pub seconds: f64,
    /// Of that, from the moment when all had their first token; all of it where answers come whole.
    pub decode_seconds: f64,
    /// Tokens that came after that moment.
    pub decode_tokens: usize,
    /// To each answer's first token, milliseconds.
    pub ttft_ms: Vec<f64>,
    /// Of each token after the first, milliseconds.
    pub token_ms: Vec<f64>,
    /// From each answer's last token to its response, milliseconds.
    pub last_token_to_response_ms: Vec<f64>,
    /// Processor time of this process, microseconds.
    pub cpu_us: f64,
    /// Of this, what threads other than the model's took.
    pub other_cpu_us: f64,
    /// The most memory that it held meanwhile, bytes.
    pub peak_rss_bytes: u64,
    /// Bytes of a serve's replies.
    pub received_bytes: u64,
    /// Bytes of proofs.
    pub proof_bytes: usize,
    /// Time for getting rows, microseconds.
    pub rows_us: f64,
    /// Time for folding them, microseconds.
    pub proof_us: f64,
}

/// Takes a turn.
///
/// # Errors
/// When one of the answers cannot be had: a turn with fewer is no turn.
pub async fn take(backend: &Arc<dyn Backend>, ask: Ask) -> Result<Turn, AnswerError> {
    let Ask { prompts, new_tokens, proofs, streamed, topk } = ask;
    machine::forget_peak_memory();
    let cpu = CpuTimes::now();
    let mut requests = JoinSet::new();
    for prompt in prompts {
        let fin = proofs != Proofs::Off;
        let request = GenerationRequest { streamed, fin, ..GenerationRequest::greedy(prompt, new_tokens) };
        let backend = Arc::clone(backend);
        requests.spawn(async move { Answer::read(backend.as_ref(), request, topk).await });
    }
    let mut answers = Vec::with_capacity(requests.len());
    while let Some(answer) = requests.join_next().await {
        answers.push(answer.map_err(|_| AnswerError::Panicked)??);
    }
    let (cpu_us, other_cpu_us) = cpu.since();
    Ok(Turn {
        cpu_us,
        other_cpu_us,
        peak_rss_bytes: machine::peak_memory().unwrap_or_default(),
        ..summed_up(&answers, streamed)
    })
}

/// What the threads are called that compute a model: the engine's own, its ranks', and those that they share work with.
const MODEL_THREADS: [&str; 3] = ["engine", "rank", COMPUTE_THREADS];

/// What the threads should be called that share the model's work, so that their time can be told from all else.
pub const COMPUTE_THREADS: &str = "compute";

/// A moment's processor times of this process.
#[derive(Debug, Clone, Copy)]
pub struct CpuTimes {
    all: Duration,
    model: Duration,
}

impl CpuTimes {
    /// Those of this moment.
    #[must_use]
    pub fn now() -> Self {
        Self { all: machine::cpu_time(), model: machine::cpu_time_of(&MODEL_THREADS).unwrap_or_default() }
    }

    /// Microseconds since then: of all threads, and of those that are not the model's.
    #[must_use]
    pub fn since(self) -> (f64, f64) {
        let Self { all, model } = Self::now();
        let all = all.saturating_sub(self.all);
        (us(all), us(all.saturating_sub(model.saturating_sub(self.model))))
    }
}

fn summed_up(answers: &[Answer], streamed: bool) -> Turn {
    let asked = answers.iter().map(|answer| answer.asked).min();
    // Of answers that come whole it is not known when they began.
    let all_begun = if streamed { answers.iter().map(Answer::first).max() } else { asked };
    let decoded = |answer: &Answer| answer.tokens_after(all_begun.unwrap_or(answer.asked));
    let responded = answers.iter().map(|answer| answer.responded).max();
    let between = |from: Option<_>, to: Option<std::time::Instant>| {
        to.zip(from).map_or(0.0, |(to, from)| to.saturating_duration_since(from).as_secs_f64())
    };
    let sum = |of: fn(&Answer) -> usize| answers.iter().map(of).sum::<usize>();
    let time = |of: fn(&Answer) -> Duration| us(answers.iter().map(of).sum());
    let tokens = sum(|answer| answer.commitment.output_token_ids.len());
    let proofs = answers.iter().flat_map(|answer| &answer.commitment.toploc.proofs);
    Turn {
        tokens,
        prompt_tokens: sum(|answer| answer.commitment.toploc.prompt_ids.len()),
        seconds: between(asked, responded),
        decode_seconds: between(all_begun, responded),
        decode_tokens: answers.iter().map(decoded).sum(),
        ttft_ms: answers.iter().map(|answer| ms(answer.first() - answer.asked)).collect(),
        token_ms: answers.iter().flat_map(Answer::token_times).map(ms).collect(),
        last_token_to_response_ms: answers.iter().map(|answer| ms(answer.responded - answer.last())).collect(),
        received_bytes: answers.iter().map(|answer| answer.timings.received).sum(),
        // Four characters of base64 for three bytes, but for the padding.
        proof_bytes: proofs.map(|proof| proof.trim_end_matches('=').len() * 3 / 4).sum(),
        rows_us: time(|answer| answer.timings.rows),
        proof_us: time(|answer| answer.proof),
        ..Turn::default()
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
