//! The rows of a given text: one call that reads all of it and asks for one new token.
//!
//! A serve that is not trimmed returns a row for each token of a prompt that it computed. So it has to compute each, in one piece: it
//! runs without a prefix cache, chunked prefill and a trim. Where a row is missing all others may be another token's, so that is
//! an error that says what to set.

use std::sync::Arc;

use half::bf16;

use super::fault::Fault;
use super::live::Live;
use super::pool::{Lease, Pool};
use super::reply::{FinishReason, PromptRows, Reply, ReplyReader};
use super::request::{GenerateBody, Shape};
use crate::backend::{BackendError, FinRows, GenerationRequest};

/// The fewest that a serve takes.
const NEW_TOKENS: usize = 1;

/// A recompute under way. Dropped, its serve is told to stop.
pub(super) struct Recompute {
    pub(super) pool: Arc<Pool>,
    /// The text: ids of the vocabulary, no more than the model can read.
    pub(super) tokens: Vec<u32>,
    /// The first position whose row is wanted, one of the text's.
    pub(super) from: usize,
    /// Values of a row.
    pub(super) hidden: usize,
}

impl Recompute {
    /// Rows `[tokens - from, hidden]`.
    pub(super) async fn run(self) -> Result<FinRows, BackendError> {
        self.rows().await.map_err(|fault| match fault.error {
            // The model can read the text, so whatever the serve has against it is for whoever runs the serve.
            BackendError::Client(reason) => BackendError::Unavailable(format!(
                "{reason} (the model can read all {} tokens: start the serve with a longer --context-length, or a larger cache, where \
                 that is what it lacks)",
                self.tokens.len()
            )),
            error => error,
        })
    }

    /// One call, and once more where its serve did not take it or was lost before it answered.
    async fn rows(&self) -> Result<FinRows, Fault> {
        let lease = self.pool.lease(self.tokens.len(), NEW_TOKENS, None).await?;
        let first = lease.number();
        match self.attempt(lease).await {
            Err(fault) if fault.refused => {
                tracing::warn!(serve = self.pool.name(first), error = %fault.error, "a serve does not take a call; trying once more");
            }
            outcome => return outcome,
        }
        self.attempt(self.pool.lease_again(self.tokens.len(), NEW_TOKENS, first).await?).await
    }

    async fn attempt(&self, lease: Lease) -> Result<FinRows, Fault> {
        let live = Live::new(lease);
        let request = GenerationRequest::greedy(Vec::new(), NEW_TOKENS);
        let shape = Shape { max_new_tokens: NEW_TOKENS, stream_interval: None, knows_seed: false };
        let body = GenerateBody::new(&live.rid, &self.tokens, &request, shape);
        let sent = live.serve.generate(&body).await;
        let (live, mut response) = live.sent(sent)?;
        let wanted = PromptRows { tokens: self.tokens.len(), from: self.from, new_tokens: NEW_TOKENS };
        let mut reader = ReplyReader::of_prompt(self.hidden, wanted);
        let mut values: Vec<bf16> = Vec::new();
        let mut looked = false;
        let broke = |error| Fault::broke_off(&live.serve.name(), 0, &error);
        while let Some(chunk) = response.chunk().await.map_err(broke)? {
            let pushed = reader.push(&chunk, &mut |row| values.extend_from_slice(row));
            // Before what is wrong with the rows: these words say why. And before all rows have come, which takes long.
            if !looked && let Some(reply) = reader.before_rows() {
                looked = true;
                self.check(&reply, &live)?;
            }
            pushed?;
        }
        let reply = reader.finish()?;
        self.check(&reply, &live)?;
        if reply.meta.finish_reason.is_none() {
            return Err(Fault::of_end(None));
        }
        live.ended();
        let rows = reply.rows.and_then(|_| FinRows::new(self.hidden, values));
        rows.ok_or_else(|| {
            Fault::broken(format!(
                "the serve read {} tokens and returned no hidden states: start it with --enable-return-hidden-states, and without \
                 anything that takes them out of its replies",
                self.tokens.len()
            ))
        })
    }

    /// Whether the serve read all of the text, and computed all of it.
    fn check(&self, reply: &Reply, live: &Live) -> Result<(), Fault> {
        if let Some(error) = &reply.error {
            return Err(Fault::in_reply(error, false));
        }
        match &reply.meta.finish_reason {
            None | Some(FinishReason::Stop(_) | FinishReason::Length { .. }) => {}
            other => return Err(Fault::of_end(other.as_ref())),
        }
        let (sent, counts_prompts) = (self.tokens.len(), live.lease.traits().counts_prompts);
        if let Some(counted) = reply.meta.prompt_tokens.filter(|counted| counts_prompts && *counted < sent) {
            return Err(Fault::cut_prompt(counted, sent));
        }
        // Where the rows are as many as the tokens all the same, old versions have filled up with another request's.
        match reply.meta.cached_tokens {
            Some(cached @ 1..) => Err(Fault::broken(format!(
                "the serve computed no hidden states of {cached} tokens of the text, which its prefix cache knows: start it with \
                 --disable-radix-cache"
            ))),
            _ => Ok(()),
        }
    }
}
