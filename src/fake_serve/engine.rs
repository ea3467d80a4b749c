//! Where a fake serve's tokens come from.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::row::Row;
use super::seeded::{self, Seeded};
use crate::backend::{
    Backend, BackendError, FinRows, Generation, GenerationEvent, GenerationRequest, SamplingParams, TokenLogprobs,
};

/// The text of all ids of an answer so far.
pub type TextOf = Arc<dyn Fn(&[u32]) -> String + Send + Sync>;

/// The model behind a fake serve. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    source: Source,
    text: TextOf,
}

#[derive(Clone)]
enum Source {
    Seeded(Seeded),
    Backend(Arc<dyn Backend>),
}

/// What is asked of an engine.
#[derive(Debug, Clone)]
pub(super) struct EngineRequest {
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    /// Ids that end the answer.
    pub(super) stop_ids: Vec<u32>,
    /// Tokens before which none of these is chosen; a backend does not know of it.
    pub(super) min_tokens: usize,
    pub(super) sampling: SamplingParams,
    /// Best ids to tell beside each.
    pub(super) logprobs: Option<usize>,
    /// Whether rows are wanted.
    pub(super) fin: bool,
}

/// One token of an answer.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) id: u32,
    /// The row that chose it, where rows are wanted.
    pub(super) row: Option<Row>,
    pub(super) logprobs: Option<TokenLogprobs>,
}

impl Engine {
    /// A made-up model.
    #[must_use]
    pub fn seeded(model: Seeded) -> Self {
        Self { text: model.text_of(), source: Source::Seeded(model) }
    }

    /// A real one, such as the candle backend on a small checkpoint; `text` is most often a tokenizer's
    /// [`decode`](crate::chat::Tokenizer::decode).
    #[must_use]
    pub fn backend(backend: Arc<dyn Backend>, text: TextOf) -> Self {
        Self { source: Source::Backend(backend), text }
    }

    /// Values of a row.
    #[must_use]
    pub fn hidden(&self) -> usize {
        match &self.source {
            Source::Seeded(model) => model.hidden,
            Source::Backend(backend) => backend.info().hidden,
        }
    }

    /// Ids are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match &self.source {
            Source::Seeded(model) => model.vocab,
            Source::Backend(backend) => backend.info().vocab,
        }
    }

    /// Longest sequence, tokens.
    #[must_use]
    pub fn context(&self) -> usize {
        match &self.source {
            Source::Seeded(model) => model.context,
            Source::Backend(backend) => backend.info().context,
        }
    }

    /// The model's architecture, as its checkpoint names it.
    pub(super) fn architecture(&self) -> String {
        match &self.source {
            Source::Seeded(_) => "Seeded".into(),
            Source::Backend(backend) => backend.info().architecture.clone(),
        }
    }

    /// The id that ends answers, where the model knows one.
    pub(super) fn end_id(&self) -> Option<u32> {
        match &self.source {
            Source::Seeded(model) => model.ending.map(|(id, _)| id),
            Source::Backend(_) => None,
        }
    }

    pub(super) fn text(&self, ids: &[u32]) -> String {
        (self.text)(ids)
    }

    /// Starts an answer.
    pub(super) fn start(&self, request: EngineRequest) -> Tokens {
        match &self.source {
            Source::Seeded(model) => {
                let state = model.state(&request.prompt);
                let room = model.context.saturating_sub(request.prompt.len()).min(request.max_tokens);
                Tokens::Seeded { model: model.clone(), state, chosen: 0, room, request }
            }
            Source::Backend(backend) => {
                let generation = backend.generate(GenerationRequest {
                    prompt: request.prompt,
                    max_tokens: request.max_tokens,
                    stop_ids: request.stop_ids,
                    sampling: request.sampling,
                    logprobs: request.logprobs,
                    // The serve looks for stop strings itself, and knows no grammars.
                    stop: Vec::new(),
                    constraint: None,
                    streamed: true,
                    fin: request.fin,
                });
                Tokens::Backend { generation, ready: VecDeque::new() }
            }
        }
    }

    /// The rows after reading `tokens[..=from]` to `tokens[..tokens.len()]`.
    pub(super) async fn rows(&self, tokens: &[u32], from: usize) -> Result<Vec<Row>, BackendError> {
        if from >= tokens.len() {
            return Ok(Vec::new());
        }
        match &self.source {
            Source::Seeded(model) => {
                let mut state = model.state(&tokens[..from]);
                let rows = tokens[from..].iter().map(|&id| {
                    state = seeded::step(state, id);
                    Row::Seeded { state, hidden: model.hidden }
                });
                Ok(rows.collect())
            }
            Source::Backend(backend) => Ok(held(backend.hidden_states(tokens.to_vec(), from).await?).collect()),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Seeded(model) => model.fmt(f),
            Source::Backend(backend) => backend.info().fmt(f),
        }
    }
}

/// An answer that is being made. Dropping it ends the work.
#[derive(Debug)]
pub(super) enum Tokens {
    Seeded { model: Seeded, state: u64, chosen: usize, room: usize, request: EngineRequest },
    Backend { generation: Generation, ready: VecDeque<Token> },
}

impl Tokens {
    /// The next token; `None` once the engine has no more. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<Token>, BackendError> {
        match self {
            Self::Seeded { model, state, chosen, room, request } => {
                if chosen == room {
                    return Ok(None);
                }
                let draw = Seeded::draw(&request.sampling, request.prompt.len() + *chosen);
                let forbidden = if *chosen < request.min_tokens { &request.stop_ids[..] } else { &[] };
                let id = model.choose(*state, draw, forbidden);
                let token = Token {
                    id,
                    row: request.fin.then_some(Row::Seeded { state: *state, hidden: model.hidden }),
                    logprobs: request.logprobs.map(|top| model.logprobs(*state, id, top)),
                };
                *state = seeded::step(*state, id);
                *chosen += 1;
                Ok(Some(token))
            }
            Self::Backend { generation, ready } => loop {
                if let Some(token) = ready.pop_front() {
                    return Ok(Some(token));
                }
                match generation.next().await.transpose()? {
                    Some(GenerationEvent::Started { .. }) => {}
                    Some(GenerationEvent::FirstRowMissing) => {
                        return Err(BackendError::Broken("it has no row for its first token".into()));
                    }
                    Some(GenerationEvent::Tokens { ids, fin, logprobs }) => {
                        let mut logprobs = logprobs.into_iter();
                        let mut rows = held(fin);
                        let token = |id| Token { id, row: rows.next(), logprobs: logprobs.next() };
                        ready.extend(ids.into_iter().map(token));
                    }
                    Some(GenerationEvent::Finished { .. }) => return Ok(None),
                    None => return Err(BackendError::Broken("it went away in the middle of an answer".into())),
                }
            },
        }
    }
}

fn held(rows: FinRows) -> impl Iterator<Item = Row> {
    let rows = Arc::new(rows);
    (0..rows.len()).map(move |index| Row::Held { rows: Arc::clone(&rows), index })
}
