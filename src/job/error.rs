//! What ends a request without an answer, and whose fault it is.

use std::time::Duration;

use crate::backend::BackendError;
use crate::chat::RequestError;
use crate::proof::ProofError;
use crate::protocol::ErrorObject;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JobError {
    /// The request is wrong: the buyer's fault.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The rows cannot be proven. An answer without a proof is worth nothing, so there is none.
    #[error("the answer cannot be proven: {0}")]
    Proof(#[from] ProofError),
    /// The backend gave ids without their rows, or rows without ids.
    #[error("the backend gave {ids} tokens with {rows} rows of hidden states")]
    Rows {
        /// Ids in the event.
        ids: usize,
        /// Rows in the event.
        rows: usize,
    },
    /// The backend left out log-probabilities that the request asks for.
    #[error("the backend gave {ids} tokens with {logprobs} log-probabilities")]
    Logprobs {
        /// Ids in the event.
        ids: usize,
        /// Log-probabilities in the event.
        logprobs: usize,
    },
    /// The backend went away in the middle.
    #[error("the backend ended the generation without a reason")]
    Incomplete,
    /// It took too long.
    #[error("the request took longer than {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// This program has a fault that the request brought to light.
    #[error("a fault of this miner: {0}")]
    Fault(String),
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    ShuttingDown,
}

impl JobError {
    /// The error as a response frame carries it: 4xx only where the buyer is at fault, since only those are not held
    /// against the worker.
    #[must_use]
    pub fn to_object(&self) -> ErrorObject {
        let (kind, status) = match self {
            Self::Request(_) | Self::Backend(BackendError::Client(_)) => ("invalid_request_error", 400),
            Self::Backend(BackendError::Busy(_) | BackendError::Unavailable(_)) | Self::ShuttingDown => {
                ("service_unavailable", 503)
            }
            Self::Timeout(_) => ("timeout", 504),
            Self::Backend(BackendError::Broken(_))
            | Self::Proof(_)
            | Self::Rows { .. }
            | Self::Logprobs { .. }
            | Self::Incomplete
            | Self::Fault(_) => ("server_error", 500),
        };
        ErrorObject::new(&self.to_string(), kind, Some(status))
    }
}
