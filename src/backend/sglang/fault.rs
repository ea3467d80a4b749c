//! What a serve refuses or gets wrong, by whose fault it is.

use reqwest::StatusCode;

use super::reply::{FinishReason, ReplyError, ServeError};
use crate::backend::BackendError;
use crate::telemetry::one_line;

/// As much of a serve's words as an error repeats.
const LONGEST_QUOTE: usize = 400;

/// Why a call gave no tokens, or stopped giving them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) error: BackendError,
    /// Whether the serve has done nothing for the call that anybody has seen, so that another may be asked.
    pub(super) refused: bool,
}

impl Fault {
    /// The serve has begun, and something is wrong.
    pub(super) fn broken(reason: impl Into<String>) -> Self {
        Self { error: BackendError::Broken(reason.into()), refused: false }
    }

    /// The serve cannot be reached, or the connection broke before it answered.
    pub(super) fn unreachable(serve: &str, error: &reqwest::Error) -> Self {
        let reason = format!("the serve {serve} cannot be reached: {}", causes(error));
        Self { error: BackendError::Unavailable(reason), refused: true }
    }

    /// The connection broke in the middle of a call that told so many tokens.
    pub(super) fn broke_off(serve: &str, tokens: usize, error: &reqwest::Error) -> Self {
        let why = causes(error);
        let fault = Self::broken(format!("the connection to the serve {serve} broke after {tokens} tokens: {why}"));
        Self { refused: tokens == 0, ..fault }
    }

    /// The serve read less than was sent.
    pub(super) fn cut_prompt(counted: usize, sent: usize) -> Self {
        Self::broken(format!(
            "the serve read {counted} tokens of a prompt of {sent}: start it without --allow-auto-truncate"
        ))
    }

    /// An answer with another status than 200, and the start of its body.
    pub(super) fn of_status(status: StatusCode, body: &[u8]) -> Self {
        let message = message_of(body);
        Self { error: classify(status.as_u16(), &message), refused: is_refusal(status.as_u16()) }
    }

    /// An error in an answer that began with status 200, behind tokens or before any.
    ///
    /// Versions up to 0.5.15 give it no code. Before any token it is then what would have been a 400 of an answer in one piece: streams
    /// have begun when the request is looked at.
    pub(super) fn in_reply(error: &ServeError, behind_tokens: bool) -> Self {
        let status = error.code.unwrap_or(if behind_tokens { 500 } else { 400 });
        Self { error: classify(status, &quote(&error.message)), refused: is_refusal(status) }
    }

    /// An end that is none of an answer's: the serve gave up, or does not say why it ended.
    pub(super) fn of_end(reason: Option<&FinishReason>) -> Self {
        match reason {
            Some(FinishReason::Abort { message, status_code, .. }) => Self::aborted(message.as_deref(), *status_code),
            Some(FinishReason::Unknown(kind)) => {
                Self::broken(format!("the serve ended the answer for a reason that is not known: {kind}"))
            }
            Some(FinishReason::Stop(_) | FinishReason::Length { .. }) | None => {
                Self::broken("the serve ended the answer without a reason")
            }
        }
    }

    /// The serve ended a generation by itself.
    fn aborted(message: Option<&str>, status: Option<u16>) -> Self {
        let message = quote(message.unwrap_or("no reason given"));
        let error = match status {
            Some(status @ 400..=499 | status @ 503) => classify(status, &message),
            _ => BackendError::Broken(format!("the serve gave up the answer by itself: {message}")),
        };
        // A full queue, which a stream has no status to say with.
        Self { refused: matches!(error, BackendError::Busy(_)), error }
    }
}

impl From<ReplyError> for Fault {
    fn from(error: ReplyError) -> Self {
        Self::broken(error.to_string())
    }
}

/// Statuses with which a serve says that it has not begun.
fn is_refusal(status: u16) -> bool {
    matches!(status, 429 | 502 | 503)
}

/// Whose fault a status with a message is. We write the request ourselves, so a 400 is the buyer's only where their prompt or their
/// parameters are what it speaks of.
fn classify(status: u16, message: &str) -> BackendError {
    let lower = message.to_lowercase();
    match status {
        401 | 403 => BackendError::Unavailable(format!(
            "the serve does not accept the key ({message}): give --serve-api-key the serve's --api-key"
        )),
        404 | 405 => BackendError::Broken(format!(
            "the serve has no /generate ({status} {message}): is --serve-url the address of an sglang serve?"
        )),
        // Whatever the status: the operator has to set a flag.
        _ if lower.contains("hidden states") || lower.contains("hidden_states") => BackendError::Unavailable(format!(
            "the serve returns no hidden states ({message}): start it with --enable-return-hidden-states, or with \
             --return-hidden-states-mode full where it has that flag"
        )),
        400 | 413 | 422 if lower.contains("rid") && (lower.contains("duplicate") || lower.contains("already")) => {
            BackendError::Broken(format!("the serve refuses our request's name: {message}"))
        }
        400 | 413 | 422
            if lower.contains("unknown") || lower.contains("unexpected") || lower.contains("extra input") =>
        {
            BackendError::Broken(format!("the serve does not understand our request: {message}"))
        }
        400 | 413 | 422 => BackendError::Client(format!("the serve refuses the request: {message}")),
        429 | 503 => BackendError::Busy(message.to_owned()),
        502 | 504 => BackendError::Unavailable(format!("there is no serve behind the address ({status} {message})")),
        _ => BackendError::Broken(format!("the serve answered {status}: {message}")),
    }
}

/// What a body of any of the forms says.
fn message_of(body: &[u8]) -> String {
    let found = ServeError::from_body(body).map(|error| error.message);
    let text = found.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let text = quote(&text);
    if text.is_empty() { "no reason given".into() } else { text }
}

/// A serve's words on one line, cut where they are long.
pub(super) fn quote(text: &str) -> String {
    let text = one_line(text.trim());
    match text.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// An HTTP error with what lies under it: the outermost alone says only that sending failed. Without the address, which the
/// message around it names.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = source.to_string();
        cause = source.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> Fault {
        Fault::of_status(StatusCode::from_u16(status).unwrap(), body.as_bytes())
    }

    /// Every form of an error body that the versions have, and whose fault each is.
    #[test]
    fn bodies_of_every_form_name_the_fault() {
        let client = |fault: &Fault| matches!(fault.error, BackendError::Client(_));
        let long = "The input (40000 tokens) is longer than the model's context length (32768 tokens).";
        for body in [
            format!(r#"{{"error":{{"message":"{long}"}}}}"#),
            format!(r#"{{"error":"{long}"}}"#),
            format!(r#"{{"object":"error","message":"{long}","type":"Bad Request","param":null,"code":400}}"#),
            format!(r#"{{"detail":"{long}"}}"#),
            long.to_owned(),
        ] {
            let fault = of(400, &body);
            assert!(client(&fault) && fault.error.to_string().contains("40000 tokens"), "{body}: {fault:?}");
            assert!(!fault.refused, "another serve would say the same");
        }
        assert!(client(&of(422, r#"{"detail":[{"loc":["body","text"],"msg":"field required"}]}"#)));
        for flag in [
            r#"{"error":{"message":"The server is not configured to return the hidden states. Please set `--enable-return-hidden-states` to enable this feature."}}"#,
            r#"{"error":{"message":"The requested return_hidden_states mode exceeds the server maximum `last`."}}"#,
        ] {
            let fault = of(400, flag);
            let BackendError::Unavailable(message) = &fault.error else { panic!("{fault:?}") };
            assert!(message.contains("--enable-return-hidden-states"), "{message}");
        }
        let busy = of(
            503,
            r#"{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}"#,
        );
        assert_eq!(busy, Fault { error: BackendError::Busy("The request queue is full.".into()), refused: true });
        let key = of(401, r#"{"error":"Unauthorized"}"#).error.to_string();
        assert!(key.contains("--serve-api-key"), "{key}");
        assert!(matches!(of(500, "Internal Server Error").error, BackendError::Broken(_)));
        assert!(of(404, "<html>").error.to_string().contains("--serve-url"));
        let contract = of(400, r#"{"error":"unknown field `rid2`"}"#);
        assert!(matches!(contract.error, BackendError::Broken(_)), "{contract:?}: no buyer wrote that");
        assert!(of(500, "").error.to_string().contains("no reason given"));
        let long = of(500, &"x".repeat(10_000)).error.to_string();
        assert!(long.len() < 600, "{}", long.len());
    }

    #[test]
    fn aborts_keep_their_fault() {
        let of = |status| Fault::aborted(Some("it is too long"), status).error;
        assert!(matches!(of(Some(400)), BackendError::Client(_)));
        assert!(matches!(of(Some(503)), BackendError::Busy(_)));
        assert!(Fault::aborted(None, Some(503)).refused && !Fault::aborted(None, Some(500)).refused);
        assert!(matches!(of(Some(500)), BackendError::Broken(_)));
        assert!(matches!(of(None), BackendError::Broken(message) if message.contains("by itself")));
    }
}
