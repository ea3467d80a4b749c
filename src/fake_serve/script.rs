//! A reply byte for byte.

use std::time::Duration;

use axum::body::Bytes;
use serde_json::Value;

/// What the serve sends in answer to one call, whatever was asked.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedReply {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) pieces: Vec<Piece>,
}

/// A part of a scripted reply.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Bytes(Bytes),
    Pause(Duration),
    Reset,
    Close,
}

impl ScriptedReply {
    /// A reply without a body so far.
    #[must_use]
    pub fn new(status: u16, content_type: &str) -> Self {
        Self { status, content_type: content_type.to_owned(), pieces: Vec::new() }
    }

    /// A whole body.
    #[must_use]
    pub fn json(body: &Value) -> Self {
        Self::new(200, "application/json").bytes(body.to_string())
    }

    /// A whole stream: these events and the mark of its end.
    #[must_use]
    pub fn events<'a>(events: impl IntoIterator<Item = &'a Value>) -> Self {
        events.into_iter().fold(Self::stream(), Self::event).bytes("data: [DONE]\n\n")
    }

    /// A stream without events so far.
    #[must_use]
    pub fn stream() -> Self {
        Self::new(200, super::reply::EVENT_STREAM)
    }

    /// Then this event.
    #[must_use]
    pub fn event(self, event: &Value) -> Self {
        self.bytes(format!("data: {event}\n\n"))
    }

    /// Then these bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Bytes>) -> Self {
        self.pieces.push(Piece::Bytes(bytes.into()));
        self
    }

    /// Then nothing for so long.
    #[must_use]
    pub fn pause(mut self, time: Duration) -> Self {
        self.pieces.push(Piece::Pause(time));
        self
    }

    /// Then the connection is reset.
    #[must_use]
    pub fn reset(mut self) -> Self {
        self.pieces.push(Piece::Reset);
        self
    }

    /// Then the connection is closed without the body's end.
    #[must_use]
    pub fn close(mut self) -> Self {
        self.pieces.push(Piece::Close);
        self
    }
}
