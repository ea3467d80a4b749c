//! Every flag: its environment name, default and unit.

mod bench;
mod engine;
mod overhead;
mod serve;

use std::net::SocketAddr;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::bench::{BenchCollectivesArgs, BenchEngineArgs, BenchProofArgs, Switch};
pub use self::engine::{ActivationDtype, EngineArgs, KvCacheDtype, WorldArgs};
pub use self::overhead::{BenchOverheadArgs, OverheadSide};
pub use self::serve::{DoctorArgs, FakeServeArgs, PromptBlockKind, ServeArgs};
use crate::gateway;
use crate::protocol::MinerKey;
use crate::session;

/// Serves chat requests of a verifiable-inference network and proves each answer.
///
/// A flag wins over its environment variable. Log lines go to standard error; ENGY_LOG filters them (default: info).
#[derive(Debug, Parser)]
#[command(name = "engy-miner", version, max_term_width = 120)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a gateway's requests.
    Mine(Box<MineArgs>),
    /// Run a local gateway: legs for miners, an OpenAI-compatible API for buyers.
    Gateway(GatewayArgs),
    /// Recompute an answer and judge its proof.
    ///
    /// Exits with 0 where the proof passes, with 3 where it does not, with 1 where it cannot be judged.
    Verify(VerifyArgs),
    /// Show the whole way on this machine: gateway, miner, a question, its proof, the recompute.
    Demo(DemoArgs),
    /// Show what a model takes in memory and how many tokens fit, without loading it.
    ///
    /// Needs config.json and the weight files' headers, or config.json and the index where the weights are not here yet.
    Plan(PlanArgs),
    /// Look whether sglang serves are fit for mining, and which flags they lack.
    ///
    /// Exits with 1 where one is not.
    Doctor(DoctorArgs),
    /// Stand in for an sglang serve: to try --backend sglang without one, and to measure what it costs.
    ///
    /// It answers as a version of sglang does, with tokens of a checkpoint or made-up ones. /get_server_info says that it is none.
    FakeServe(Box<FakeServeArgs>),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The engine: prompt and answer tokens a second, with and without proofs, by batch.
    ///
    /// Prompts are random and all different. A figure is the median of --repeats runs; runs with and without proofs take
    /// turns, so that a noisy machine disturbs both alike.
    Engine(Box<BenchEngineArgs>),
    /// Proofs: what they cost, backend by backend, and who accepts whose.
    ///
    /// The same prompts go through each backend with and without proofs, in turns; each backend has a process of its own. A report
    /// with plots, figures as JSON and a matrix of makers and verifiers go to --output. Exits with 3 where the matrix has a wrong verdict.
    Overhead(Box<BenchOverheadArgs>),
    /// Collectives: what ranks take to add up their tensors, and to put them side by side, by size.
    ///
    /// Over NCCL on GPUs and in memory on the processor. A step of a model adds up after its embedding and twice a layer: its time
    /// over several ranks holds so many of these. With --json, each line's keys are collective, over (threads or nccl), ranks,
    /// rows, columns, bytes (of the f32 tensor that each rank brings), median_us and p99_us (microseconds a collective).
    Collectives(BenchCollectivesArgs),
    /// The prover alone, on one core: microseconds that a token's row costs.
    ///
    /// Rows are random: bell-shaped, and with the outliers that final hidden states have. The fastest of --runs counts, as the
    /// others only measure other work on the core. The floor is the sum of the same rows. With --json, the first keys are hidden,
    /// topk, us_per_token, us_scan (finding the top k), us_interpolate (the rest: what closes a batch), us_floor, gb_per_s (of
    /// rows) and proofs_sha256 (of the proofs in base64, each with a line end).
    Proof(BenchProofArgs),
}

/// Which model, and how it is served.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The model's name: one of the compiled-in specs, qwen3.6-35b-a3b or smollm2-135m-instruct.
    #[arg(long, env = "MODEL", value_name = "NAME")]
    pub model: Option<String>,
    /// A model spec in a file, in place of a compiled-in one (see models/*.toml).
    #[arg(long, env = "ENGY_SPEC", value_name = "FILE")]
    pub spec: Option<PathBuf>,
}

/// A backend's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// The model in this process.
    Candle,
    /// An sglang serve over HTTP.
    Sglang,
}

impl BackendKind {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Candle => "candle",
            Self::Sglang => "sglang",
        }
    }
}

/// `engy-miner mine`
#[derive(Debug, Args)]
pub struct MineArgs {
    /// The gateway's websocket address.
    #[arg(long, env = "GW", value_name = "URL", default_value = "wss://api.engy.ai/gw")]
    pub gw: String,
    /// The operator's key. Better given as MINER_KEY: a flag shows in process lists.
    #[arg(long, env = "MINER_KEY", value_name = "KEY", hide_env_values = true)]
    pub miner_key: MinerKey,
    /// Where tokens come from.
    #[arg(long, env = "ENGY_BACKEND", value_enum, default_value_t = BackendKind::Candle)]
    pub backend: BackendKind,
    /// Which serves, with --backend sglang.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// A model folder (Hugging Face) or a .gguf file; with --backend sglang, the served model's.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH")]
    pub checkpoint: PathBuf,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How it runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Requests at once over all legs [default: 3 a leg].
    #[arg(long, env = "MAX_INFLIGHT", value_name = "N", value_parser = at_most::<usize>(session::MAX_INFLIGHT))]
    pub max_inflight: Option<usize>,
    /// Legs to dial [default: what the gateway's /meta says].
    #[arg(long, env = "ENGY_GW_WORKERS", value_name = "N", value_parser = at_most::<usize>(session::MAX_LEGS))]
    pub legs: Option<usize>,
    /// Longest prompt to take, tokens [default: the model spec's].
    #[arg(long, env = "MAX_INPUT_TOKENS", value_name = "TOKENS")]
    pub max_input_tokens: Option<usize>,
    /// Longest answer to give, tokens [default: the model spec's].
    #[arg(long, env = "MAX_OUTPUT_TOKENS", value_name = "TOKENS")]
    pub max_output_tokens: Option<usize>,
    /// Longest time for a request, seconds [default: the model spec's].
    #[arg(long, env = "MAX_REQUEST_S", value_name = "SECONDS")]
    pub max_request_s: Option<f64>,
    /// Longest answer where the buyer names none, tokens.
    #[arg(long, env = "MAX_TOKENS", value_name = "TOKENS", default_value_t = 512)]
    pub default_max_tokens: usize,
    /// Answer greedily whatever requests say of temperature, filters, penalties and seeds, as the reference miner does.
    #[arg(long, env = "ENGY_GREEDY", value_parser = BoolishValueParser::new())]
    pub greedy: bool,
    /// This worker's name, stable over restarts [default: derived from host and model].
    #[arg(long, env = "ENGY_WORKER_NAME", value_name = "NAME")]
    pub worker_name: Option<String>,
    /// Where the worker's id is kept over restarts [default: the user's state folder].
    #[arg(long, env = "ENGY_STATE_DIR", value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// How long running requests may finish after an interrupt, seconds.
    #[arg(long, env = "ENGY_SHUTDOWN_GRACE_S", value_name = "SECONDS", default_value_t = 30, value_parser = at_most::<u64>(86_400))]
    pub shutdown_grace_s: u64,
}

/// `engy-miner gateway`
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// Where to listen.
    #[arg(long, env = "ENGY_GATEWAY_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8800")]
    pub listen: SocketAddr,
    /// Legs that each miner is asked for.
    #[arg(long, env = "ENGY_GW_WORKERS", value_name = "N", default_value_t = gateway::DEFAULT_LEGS)]
    pub legs: usize,
    /// The key that miners must show [default: any key is admitted].
    #[arg(long, env = "MINER_KEY", value_name = "KEY", hide_env_values = true)]
    pub miner_key: Option<MinerKey>,
}

/// `engy-miner verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Who recomputes.
    #[arg(long, env = "ENGY_BACKEND", value_enum, default_value_t = BackendKind::Candle)]
    pub backend: BackendKind,
    /// Which serve, with --backend sglang: one that runs without a prefix cache, chunked prefill and whatever trims its replies.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// A model folder (Hugging Face) or a .gguf file: the checkpoint that the answer claims; with --backend sglang, the served
    /// model's.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH")]
    pub checkpoint: PathBuf,
    /// Which model [default: the one that the proof names].
    #[command(flatten)]
    pub model: ModelArgs,
    /// How it runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Judge the hidden states alone, also where the proof names another checkpoint (model_root differs).
    #[arg(long)]
    pub any_root: bool,
    /// Print the whole report as JSON.
    #[arg(long)]
    pub json: bool,
    /// The proof, as the gateway's /v1/proofs/ID gives it; - reads standard input.
    #[arg(value_name = "PROOF.json")]
    pub proof: PathBuf,
}

/// `engy-miner demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// A model folder (Hugging Face) or a .gguf file [default: the demo model, from scripts/fetch-demo-model].
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH")]
    pub checkpoint: Option<PathBuf>,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How it runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Longest answer, tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub max_tokens: usize,
    /// What to ask.
    #[arg(default_value = "What is the capital of France?")]
    pub question: String,
}

/// `engy-miner plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A model folder (Hugging Face) or a .gguf file.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH")]
    pub checkpoint: PathBuf,
    /// How it would run.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Plan for a device a rank, each with so much memory, such as 24GiB, in place of this machine's free memory.
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<ByteSize>,
    /// Whole contexts at once to find flags for.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_most::<usize>(1 << 16))]
    pub contexts: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A number above 0, up to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("it must be above 0 and at most 1".into()),
    }
}

/// A whole number from 1 to `most`.
fn at_most<T: TryFrom<u64> + Clone + Send + Sync>(most: usize) -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..=most as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_does_not_show_the_key() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("mine").unwrap().render_long_help().to_string();
        assert!(help.contains("MINER_KEY") && !help.contains("MINER_KEY="), "{help}");
    }
}
