//! Errors as buyers read them: an HTTP status and OpenAI's error object.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::protocol::{ErrorField, MAX_ERROR_CHARS};

/// The `type` of an error that the buyer's request caused.
const INVALID_REQUEST: &str = "invalid_request_error";
/// The `type` of an error that the gateway or a miner caused.
const SERVER: &str = "server_error";

/// An error for a buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuyerError {
    status: StatusCode,
    message: String,
    kind: String,
    code: Option<&'static str>,
}

impl BuyerError {
    fn server(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, message, kind: SERVER.to_owned(), code: Some(code) }
    }

    /// The request is at fault, with the status that says how.
    pub(super) fn client(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind: INVALID_REQUEST.to_owned(), code: None }
    }

    /// 400: the request cannot be read.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::client(StatusCode::BAD_REQUEST, message)
    }

    /// 404: no leg serves `model`; `served` are the models that legs serve.
    pub(super) fn unknown_model(model: &str, served: &[String]) -> Self {
        Self {
            code: Some("model_not_found"),
            ..Self::client(
                StatusCode::NOT_FOUND,
                format!("no miner serves the model `{model}`; served now: {}", served.join(", ")),
            )
        }
    }

    /// 503: no leg is admitted at all.
    pub(super) fn no_miner() -> Self {
        Self::server(
            StatusCode::SERVICE_UNAVAILABLE,
            "no_miner",
            "no miner is connected; start one with this gateway's address".to_owned(),
        )
    }

    /// 429: every leg of `model` is full and stayed so.
    pub(super) fn all_full(model: &str) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            message: format!("every miner of `{model}` is full; try again shortly"),
            kind: "rate_limit_error".to_owned(),
            code: Some("rate_limit_exceeded"),
        }
    }

    /// 502: the leg went away under the request.
    pub(super) fn leg_lost() -> Self {
        Self::server(
            StatusCode::BAD_GATEWAY,
            "miner_lost",
            "the miner's connection was lost before it finished".to_owned(),
        )
    }

    /// 502: the miner ended the request in a way that is no answer.
    pub(super) fn bad_answer(why: &str) -> Self {
        Self::server(
            StatusCode::BAD_GATEWAY,
            "bad_miner_response",
            format!("the miner's response is unusable: {}", shorten(why)),
        )
    }

    /// 504: the miner took too long.
    pub(super) fn timed_out() -> Self {
        Self::server(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout",
            "the miner did not finish within the gateway's request timeout".to_owned(),
        )
    }

    /// What a miner's error becomes: its own status when it says 4xx, else 502.
    pub(super) fn from_miner(error: &ErrorField) -> Self {
        let (message, kind, status) = match error {
            ErrorField::Object(object) => (object.message.as_str(), object.kind.as_str(), object.status),
            ErrorField::Text(text) => (text.as_str(), "", None),
        };
        let relayed = status.and_then(|status| StatusCode::from_u16(status).ok()).filter(StatusCode::is_client_error);
        match relayed {
            Some(status) => Self {
                status,
                message: shorten(message),
                kind: if kind.is_empty() { INVALID_REQUEST } else { kind }.to_owned(),
                code: None,
            },
            None => Self {
                kind: if kind.is_empty() { SERVER } else { kind }.to_owned(),
                ..Self::server(StatusCode::BAD_GATEWAY, "miner_error", shorten(message))
            },
        }
    }

    /// `{"error": {"message", "type", "code"}}`.
    pub(super) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "code": self.code}})
    }
}

impl IntoResponse for BuyerError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

/// Production keeps this much of a miner's message.
fn shorten(message: &str) -> String {
    message.chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ErrorObject;

    fn relayed(status: Option<u16>) -> StatusCode {
        BuyerError::from_miner(&ErrorField::Object(ErrorObject::new("m", "t", status))).status
    }

    #[test]
    fn only_a_client_status_is_relayed() {
        assert_eq!(relayed(Some(400)), 400);
        assert_eq!(relayed(Some(499)), 499);
        for status in [None, Some(0), Some(200), Some(399), Some(500), Some(503), Some(u16::MAX)] {
            assert_eq!(relayed(status), 502, "{status:?}");
        }
    }

    #[test]
    fn a_text_error_is_the_miners_fault_and_is_cut() {
        let error = BuyerError::from_miner(&ErrorField::Text("x".repeat(900)));
        assert_eq!(error.status, 502);
        assert_eq!(error.body()["error"]["type"], "server_error");
        assert_eq!(error.body()["error"]["message"].as_str().unwrap().len(), MAX_ERROR_CHARS);
    }
}
