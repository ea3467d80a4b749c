//! One answer, over as many calls as it takes.
//!
//! A serve keeps all rows of a call in memory until it answers, so a long answer is asked for in chunks: each call continues
//! behind the tokens that are there. A greedy continuation begins one token earlier: that token comes again, is compared with the
//! one that is known, and its row is dropped, so that every kept row is a decode step's. Where it comes out differently (a
//! serve's prefix cache changes sums a little), or cannot come again since ids are drawn, the call continues without overlap and the
//! last row of the prompt is the next token's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::bf16;

use super::fault::Fault;
use super::live::Live;
use super::pool::{Lease, Pool};
use super::reply::{FinishReason, Matched, Reply, ReplyReader, RowsFound, StreamEvent, StreamReader};
use super::request::{GenerateBody, Shape};
use super::serve::{Serve, is_stream};
use super::tokens::Tokens;
use crate::backend::{FinRows, GenerationEvent, GenerationRequest, PacedSender, StopReason, Timings};
use crate::machine::thread_cpu_time;

/// An answer under way.
pub(super) struct Answering {
    pub(super) pool: Arc<Pool>,
    pub(super) request: GenerationRequest,
    /// Values of a row.
    pub(super) hidden: usize,
    /// Most new tokens a call.
    pub(super) chunk: usize,
}

/// What of the answer has been told.
struct Told {
    ids: Vec<u32>,
    started: bool,
    first_row_missing: bool,
    began: Instant,
    first: Option<Instant>,
    /// Processor time of reading replies, and their bytes.
    reading: Duration,
    received: u64,
}

/// How a call ended.
enum CallEnd {
    /// The answer is whole.
    Finished(StopReason),
    /// It has as many tokens as were asked for, and more may follow.
    Full,
    /// The token that came again came out differently. Nothing of the call was told.
    Diverged,
}

/// What a call asks for.
struct Question {
    /// The prompt, and the answer's tokens that the call goes on from.
    input: Vec<u32>,
    /// The token that shall come again.
    overlap: Option<u32>,
    /// Tokens of the answer in `input`.
    known: usize,
    /// New tokens at most, the one that comes again among them.
    asked: usize,
}

/// Why a call was broken off.
enum Break {
    Fault(Fault),
    Diverged,
}

impl<E: Into<Fault>> From<E> for Break {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

impl Answering {
    /// Answers, until the reader goes away.
    pub(super) async fn run(self, sender: PacedSender) {
        let outcome = tokio::select! {
            biased;
            // What is dropped with the other branch tells the serve.
            () = sender.cancelled() => return,
            outcome = self.answer(&sender) => outcome,
        };
        if let Err(fault) = outcome {
            sender.send(Err(fault.error)).await;
        }
    }

    async fn answer(&self, sender: &PacedSender) -> Result<(), Fault> {
        let mut told = Told {
            ids: Vec::new(),
            started: false,
            first_row_missing: false,
            began: Instant::now(),
            first: None,
            reading: Duration::ZERO,
            received: 0,
        };
        let mut overlaps = self.request.sampling.temperature <= 0.0;
        loop {
            match self.call(&mut told, overlaps, sender).await? {
                CallEnd::Finished(reason) => {
                    let (now, first) = (Instant::now(), told.first.unwrap_or(told.began));
                    let timings = Timings {
                        queued: Duration::ZERO,
                        prefill: first - told.began,
                        decode: now - first,
                        rows: told.reading,
                        received: told.received,
                    };
                    sender.send(Ok(GenerationEvent::Finished { reason, timings })).await;
                    return Ok(());
                }
                CallEnd::Full => overlaps = self.request.sampling.temperature <= 0.0,
                CallEnd::Diverged => {
                    tracing::debug!(tokens = told.ids.len(), "a token came out differently when it was computed again");
                    overlaps = false;
                }
            }
        }
    }

    /// One call, and what becomes of it. A call of which nothing was told is sent once more where its serve did not take it, or was
    /// lost before its first token: to another serve, if there is one.
    async fn call(&self, told: &mut Told, overlaps: bool, sender: &PacedSender) -> Result<CallEnd, Fault> {
        let overlap = told.ids.last().copied().filter(|_| overlaps);
        let known = told.ids.len() - usize::from(overlap.is_some());
        let mut input = self.request.prompt.clone();
        input.extend(&told.ids[..known]);
        let left = self.request.max_tokens - told.ids.len();
        // Without rows there is nothing to hold, and no reason to come back for more.
        let most = if self.request.fin { self.chunk.min(left) } else { left };
        let question = Question { input, overlap, known, asked: most + usize::from(overlap.is_some()) };
        let before = told.ids.len();
        let (prompt_rows, rows) = if self.request.fin { (question.input.len(), question.asked) } else { (0, 0) };
        let lease = self.pool.lease(prompt_rows, rows, None).await?;
        let first = lease.number();
        match self.attempt(lease, &question, told, sender).await {
            Err(fault) if fault.refused && told.ids.len() == before && (before > 0 || !told.first_row_missing) => {
                tracing::warn!(serve = self.pool.name(first), error = %fault.error, "a serve does not take a call; trying once more");
            }
            outcome => return outcome,
        }
        let again = self.pool.lease_again(prompt_rows, rows, first).await?;
        self.attempt(again, &question, told, sender).await
    }

    /// Sends a call to one serve and reads what it answers.
    async fn attempt(
        &self,
        lease: Lease,
        question: &Question,
        told: &mut Told,
        sender: &PacedSender,
    ) -> Result<CallEnd, Fault> {
        let (live, response) = self.start(lease, question).await?;
        let streamed = is_stream(&response);
        let mut call = Call {
            answering: self,
            question,
            serve: &live.serve,
            told,
            sender,
            counts_prompts: live.lease.traits().counts_prompts,
            tokens: Tokens::default(),
            rows: Vec::new(),
            rows_told: 0,
            ids_told: 0,
            row_0_missing: None,
        };
        let end = if streamed { call.read_stream(response).await } else { call.read_whole(response).await };
        let (reply, found) = match end {
            Ok(end) => end,
            // The call is broken off: its end is dropped, which tells the serve.
            Err(Break::Diverged) => return Ok(CallEnd::Diverged),
            Err(Break::Fault(fault)) => return Err(fault),
        };
        let end = call.end(&reply, found);
        // An answer that broke off may go on at the serve.
        if reply.meta.finish_reason.is_some() {
            live.ended();
        }
        end
    }

    async fn start(&self, lease: Lease, question: &Question) -> Result<(Live, reqwest::Response), Fault> {
        let traits = lease.traits();
        let live = Live::new(lease);
        let shape = Shape {
            max_new_tokens: question.asked,
            stream_interval: traits.stream_interval(question.asked).filter(|_| self.request.streamed),
            knows_seed: traits.knows_seed,
        };
        let body = GenerateBody::new(&live.rid, &question.input, &self.request, shape);
        let sent = live.serve.generate(&body).await;
        live.sent(sent)
    }
}

/// A call that is being read.
struct Call<'a> {
    answering: &'a Answering,
    question: &'a Question,
    serve: &'a Serve,
    told: &'a mut Told,
    sender: &'a PacedSender,
    /// Whether the serve's count of a prompt's tokens can be relied on.
    counts_prompts: bool,
    tokens: Tokens,
    /// Rows that wait for their ids.
    rows: Vec<bf16>,
    /// Rows of the call that were told or dropped.
    rows_told: usize,
    /// Ids of the call that were told or dropped.
    ids_told: usize,
    /// Whether its first row is missing; known once there is any row, and the same in all that follows.
    row_0_missing: Option<bool>,
}

impl Call<'_> {
    async fn read_whole(&mut self, mut response: reqwest::Response) -> Result<(Reply, Option<RowsFound>), Break> {
        let keep = self.keep();
        let mut reader = ReplyReader::new(self.answering.hidden);
        let mut previewed = false;
        while let Some(chunk) = self.chunk(&mut response).await? {
            let reading = thread_cpu_time();
            reader.push(&chunk, &mut |row| keep(&mut self.rows, row))?;
            self.told.reading += thread_cpu_time().saturating_sub(reading);
            if !previewed && let Some(reply) = reader.before_rows() {
                previewed = true;
                self.take_early(&reply).await?;
            }
            self.tell(reader.first_row_missing()).await?;
        }
        let missing = reader.first_row_missing();
        let reply = reader.finish()?;
        self.take(&reply).await?;
        self.tell(missing).await?;
        let found = reply.rows;
        Ok((reply, found))
    }

    async fn read_stream(&mut self, mut response: reqwest::Response) -> Result<(Reply, Option<RowsFound>), Break> {
        let keep = self.keep();
        let mut reader = StreamReader::new(self.answering.hidden);
        let (mut last, mut found, mut previewed) = (None, None, false);
        'stream: while let Some(chunk) = self.chunk(&mut response).await? {
            let mut bytes = &chunk[..];
            loop {
                let reading = thread_cpu_time();
                let event = reader.next(&mut bytes, &mut |row| keep(&mut self.rows, row))?;
                self.told.reading += thread_cpu_time().saturating_sub(reading);
                let Some(event) = event else { break };
                previewed = false;
                match event {
                    StreamEvent::Done => break 'stream,
                    StreamEvent::Reply(reply) => {
                        self.take(&reply).await?;
                        found = reply.rows.or(found);
                        last = Some(*reply);
                    }
                }
            }
            // An event that is longer than a chunk names its tokens before its rows.
            if !previewed && let Some(reply) = reader.before_rows() {
                previewed = true;
                self.take_early(&reply).await?;
            }
            self.tell(reader.first_row_missing()).await?;
        }
        let missing = reader.first_row_missing();
        if let Some(StreamEvent::Reply(reply)) = reader.finish()? {
            self.take(&reply).await?;
            found = reply.rows.or(found);
            last = Some(*reply);
        }
        self.tell(missing).await?;
        let last = last.ok_or_else(|| Fault::broken("the serve's stream ended without a word"))?;
        Ok((last, found))
    }

    /// What becomes of a row that a reply gives, whether or not it was asked for.
    fn keep(&self) -> impl Fn(&mut Vec<bf16>, &[bf16]) + use<> {
        let wanted = self.answering.request.fin;
        move |rows, row| rows.extend_from_slice(if wanted { row } else { &[] })
    }

    async fn chunk(&mut self, response: &mut reqwest::Response) -> Result<Option<bytes::Bytes>, Fault> {
        let chunk = response.chunk().await;
        let chunk = chunk.map_err(|error| Fault::broke_off(&self.serve.name(), self.tokens.ids.len(), &error))?;
        self.told.received += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }

    /// Takes what a reply says of tokens before it has come to its end, where taking it again cannot be mistaken for more.
    async fn take_early(&mut self, reply: &Reply) -> Result<(), Break> {
        if reply.meta.completion_tokens.is_none() {
            return Ok(());
        }
        self.take(reply).await
    }

    /// Takes what a reply says of tokens.
    async fn take(&mut self, reply: &Reply) -> Result<(), Break> {
        if let Some(error) = &reply.error {
            return Err(Fault::in_reply(error, !self.tokens.ids.is_empty()).into());
        }
        let sent = self.question.input.len();
        if let Some(counted) = reply.meta.prompt_tokens.filter(|counted| self.counts_prompts && *counted < sent) {
            return Err(Fault::cut_prompt(counted, sent).into());
        }
        self.tokens.take(reply)?;
        let (tokens, asked) = (self.tokens.ids.len(), self.question.asked);
        if tokens > asked {
            return Err(Fault::broken(format!("the serve gave {tokens} tokens where {asked} were asked for")).into());
        }
        if let (Some(known), Some(again)) = (self.question.overlap, self.tokens.ids.first())
            && known != *again
        {
            return Err(Break::Diverged);
        }
        if !self.told.started && !self.tokens.ids.is_empty() {
            self.told.started = true;
            let cached = reply.meta.cached_tokens.unwrap_or(0);
            let cached_tokens = cached.min(self.answering.request.prompt.len());
            self.sender.send(Ok(GenerationEvent::Started { cached_tokens })).await;
        }
        Ok(())
    }

    /// Tells ids that are new, and rows whose ids are known.
    async fn tell(&mut self, row_0_missing: bool) -> Result<(), Fault> {
        let hidden = self.answering.hidden;
        let missing = usize::from(row_0_missing);
        let Question { overlap, known, asked, .. } = *self.question;
        if (row_0_missing || self.rows_told > 0 || !self.rows.is_empty())
            && *self.row_0_missing.get_or_insert(row_0_missing) != row_0_missing
        {
            // Rows are known by their place alone.
            return Err(Fault::broken(
                "the serve's stream has the first row of hidden states in one event, and not in another",
            ));
        }
        // Rows that wait for their ids are held, so there must be an end to them.
        if self.rows_told + self.rows.len() / hidden > asked {
            return Err(Fault::broken(format!(
                "the serve gave more rows of hidden states than the {asked} tokens that were asked for: start it with \
                 --chunked-prefill-size -1"
            )));
        }
        if row_0_missing && overlap.is_none() {
            if known > 0 {
                return Err(Fault::broken(format!(
                    "the serve lost the row of hidden states of token {known}, where it went on with the answer: start it with \
                     --disable-radix-cache"
                )));
            }
            // Before the first row is told, whose place depends on it.
            if !std::mem::replace(&mut self.told.first_row_missing, true) {
                self.sender.send(Ok(GenerationEvent::FirstRowMissing)).await;
            }
        }
        // The token that came again is known, and its row is none of a decode step.
        let dropped_ids = usize::from(overlap.is_some());
        let dropped_rows = dropped_ids.saturating_sub(missing);
        if self.rows_told < dropped_rows && self.rows.len() >= hidden {
            self.rows.drain(..hidden);
            self.rows_told += 1;
        }
        let ids: Vec<u32> = self.tokens.ids.iter().skip(self.ids_told.max(dropped_ids)).copied().collect();
        let logprobs = if self.answering.request.logprobs.is_some() {
            self.tokens.logprobs.iter().skip(self.ids_told.max(dropped_ids)).cloned().collect()
        } else {
            Vec::new()
        };
        self.ids_told = self.tokens.ids.len();
        let due = self.tokens.ids.len().saturating_sub(missing);
        let rows = (self.rows.len() / hidden).min(due.saturating_sub(self.rows_told));
        self.rows_told += rows;
        if ids.is_empty() && rows == 0 {
            return Ok(());
        }
        if !ids.is_empty() {
            self.told.first.get_or_insert_with(Instant::now);
            self.told.ids.extend_from_slice(&ids);
        }
        let values: Vec<bf16> = self.rows.drain(..rows * hidden).collect();
        if let Some(fin) = FinRows::new(hidden, values) {
            self.sender.send(Ok(GenerationEvent::Tokens { ids, fin, logprobs })).await;
        }
        Ok(())
    }

    /// What the end of a reply means: whether all is there, and who ended the answer.
    fn end(self, reply: &Reply, found: Option<RowsFound>) -> Result<CallEnd, Fault> {
        let (ids, Question { overlap, asked, .. }) = (&self.tokens.ids, self.question);
        let reason = match &reply.meta.finish_reason {
            Some(FinishReason::Stop(matched)) => match matched {
                Matched::Text(_) => StopReason::StopString,
                Matched::Id(id) => StopReason::StopId(*id),
                Matched::Ids(_) | Matched::Unsaid => match ids.last() {
                    Some(id) => StopReason::StopId(*id),
                    None => StopReason::StopString,
                },
            },
            // A serve looks at its budget before it looks at ids: the answer may have ended where the call did.
            Some(FinishReason::Length { .. }) => {
                let last = ids.last().filter(|id| self.answering.request.stop_ids.contains(id));
                last.map_or(StopReason::Length, |id| StopReason::StopId(*id))
            }
            other => return Err(Fault::of_end(other.as_ref())),
        };
        let tokens = ids.len();
        if tokens == 0 {
            return Err(Fault::broken("the serve ended the answer without a token"));
        }
        let RowsFound { rows, first_row_missing, .. } = found.unwrap_or_default();
        let wanted = self.answering.request.fin;
        if wanted && rows == 0 && !(tokens == 1 && overlap.is_some()) {
            return Err(Fault::broken(format!(
                "the serve gave {tokens} tokens and no hidden states: start it with --enable-return-hidden-states, and without \
                 anything that takes them out of its replies"
            )));
        }
        if wanted && rows + usize::from(first_row_missing) != tokens {
            return Err(Fault::broken(format!(
                "the serve gave {tokens} tokens and {rows} rows of hidden states: rows {rows} < tokens {tokens} where it decodes \
                 speculatively (start it without --speculative-algorithm), more where it cuts prompts in pieces (start it with \
                 --chunked-prefill-size -1)"
            )));
        }
        let told = self.told.ids.len();
        let is_full = reason == StopReason::Length && tokens == *asked && told < self.answering.request.max_tokens;
        // A serve holds a call to its form from the call's own start: a second one could not go on where the first ended.
        let is_full = is_full && self.answering.request.constraint.is_none();
        Ok(if is_full { CallEnd::Full } else { CallEnd::Finished(reason) })
    }
}
