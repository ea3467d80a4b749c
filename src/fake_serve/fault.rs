//! What can go wrong with a serve, and when it does.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::script::ScriptedReply;

/// One way to fail. Each is a failure that serves have been seen with.
///
/// Most befall one call of `/generate`; those of the [`Serve`](Scope::Serve) befall all calls until it is healed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// 503: the queue is full (`--max-queued-requests`), or a router has no worker to spare.
    Busy,
    /// An error in one of the forms that versions and proxies have, whatever was asked.
    Error(ErrorForm),
    /// The connection is reset before a byte comes: the process was killed, or a proxy restarts.
    ResetBeforeReply,
    /// The connection is reset after so many bytes of the response, headers included: the process was killed.
    ResetAfter {
        /// Bytes on the wire.
        bytes: u64,
    },
    /// As before, but closed: what a proxy makes of a dead serve.
    CloseAfter {
        /// Bytes on the wire.
        bytes: u64,
    },
    /// After so many tokens, a stream goes on with an error event: the scheduler raised `ValueError`. Not streamed: 400.
    ErrorEvent {
        /// Tokens before it.
        after: usize,
    },
    /// After so many tokens the serve gives up by itself (pause, weight update, shutdown): finish reason `abort` without a
    /// status.
    GivesUp {
        /// Tokens before it.
        after: usize,
    },
    /// After so many tokens, the scheduler aborts with a status, such as 500 for a non-finite model or 503 for a lost place.
    AbortStatus {
        /// Tokens before it.
        after: usize,
        /// The status.
        status: u16,
    },
    /// Only each so many-th event is sent, and the last: the client was slow, so the serve dropped what it had not yet
    /// sent. Differences are joined.
    SkippedEvents {
        /// Events for one that is sent.
        of: usize,
    },
    /// Each second event has no new text: a character that is not complete, or the beginning of a stop string, is held.
    EmptyDeltas,
    /// Nothing comes for so long: a long prompt, or a kernel that is compiled first.
    SlowFirstByte(Duration),
    /// So long passes before each token.
    SlowEvents(Duration),
    /// After so many tokens, none comes until [`release`](super::FakeServeHandle::release), an abort, or the client's
    /// leaving: another request's prefill.
    Stalls {
        /// Tokens before it.
        after: usize,
    },
    /// After so many tokens, none ever comes, and an abort is of no use: the engine is wedged while its HTTP side is well.
    Wedged {
        /// Tokens before it.
        after: usize,
    },
    /// One row of the answer is another request's: hidden states are told by place in the batch (up to 0.5.10).
    OtherRow {
        /// Which row.
        row: usize,
    },
    /// One row is not there.
    MissingRow {
        /// Which row; 0 leaves an empty first element, as a prefix cache does.
        row: usize,
    },
    /// The last rows are not there: speculative decoding returns one a step, not one a token.
    FewerRows {
        /// How many.
        by: usize,
    },
    /// The last row comes twice: the state of the token that ended the answer, which was computed ahead.
    ExtraRow,
    /// All elements are empty: a serve without the flag, or with a hook that diverts them.
    EmptyElements,
    /// No hidden states, though asked for.
    NoHiddenStates,
    /// The state of the last token alone, as one flat vector: `return_hidden_states: "last"`.
    LastOnly,
    /// A value of a row is `null`: the model overflowed, and JSON has no NaN.
    NullValue {
        /// Which row.
        row: usize,
        /// Which value.
        column: usize,
    },
    /// As before, written by an encoder that knows of no better than `NaN`.
    NanValue {
        /// Which row.
        row: usize,
        /// Which value.
        column: usize,
    },
    /// All rows have this many values: another model, or the states of middle layers joined.
    Width {
        /// Values of a row.
        values: usize,
    },
    /// Ids of fewer tokens than there are rows: an event was lost on the way to the tokenizer.
    FewerIds {
        /// How many are missing at the end.
        by: usize,
    },
    /// The first token is another than a greedy engine chose before: float noise over a prefix cache, or another batch.
    OtherToken,
    /// The answer ends with `length` after so many tokens, before its budget: the context's edge, or the cache's.
    EarlyLength {
        /// Tokens of the answer.
        tokens: usize,
    },
    /// The answer ends before its first token.
    NoTokens,
    /// The prompt is cut to so many tokens without a word: `--allow-auto-truncate`.
    CutPrompt {
        /// Tokens that are left.
        to: usize,
    },
    /// The reply is a list of one: what a batch of prompts is answered with.
    Batch,
    /// 200 and bytes that mean nothing: a port that belongs to something else.
    Garbage,
    /// 200 and a body that ends after so many bytes as if it were complete: a proxy's buffer limit.
    CutBody {
        /// Bytes of the body.
        bytes: u64,
    },
    /// 502 and a page: a proxy whose serve is gone.
    HtmlPage,
    /// 200 and no body.
    EmptyBody,
    /// Just these bytes.
    Scripted(ScriptedReply),
    /// Nothing listens, and all connections are reset: the serve is down. Until it is healed.
    Down,
    /// `/health` does not answer, while `/get_load` does: the event loop is busy with a large reply. Until it is healed.
    HealthStalls,
    /// `/health` answers 503: the serve starts, or its last generation failed. Until it is healed.
    Unhealthy,
}

/// Whom a fault befalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One call of `/generate`.
    Call,
    /// The serve as a whole.
    Serve,
}

/// How an error is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// 400 `{"error":{"message":..}}`: a `ValueError`; here of a prompt that is too long.
    Value,
    /// 400 `{"error":".."}`: the contract of 0.5.23.
    Contract,
    /// 400 of the OpenAI form: the body did not validate.
    Validation,
    /// 422 `{"detail":[..]}`: the same, of 0.4.6.
    Unprocessable,
    /// 503 `{"detail":".."}`: the web framework's own form, as 0.4.6 has it.
    Detail,
    /// 401 `{"error":"Unauthorized"}`: a wrong API key.
    Unauthorized,
    /// 500 in plain text: an exception that nobody caught.
    Crash,
    /// 404 `{"detail":"Not Found"}`: not an sglang serve.
    NotFound,
}

impl Fault {
    /// Whom it befalls.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            Self::Down | Self::HealthStalls | Self::Unhealthy => Scope::Serve,
            _ => Scope::Call,
        }
    }
}

/// Faults of calls at random, the same for the same seed and order of calls.
#[derive(Debug)]
pub struct RandomFaults {
    random: ChaCha8Rng,
    share: f64,
    kinds: Vec<Fault>,
}

impl RandomFaults {
    /// A share of all calls, from 0 to 1, fails in one of these ways.
    #[must_use]
    pub fn new(seed: u64, share: f64, kinds: Vec<Fault>) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), share: share.clamp(0.0, 1.0), kinds }
    }

    /// A share of all calls fails, in all ways that end by themselves.
    #[must_use]
    pub fn of_all_kinds(seed: u64, share: f64) -> Self {
        let brief = Duration::from_millis(20);
        let errors = [
            ErrorForm::Value,
            ErrorForm::Contract,
            ErrorForm::Validation,
            ErrorForm::Unprocessable,
            ErrorForm::Detail,
            ErrorForm::Unauthorized,
            ErrorForm::Crash,
            ErrorForm::NotFound,
        ];
        let mut kinds: Vec<Fault> = errors.into_iter().map(Fault::Error).collect();
        kinds.extend([
            Fault::Busy,
            Fault::ResetBeforeReply,
            Fault::ResetAfter { bytes: 900 },
            Fault::CloseAfter { bytes: 900 },
            Fault::ErrorEvent { after: 1 },
            Fault::GivesUp { after: 1 },
            Fault::AbortStatus { after: 1, status: 500 },
            Fault::AbortStatus { after: 0, status: 503 },
            Fault::SkippedEvents { of: 2 },
            Fault::EmptyDeltas,
            Fault::SlowFirstByte(brief),
            Fault::SlowEvents(brief),
            Fault::OtherRow { row: 1 },
            Fault::MissingRow { row: 0 },
            Fault::MissingRow { row: 1 },
            Fault::FewerRows { by: 1 },
            Fault::ExtraRow,
            Fault::EmptyElements,
            Fault::NoHiddenStates,
            Fault::LastOnly,
            Fault::NullValue { row: 0, column: 0 },
            Fault::NanValue { row: 0, column: 0 },
            Fault::Width { values: 3 },
            Fault::FewerIds { by: 1 },
            Fault::OtherToken,
            Fault::EarlyLength { tokens: 1 },
            Fault::NoTokens,
            Fault::CutPrompt { to: 1 },
            Fault::Batch,
            Fault::Garbage,
            Fault::CutBody { bytes: 300 },
            Fault::HtmlPage,
            Fault::EmptyBody,
        ]);
        Self::new(seed, share, kinds)
    }

    /// But none of these.
    #[must_use]
    pub fn without(mut self, left_out: impl Fn(&Fault) -> bool) -> Self {
        self.kinds.retain(|kind| !left_out(kind));
        self
    }

    fn next(&mut self) -> Option<Fault> {
        // Both are drawn each time, so that a call's fault does not depend on the share.
        let (fails, kind) = (self.random.random_bool(self.share), self.kinds.choose(&mut self.random));
        kind.filter(|_| fails).cloned()
    }
}

/// Which call fails how.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Option<Fault>>,
    random: Option<RandomFaults>,
}

impl FaultPlan {
    /// The fault of the call that comes now.
    pub(super) fn next(&self) -> Option<Fault> {
        let mut inner = self.lock();
        match inner.queue.pop_front() {
            Some(fault) => fault,
            None => inner.random.as_mut().and_then(RandomFaults::next),
        }
    }

    pub(super) fn queue(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().queue.extend(faults);
    }

    pub(super) fn at_random(&self, random: Option<RandomFaults>) {
        self.lock().random = random;
    }

    pub(super) fn clear(&self) {
        *self.lock() = Inner::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_faults_come_in_order_and_random_ones_after_them() {
        let plan = FaultPlan::default();
        plan.queue([Some(Fault::Busy), None, Some(Fault::Batch)]);
        plan.at_random(Some(RandomFaults::new(1, 1.0, vec![Fault::Garbage])));
        let drawn: Vec<_> = (0..4).map(|_| plan.next()).collect();
        assert_eq!(drawn, [Some(Fault::Busy), None, Some(Fault::Batch), Some(Fault::Garbage)]);
        plan.clear();
        assert_eq!(plan.next(), None);
    }

    #[test]
    fn the_same_seed_fails_the_same_calls() {
        let drawn = |seed, share| -> Vec<Option<Fault>> {
            let mut random = RandomFaults::new(seed, share, vec![Fault::Busy, Fault::Garbage, Fault::EmptyBody]);
            (0..100).map(|_| random.next()).collect()
        };
        assert_eq!(drawn(3, 0.5), drawn(3, 0.5));
        assert_ne!(drawn(3, 0.5), drawn(4, 0.5));
        let failed = drawn(3, 0.5).iter().flatten().count();
        assert!((30..70).contains(&failed), "{failed}");
        assert_eq!(drawn(3, 0.0).iter().flatten().count(), 0);
        assert_eq!(RandomFaults::new(1, 1.0, Vec::new()).next(), None);
    }
}
