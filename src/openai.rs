//! The OpenAI-shaped objects that travel through the program: what a buyer reads back.
//!
//! Only shapes live here, no behaviour: `chat` fills them in, `protocol` carries them in frames and `gateway` hands
//! them to buyers. Requests are not typed here; `job::JobRequest` reads them leniently from JSON, because what buyers
//! send is wider than any one schema.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A whole chat completion, the `output` of a response frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// `chatcmpl-...`, absent where a producer does not name its completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `chat.completion` when present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// The served model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// One element: this miner never answers `n > 1`.
    pub choices: Vec<Choice>,
    /// What the buyer is billed for.
    pub usage: Usage,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Position among the choices, from 0.
    pub index: u32,
    /// Why the answer ended: `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<FinishReason>,
    /// The assistant's message.
    pub message: Message,
    /// Log-probabilities of its tokens, where they were asked for.
    #[serde(default, deserialize_with = "readable_or_none", skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChoiceLogprobs>,
}

/// Why an answer ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string or stop id was met.
    Stop,
    /// The token budget or the context ended it.
    Length,
    /// The model ended its turn with tool calls.
    ToolCalls,
}

/// An assistant message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Always `assistant`.
    pub role: String,
    /// The text for the reader; `null` when there is none.
    pub content: Option<String>,
    /// The model's thoughts, when the model thinks aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls the model asks for, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// A call that the model asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call for the message that brings its result: `call_` and 24 hex digits.
    #[serde(default)]
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// What to call.
    pub function: FunctionCall,
}

/// A tool and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The tool's name.
    pub name: String,
    /// The JSON text of an object.
    #[serde(default)]
    pub arguments: String,
}

/// A piece of a tool call. The first of a call brings `id`, `type` and the name; those behind it more of the arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallDelta {
    /// Which of the message's calls this belongs to.
    pub index: u32,
    /// As in [`ToolCall`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// As in [`ToolCall`].
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What to append to name and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionDelta>,
}

/// What a piece of a call appends to its function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionDelta {
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

fn function() -> String {
    "function".to_owned()
}

/// A piece of an assistant message, the `delta` of a chunk frame. Never carries a role or a finish reason.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// Text to append to `content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Text to append to `reasoning_content`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Pieces of tool calls, addressed by `index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

impl From<ToolCall> for ToolCallDelta {
    /// The whole call as its first piece; whoever sends it sets the index.
    fn from(call: ToolCall) -> Self {
        let function = FunctionDelta { name: Some(call.function.name), arguments: Some(call.function.arguments) };
        Self { index: 0, id: Some(call.id), kind: Some(call.kind), function: Some(function) }
    }
}

impl Delta {
    /// A delta of plain text.
    #[must_use]
    pub fn content(text: impl Into<String>) -> Self {
        Self { content: Some(text.into()), ..Self::default() }
    }

    /// True when appending this delta changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.as_deref().is_none_or(str::is_empty)
            && self.reasoning_content.as_deref().is_none_or(str::is_empty)
            && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }
}

/// A piece of a streamed answer: what one chunk brings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// What to append to the message.
    pub delta: Delta,
    /// Log-probabilities of tokens that no earlier piece brought.
    pub logprobs: Option<ChoiceLogprobs>,
}

impl From<Delta> for Piece {
    fn from(delta: Delta) -> Self {
        Self { delta, logprobs: None }
    }
}

/// Log-probabilities of an answer's tokens, or of those that a piece of it brings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChoiceLogprobs {
    /// One entry a token, in order.
    pub content: Vec<LogprobEntry>,
    /// Entries of a refusal, which models served here do not tell from content: `null`.
    #[serde(default)]
    pub refusal: Option<Value>,
}

/// A chosen token and the best ones in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogprobEntry {
    /// The token that was chosen.
    #[serde(flatten)]
    pub chosen: TokenLogprob,
    /// As many of the best tokens as were asked for, best first. The chosen one need not be among them.
    #[serde(default)]
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token and how likely the model found it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its text, with U+FFFD for bytes that are no UTF-8: a token may be half a character.
    pub token: String,
    /// The natural logarithm of its probability, never below
    /// [`LOWEST_LOGPROB`](crate::backend::TokenLogprobs::LOWEST_LOGPROB).
    pub logprob: f32,
    /// Its bytes, exactly; `null` where it has none, as ids that only pad a vocabulary.
    #[serde(default)]
    pub bytes: Option<Vec<u8>>,
}

/// Reads log-probabilities of another shape as none: other miners' answers are worth more than these notes on them.
pub(crate) fn readable_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ChoiceLogprobs>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Token counts of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the rendered prompt.
    pub prompt_tokens: u64,
    /// Tokens generated, the end-of-sequence token included: each has a proven row.
    pub completion_tokens: u64,
    /// The sum of the two.
    pub total_tokens: u64,
    /// How the prompt's tokens were had; absent when none came from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Tokens whose states came from a cache and were not computed again.
    pub cached_tokens: u64,
}

impl Usage {
    /// Counts for `prompt` tokens in, `cached` of them from a cache, and `completion` tokens out.
    #[must_use]
    pub fn new(prompt: u64, cached: u64, completion: u64) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            prompt_tokens_details: (cached > 0).then_some(PromptTokensDetails { cached_tokens: cached.min(prompt) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MinerFrame;
    use serde_json::json;

    #[test]
    fn a_chunk_carries_logprobs_and_odd_ones_do_not_cost_its_text() {
        let read = |logprobs: Value| {
            let frame = json!({"type": "chunk", "corr_id": "c", "delta": {"content": "x"}, "logprobs": logprobs});
            match serde_json::from_value(frame).unwrap() {
                MinerFrame::Chunk(chunk) => chunk,
                other => panic!("{other:?}"),
            }
        };
        let entry = json!({"token": "x", "logprob": -0.12, "bytes": [120],
                           "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": null}]});
        let logprobs = json!({"content": [entry], "refusal": null});
        let written = serde_json::to_string(&MinerFrame::Chunk(read(logprobs.clone()))).unwrap();
        assert!(written.contains(r#""delta":{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-0.12,"#));
        // Other miners write whole numbers and leave keys out.
        let terse = json!({"content": [{"token": "x", "logprob": 0}]});
        assert_eq!(read(terse).logprobs.unwrap().content[0].chosen.logprob, 0.0);
        for odd in [Value::Null, json!([]), json!({"content": null}), json!({"tokens": ["x"]}), json!(7)] {
            let chunk = read(odd);
            assert_eq!((chunk.delta, chunk.logprobs), (Delta::content("x"), None));
        }
    }
}
