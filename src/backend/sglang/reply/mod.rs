//! What `POST /generate` answers, from the bytes of the network to rows of hidden states and the fields beside them.
//!
//! In: a body, or a `text/event-stream`, in pieces cut anywhere. Out: rows of bf16 in the order of the answer's tokens, or of the
//! prompt's where those are wanted, each as soon as it is complete, and at the end a [`Reply`]. A body of 4,096 tokens is some 80 MB of decimal numbers, so
//! two things must never happen here: that the body, or a tree of its numbers, is held; and that a byte is looked at
//! more than a few times.
//!
//! ```text
//! StreamReader ─▶ events      lines of a stream to the data of its events
//!      │
//! ReplyReader ──▶ skeleton    all but hidden states ──▶ fields    a small JSON text to a Reply
//!      ├────────▶ rows        which rows are the answer's ──┬▶ brackets    where lists begin and end
//!      └────────▶ prompt      which rows are the prompt's ──┴▶ row ──▶ number    decimal text to bf16
//! ```

mod brackets;
mod error;
mod events;
mod fields;
mod number;
mod prompt;
mod reader;
mod row;
mod rows;
mod skeleton;
mod stream;
#[cfg(test)]
mod tests;

pub use self::error::ReplyError;
pub use self::fields::{FinishReason, Logprob, Matched, Meta, Reply, ServeError};
pub use self::prompt::PromptRows;
pub use self::reader::ReplyReader;
pub use self::rows::RowsFound;
pub use self::stream::{StreamEvent, StreamReader};
