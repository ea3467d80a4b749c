//! One answer, from the queue to its end.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::calls::{Phase, Ticket};
use super::engine::{EngineRequest, Token, Tokens};
use super::fault::Fault;
use super::refusal::Refusal;
use super::request::GenerateRequest;
use super::row::Row;
use super::server::Shared;
use crate::backend::{BackendError, TokenLogprobs};

/// What stands for a byte sequence that is no character, or not yet.
const REPLACEMENT: char = '\u{FFFD}';

/// Why an answer has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finish {
    StopId(u32),
    StopText(String),
    Length,
    /// By request, or by itself.
    Abort,
    /// By the scheduler, with a status.
    AbortStatus(u16),
}

/// What has been made of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) request: GenerateRequest,
    /// Prompt tokens without a row, as they were "cached".
    pub(super) cached: usize,
    /// Rows of the prompt's other tokens, but for the last one's, which is row 0 of the answer.
    pub(super) prompt_rows: Vec<Row>,
    pub(super) ids: Vec<u32>,
    /// One an id.
    pub(super) rows: Vec<Row>,
    /// One an id where they are asked for.
    pub(super) logprobs: Vec<TokenLogprobs>,
    pub(super) finish: Option<Finish>,
    pub(super) started: Instant,
}

/// An answer that is being made.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) ticket: Ticket,
    pub(super) fault: Option<Fault>,
    pub(super) answer: Answer,
    tokens: Tokens,
    aborted: watch::Receiver<bool>,
}

/// Why an answer was not begun.
#[derive(Debug)]
pub(super) enum NotBegun {
    Refused(Refusal),
    /// Aborted while it waited.
    Aborted(Box<GenerateRequest>, Instant),
}

impl Run {
    /// Waits for a place and reads the prompt.
    pub(super) async fn begin(
        shared: Arc<Shared>,
        mut ticket: Ticket,
        mut request: GenerateRequest,
        fault: Option<Fault>,
    ) -> Result<Self, (Ticket, NotBegun)> {
        let started = Instant::now();
        if shared.config.dialect.refuses_duplicates() && shared.calls.is_live(&request.rid) {
            let refusal = Refusal::Value(format!("Duplicate request ID detected: {}", request.rid));
            return Err((ticket, NotBegun::Refused(refusal)));
        }
        if let Some(Fault::CutPrompt { to }) = fault {
            request.prompt.truncate(to.max(1));
        }
        let free = Arc::clone(&shared.places).try_acquire_owned();
        let full = shared.config.max_queued.is_some_and(|most| shared.calls.counts().waiting >= most);
        if free.is_err() && full {
            let refusal = Refusal::Status(503, "The request queue is full.".into());
            return Err((ticket, NotBegun::Refused(refusal)));
        }
        let phase = if free.is_ok() { Phase::Running } else { Phase::Waiting };
        let mut aborted = ticket.enlist(&request.rid, request.prompt.len(), phase);
        let place = match free {
            Ok(place) => place,
            Err(_) => {
                let waiting = Arc::clone(&shared.places).acquire_owned();
                tokio::select! {
                    biased;
                    () = told(&mut aborted) => {
                        return Err((ticket, NotBegun::Aborted(Box::new(request), started)));
                    }
                    place = waiting => match place {
                        Ok(place) => place,
                        Err(_) => return Err((ticket, NotBegun::Refused(Refusal::Crash))),
                    },
                }
            }
        };
        ticket.runs(place);
        let cached = shared.cached_tokens(&request.prompt);
        let prompt_rows = match shared.rows_of_prompt(&request, cached).await {
            Ok(rows) => rows,
            Err(error) => return Err((ticket, NotBegun::Refused(refusal(&error)))),
        };
        let tokens = shared.config.engine.start(EngineRequest {
            prompt: request.prompt.clone(),
            max_tokens: request.max_new_tokens,
            stop_ids: request.stop_ids.clone(),
            min_tokens: request.min_new_tokens,
            sampling: request.sampling.clone(),
            logprobs: request.return_logprob.then_some(request.top_logprobs),
            fin: request.hidden_states,
        });
        let answer = Answer {
            request,
            cached,
            prompt_rows,
            ids: Vec::new(),
            rows: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
            started,
        };
        Ok(Self { shared, ticket, fault, answer, tokens, aborted })
    }

    /// Makes the next token, or finds the end.
    pub(super) async fn step(&mut self) -> Result<(), Refusal> {
        let made = self.answer.ids.len();
        if let Some(finish) = self.end_by_fault(made)? {
            self.answer.finish = Some(finish);
            return Ok(());
        }
        if made == self.answer.request.max_new_tokens {
            self.answer.finish = Some(Finish::Length);
            return Ok(());
        }
        let deaf = matches!(self.fault, Some(Fault::Wedged { after }) if made >= after);
        let token = {
            let next = next_token(&self.shared, self.fault.as_ref(), &self.answer, &mut self.tokens);
            tokio::select! {
                biased;
                () = told(&mut self.aborted), if !deaf => None,
                token = next => Some(token.map_err(|error| refusal(&error))?),
            }
        };
        match token {
            None => self.answer.finish = Some(Finish::Abort),
            Some(None) => self.answer.finish = Some(Finish::Length),
            Some(Some(token)) => self.take(token),
        }
        Ok(())
    }

    /// An end that a fault brings after so many tokens.
    fn end_by_fault(&self, made: usize) -> Result<Option<Finish>, Refusal> {
        Ok(match self.fault {
            Some(Fault::ErrorEvent { after }) if made >= after => {
                return Err(Refusal::Value("The scheduler failed in the middle of the answer.".into()));
            }
            Some(Fault::GivesUp { after }) if made >= after => Some(Finish::Abort),
            Some(Fault::AbortStatus { after, status }) if made >= after => Some(Finish::AbortStatus(status)),
            Some(Fault::EarlyLength { tokens }) if made >= tokens => Some(Finish::Length),
            Some(Fault::NoTokens) => Some(Finish::Length),
            _ => None,
        })
    }

    fn take(&mut self, token: Token) {
        let mut id = token.id;
        if self.fault == Some(Fault::OtherToken) && self.answer.ids.is_empty() {
            id = (id + 1) % self.shared.config.engine.vocab() as u32;
            self.go_on_from(id);
        }
        let answer = &mut self.answer;
        answer.ids.push(id);
        answer.rows.extend(token.row);
        answer.logprobs.extend(token.logprobs);
        self.ticket.count_token();
        answer.finish = answer.end(|ids| self.shared.config.engine.text(ids));
    }

    /// What follows is the engine's answer to the prompt and this id.
    fn go_on_from(&mut self, id: u32) {
        let request = &self.answer.request;
        self.tokens = self.shared.config.engine.start(EngineRequest {
            prompt: [&request.prompt[..], &[id]].concat(),
            max_tokens: request.max_new_tokens.saturating_sub(1).max(1),
            stop_ids: request.stop_ids.clone(),
            min_tokens: request.min_new_tokens.saturating_sub(1),
            sampling: request.sampling.clone(),
            logprobs: request.return_logprob.then_some(request.top_logprobs),
            fin: request.hidden_states,
        });
    }

    /// The text so far, as a client may see it.
    pub(super) fn text(&self) -> String {
        self.answer.text(|ids| self.shared.config.engine.text(ids))
    }
}

impl Answer {
    /// Whether the newest token ends it. A serve looks at the budget first.
    fn end(&self, text: impl Fn(&[u32]) -> String) -> Option<Finish> {
        let last = *self.ids.last()?;
        if self.ids.len() >= self.request.max_new_tokens {
            return Some(Finish::Length);
        }
        if self.request.stop_ids.contains(&last) && self.ids.len() > self.request.min_new_tokens {
            return Some(Finish::StopId(last));
        }
        let longest = self.request.stop_texts.iter().map(String::len).max()?;
        // A token has at least a byte of text, but for control tokens and parts of characters.
        let tail = text(&self.ids[self.ids.len().saturating_sub(longest + 8)..]);
        self.request.stop_texts.iter().find(|stop| tail.contains(stop.as_str())).cloned().map(Finish::StopText)
    }

    fn text(&self, text: impl Fn(&[u32]) -> String) -> String {
        let trims = !self.request.no_stop_trim;
        match &self.finish {
            Some(Finish::StopId(_)) if trims => text(self.ids.split_last().map_or(&[][..], |(_, ids)| ids)),
            Some(Finish::StopText(stop)) if trims => {
                let mut text = text(&self.ids);
                if let Some(at) = text.find(stop.as_str()) {
                    text.truncate(at);
                }
                text
            }
            Some(_) => text(&self.ids),
            // The last bytes may become a character.
            None => text(&self.ids).trim_end_matches(REPLACEMENT).to_owned(),
        }
    }
}

/// The next token, in its time.
async fn next_token(
    shared: &Shared,
    fault: Option<&Fault>,
    answer: &Answer,
    tokens: &mut Tokens,
) -> Result<Option<Token>, BackendError> {
    let made = answer.ids.len();
    let pace = shared.config.pace;
    let mut wait = pace.token;
    if made == 0 {
        let computed = answer.request.prompt.len() - answer.cached;
        wait = pace.prompt_token * u32::try_from(computed).unwrap_or(u32::MAX);
    }
    match fault {
        Some(Fault::SlowFirstByte(time)) if made == 0 => wait += *time,
        Some(Fault::SlowEvents(time)) => wait += *time,
        Some(Fault::Wedged { after }) if made >= *after => std::future::pending().await,
        Some(Fault::Stalls { after }) if made == *after => shared.released().await,
        _ => {}
    }
    if wait.is_zero() {
        // An engine without a pause would keep its thread from everyone else.
        tokio::task::yield_now().await;
    } else {
        sleep(wait).await;
    }
    tokens.next().await
}

/// Returns once an abort came.
async fn told(aborted: &mut watch::Receiver<bool>) {
    if aborted.wait_for(|aborted| *aborted).await.is_err() {
        // Nobody is left who could abort.
        std::future::pending().await
    }
}

fn refusal(error: &BackendError) -> Refusal {
    match error {
        BackendError::Client(message) => Refusal::Value(message.clone()),
        BackendError::Busy(message) | BackendError::Unavailable(message) => Refusal::Status(503, message.clone()),
        BackendError::Broken(_) => Refusal::Crash,
    }
}
