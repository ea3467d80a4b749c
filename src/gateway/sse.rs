//! A streamed answer, in exactly OpenAI's form: server-sent events of `chat.completion.chunk` objects.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use serde_json::Value;

use super::buyer_error::BuyerError;
use super::completions::{Exchange, Step};
use crate::openai::{ChoiceLogprobs, Completion, Delta, FinishReason, Message, Piece, ToolCallDelta, Usage};

/// Streams an answer. Waits for the leg's first word, so that a request which fails at once gets an HTTP error.
///
/// # Errors
///
/// The failure of a request of which nothing was streamed.
pub(super) async fn relay(mut exchange: Exchange, include_usage: bool) -> Result<Response, BuyerError> {
    let first = exchange.next().await?;
    let mut feed = Feed::new(exchange, include_usage);
    feed.take(first);
    let events = stream::unfold(feed, |mut feed| async move {
        let event = feed.next_event().await?;
        Some((Ok::<Bytes, Infallible>(event), feed))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// One event's object. Key order as OpenAI writes it.
#[derive(Serialize)]
struct StreamChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [StreamChoice],
    /// With `include_usage` the counts stand in a last chunk and `null` in all before it; without, in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct StreamChoice {
    index: u32,
    delta: StreamDelta,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct StreamDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(flatten)]
    delta: Delta,
}

/// Turns an exchange into events.
struct Feed {
    exchange: Exchange,
    id: String,
    include_usage: bool,
    ready: VecDeque<Bytes>,
    any_piece: bool,
    ended: bool,
}

impl Feed {
    fn new(exchange: Exchange, include_usage: bool) -> Self {
        let mut feed = Self {
            id: exchange.completion_id(),
            exchange,
            include_usage,
            ready: VecDeque::new(),
            any_piece: false,
            ended: false,
        };
        feed.choice(Some("assistant"), Delta::content("").into(), None);
        feed
    }

    /// The next event's bytes, `None` after the last.
    async fn next_event(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.exchange.next().await {
                Ok(step) => self.take(step),
                // The head is out, with a status of success: all that is left is to say it in the stream.
                Err(error) => {
                    self.event(&error.body());
                    self.end();
                }
            }
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Piece(piece) => {
                self.any_piece = true;
                self.choice(None, piece, None);
            }
            Step::Done(completion) => self.finish(*completion),
        }
    }

    fn finish(&mut self, completion: Completion) {
        let usage = completion.usage;
        if let Some(choice) = completion.choices.into_iter().next() {
            let message = whole(choice.message);
            let something = !message.is_empty() || choice.logprobs.is_some();
            if something && !self.any_piece {
                self.choice(None, Piece { delta: message, logprobs: choice.logprobs }, None);
            }
            self.choice(None, Piece::default(), choice.finish_reason.or(Some(FinishReason::Stop)));
        }
        if self.include_usage {
            self.chunk(&[], Some(Some(usage)));
        }
        self.end();
    }

    fn end(&mut self) {
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }

    fn choice(&mut self, role: Option<&'static str>, piece: Piece, finish_reason: Option<FinishReason>) {
        let Piece { delta, logprobs } = piece;
        let choice = StreamChoice { index: 0, delta: StreamDelta { role, delta }, logprobs, finish_reason };
        self.chunk(&[choice], self.include_usage.then_some(None));
    }

    fn chunk(&mut self, choices: &[StreamChoice], usage: Option<Option<Usage>>) {
        let chunk = StreamChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.exchange.created(),
            model: self.exchange.model(),
            choices,
            usage,
        };
        // Strings, numbers and JSON values: there is nothing here that could fail to be written.
        if let Ok(json) = serde_json::to_string(&chunk) {
            self.ready.push_back(format!("data: {json}\n\n").into());
        }
    }

    fn event(&mut self, body: &Value) {
        self.ready.push_back(format!("data: {body}\n\n").into());
    }
}

/// A whole message as one delta, for a miner that was asked to stream and did not.
fn whole(message: Message) -> Delta {
    let tool_calls = message.tool_calls.map(|calls| {
        let indexed = (0..).zip(calls).map(|(index, call)| ToolCallDelta { index, ..call.into() });
        indexed.collect()
    });
    Delta { content: message.content, reasoning_content: message.reasoning_content, tool_calls }
}
