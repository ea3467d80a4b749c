//! The seam between the search for calls and the forms in which models write them.

use super::schema::ToolSchemas;

/// A call as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// The tool.
    pub(super) name: String,
    /// The JSON text of its arguments, an object, in the pieces in which it is streamed: the brackets, and each argument.
    pub(super) arguments: Vec<String>,
}

/// Who ended the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The model: whatever is unfinished was meant so.
    Model,
    /// The token budget or a stop string: what is unfinished was cut.
    Cut,
}

/// What a reader makes of the text from a call's opener on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    /// It needs more text. Not given once the text has ended.
    More,
    /// Calls, which took so many bytes.
    Calls(Vec<Call>, usize),
    /// There is no call; so many bytes, the opener's, are text.
    Text(usize),
    /// So many bytes are an unfinished call, which is worth nothing.
    Dropped(usize),
}

/// Reads one call. Asked again with a longer text, it goes on where it was.
pub(super) trait CallReader: Send {
    /// Reads `text`, which starts with the opener; `end` once no more of it comes.
    fn read(&mut self, text: &str, end: Option<End>, tools: &ToolSchemas) -> Reading;
}
