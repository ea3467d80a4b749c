//! A call that a serve works on, and its end: a serve goes on with a call until somebody tells it to stop.

use reqwest::Response;

use super::fault::Fault;
use super::pool::Lease;
use super::request::rid;
use super::serve::Serve;
use crate::backend::BackendError;

/// A call under way. Dropped before its end, the serve is told to stop.
pub(super) struct Live {
    pub(super) serve: Serve,
    pub(super) rid: String,
    /// Given back when the call is over.
    pub(super) lease: Lease,
    over: bool,
}

impl Live {
    /// A call with a new name, before it is sent.
    pub(super) fn new(lease: Lease) -> Self {
        Self { serve: lease.serve().clone(), rid: rid(), lease, over: false }
    }

    /// What came of sending the call: a refusal has ended it at the serve.
    pub(super) fn sent(self, outcome: Result<Response, Fault>) -> Result<(Self, Response), Fault> {
        match outcome {
            Ok(response) => Ok((self, response)),
            Err(fault) => {
                // A connection that broke may have left the call running; an answer has not.
                if !matches!(fault.error, BackendError::Unavailable(_)) {
                    self.ended();
                }
                Err(fault)
            }
        }
    }

    /// The call has come to its end at the serve.
    pub(super) fn ended(mut self) {
        self.over = true;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Without a runtime the process ends, and the connection with it, which the serve sees.
        if let (false, Ok(runtime)) = (self.over, tokio::runtime::Handle::try_current()) {
            let (serve, rid) = (self.serve.clone(), std::mem::take(&mut self.rid));
            runtime.spawn(async move { serve.abort(&rid).await });
        }
    }
}
