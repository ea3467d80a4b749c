//! What a comparison found, as it stands in its files: every key is documented here, and `docs/overhead.md` explains the method.

use serde::{Deserialize, Serialize};

/// One object of `results.jsonl`: a backend, with or without proofs, at so many requests at once and so long answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// `candle` or `sglang`.
    pub backend: String,
    /// Whether answers were proven.
    pub proofs: Proofs,
    /// Requests at once.
    pub concurrency: usize,
    /// Tokens of each answer.
    pub new_tokens: usize,
    /// Whether answers were asked for token by token.
    pub streamed: bool,
    /// Turns that this mode had.
    pub turns: usize,
    /// Answers, over all turns.
    pub requests: usize,
    /// Tokens of these answers.
    pub tokens: usize,
    /// Tokens of a prompt, mean.
    pub prompt_tokens: f64,
    /// From a request to its first token, milliseconds.
    pub ttft_ms: Distribution,
    /// From a token to the next, milliseconds; tokens that come together share the time since those before.
    pub token_ms: Distribution,
    /// From an answer's last token to its response with ids and proofs as JSON, milliseconds.
    pub last_token_to_response_ms: Distribution,
    /// Answer tokens of all requests over the whole time of a turn, a second; median of turns.
    pub tok_s: f64,
    /// The same without first tokens, from the moment when all requests had theirs; median of turns. The same where answers come
    /// whole.
    pub decode_tok_s: f64,
    /// Processor time a token, microseconds, prompts included; median of turns.
    pub cpu_us_per_token: Processes<f64>,
    /// Of this, what threads took that are not the model's: HTTP, JSON, reading replies, proofs, and all else.
    pub other_cpu_us_per_token: Processes<f64>,
    /// Most memory that was held in any turn, bytes.
    pub peak_rss_bytes: Processes<u64>,
    /// Bytes of a serve's replies a token; 0 in process.
    pub received_bytes_per_token: f64,
    /// Bytes a token that hidden states take on their way from the model to the proof: bf16 in this process, over HTTP what
    /// replies are longer than without them. 0 without proofs.
    pub fin_bytes_per_token: f64,
    /// Bytes of proofs a token.
    pub proof_bytes_per_token: f64,
    /// Processor time a token for getting rows: copied out of the model, or read from a serve's replies; microseconds, measured where it
    /// is done. Over HTTP reading ids is part of it, so it is not 0 without proofs.
    pub rows_us_per_token: f64,
    /// Processor time a token for folding rows into proofs, microseconds, measured where it is done.
    pub proof_us_per_token: f64,
    /// What proofs cost against the same without; not for `"proofs":"off"`.
    pub overhead: Option<Overhead>,
}

/// Whether answers are proven, and where the largest values of fin are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proofs {
    /// Not: no hidden state leaves the model.
    Off,
    /// Rows come to the host and are folded there.
    Host,
}

/// What is known of each process: the miner, and the serve beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Processes<T> {
    /// The process that has the proofs made, and the model with `--backend candle`.
    pub miner: T,
    /// The serve's. `None` where there is none, or where it runs elsewhere.
    pub serve: Option<T>,
}

/// Values in order of size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The middle one.
    pub p50: f64,
    /// All but one in a hundred are below it.
    pub p99: f64,
    /// The percentiles 0 to 100, 101 values; none of no values.
    pub percentiles: Vec<f64>,
}

/// What proofs cost, from turns with and without that followed one another: pairs of the same prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Pairs of turns.
    pub pairs: usize,
    /// More time a token after the first, %; of answers that come whole, of all tokens.
    pub time_pct: Estimate,
    /// More time to the first token, %.
    pub ttft_pct: Estimate,
    /// More processor time a token over all processes that are known, microseconds.
    pub cpu_us_per_token: Estimate,
    /// What hidden states take on their way to the proof, without folding, which is the same work wherever they come from: processor
    /// time of all threads but the model's, which do the same with and without proofs, and of the latter's copying rows out. It is not
    /// lost in the noise of the model's work. Of a serve that runs elsewhere only the miner's part is known.
    pub fin_cpu_us_per_token: Estimate,
}

/// What proofs cost a backend over all loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackendOverhead {
    /// `candle` or `sglang`.
    pub backend: String,
    /// From the pairs of all loads together.
    pub overhead: Overhead,
}

/// An estimate with the interval in which the true value lies with a confidence of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Hodges and Lehmann's: the median of the means of all pairs of differences.
    pub value: f64,
    /// The interval's lower end by Wilcoxon's signed ranks; `None` of fewer than six pairs, which say nothing.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
}

/// `run.json`: what was measured, where, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The whole command.
    pub command: String,
    /// This program's version.
    pub version: String,
    /// When it began: seconds since 1970, UTC.
    pub began: u64,
    /// How long the turns took, seconds.
    pub seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// The model: a checkpoint's name, or the shape of a synthetic one.
    pub model: String,
    /// Values of a row of fin.
    pub hidden: usize,
    /// Points of a proof.
    pub topk: usize,
    /// The serve, as it describes itself; `None` where none was measured.
    pub serve: Option<String>,
    /// Share of the machine's processors that other programs used during the turns, 0 to 1.
    pub others: f64,
    /// What proofs cost, backend by backend.
    pub overhead: Vec<BackendOverhead>,
    /// Whether it came to its end: nobody interrupted it, and no turn failed.
    pub complete: bool,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this program may use.
    pub cores: usize,
    /// Main memory, bytes.
    pub memory_bytes: u64,
    /// The system's name and version.
    pub system: String,
}

/// `matrix.json`: proofs of each maker, judged by each verifier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// Those who prove and verify, and those who only prove: controls and edges.
    pub variants: Vec<Variant>,
    /// By maker, then by verifier.
    pub cells: Vec<MatrixCell>,
    /// Mismatches of a batch that the policy allows (v).
    pub max_mismatches: usize,
    /// Share of an answer's batches that must be within it (p).
    pub pass_ratio: f64,
}

/// One way to compute answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Its short name, such as `candle kv=bf16`.
    pub name: String,
    /// The flags that make it.
    pub flags: String,
    /// What verifiers should make of it.
    pub role: Role,
}

/// What a maker is, and so what verifiers should make of its proofs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It computes the checkpoint: every answer is to be accepted. It is a verifier, too.
    Honest,
    /// Its weights are another model's: every answer is to be rejected.
    Control,
    /// Its weights are a little off. Whether the policy sees that is what there is to find out.
    Edge,
}

/// One maker's proofs under one verifier's recompute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MatrixCell {
    /// The maker's [`Variant::name`].
    pub maker: String,
    /// The verifier's.
    pub verifier: String,
    /// The maker's [`Variant::role`].
    pub role: Role,
    /// Answers that were judged.
    pub answers: usize,
    /// Of these, how many passed.
    pub passed: usize,
    /// Batches in all.
    pub batches: usize,
    /// Exponents that differ in a batch, of its top-k points: mean.
    pub mismatches_mean: f64,
    /// All but one batch in a hundred have fewer, or as many.
    pub mismatches_p99: f64,
    /// The worst batch's.
    pub mismatches_max: usize,
    /// Mean difference of mantissas (0 to 127) where exponents agree; `None` where none does.
    pub mantissa_mean: Option<f64>,
    /// The largest mean of a batch.
    pub mantissa_max: Option<f64>,
}

impl MatrixCell {
    /// Whether it came out as it should: every honest answer accepted, every answer of a control rejected.
    #[must_use]
    pub fn is_right(&self) -> bool {
        match self.role {
            Role::Honest => self.passed == self.answers,
            Role::Control => self.passed == 0,
            Role::Edge => true,
        }
    }
}
