//! One answer, read as a miner reads it: each row folded as it comes, at the end what is proven of it as JSON.

use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendError, GenerationEvent, GenerationRequest, Timings};
use crate::machine::thread_cpu_time;
use crate::proof::{AnswerProofs, Proof, ProofError, ProofParams};
use crate::protocol::{Commitment, ToplocCommitment};

/// An answer and when its parts came.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What is proven of it; without proofs where its request wanted no rows.
    pub commitment: Commitment,
    /// When it was asked for.
    pub asked: Instant,
    /// When ids came, and how many at a time.
    pub arrivals: Vec<(Instant, usize)>,
    /// When it was whole: ids and proofs written as JSON.
    pub responded: Instant,
    /// Processor time of folding its rows.
    pub proof: Duration,
    /// The backend's account.
    pub timings: Timings,
}

/// Why an answer cannot be measured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Its rows cannot be proven.
    #[error("its rows cannot be proven: {0}")]
    Proof(#[from] ProofError),
    /// It has no row for its first token, as a serve with a prefix cache.
    #[error("the first row of hidden states is missing: start the serve with --disable-radix-cache")]
    FirstRow,
    /// A fault of this program.
    #[error("a fault of this program ended the answer; what it was stands above")]
    Panicked,
    /// It ended early.
    #[error(
        "the answer ended after {tokens} of {wanted} tokens; measure with a model that goes on, or fewer --new-tokens"
    )]
    Short {
        /// Tokens that came.
        tokens: usize,
        /// Tokens that were asked for.
        wanted: usize,
    },
}

impl Answer {
    /// Asks for an answer and reads it to its end. It is proven if its request wants rows.
    ///
    /// # Errors
    /// When the backend fails, ends early, or gives rows that cannot be proven.
    pub async fn read(backend: &dyn Backend, request: GenerationRequest, topk: usize) -> Result<Self, AnswerError> {
        let params = ProofParams { topk, ..ProofParams::default() };
        let mut proofs = AnswerProofs::new(params, backend.info().hidden)?;
        let mut output_token_ids = Vec::with_capacity(request.max_tokens);
        let (prompt_ids, wanted, proven) = (request.prompt.clone(), request.max_tokens, request.fin);
        let (mut arrivals, mut proof) = (Vec::new(), Duration::ZERO);
        let asked = Instant::now();
        let mut generation = backend.generate(request);
        let ended = || BackendError::Broken("it went away in the middle of an answer".into());
        let timings = loop {
            match generation.next().await.ok_or_else(ended)?? {
                GenerationEvent::Started { .. } => {}
                GenerationEvent::FirstRowMissing => return Err(AnswerError::FirstRow),
                GenerationEvent::Tokens { ids, fin, .. } => {
                    if !ids.is_empty() {
                        arrivals.push((Instant::now(), ids.len()));
                    }
                    output_token_ids.extend(ids);
                    for row in &fin {
                        let clock = proofs.folds_next().then(thread_cpu_time);
                        proofs.push(row)?;
                        proof += clock.map_or(Duration::ZERO, |began| thread_cpu_time().saturating_sub(began));
                    }
                }
                GenerationEvent::Finished { timings, .. } => break timings,
            }
        };
        let folding = thread_cpu_time();
        let proofs = proofs.finish()?;
        if proven {
            proof += thread_cpu_time().saturating_sub(folding);
        }
        let n_tokens = output_token_ids.len();
        if n_tokens < wanted {
            return Err(AnswerError::Short { tokens: n_tokens, wanted });
        }
        let commitment = Commitment {
            model_root: String::new(),
            toploc: ToplocCommitment {
                proofs: proofs.iter().map(Proof::to_base64).collect(),
                topk,
                decode_batching_size: params.batch,
                skip_prefill: true,
                n_tokens,
                prompt_ids,
            },
            output_token_ids,
        };
        // What a leg would send.
        std::hint::black_box(serde_json::to_vec(&commitment).map_err(|e| BackendError::Broken(e.to_string()))?);
        Ok(Self { commitment, asked, arrivals, responded: Instant::now(), proof, timings })
    }

    /// Its first token's arrival.
    #[must_use]
    pub fn first(&self) -> Instant {
        self.arrivals.first().map_or(self.responded, |(came, _)| *came)
    }

    /// Its last token's arrival.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.arrivals.last().map_or(self.responded, |(came, _)| *came)
    }

    /// Tokens that came after a moment.
    #[must_use]
    pub fn tokens_after(&self, moment: Instant) -> usize {
        self.arrivals.iter().filter(|(came, _)| *came > moment).map(|(_, tokens)| tokens).sum()
    }

    /// Time of each token after the first: those that come together share the time since those before. The first ones that come share
    /// nothing, as it is not known when they were made.
    pub fn token_times(&self) -> impl Iterator<Item = Duration> {
        self.arrivals.windows(2).flat_map(|pair| {
            let ((before, _), (came, tokens)) = (pair[0], pair[1]);
            let share = came.saturating_duration_since(before) / u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
            std::iter::repeat_n(share, tokens)
        })
    }
}
