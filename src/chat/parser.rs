//! From the text that a model writes to the parts of a message.

use crate::openai::{Delta, Message};

/// Reads a model's text as it comes and tells content, thoughts and tool calls apart.
///
/// The deltas that it gives, put together, are the message that it gives in the end.
pub trait OutputParser: Send {
    /// Adds text; gives what it adds to the message.
    fn push(&mut self, text: &str) -> Vec<Delta>;

    /// Ends the text; gives what was held back, and the whole message.
    fn finish(&mut self) -> (Vec<Delta>, Message);
}

/// All text is content: models without thoughts and tools.
#[derive(Debug, Default)]
pub struct PlainText {
    content: String,
}

impl OutputParser for PlainText {
    fn push(&mut self, text: &str) -> Vec<Delta> {
        if text.is_empty() {
            return Vec::new();
        }
        self.content.push_str(text);
        vec![Delta::content(text)]
    }

    fn finish(&mut self) -> (Vec<Delta>, Message) {
        let message = Message {
            role: "assistant".into(),
            content: Some(std::mem::take(&mut self.content)),
            ..Message::default()
        };
        (Vec::new(), message)
    }
}
