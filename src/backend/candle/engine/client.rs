//! Who waits for what the engine computes: a reader of an answer, or of rows.

use std::time::{Duration, Instant};

use half::bf16;
use tokio::sync::oneshot;

use crate::backend::candle::candidates::{LogitsWanted, RowLogits};
use crate::backend::candle::logprobs::token_logprobs;
use crate::backend::candle::sampler::Sampler;
use crate::backend::{BackendError, FinRows, GenerationEvent, GenerationSender, StopReason, Timings};
use crate::guide::Guide;

/// Who waits for a sequence.
pub(super) enum Client {
    Generation(Box<GenerationClient>),
    Rows(RowsClient),
}

pub(super) struct GenerationClient {
    pub(super) sender: GenerationSender,
    pub(super) sampler: Sampler,
    /// What holds it to its form.
    pub(super) guide: Option<Guide>,
    /// How many of the best ids each id comes with, where log-probabilities are wanted.
    pub(super) logprobs: Option<usize>,
    /// Whether ids come with their rows.
    pub(super) fin: bool,
    pub(super) stop_ids: Vec<u32>,
    /// Tokens that may still be chosen.
    pub(super) left: usize,
    pub(super) submitted: Instant,
    /// When its first step began.
    pub(super) began: Option<Instant>,
    /// When its first id was chosen.
    pub(super) first: Option<Instant>,
    /// What its rows took.
    pub(super) rows: Duration,
}

pub(super) struct RowsClient {
    pub(super) answer: oneshot::Sender<Result<FinRows, BackendError>>,
    pub(super) rows: Vec<bf16>,
    /// Values that make the answer whole.
    pub(super) wanted: usize,
}

impl Client {
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Generation(client) => client.sender.is_cancelled(),
            Self::Rows(client) => client.answer.is_closed(),
        }
    }

    pub(super) fn fail(self, error: BackendError) {
        match self {
            Self::Generation(client) => client.sender.send(Err(error)),
            Self::Rows(client) => drop(client.answer.send(Err(error))),
        }
    }
}

impl GenerationClient {
    /// What it needs to see of its next row of logits.
    pub(super) fn wants(&self) -> LogitsWanted {
        // The best ids of all may not be among those that a form allows.
        if self.logprobs.is_some() || self.guide.is_some() { LogitsWanted::All } else { self.sampler.wants() }
    }

    /// The next id, one that the form allows where there is a form.
    fn choose(&mut self, mut logits: RowLogits) -> Result<u32, BackendError> {
        let broken = || {
            let reason = "the model gave no finite logit: weights of its checkpoint may be damaged; download it again";
            BackendError::Broken(reason.into())
        };
        let Some(guide) = &mut self.guide else {
            return self.sampler.choose(logits).ok_or_else(broken);
        };
        let mask = guide.mask()?;
        if let RowLogits::All(logits) = &mut logits {
            mask.apply(logits);
        }
        // Where no logit that is allowed is a number, a choice among equals would fall on one that is not.
        self.sampler.choose(logits).filter(|id| mask.allows(*id)).ok_or_else(broken)
    }

    /// Chooses the next id and tells the reader. `None` when the answer has ended.
    pub(super) fn advance(
        &mut self,
        logits: RowLogits,
        row: Vec<bf16>,
        hidden: usize,
        began: Instant,
        cached_tokens: impl FnOnce() -> usize,
    ) -> Option<u32> {
        // Choosing penalises the logits in place, and log-probabilities are of what the model gave.
        let raw = match (self.logprobs, &logits) {
            (Some(k), RowLogits::All(logits)) => Some((k, logits.clone())),
            _ => None,
        };
        let id = match self.choose(logits) {
            Ok(id) => id,
            Err(error) => {
                self.sender.send(Err(error));
                return None;
            }
        };
        let now = Instant::now();
        let began = *self.began.get_or_insert(began);
        let first = match self.first {
            Some(first) => first,
            None => {
                self.sender.send(Ok(GenerationEvent::Started { cached_tokens: cached_tokens() }));
                *self.first.insert(now)
            }
        };
        let fin = FinRows::new(hidden, row)?;
        let logprobs = raw.map(|(k, logits)| token_logprobs(&logits, id, k)).into_iter().collect();
        self.sender.send(Ok(GenerationEvent::Tokens { ids: vec![id], fin, logprobs }));
        self.left = self.left.saturating_sub(1);
        let reason = if self.stop_ids.contains(&id) {
            StopReason::StopId(id)
        } else if self.left == 0 {
            StopReason::Length
        } else {
            // The ids that may come next are found while the model reads this one.
            self.guide.iter_mut().for_each(|guide| guide.accept(id));
            return Some(id);
        };
        let timings = Timings {
            queued: began.saturating_duration_since(self.submitted),
            prefill: first.saturating_duration_since(began),
            decode: now.saturating_duration_since(first),
            rows: self.rows,
            received: 0,
        };
        self.sender.send(Ok(GenerationEvent::Finished { reason, timings }));
        None
    }
}
