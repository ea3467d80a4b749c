//! `POST /v1/chat/completions`: from a buyer's request to a miner's answer.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tracing::{debug, warn};

use super::buyer_error::BuyerError;
use super::inspect::unix_now;
use super::pool::{Patience, Refusal};
use super::proofs::ProofRecord;
use super::request::BuyerRequest;
use super::server::Shared;
use super::sse;
use super::ticket::{Event, Ticket};
use crate::openai::{Completion, Piece};
use crate::protocol::{self, MAX_MESSAGE_BYTES, Output};

/// Tells a buyer its request's name, which is also its proof's.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// The endpoint. When the buyer leaves, this future or the body that it returned is dropped, and with it the ticket.
pub(super) async fn chat_completions(
    State(shared): State<Arc<Shared>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, BuyerError> {
    let body = body.map_err(|rejection| BuyerError::client(rejection.status(), rejection.body_text()))?;
    let request = BuyerRequest::read(&body)?;
    drop(body);
    let request_id = request.id_header.clone();
    let mut response = answer(shared, request).await.unwrap_or_else(IntoResponse::into_response);
    response.headers_mut().insert(REQUEST_ID_HEADER, request_id);
    Ok(response)
}

async fn answer(shared: Arc<Shared>, request: BuyerRequest) -> Result<Response, BuyerError> {
    let (stream, include_usage) = (request.stream, request.include_usage);
    let mut exchange = Exchange::start(shared, request).await?;
    if stream {
        return sse::relay(exchange, include_usage).await;
    }
    loop {
        // Some miners send chunks unasked; the whole answer follows them.
        if let Step::Done(completion) = exchange.next().await? {
            return Ok(Json(completion).into_response());
        }
    }
}

/// What an exchange brings next.
#[derive(Debug)]
pub(super) enum Step {
    /// A piece of the answer.
    Piece(Piece),
    /// The whole answer, named and dated. Nothing follows.
    Done(Box<Completion>),
}

/// One request under way on a leg.
#[derive(Debug)]
pub(super) struct Exchange {
    shared: Arc<Shared>,
    ticket: Ticket,
    request_id: String,
    created: u64,
}

impl Exchange {
    async fn start(shared: Arc<Shared>, request: BuyerRequest) -> Result<Self, BuyerError> {
        let model = match request.model.clone() {
            Some(model) => model,
            None => shared
                .pool
                .only_model()
                .map_err(|refusal| refused("", refusal))?
                .ok_or_else(|| BuyerError::bad_request("`model` is missing, and more than one is served"))?,
        };
        let created = unix_now();
        let request_id = request.request_id.clone();
        let corr_id = shared.pool.next_corr_id();
        let serve = request
            .into_serve(&model, &corr_id)
            .map_err(|error| BuyerError::bad_request(format!("the request cannot be forwarded: {error}")))?;
        if serve.len() > MAX_MESSAGE_BYTES {
            // It would cost the leg, and every other request on it.
            return Err(BuyerError::client(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the request is longer than the {MAX_MESSAGE_BYTES} bytes that fit into a frame"),
            ));
        }
        let patience = Patience { for_leg: shared.config.free_leg_wait, for_answer: shared.config.request_timeout };
        let ticket = shared
            .pool
            .dispatch(&model, &corr_id, &serve.into(), patience)
            .await
            .map_err(|refusal| refused(&model, refusal))?;
        debug!(request_id, corr_id, worker = ticket.worker().worker_name, "request dispatched");
        Ok(Self { shared, ticket, request_id, created })
    }

    /// The completion's name.
    pub(super) fn completion_id(&self) -> String {
        format!("chatcmpl-{}", self.request_id)
    }

    /// Seconds since the Unix epoch when the request came.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    /// The model that answers.
    pub(super) fn model(&self) -> &str {
        &self.ticket.worker().model
    }

    /// Waits for what comes next. After [`Step::Done`] or an error there is nothing more.
    pub(super) async fn next(&mut self) -> Result<Step, BuyerError> {
        match self.ticket.next().await {
            Some(Event::Piece(piece)) => Ok(Step::Piece(piece)),
            Some(Event::Response(response)) => self.settle(*response).map(Step::Done),
            Some(Event::Unreadable(why)) => Err(BuyerError::bad_answer(&why)),
            Some(Event::TimedOut) => Err(BuyerError::timed_out()),
            None => Err(BuyerError::leg_lost()),
        }
    }

    /// Makes a miner's response the buyer's answer, and keeps its proof.
    fn settle(&self, response: protocol::Response) -> Result<Box<Completion>, BuyerError> {
        let worker = self.ticket.worker();
        if let Some(error) = &response.error {
            debug!(self.request_id, worker = worker.worker_name, "request failed");
            return Err(BuyerError::from_miner(error));
        }
        let Output::Completion(mut completion) = response.output else {
            return Err(BuyerError::bad_answer("its output is no completion"));
        };
        if completion.choices.is_empty() {
            return Err(BuyerError::bad_answer("its completion has no choices"));
        }
        if response.request_id != self.request_id {
            warn!(self.request_id, named = response.request_id, "a response names another request");
        }
        if let Some(commitment) = response.commitment {
            self.shared.proofs.keep(ProofRecord {
                request_id: self.request_id.clone(),
                model: worker.model.clone(),
                worker_name: worker.worker_name.clone(),
                worker_id: worker.worker_id.clone(),
                commitment,
                usage: completion.usage,
                created: self.created,
            });
        }
        debug!(
            self.request_id,
            worker = worker.worker_name,
            tokens = completion.usage.completion_tokens,
            "request served"
        );
        completion.id = Some(self.completion_id());
        completion.object = Some("chat.completion".to_owned());
        completion.created = Some(self.created);
        completion.model = Some(worker.model.clone());
        Ok(completion)
    }
}

fn refused(model: &str, refusal: Refusal) -> BuyerError {
    match refusal {
        Refusal::NoMiner => BuyerError::no_miner(),
        Refusal::UnknownModel(served) => BuyerError::unknown_model(model, &served),
        Refusal::Full => BuyerError::all_full(model),
    }
}
