//! One request, from a serve frame's JSON to an answer with its proof.
//!
//! In: a request object, and a place for deltas. Out: a completion with its commitment, or an error that knows whose
//! fault it is. The proof is folded row by row while tokens come. Dropping the future cancels the generation. What must
//! never happen: a commitment whose rows, ids and proofs do not belong together.

mod error;
mod logprobs;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::error::JobError;
use self::logprobs::Entries;
pub use self::request::JobRequest;

use tokio::sync::Semaphore;

use crate::backend::{Backend, GenerationEvent, GenerationRequest, SamplingParams, StopReason, Timings};
use crate::chat::{AnswerEnd, ChatModel, Prompt, RequestError};
use crate::openai::{Choice, Completion, Piece, Usage};
use crate::proof::{AnswerProofs, DEFAULT_BATCH, Proof, ProofParams};
use crate::protocol::{Commitment, ToplocCommitment};

/// Everything that requests to one model share.
#[derive(Clone)]
pub struct Service {
    /// Where tokens come from.
    pub backend: Arc<dyn Backend>,
    /// The text side of the checkpoint.
    pub chat: ChatModel,
    /// The name buyers ask for.
    pub model: String,
    /// Names the checkpoint in commitments.
    pub model_root: String,
    /// Ids that end a turn.
    pub end_ids: Vec<u32>,
    /// What a request may ask for.
    pub limits: Limits,
    /// Whether all answers are greedy, whatever a request says of sampling: so has the network's reference miner it.
    pub greedy: bool,
    /// Points a proof.
    pub topk: usize,
    /// Prompts that may be rendered and tokenised at once; see [`Service::places`].
    pub preparing: Arc<Semaphore>,
}

/// What a request may ask for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Longest prompt and answer together, tokens.
    pub context: usize,
    /// Longest prompt, tokens.
    pub max_input_tokens: usize,
    /// Longest answer, tokens.
    pub max_output_tokens: usize,
    /// Longest answer where the buyer names none, tokens.
    pub default_max_tokens: usize,
    /// Longest time from here to the answer.
    pub max_request: Duration,
}

/// An answer with its proof.
#[derive(Debug, Clone, PartialEq)]
pub struct JobAnswer {
    /// The OpenAI-shaped answer.
    pub completion: Completion,
    /// What was computed, provably.
    pub commitment: Commitment,
    /// Where the time went.
    pub timings: JobTimings,
}

/// Where a request's time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobTimings {
    /// Template and tokenizer.
    pub prepare: Duration,
    /// The backend's own account.
    pub backend: Timings,
    /// Folding rows into proofs, over the whole answer; overlaps the backend's work.
    pub proof: Duration,
    /// From the last token to the whole answer.
    pub assemble: Duration,
}

impl Service {
    /// Places for rendering and tokenising: one a core.
    #[must_use]
    pub fn places() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)))
    }

    /// Serves one request; `on_piece` gets the answer's pieces as they come. It takes the time that it takes: whoever
    /// calls bounds it by [`Limits::max_request`], and the wait before it too.
    ///
    /// # Errors
    /// By whose fault it is; see [`JobError`].
    pub async fn answer(
        &self,
        request: &JobRequest,
        mut on_piece: impl FnMut(Piece) + Send,
    ) -> Result<JobAnswer, JobError> {
        let mut timings = JobTimings::default();
        let started = Instant::now();
        // Off the async threads: a long conversation takes a while to render and tokenise.
        // Such work cannot be called off, so it holds its own place: a buyer who hangs up frees a slot, not this.
        let place = Arc::clone(&self.preparing).acquire_owned().await;
        let (chat, conversation, most) = (self.chat.clone(), request.chat.clone(), self.limits.max_input_tokens);
        let prompt = tokio::task::spawn_blocking(move || {
            let prepared = chat.prompt(&conversation, most).and_then(|prompt| {
                let constraint = chat.constraint(&conversation, &prompt)?;
                Ok((prompt, constraint))
            });
            drop(place);
            prepared
        })
        .await;
        let (prompt, constraint) = prompt.map_err(|fault| JobError::Fault(fault.to_string()))??;
        let Prompt { ids: prompt, in_thought, .. } = prompt;
        timings.prepare = started.elapsed();
        let max_tokens = self.max_tokens(request, prompt.len())?;
        let stop_ids: Vec<u32> = self.end_ids.iter().chain(&request.stop_ids).copied().collect();
        let mut generation = self.backend.generate(GenerationRequest {
            prompt: prompt.clone(),
            max_tokens,
            stop_ids: stop_ids.clone(),
            sampling: if self.greedy { SamplingParams::default() } else { request.sampling.clone() },
            logprobs: request.logprobs,
            stop: request.chat.stop.clone(),
            streamed: request.streamed,
            fin: true,
            constraint,
        });
        let params = ProofParams { topk: self.topk, batch: DEFAULT_BATCH };
        let mut proofs = AnswerProofs::new(params, self.backend.info().hidden)?;
        let mut answer = self.chat.answer(&request.chat, in_thought);
        let mut entries = Entries::new(request.logprobs.is_some());
        let mut output_ids: Vec<u32> = Vec::new();
        let mut cached_tokens = 0;
        // Rows may come behind their ids, so an answer that has ended may still wait for some.
        let (mut rows, mut first_row_missing, mut ended) = (0_usize, false, None);
        let end = loop {
            match generation.next().await.ok_or(JobError::Incomplete)?? {
                GenerationEvent::Started { cached_tokens: cached } => cached_tokens = cached,
                GenerationEvent::FirstRowMissing => first_row_missing = true,
                GenerationEvent::Tokens { ids, fin, logprobs } => {
                    if request.logprobs.is_some() && ids.len() != logprobs.len() {
                        return Err(JobError::Logprobs { ids: ids.len(), logprobs: logprobs.len() });
                    }
                    let mut logprobs = logprobs.into_iter();
                    for id in ids {
                        if ended.is_some() {
                            break;
                        }
                        output_ids.push(id);
                        let logprobs = logprobs.next();
                        // The id that ends the answer is proven and billed, but has no text.
                        if stop_ids.contains(&id) {
                            continue;
                        }
                        if let Some(logprobs) = logprobs {
                            entries.push(self.chat.tokenizer(), id, logprobs);
                        }
                        let piece = answer.push(id);
                        entries.pieces(piece.deltas).for_each(&mut on_piece);
                        if piece.stopped {
                            ended = Some(AnswerEnd::Stop);
                        } else if entries.is_full() {
                            ended = Some(AnswerEnd::Length);
                        }
                    }
                    let due = output_ids.len().saturating_sub(usize::from(first_row_missing));
                    let folding = Instant::now();
                    for row in &fin {
                        if rows == due {
                            // Rows of what came after the end of the answer are no part of it; others would shift the proof.
                            match ended {
                                Some(_) => break,
                                None => return Err(JobError::Rows { ids: due, rows: due + 1 }),
                            }
                        }
                        proofs.push(row)?;
                        rows += 1;
                    }
                    timings.proof += folding.elapsed();
                    if let Some(end) = ended.filter(|_| rows == due) {
                        break end;
                    }
                }
                GenerationEvent::Finished { reason, timings: backend } => {
                    timings.backend = backend;
                    break ended.unwrap_or(match reason {
                        StopReason::StopId(_) | StopReason::StopString => AnswerEnd::Stop,
                        StopReason::Length => AnswerEnd::Length,
                    });
                }
            }
        };
        // A stop string, and a message that is full, end the generation from our side: dropping it tells the backend.
        drop(generation);
        if output_ids.is_empty() {
            return Err(JobError::Incomplete);
        }
        let mut prompt = prompt;
        if first_row_missing {
            // What cannot be proven counts as given: a verifier's recompute of the longer prompt gives the rows that there are.
            prompt.push(output_ids.remove(0));
        }
        if rows != output_ids.len() || rows == 0 {
            return Err(JobError::Rows { ids: output_ids.len(), rows });
        }
        let assembling = Instant::now();
        let proofs = proofs.finish()?;
        let (deltas, message, finish_reason) = answer.finish(end);
        entries.pieces(deltas).for_each(&mut on_piece);
        entries.last_piece().into_iter().for_each(&mut on_piece);
        let usage = Usage::new(prompt.len() as u64, cached_tokens as u64, output_ids.len() as u64);
        let commitment = Commitment {
            model_root: self.model_root.clone(),
            toploc: ToplocCommitment {
                proofs: proofs.iter().map(Proof::to_base64).collect(),
                topk: params.topk,
                decode_batching_size: params.batch,
                skip_prefill: true,
                n_tokens: output_ids.len(),
                prompt_ids: prompt,
            },
            output_token_ids: output_ids,
        };
        let completion = Completion {
            id: Some(format!("chatcmpl-{}", request.request_id)),
            object: Some("chat.completion".into()),
            created: Some(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
            model: Some(self.model.clone()),
            choices: vec![Choice {
                index: 0,
                finish_reason: Some(finish_reason),
                message,
                logprobs: entries.into_whole(),
            }],
            usage,
        };
        timings.assemble = assembling.elapsed();
        Ok(JobAnswer { completion, commitment, timings })
    }

    /// How long the answer may be: what the buyer asks for, within the limits and the context.
    fn max_tokens(&self, request: &JobRequest, prompt: usize) -> Result<usize, JobError> {
        let most = self.limits.max_input_tokens;
        if prompt > most {
            let message = format!("the prompt has {prompt} tokens; this model takes at most {most}");
            return Err(RequestError::new(message).into());
        }
        let context = self.limits.context.min(self.backend.info().context);
        let room = context.saturating_sub(prompt);
        if room == 0 {
            let message = format!("the prompt has {prompt} tokens and leaves no room in a context of {context}");
            return Err(RequestError::new(message).into());
        }
        let wanted = request.max_tokens.unwrap_or(self.limits.default_max_tokens);
        Ok(wanted.min(self.limits.max_output_tokens).min(room))
    }
}
