//! How a fake serve was "started": what its command line and its version decide.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::dialect::Dialect;
use super::engine::Engine;

/// A fake serve's settings.
#[derive(Debug, Clone)]
pub struct FakeServeConfig {
    /// Where to listen; port 0 takes any.
    pub listen: SocketAddr,
    /// The version to speak like.
    pub dialect: Dialect,
    /// The model.
    pub engine: Engine,
    /// `--model-path`.
    pub model_path: String,
    /// `--context-length`, tokens.
    pub context: usize,
    /// Ids that end each answer unless `ignore_eos` is asked for.
    pub eos_ids: Vec<u32>,
    /// `--max-running-requests`; more wait.
    pub max_running: usize,
    /// `--max-queued-requests`; more are refused with 503.
    pub max_queued: Option<usize>,
    /// Tokens that the key/value cache "holds"; longer prompts are refused.
    pub max_total_tokens: usize,
    /// Whether hidden states may be asked for.
    pub hidden_states: HiddenStatesFlag,
    /// What becomes of the prompt's rows.
    pub prompt_block: PromptBlock,
    /// How a decode step's row is written.
    pub layout: Layout,
    /// `--chunked-prefill-size`: longer prompts are read in parts. `None` for -1.
    pub chunked_prefill_size: Option<usize>,
    /// Prefixes of earlier calls are "cached": no rows are computed for them. The reverse of `--disable-radix-cache`.
    pub radix_cache: bool,
    /// `--speculative-algorithm`, as `/get_server_info` tells it. For rows that go missing by it, see
    /// [`Fault::FewerRows`](super::Fault::FewerRows).
    pub speculative_algorithm: Option<String>,
    /// `--stream-interval`: tokens between events of a stream where the request names none.
    pub stream_interval: usize,
    /// `--stream-output`, `--incremental-streaming-output`.
    pub incremental_output: bool,
    /// `--allow-auto-truncate`: a prompt that is too long is cut without a word.
    pub allow_auto_truncate: bool,
    /// Which requests an `/abort_request` ends.
    pub abort_match: AbortMatch,
    /// `--api-key`.
    pub api_key: Option<String>,
    /// How fast it works.
    pub pace: Pace,
    /// How long a request whose client left keeps its place, as serves look for that every four seconds only.
    pub notices_disconnects_after: Duration,
    /// Calls that [`FakeServeHandle::calls`](super::FakeServeHandle::calls) remembers, with their bodies.
    pub remembered_calls: usize,
}

impl FakeServeConfig {
    /// A serve as a proof needs it, on any port of this machine: hidden states on, prefix cache and chunked prefill off,
    /// as fast as it can.
    #[must_use]
    pub fn new(dialect: Dialect, engine: Engine) -> Self {
        let context = engine.context();
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            dialect,
            model_path: "fake-model".into(),
            context,
            eos_ids: engine.end_id().into_iter().collect(),
            engine,
            max_running: 64,
            max_queued: None,
            max_total_tokens: context.saturating_mul(8),
            hidden_states: HiddenStatesFlag::On,
            prompt_block: PromptBlock::Full,
            layout: Layout::Vectors,
            chunked_prefill_size: None,
            radix_cache: false,
            speculative_algorithm: None,
            stream_interval: 1,
            incremental_output: false,
            allow_auto_truncate: false,
            abort_match: AbortMatch::Prefix,
            api_key: None,
            pace: Pace::default(),
            notices_disconnects_after: Duration::ZERO,
            remembered_calls: 4096,
        }
    }

    /// The longest prompt, tokens: what `max_req_input_len` says.
    pub(super) fn max_input(&self) -> usize {
        // Five tokens are kept back, in all versions.
        self.context.min(self.max_total_tokens).saturating_sub(6)
    }
}

/// Whether hidden states may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HiddenStatesFlag {
    /// No flag was given: a request for them is refused.
    Off,
    /// `--return-hidden-states-mode last` (0.5.23): a request for all is refused with another message.
    LastOnly,
    /// `--enable-return-hidden-states`.
    #[default]
    On,
}

/// What becomes of the rows of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptBlock {
    /// All rows that were computed come back.
    #[default]
    Full,
    /// As operators trim their serves: the last row alone, and hidden states in the last event of a stream only.
    LastRow,
    /// The block is empty, and row 0 with it: what a prefix cache does to versions up to 0.5.15.
    Missing,
    /// The last row is another request's: what a prefix cache does to mixed batches of versions up to 0.5.15.
    OfAnother,
}

/// How the row of a decode step is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// A vector.
    #[default]
    Vectors,
    /// A matrix of one row.
    OneRowMatrices,
}

/// Which requests an `/abort_request` ends, once its id is found to be live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AbortMatch {
    /// All whose id begins with the one named, as in all versions up to 0.5.23.
    #[default]
    Prefix,
    /// The one named.
    Exact,
}

/// How long things take. All zero: as fast as the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// A prompt token.
    pub prompt_token: Duration,
    /// A token of the answer.
    pub token: Duration,
}
