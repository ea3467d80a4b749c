//! Flags about sglang serves, real ones and the stand-in.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{EngineArgs, ModelArgs, at_most};
use crate::backend::sglang::SglangOptions;
use crate::fake_serve::{Dialect, PromptBlock, Seeded};
use crate::session;

/// Serves of `--backend sglang`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// An sglang serve's address, or several that share the work.
    #[arg(long, env = "SERVE_URL", value_name = "URL,...", value_delimiter = ',')]
    pub serve_url: Vec<String>,
    /// What the serve was started with as --api-key.
    #[arg(long, env = "SERVE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub serve_api_key: Option<String>,
    /// Most new tokens a call: a serve holds a whole call's hidden states as text.
    #[arg(long, env = "TOPLOC_GEN_CHUNK", value_name = "TOKENS", default_value_t = SglangOptions::DEFAULT_CHUNK, value_parser = at_most::<usize>(1 << 20))]
    pub serve_chunk: usize,
    /// Rows of hidden states that each serve may hold at once [default: 270 for each GB of this machine, if it runs here].
    #[arg(long, env = "ENGY_SERVE_MAX_LIVE_ROWS", value_name = "ROWS", value_parser = at_most::<usize>(1 << 30))]
    pub serve_max_live_rows: Option<usize>,
}

/// `engy-miner doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Which serves.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// The served model's folder: its configuration, tokenizer and template.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH")]
    pub checkpoint: PathBuf,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Requests at once that the miner would send.
    #[arg(long, env = "MAX_INFLIGHT", value_name = "N", default_value_t = session::DEFAULT_SLOTS_PER_LEG * session::DEFAULT_LEGS, value_parser = at_most::<usize>(session::MAX_INFLIGHT))]
    pub max_inflight: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `engy-miner fake-serve`
#[derive(Debug, Args)]
pub struct FakeServeArgs {
    /// Where to listen.
    #[arg(long, env = "ENGY_FAKE_SERVE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:30000")]
    pub listen: SocketAddr,
    /// The version of sglang to speak like: 0.4.9, 0.5.2, 0.5.6, 0.5.10, 0.5.15 or 0.5.23.
    #[arg(long, value_name = "VERSION", default_value_t = Dialect::default())]
    pub dialect: Dialect,
    /// The model: a folder (Hugging Face) or a .gguf file.
    #[arg(long, env = "ENGY_CHECKPOINT", value_name = "PATH", conflicts_with = "seeded")]
    pub checkpoint: Option<PathBuf>,
    /// In place of a checkpoint: tokens and rows that are made up of the prompt and a seed; ,end=ID,mean=TOKENS lets answers end by
    /// themselves.
    #[arg(long, value_name = "hidden=H,vocab=V[,seed=S,context=TOKENS]", default_value = "hidden=2048,vocab=1000")]
    pub seeded: Seeded,
    /// How a checkpoint runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What becomes of the prompt's rows of hidden states.
    #[arg(long, value_enum, default_value_t = PromptBlockKind::Full)]
    pub prompt_block: PromptBlockKind,
    /// Refuse to return hidden states, as a serve without that flag.
    #[arg(long)]
    pub disable_return_hidden_states: bool,
    /// Tokens between events of a stream.
    #[arg(long, value_name = "TOKENS", default_value_t = 1, value_parser = at_most::<usize>(1 << 20))]
    pub stream_interval: usize,
    /// Events of a stream tell what is new, in versions that can.
    #[arg(long)]
    pub incremental_streaming_output: bool,
    /// Treat prefixes of earlier calls as cached: no rows come back for them.
    #[arg(long)]
    pub enable_radix_cache: bool,
    /// What /get_server_info says of speculative decoding.
    #[arg(long, value_name = "NAME")]
    pub speculative_algorithm: Option<String>,
    /// The key that clients must show [default: none].
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// How long each token takes, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub token_ms: u64,
    /// How long each prompt token takes, microseconds.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub prompt_token_us: u64,
}

/// What becomes of a prompt's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PromptBlockKind {
    /// All come back.
    Full,
    /// The last one alone, and in the last event alone, as operators trim their serves.
    Last,
    /// None, and row 0 of the answer with them.
    Missing,
}

impl From<PromptBlockKind> for PromptBlock {
    fn from(kind: PromptBlockKind) -> Self {
        match kind {
            PromptBlockKind::Full => Self::Full,
            PromptBlockKind::Last => Self::LastRow,
            PromptBlockKind::Missing => Self::Missing,
        }
    }
}
