//! A message, and the deltas that it is made of.
//!
//! A message is made by appending deltas and in no other way, so the two cannot differ.

use uuid::Uuid;

use super::call::Call;
use crate::openai::{Delta, FunctionCall, FunctionDelta, Message, ToolCall, ToolCallDelta};

/// Builds a message. White space at the borders of its parts is layout: newlines before a thought or behind it, and all of
/// it behind a thought and around calls. It is held back until something follows that makes it text.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    message: Message,
    deltas: Vec<Delta>,
    /// White space that ends the thought so far.
    thought_space: String,
    /// White space that ends the content so far.
    content_space: String,
    /// Whether content starts behind a thought.
    behind_thought: bool,
}

impl Assembly {
    /// Adds to the thought.
    pub(super) fn thought(&mut self, text: &str) {
        let begun = self.message.reasoning_content.is_some();
        let text = if begun { text } else { text.trim_start() };
        if let Some(text) = settle(&mut self.thought_space, text) {
            self.push(Delta { reasoning_content: Some(text), ..Delta::default() });
        }
    }

    /// Ends the thought, also an empty one.
    pub(super) fn end_thought(&mut self) {
        self.thought_space.clear();
        self.behind_thought = true;
    }

    /// Adds to the content.
    pub(super) fn content(&mut self, text: &str) {
        let begun = self.message.content.is_some();
        // Behind a thought and behind calls an answer starts on a line of its own; its indent is its own.
        let layout = !begun && (self.behind_thought || self.message.tool_calls.is_some());
        let text = if layout && self.content_space.is_empty() { text.trim_start_matches(['\n', '\r']) } else { text };
        if let Some(text) = settle(&mut self.content_space, text) {
            self.push(Delta::content(text));
        }
    }

    /// Adds a call.
    pub(super) fn call(&mut self, call: Call) {
        self.content_space.clear();
        let index = self.message.tool_calls.as_ref().map_or(0, |calls| calls.len()) as u32;
        let id = format!("call_{}", &Uuid::new_v4().simple().to_string()[..24]);
        let function = FunctionDelta { name: Some(call.name), arguments: Some(String::new()) };
        self.tool_call(ToolCallDelta { index, id: Some(id), kind: Some("function".into()), function: Some(function) });
        for arguments in call.arguments {
            let function = FunctionDelta { name: None, arguments: Some(arguments) };
            self.tool_call(ToolCallDelta { index, id: None, kind: None, function: Some(function) });
        }
    }

    /// Notes that a call stood here which is not shown.
    pub(super) fn dropped_call(&mut self) {
        self.content_space.clear();
    }

    fn tool_call(&mut self, delta: ToolCallDelta) {
        self.push(Delta { tool_calls: Some(vec![delta]), ..Delta::default() });
    }

    /// The deltas since the last call of this.
    pub(super) fn take_deltas(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    /// Ends the message.
    pub(super) fn finish(mut self) -> (Vec<Delta>, Message) {
        let space = std::mem::take(&mut self.content_space);
        if self.message.content.is_some() && self.message.tool_calls.is_none() && !space.is_empty() {
            self.push(Delta::content(space));
        }
        self.message.role = "assistant".into();
        (self.deltas, self.message)
    }

    fn push(&mut self, delta: Delta) {
        append(&mut self.message, &delta);
        self.deltas.push(delta);
    }
}

/// The text that is certain: what was held back and `text`, but for white space at its end. `None` where that is nothing.
fn settle(held: &mut String, text: &str) -> Option<String> {
    let certain = text.trim_end();
    let space = &text[certain.len()..];
    if certain.is_empty() {
        held.push_str(space);
        return None;
    }
    let mut out = std::mem::replace(held, space.to_owned());
    out.push_str(certain);
    Some(out)
}

/// Appends a delta to a message, as a client does.
pub(super) fn append(message: &mut Message, delta: &Delta) {
    let add = |text: &mut Option<String>, more: &Option<String>| {
        if let Some(more) = more {
            text.get_or_insert_default().push_str(more);
        }
    };
    add(&mut message.content, &delta.content);
    add(&mut message.reasoning_content, &delta.reasoning_content);
    for delta in delta.tool_calls.iter().flatten() {
        let calls = message.tool_calls.get_or_insert_default();
        if calls.len() <= delta.index as usize {
            let function = FunctionCall { name: String::new(), arguments: String::new() };
            calls.push(ToolCall { id: String::new(), kind: String::new(), function });
        }
        let Some(call) = calls.get_mut(delta.index as usize) else { continue };
        let function = delta.function.clone().unwrap_or_default();
        call.id.push_str(delta.id.as_deref().unwrap_or_default());
        call.kind.push_str(delta.kind.as_deref().unwrap_or_default());
        call.function.name.push_str(&function.name.unwrap_or_default());
        call.function.arguments.push_str(&function.arguments.unwrap_or_default());
    }
}
