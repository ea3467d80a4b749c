//! Text without thoughts and calls.

use super::OutputParser;
use crate::openai::{Delta, Message};

/// All text is content, to the letter: models without thoughts and tools.
#[derive(Debug, Default)]
pub struct PlainText {
    content: String,
}

impl OutputParser for PlainText {
    fn push(&mut self, text: &str, _: &[usize]) -> Vec<Delta> {
        if text.is_empty() {
            return Vec::new();
        }
        self.content.push_str(text);
        vec![Delta::content(text)]
    }

    fn finish(self: Box<Self>, _: bool) -> (Vec<Delta>, Message) {
        let content = Some(self.content).filter(|content| !content.is_empty());
        (Vec::new(), Message { role: "assistant".into(), content, ..Message::default() })
    }
}
