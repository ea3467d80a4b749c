//! Where tokens and their final hidden states come from: the door that `mine`, `verify` and `demo` share.
//!
//! In: token ids and sampling parameters. Out: chosen ids, each with its row of fin (the final hidden state that chose
//! it). A backend knows nothing of text, messages, proofs or sockets. Two things must never happen here: an id without
//! its row, and a generation that goes on after its [`Generation`] was dropped.

pub mod candle;
pub mod sglang;

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use half::bf16;
use tokio::sync::mpsc;

use crate::guide::Constraint;

/// A source of tokens with proofs' raw material.
pub trait Backend: Send + Sync + 'static {
    /// What this backend serves. Constant after start.
    fn info(&self) -> &BackendInfo;

    /// Starts a generation. Returns at once; a refusal comes as the stream's first and only item.
    fn generate(&self, request: GenerationRequest) -> Generation;

    /// Teacher-forced rows of fin: row `j` is the state after reading `tokens[..=from + j]`, for each position from
    /// `from` to the last. This is what a verifier recomputes.
    fn hidden_states(&self, tokens: Vec<u32>, from: usize) -> BoxFuture<'static, Result<FinRows, BackendError>>;

    /// Whether new requests make sense now.
    fn health(&self) -> Health;

    /// How busy it is, for heartbeats.
    fn load(&self) -> Load;
}

/// What a backend serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendInfo {
    /// `candle` or `sglang`.
    pub kind: &'static str,
    /// The model's architecture, as its checkpoint names it.
    pub architecture: String,
    /// Width of a row of fin.
    pub hidden: usize,
    /// Ids are below this.
    pub vocab: usize,
    /// Longest sequence, tokens.
    pub context: usize,
    /// Requests that make progress at once; more wait.
    pub max_running: usize,
}

/// One request for tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// The prompt, at least one id.
    pub prompt: Vec<u32>,
    /// Longest answer, tokens.
    pub max_tokens: usize,
    /// Ids that end the answer; the id that did so is its last token, with its row.
    pub stop_ids: Vec<u32>,
    /// How ids are chosen.
    pub sampling: SamplingParams,
    /// `Some(k)` asks for [`TokenLogprobs`] with each id, the `k` best ids among them.
    pub logprobs: Option<usize>,
    /// Strings at which whoever reads the answer will end it. A backend that sees text may end there by itself, at the id that
    /// completes one; another goes on until it is dropped.
    pub stop: Vec<String>,
    /// Whether somebody waits for each id. Where that costs a backend something, one that nobody watches may come in one piece.
    pub streamed: bool,
    /// Whether rows of fin come with the ids. Whatever is proven needs them; an answer without them is what the cost of proofs is
    /// measured against, and its backend spares all that they take.
    pub fin: bool,
    /// The form that the answer is held to: no id is chosen that breaks it, and it ends by an id of the model's own that ends a
    /// turn. Rows of fin are not touched by it.
    pub constraint: Option<Constraint>,
}

impl GenerationRequest {
    /// A greedy answer of at most `max_tokens` tokens to a prompt, which nothing but its length ends.
    #[must_use]
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            stop_ids: Vec::new(),
            sampling: SamplingParams::default(),
            logprobs: None,
            stop: Vec::new(),
            streamed: false,
            fin: true,
            constraint: None,
        }
    }
}

/// How the next id is chosen from the logits.
///
/// Applied in this order: penalties, temperature, top-k, top-p, min-p (as sglang does).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy: the highest logit, the lowest id of equals.
    pub temperature: f32,
    /// Keep the smallest set of ids whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many ids; `None` keeps all.
    pub top_k: Option<usize>,
    /// Drop ids below this share of the best id's probability.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of ids seen in prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of ids seen in the answer.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the answer.
    pub frequency_penalty: f32,
    /// The same seed draws the same random numbers, whatever else runs; two runs then differ only where float noise
    /// moves a draw over a border. `None` draws a seed.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    /// Greedy, nothing penalised.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

/// Rows of fin: `[rows, hidden]`, bf16, row-major.
#[derive(Clone, PartialEq)]
pub struct FinRows {
    hidden: usize,
    values: Vec<bf16>,
}

impl FinRows {
    /// Rows of `hidden` values each. `None` if the values do not divide into rows, or `hidden` is 0.
    #[must_use]
    pub fn new(hidden: usize, values: Vec<bf16>) -> Option<Self> {
        (hidden > 0 && values.len().is_multiple_of(hidden)).then_some(Self { hidden, values })
    }

    /// How many rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() / self.hidden
    }

    /// True when there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Values a row.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The rows in order.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, bf16> {
        self.values.chunks_exact(self.hidden)
    }

    /// Appends the rows of another of the same width; false (and nothing appended) if the widths differ.
    #[must_use]
    pub fn append(&mut self, other: &Self) -> bool {
        let fits = self.hidden == other.hidden;
        if fits {
            self.values.extend_from_slice(&other.values);
        }
        fits
    }
}

impl<'a> IntoIterator for &'a FinRows {
    type Item = &'a [bf16];
    type IntoIter = std::slice::ChunksExact<'a, bf16>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for FinRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FinRows[{}, {}]", self.len(), self.hidden)
    }
}

/// What a generation tells, in this order: one `Started`, any number of `Tokens`, one `Finished`. `FirstRowMissing` may come before
/// the first row.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// The prompt has been read.
    Started {
        /// Prompt tokens whose states came from a cache.
        cached_tokens: usize,
    },
    /// There is no row for the first id, and never will be: rows begin with the second id's. The first id then counts as the last
    /// of the prompt, where proofs are concerned.
    FirstRowMissing,
    /// The next ids, and the next rows.
    ///
    /// Row `j` of the generation chose its id `j`. Rows come with their ids or behind them, never before, and when the generation
    /// has finished all of them have come; none come where the request wants none.
    Tokens {
        /// Chosen ids, the one that ended the answer included.
        ids: Vec<u32>,
        /// `[rows, hidden]`.
        fin: FinRows,
        /// One an id where the request asks for them, else none.
        logprobs: Vec<TokenLogprobs>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: StopReason,
        /// What it took.
        timings: Timings,
    },
}

/// How likely the model found the id that was chosen, and the best ids beside it. Natural logarithms.
///
/// They are the log-softmax of the logits as the model gave them: at temperature 1, before penalties and filters. So they
/// say what the model thinks of a text, whatever the request's way of choosing, and a greedy and a sampled answer compare.
/// vLLM's default and sglang's `RETURN_ORIGINAL_LOGPROB` are the same; sglang without it divides by the temperature first,
/// which makes no difference to greedy answers.
///
/// Always finite: what has no probability counts as [`LOWEST_LOGPROB`](Self::LOWEST_LOGPROB).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen id.
    pub logprob: f32,
    /// The best ids, best first, the lowest id of equals first. Fewer than asked for where the vocabulary has no more.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Stands for minus infinity, which JSON does not have. OpenAI writes the same for ids that are as good as impossible.
    pub const LOWEST_LOGPROB: f32 = -9999.0;
}

/// Why a backend ended a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// This stop id was chosen.
    StopId(u32),
    /// The text has come to one of the request's stop strings.
    StopString,
    /// The token budget or the context is used up.
    Length,
}

/// What a generation took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Before the first prompt token was computed.
    pub queued: Duration,
    /// From then to the first id.
    pub prefill: Duration,
    /// From the first id to the last.
    pub decode: Duration,
    /// Processor time that went into getting rows of fin: copying them out of the model, or reading a serve's replies, ids included.
    pub rows: Duration,
    /// Bytes of a serve's replies; 0 where the model is in this process.
    pub received: u64,
}

/// A running generation: a stream of events. Dropping it cancels the work, everywhere, at once.
#[derive(Debug)]
pub struct Generation {
    events: Events,
}

type Event = Result<GenerationEvent, BackendError>;

#[derive(Debug)]
enum Events {
    Free(mpsc::UnboundedReceiver<Event>),
    Paced(mpsc::Receiver<Event>),
}

/// A backend's end of a [`Generation`].
#[derive(Debug, Clone)]
pub struct GenerationSender {
    events: mpsc::UnboundedSender<Event>,
}

/// A backend's end of a [`Generation`] that waits for its reader.
#[derive(Debug, Clone)]
pub struct PacedSender {
    events: mpsc::Sender<Event>,
}

impl Generation {
    /// Both ends of a new generation.
    ///
    /// Unbounded, so that an engine never waits for a reader: what can pile up is bounded by the request's own
    /// `max_tokens` rows.
    #[must_use]
    pub fn channel() -> (GenerationSender, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        (GenerationSender { events: sender }, Self { events: Events::Free(events) })
    }

    /// Both ends of a new generation of which at most `ahead` events wait for the reader: for backends that get tokens faster
    /// than they are folded, and can stop reading.
    #[must_use]
    pub fn paced(ahead: usize) -> (PacedSender, Self) {
        let (sender, events) = mpsc::channel(ahead.max(1));
        (PacedSender { events: sender }, Self { events: Events::Paced(events) })
    }

    /// A generation that is refused.
    #[must_use]
    pub fn refused(error: BackendError) -> Self {
        let (sender, generation) = Self::channel();
        sender.send(Err(error));
        generation
    }

    /// The next event. `None` after `Finished` or an error, and where the backend went away before: a reader that has
    /// seen no `Finished` must treat that as a failure.
    pub async fn next(&mut self) -> Option<Result<GenerationEvent, BackendError>> {
        match &mut self.events {
            Events::Free(events) => events.recv().await,
            Events::Paced(events) => events.recv().await,
        }
    }
}

impl GenerationSender {
    /// Tells the reader, if it is still there.
    pub fn send(&self, event: Result<GenerationEvent, BackendError>) {
        let _ = self.events.send(event);
    }

    /// True once the reader has gone: stop working for it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }
}

impl PacedSender {
    /// Tells the reader, if it is still there, once it has room.
    pub async fn send(&self, event: Result<GenerationEvent, BackendError>) {
        let _ = self.events.send(event).await;
    }

    /// Resolves once the reader has gone: stop working for it.
    pub async fn cancelled(&self) {
        self.events.closed().await;
    }
}

/// Whether new requests make sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Ready,
    /// Not now; it may get better by itself.
    Away(String),
    /// No, and it will not get better by itself.
    Dead(String),
}

/// How busy a backend is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that make progress.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Tokens not yet read: prompts, and the newest token of each running answer.
    pub pending_tokens: usize,
    /// Tokens held in the key/value cache.
    pub kv_used: usize,
    /// Tokens that fit.
    pub kv_limit: usize,
}

/// What went wrong in a backend, by whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The request cannot be served as it is: the caller's fault.
    #[error("{0}")]
    Client(String),
    /// Too much at once; the same request may work later.
    #[error("the backend is busy: {0}")]
    Busy(String),
    /// The backend is not there (starting, stopping, unreachable).
    #[error("the backend is unavailable: {0}")]
    Unavailable(String),
    /// The backend failed while it worked.
    #[error("the backend failed: {0}")]
    Broken(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_divide_or_there_are_none() {
        let value = bf16::ONE;
        assert!(FinRows::new(0, vec![]).is_none());
        assert!(FinRows::new(2, vec![value; 3]).is_none());
        let mut rows = FinRows::new(2, vec![value; 4]).unwrap();
        assert_eq!((rows.len(), rows.iter().count()), (2, 2));
        assert!(!rows.append(&FinRows::new(3, vec![value; 3]).unwrap()));
        assert!(rows.append(&rows.clone()));
        assert_eq!(rows.len(), 4);
    }

    #[tokio::test]
    async fn a_dropped_generation_is_seen_by_its_sender() {
        let (sender, generation) = Generation::channel();
        assert!(!sender.is_cancelled());
        drop(generation);
        assert!(sender.is_cancelled());
        let mut refused = Generation::refused(BackendError::Busy("full".into()));
        assert_eq!(refused.next().await, Some(Err(BackendError::Busy("full".into()))));
        assert_eq!(refused.next().await, None);
    }
}
