//! Flags of `engy-miner bench overhead`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use super::{BackendKind, EngineArgs, ModelArgs, ServeArgs, at_most};
use crate::backend::candle::SyntheticModel;

/// `engy-miner bench overhead`
#[derive(Debug, Args)]
pub struct BenchOverheadArgs {
    /// Which backends; give it once for each [default: candle, and sglang where --serve-url or --fake-serve is given].
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub backend: Vec<BackendKind>,
    /// A model folder (Hugging Face) or a .gguf file; the serve's model, too.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH", required_unless_present = "synthetic")]
    pub checkpoint: Option<PathBuf>,
    /// In place of a checkpoint: random weights in a real model's shapes, such as qwen3.6-35b-a3b:layers=2,experts=256.
    #[arg(long, value_name = "MODEL[:layers=N,experts=M]", conflicts_with = "checkpoint")]
    pub synthetic: Option<SyntheticModel>,
    /// Which model: its spec has the points of a proof and what a verifier tolerates.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How the candle backend runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Which serve.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Measure the hop over HTTP with a stand-in for an sglang serve in another process, which computes with the candle backend and
    /// returns an answer's rows and the prompt's last one, as operators trim their serves.
    #[arg(long)]
    pub fake_serve: bool,
    /// What to ask: a JSON object a line, {"messages":[...]} as in a chat request, or {"prompt":"a text"} [default: conversations of
    /// agents that are compiled in].
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Tokens of each prompt where there is no checkpoint to make them of texts.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = at_most::<usize>(1 << 20))]
    pub prompt_tokens: usize,
    /// Requests at once; several values are measured in turns.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8", value_parser = at_most::<usize>(1024))]
    pub concurrency: Vec<usize>,
    /// Tokens of each answer, at least 2; several values are measured in turns.
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "32,128", value_parser = RangedU64ValueParser::<u64>::new().range(2..=1 << 20))]
    pub new_tokens: Vec<u64>,
    /// Ask for whole answers in place of streams.
    #[arg(long)]
    pub whole: bool,
    /// How long to measure: no block of turns is begun that would end later. The matrix is not part of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = at_most::<u64>(1 << 20))]
    pub seconds: u64,
    /// Answers of each maker in the matrix of makers and verifiers; 0 leaves the matrix out.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(0..=1024))]
    pub matrix_answers: usize,
    /// Threads that compute, in each process [default: one a core].
    #[arg(long, value_name = "N", value_parser = at_most::<usize>(1024))]
    pub threads: Option<usize>,
    /// A folder for what was found: report.html, report.md, run.json, results.jsonl, turns.jsonl, matrix.json. It is made if it is missing.
    #[arg(long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// One of the processes that the measurement consists of.
    #[arg(long, value_enum, hide = true)]
    pub side: Option<OverheadSide>,
}

/// A process of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverheadSide {
    /// The candle backend.
    Candle,
    /// The client of a serve.
    Sglang,
    /// The stand-in for a serve, which returns the prompt's last row alone.
    Serve,
    /// The same with all of the prompt's rows, which a verifier needs.
    WholeServe,
}
