//! What a gateway tells without asking a miner: its legs, models, health and proofs.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::buyer_error::BuyerError;
use super::server::Shared;
use crate::protocol::Meta;

/// `GET /meta`: how many legs a miner dials.
pub(super) async fn meta(State(shared): State<Arc<Shared>>) -> Json<Meta> {
    Json(Meta { workers: shared.config.legs })
}

/// `GET /healthz`.
pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let status = shared.pool.status();
    Json(json!({"legs": status.open_legs(), "inflight": status.inflight()}))
}

/// `GET /v1/models`.
pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let models = shared.pool.models_since();
    let data: Vec<Value> = models
        .into_iter()
        .map(|(id, since)| json!({"id": id, "object": "model", "created": since, "owned_by": "engy-miner"}))
        .collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/proofs/{request_id}`.
pub(super) async fn proof(
    State(shared): State<Arc<Shared>>,
    Path(request_id): Path<String>,
) -> Result<Response, BuyerError> {
    match shared.proofs.find(&request_id) {
        Some(record) => Ok(Json(&*record).into_response()),
        None => {
            Err(BuyerError::client(StatusCode::NOT_FOUND, format!("no proof is kept for the request `{request_id}`")))
        }
    }
}

/// Any other path.
pub(super) async fn no_such_path() -> BuyerError {
    BuyerError::client(StatusCode::NOT_FOUND, "no such path on this gateway")
}

/// A known path, asked for in the wrong way.
pub(super) async fn wrong_method() -> BuyerError {
    BuyerError::client(StatusCode::METHOD_NOT_ALLOWED, "this path takes another HTTP method")
}

/// Seconds since the Unix epoch; 0 on a machine whose clock is before it.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
