//! The engine that operators run today: an sglang serve, reached over HTTP.
//!
//! A serve speaks JSON alone, hidden states included, and its dialect depends on its version; nothing that it sends is
//! taken on trust. `reply` turns its bytes into rows; `tokens` its events into ids; `generation` makes an answer of calls and
//! counts rows against tokens; `recompute` has the rows of a given text computed; `pool` shares calls among serves, which `health`
//! watches and `probe` has found fit; `fault` says whose fault an error is, and `live` ends calls. What must never happen: a row that
//! belongs to another token, an answer that ends where the serve broke off, and a call that goes on at a serve after its reader has
//! gone.

mod fault;
mod form;
mod generation;
mod health;
mod live;
mod model;
mod pool;
mod probe;
mod recompute;
pub mod reply;
mod request;
mod serve;
mod tokens;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::AbortHandle;

use self::generation::Answering;
use self::health::Wanted;
pub use self::model::ServedModel;
use self::pool::{Pool, ServeLoad};
use self::probe::probe;
pub use self::probe::{Expected, Finding, Severity};
use self::recompute::Recompute;
use self::serve::Serve;
pub use self::serve::ServeUrlError;
use super::{Backend, BackendError, BackendInfo, FinRows, Generation, GenerationRequest, Health, Load};
use crate::machine;

/// Events that wait for their reader: a few rows, whatever the serve sends.
const EVENTS_AHEAD: usize = 2;

/// Rows that a serve's host can hold for each gigabyte of its memory: a row is a list of numbers there, several times over, and
/// hosts have died at more.
const ROWS_PER_GB: u64 = 270;

/// How serves are used.
#[derive(Clone)]
pub struct SglangOptions {
    /// Their addresses, at least one.
    pub urls: Vec<String>,
    /// What they were started with as `--api-key`.
    pub api_key: Option<String>,
    /// Most new tokens a call: a serve holds the rows of a whole call as text.
    pub chunk: usize,
    /// Rows that each serve may hold at once; `None`: by this machine's memory for serves on it, and no bound for others.
    pub max_live_rows: Option<usize>,
}

impl SglangOptions {
    /// What one call may ask for: its rows take a few gigabytes of the serve's memory, and ten times as many have ended serves.
    pub const DEFAULT_CHUNK: usize = 4096;
}

impl std::fmt::Debug for SglangOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SglangOptions")
            .field("urls", &self.urls.len())
            .field("chunk", &self.chunk)
            .field("max_live_rows", &self.max_live_rows)
            .finish_non_exhaustive()
    }
}

/// Serves behind the door of a backend.
pub struct SglangBackend {
    info: BackendInfo,
    /// Longest sequence that the model can read, whatever its serves can, tokens.
    model_context: usize,
    pool: Arc<Pool>,
    chunk: usize,
    watches: Vec<AbortHandle>,
}

/// Why serves cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SglangError {
    /// An address is none.
    #[error(transparent)]
    Url(#[from] ServeUrlError),
    /// A serve is unfit.
    #[error("the serve {serve} cannot be used: {}{}", finding.what, advice(finding))]
    Unfit {
        /// Which.
        serve: String,
        /// What is wrong with it.
        finding: Finding,
    },
    /// The checkpoint does not say what its serve should be like.
    #[error("the checkpoint's configuration lacks {0}: give --checkpoint the folder of the served model")]
    Config(&'static str),
    /// There is no address.
    #[error("there is no serve: give --serve-url its address")]
    NoServe,
}

fn advice(finding: &Finding) -> String {
    if finding.advice.is_empty() { String::new() } else { format!(" ({})", finding.advice) }
}

/// What a look at the serves found: for each its name and findings.
pub type Report = Vec<(String, Vec<Finding>)>;

fn serves(options: &SglangOptions) -> Result<Vec<Serve>, SglangError> {
    if options.urls.is_empty() {
        return Err(SglangError::NoServe);
    }
    options.urls.iter().map(|url| Ok(Serve::new(url.trim(), options.api_key.as_deref())?)).collect()
}

/// Looks at serves as a start would.
///
/// # Errors
/// When an address is none. What is wrong with a serve stands among its findings.
pub async fn examine(options: &SglangOptions, expected: Expected) -> Result<Report, SglangError> {
    let serves = serves(options)?;
    let expected = shared_among(serves.len(), expected);
    let probes = serves.iter().map(async |serve| (serve.name(), probe(serve, &expected).await.findings));
    Ok(futures::future::join_all(probes).await)
}

/// What each of so many serves must bear.
fn shared_among(serves: usize, expected: Expected) -> Expected {
    Expected { at_once: expected.at_once.div_ceil(serves.max(1)), ..expected }
}

impl SglangBackend {
    /// Probes the serves and begins to watch over them. Findings that are no faults are logged. Beside one that is fit, others that
    /// cannot be reached are waited for.
    ///
    /// # Errors
    /// When an address is none, or a serve is unfit.
    pub async fn open(options: &SglangOptions, model: ServedModel, expected: Expected) -> Result<Self, SglangError> {
        let serves = serves(options)?;
        let expected = shared_among(serves.len(), expected);
        let probes = futures::future::join_all(serves.iter().map(|serve| probe(serve, &expected))).await;
        let somebody_is_fit = probes.iter().any(|probed| probed.fault().is_none());
        let local = serves.iter().filter(|serve| serve.is_local()).count();
        let mut found = Vec::new();
        let (mut context, mut max_running) = (model.context, 0_usize);
        let mut states = Vec::new();
        for (serve, probed) in serves.into_iter().zip(probes) {
            for Finding { severity, topic, what, advice } in &probed.findings {
                match severity {
                    Severity::Note => tracing::info!(serve = serve.name(), topic, "{what}"),
                    Severity::Warning => tracing::warn!(serve = serve.name(), topic, advice, "{what}"),
                    Severity::Fault => {}
                }
            }
            let mut away = None;
            if let Some(finding) = probed.fault() {
                if !(probed.unreachable && somebody_is_fit) {
                    return Err(SglangError::Unfit { serve: serve.name(), finding: finding.clone() });
                }
                let why = finding.what.clone();
                tracing::error!(serve = serve.name(), why, "a serve is away; it is used once it is there");
                away = Some(why);
            }
            context = probed.context.map_or(context, |served| served.min(context));
            max_running += probed.max_running.unwrap_or(expected.at_once);
            states.push((away, probed.kv_limit));
            found.push((serve, probed.traits));
        }
        let live_rows = |serve: &Serve| options.max_live_rows.or_else(|| default_live_rows(serve, local));
        let pool = Arc::new(Pool::new(found, live_rows));
        for (member, (away, limit)) in pool.members().iter().zip(states) {
            let rows = member.most_rows();
            if rows / expected.at_once.max(1) < options.chunk {
                let (serve, chunk, fits) =
                    (member.serve.name(), options.chunk, (rows / expected.at_once.max(1)).max(1));
                tracing::info!(
                    serve,
                    rows,
                    chunk,
                    "long answers wait for one another, so that the serve never holds more rows than it may; a --serve-chunk of \
                     {fits} lets {} run at once",
                    expected.at_once
                );
            }
            let mut state = member.state();
            (state.away, state.kv_limit) = (away, limit);
        }
        let wanted = Arc::new(Wanted { expected, context });
        let watch = |member| tokio::spawn(health::watch(Arc::clone(member), Arc::clone(&wanted))).abort_handle();
        let watches = pool.members().iter().map(watch);
        Ok(Self {
            info: BackendInfo {
                kind: "sglang",
                architecture: model.architecture,
                hidden: model.hidden,
                vocab: model.vocab,
                context,
                max_running: max_running.max(1),
            },
            model_context: model.context,
            chunk: options.chunk.max(1),
            watches: watches.collect(),
            pool,
        })
    }

    /// Whether the model can compute the rows of these tokens from a position on. What it can read and its serves cannot is for
    /// those to refuse, as it is no fault of the text's.
    fn can_read(&self, tokens: &[u32], from: usize) -> Result<(), BackendError> {
        let (length, vocab, context) = (tokens.len(), self.info.vocab, self.model_context);
        if tokens.is_empty() {
            return Err(BackendError::Client("the text has no tokens".into()));
        }
        if from >= length {
            return Err(BackendError::Client(format!("rows from position {from} were asked of {length} tokens")));
        }
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(BackendError::Client(format!("token id {id} is outside the vocabulary of {vocab}")));
        }
        if length > context {
            return Err(BackendError::Client(format!(
                "{length} tokens are more than the model's context of {context}"
            )));
        }
        Ok(())
    }

    /// Calls that are under way at the serves.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.pool.inflight()
    }
}

/// Rows that a serve may hold which shares this machine's memory with others, `local` in all; for one elsewhere nothing is known of
/// its memory.
fn default_live_rows(serve: &Serve, local: usize) -> Option<usize> {
    let memory = machine::memory().filter(|_| serve.is_local())?;
    let rows = memory.total / 1_000_000_000 * ROWS_PER_GB / u64::try_from(local.max(1)).ok()?;
    usize::try_from(rows).ok().filter(|rows| *rows > 0)
}

impl std::fmt::Debug for SglangBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SglangBackend").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Drop for SglangBackend {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
    }
}

impl Backend for SglangBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// Needs a runtime around it, which every miner has.
    fn generate(&self, request: GenerationRequest) -> Generation {
        let client = |reason: String| Generation::refused(BackendError::Client(reason));
        if request.prompt.is_empty() {
            return client("the prompt has no tokens".into());
        }
        if request.max_tokens == 0 {
            return client("an answer of 0 tokens was asked for; ask for at least 1".into());
        }
        // A serve refuses a call that could fill its context to the last token.
        let room = self.info.context.saturating_sub(request.prompt.len() + 1);
        if room == 0 {
            let (prompt, context) = (request.prompt.len(), self.info.context);
            return client(format!("{prompt} tokens leave no room in a context of {context}"));
        }
        let (sender, generation) = Generation::paced(EVENTS_AHEAD);
        let answering = Answering {
            pool: Arc::clone(&self.pool),
            request: GenerationRequest { max_tokens: request.max_tokens.min(room), ..request },
            hidden: self.info.hidden,
            chunk: self.chunk,
        };
        tokio::spawn(answering.run(sender));
        generation
    }

    /// One call that reads all tokens, of a serve that runs without a prefix cache, chunked prefill and whatever trims its replies:
    /// other serves' rows are refused, with what to set. Dropped, the call is ended at the serve. Needs a runtime around it, which
    /// every program here has.
    fn hidden_states(&self, tokens: Vec<u32>, from: usize) -> BoxFuture<'static, Result<FinRows, BackendError>> {
        if let Err(error) = self.can_read(&tokens, from) {
            return async move { Err(error) }.boxed();
        }
        Recompute { pool: Arc::clone(&self.pool), tokens, from, hidden: self.info.hidden }.run().boxed()
    }

    fn health(&self) -> Health {
        self.pool.away().map_or(Health::Ready, Health::Away)
    }

    fn load(&self) -> Load {
        let states = self.pool.members().iter().map(|member| member.state().clone());
        // A serve that does not tell what it works on counts as nothing, its cache too.
        let told = states.filter_map(|state| Some((state.load?, state.kv_limit)));
        told.fold(Load::default(), |sum, (load, kv_limit)| {
            let ServeLoad { running, waiting, tokens, pending } = load;
            Load {
                running: sum.running + running,
                waiting: sum.waiting + waiting,
                pending_tokens: sum.pending_tokens + pending,
                // Beside a limit that is known, or the share would be wrong.
                kv_used: sum.kv_used + kv_limit.map_or(0, |_| tokens),
                kv_limit: sum.kv_limit + kv_limit.unwrap_or(0),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_on_this_machine_share_its_memory() {
        crate::tls::install();
        let local = Serve::new("http://127.0.0.1:1", None).unwrap();
        let alone = default_live_rows(&local, 1).unwrap();
        assert!((1..=machine::memory().unwrap().total as usize / 1_000_000_000 * 270).contains(&alone));
        assert_eq!(default_live_rows(&local, 3), Some(alone / 3));
        assert_eq!(default_live_rows(&Serve::new("http://gpu.example", None).unwrap(), 3), None);
    }
}
