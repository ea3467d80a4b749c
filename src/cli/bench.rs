//! Flags of the measurements.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{EngineArgs, WorldArgs, at_most};
use crate::backend::candle::SyntheticModel;
use crate::proof::{DEFAULT_BATCH, DEFAULT_TOPK};

/// `engy-miner bench engine`
#[derive(Debug, Args)]
pub struct BenchEngineArgs {
    /// A model folder (Hugging Face) or a .gguf file.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH", required_unless_present = "synthetic")]
    pub checkpoint: Option<PathBuf>,
    /// In place of a checkpoint: random weights in a real model's shapes, such as qwen3.6-35b-a3b:layers=2,experts=256.
    #[arg(long, value_name = "MODEL[:layers=N,experts=M]", conflicts_with = "checkpoint")]
    pub synthetic: Option<SyntheticModel>,
    /// How it runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Tokens of each prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = at_most::<usize>(1 << 20))]
    pub prompt_tokens: usize,
    /// Tokens of each answer; at least 2, since the first one belongs to the prompt's time.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = at_most::<usize>(1 << 20))]
    pub new_tokens: usize,
    /// Requests at once, which run all together whatever --max-running-requests says; several values are measured one after the
    /// other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8", value_parser = at_most::<usize>(1024))]
    pub batch: Vec<usize>,
    /// Whether rows are folded into proofs.
    #[arg(long, value_name = "on,off", value_delimiter = ',', default_value = "on,off")]
    pub proofs: Vec<Switch>,
    /// Threads that compute [default: one a core].
    #[arg(long, value_name = "N", value_parser = at_most::<usize>(1024))]
    pub threads: Option<usize>,
    /// Runs of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_most::<usize>(1000))]
    pub repeats: usize,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `engy-miner bench collectives`
#[derive(Debug, Args)]
pub struct BenchCollectivesArgs {
    /// Who meets.
    #[command(flatten)]
    pub world: WorldArgs,
    /// Rows of the tensors: tokens of a step; several values are measured one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,64,512", value_parser = at_most::<usize>(1 << 16))]
    pub rows: Vec<usize>,
    /// Columns: the model's hidden size.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = at_most::<usize>(1 << 20))]
    pub columns: usize,
    /// Samples of each size.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_most::<usize>(100_000))]
    pub samples: usize,
    /// Collectives that a sample asks for before it waits: several hide what the waiting itself takes, as in a step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_most::<usize>(10_000))]
    pub in_a_row: usize,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// `engy-miner bench proof`
#[derive(Debug, Args)]
pub struct BenchProofArgs {
    /// Values of a row: the model's hidden size.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub hidden: usize,
    /// Activations that a proof holds.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOPK)]
    pub topk: usize,
    /// Rows that a proof covers.
    #[arg(long, value_name = "ROWS", default_value_t = DEFAULT_BATCH)]
    pub batch: usize,
    /// Rows of a run [default: 64 batches; at hidden 2048 that is 8 MB, so that rows come from beyond the L2 cache].
    #[arg(long, value_name = "N")]
    pub rows: Option<usize>,
    /// Runs of each kind.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub runs: usize,
    /// Prove a file's rows, bf16 in little-endian order and nothing else, in place of random ones.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rows", "write"])]
    pub input: Option<PathBuf>,
    /// Write the bell-shaped rows to a file, so that another program can prove the same.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}
