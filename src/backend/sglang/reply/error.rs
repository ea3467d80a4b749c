//! What can be wrong with a serve's reply.

use thiserror::Error;

/// Why a reply was not understood. Offsets are bytes from the start of the body, or of the event's data in a stream;
/// rows count from 0 over the whole answer, a missing first row included, or over the prompt where its rows are wanted, and
/// columns from 0.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// Not a JSON object: a proxy's page, plain text.
    #[error(
        "the serve's reply is not JSON, it begins with {start:?}: check that the address is that of an sglang serve"
    )]
    NotJson {
        /// How it begins.
        start: String,
    },

    /// A JSON array: the form of an answer to several prompts at once.
    #[error(
        "the serve answered with a batch (a JSON array), but one prompt was sent: ask without `n` and lists of prompts"
    )]
    Batch,

    /// It ends too early.
    #[error("the serve's reply ends after {offset} bytes in the middle of {inside}: the connection or the serve broke")]
    Truncated {
        /// Bytes that came.
        offset: u64,
        /// What was being read.
        inside: &'static str,
    },

    /// Not JSON, or not of the shape that sglang documents.
    #[error("the serve's reply cannot be read at byte {offset}: {what}")]
    Malformed {
        /// Where.
        offset: u64,
        /// What was found.
        what: String,
    },

    /// Nested too deeply.
    #[error("the serve's reply nests more than {limit} levels deep at byte {offset}")]
    TooDeep {
        /// Where.
        offset: u64,
        /// The most that is read.
        limit: usize,
    },

    /// Too much beside the hidden states.
    #[error(
        "the serve's reply holds more than {limit} bytes beside its hidden states: ask for fewer logprobs or fewer tokens"
    )]
    TooLarge {
        /// The most that is held.
        limit: usize,
    },

    /// `hidden_states` is neither a list nor null.
    #[error("the serve's hidden states are no list of numbers but {found} (byte {offset}): check the serve's version")]
    NotAList {
        /// Where.
        offset: u64,
        /// What they are.
        found: &'static str,
    },

    /// `hidden_states` came twice.
    #[error("the serve's reply has hidden states twice, the second at byte {offset}")]
    Twice {
        /// Where.
        offset: u64,
    },

    /// `hidden_states` is one vector: that of the last token alone.
    #[error(
        "the serve returned the hidden state of the last token alone, but a proof needs all: start it with \
         `--return-hidden-states-mode full` (sglang 0.5.23) or `--enable-return-hidden-states`"
    )]
    LastOnly,

    /// A row of the wrong width.
    #[error(
        "row {row} of the hidden states has {found} values where the model's hidden size is {expected}: check the model"
    )]
    Width {
        /// Which row.
        row: usize,
        /// Values that it has.
        found: usize,
        /// Values that a row of this model has.
        expected: usize,
    },

    /// A value that is no finite bf16. sglang writes `null` for NaN and infinity.
    #[error(
        "row {row} of the hidden states is non-finite in column {column} ({found}): the model overflowed on the serve"
    )]
    NonFinite {
        /// Which row.
        row: usize,
        /// Which value of it.
        column: usize,
        /// How it was written.
        found: String,
    },

    /// An empty element among the rows, or more than one before them.
    #[error("row {row} of the hidden states is missing: turn the serve's prefix cache and chunked prefill off")]
    Missing {
        /// Which row.
        row: usize,
    },

    /// A matrix of several rows among the rows of an answer.
    #[error("a block of prompt rows follows row {row} of the hidden states: whose rows these are cannot be told")]
    LateBlock {
        /// The row before it.
        row: usize,
    },

    /// Not every token of the prompt has a row, where its rows are wanted: those that came may be any tokens'.
    #[error(
        "the serve returned hidden states of {found} of the prompt's {expected} tokens, and all are needed: start it with \
         --disable-radix-cache and --chunked-prefill-size -1, and without what trims its replies"
    )]
    FewerPromptRows {
        /// Rows that came.
        found: usize,
        /// Tokens of the prompt.
        expected: usize,
    },

    /// More rows than the prompt has tokens, where its rows are wanted, or more behind them than the call can have.
    #[error(
        "the serve returned more rows of hidden states than the {expected} tokens of the prompt have, so whose rows these are cannot \
         be told: start it with --disable-radix-cache and --chunked-prefill-size -1, and without --speculative-algorithm"
    )]
    MorePromptRows {
        /// Tokens of the prompt.
        expected: usize,
    },

    /// A row's text is longer than a row's can be.
    #[error("row {row} of the hidden states is longer than {limit} bytes")]
    RowTooLong {
        /// Which row.
        row: usize,
        /// The most that is held.
        limit: usize,
    },

    /// An event of a stream holds fewer rows than one before it.
    #[error("an event of the stream holds {found} rows of hidden states after one with {before}: they must accumulate")]
    Fewer {
        /// Rows of the earlier event.
        before: usize,
        /// Rows of this one.
        found: usize,
    },
}
