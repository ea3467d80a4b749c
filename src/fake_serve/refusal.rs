//! Errors, in the form that the version has for them.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::dialect::Dialect;
use super::fault::ErrorForm;
use super::reply::JSON;

/// Why a request gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A `ValueError`: 400, or an error event where the stream has begun.
    Value(String),
    /// The contract's complaint, before anything else.
    Contract(String),
    /// The body did not validate, before anything else.
    Validation(String),
    /// An exception that nobody catches.
    Crash,
    /// By the scheduler, with a status.
    Status(u16, String),
}

impl Refusal {
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Value(_) | Self::Contract(_) | Self::Validation(_) => 400,
            Self::Crash => 500,
            Self::Status(status, _) => *status,
        }
    }

    /// It is found before a stream can begin.
    pub(super) fn comes_first(&self) -> bool {
        matches!(self, Self::Contract(_) | Self::Validation(_))
    }

    /// The whole response.
    pub(super) fn response(&self) -> Response {
        match self {
            Self::Value(message) => respond(400, &json!({"error": {"message": message}})),
            Self::Contract(message) => respond(400, &json!({"error": message})),
            Self::Validation(message) => respond(400, &openai(400, "Bad Request", message)),
            Self::Crash => plain(500, "Internal Server Error"),
            Self::Status(status, message) => respond(*status, &openai(*status, &status.to_string(), message)),
        }
    }

    /// The event in a stream, if it is not just broken off.
    pub(super) fn event(&self, dialect: Dialect) -> Option<Value> {
        match self {
            Self::Value(message) if dialect.types_stream_errors() => Some(json!({"error": {
                "message": message, "type": "invalid_request_error", "code": 400, "retryable": false}})),
            Self::Value(message) => Some(json!({"error": {"message": message}})),
            _ => None,
        }
    }
}

impl ErrorForm {
    /// The response, whatever the dialect.
    pub(super) fn response(self) -> Response {
        let too_long = "The input (40000 tokens) is longer than the model's context length (32768 tokens).";
        match self {
            Self::Value => Refusal::Value(too_long.into()).response(),
            Self::Contract => Refusal::Contract("invalid type: string \"x\", expected a sequence".into()).response(),
            Self::Validation => Refusal::Validation(not_a_list("x")).response(),
            Self::Unprocessable => {
                let message = "Input should be a valid list";
                let at = json!(["body", "input_ids", "list[int]"]);
                respond(422, &json!({"detail": [{"type": "list_type", "loc": at, "msg": message, "input": "x"}]}))
            }
            Self::Detail => respond(503, &json!({"detail": "The request queue is full."})),
            Self::Unauthorized => respond(401, &json!({"error": "Unauthorized"})),
            Self::Crash => Refusal::Crash.response(),
            Self::NotFound => respond(404, &json!({"detail": "Not Found"})),
        }
    }
}

/// A response of JSON.
pub(super) fn respond(status: u16, body: &Value) -> Response {
    with(status, JSON, body.to_string())
}

/// A response of text.
pub(super) fn plain(status: u16, text: &'static str) -> Response {
    with(status, "text/plain; charset=utf-8", text)
}

/// A response without a body.
pub(super) fn empty(status: u16) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code(status);
    response
}

/// A response of any kind.
pub(super) fn with(status: u16, content_type: &str, body: impl Into<Body>) -> Response {
    (code(status), [(header::CONTENT_TYPE, content_type)], body.into()).into_response()
}

fn code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn openai(status: u16, kind: &str, message: &str) -> Value {
    json!({"object": "error", "message": message, "type": kind, "param": null, "code": status})
}

/// The complaint about `input_ids` of a string, as recorded.
pub(super) fn not_a_list(input: &str) -> String {
    let complaint = |kind: &str| {
        format!(
            "{{'type': 'list_type', 'loc': ('body', 'input_ids', '{kind}'), 'msg': 'Input should be a valid list', \
             'input': '{input}'}}"
        )
    };
    let (lists, list) = (complaint("list[list[int]]"), complaint("list[int]"));
    format!(
        "2 validation errors:\n  {lists}\n  {list}\n\n  File \"SITE/http_server.py\", line 574, in generate_request\n    \
         POST /generate [{lists}, {list}]"
    )
}
