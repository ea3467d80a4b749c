//! What of a buyer's request shapes the prompt and the text of the answer.

use serde_json::{Map, Value};

/// The conversation part of a chat request. The buyer's object is copied from, never changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatRequest {
    /// The messages, each an object with a `role`.
    pub messages: Vec<Value>,
    /// Tool definitions, `None` when there are none.
    pub tools: Option<Value>,
    /// Switches for the template, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// Texts that end the answer; none is empty.
    pub stop: Vec<String>,
}

/// What is wrong with a request: always the buyer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

/// OpenAI takes four; agents send a few more. A limit, since every one is searched for in every piece of text.
const MAX_STOPS: usize = 16;

impl RequestError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl ChatRequest {
    /// Reads the conversation out of an OpenAI-shaped request.
    ///
    /// # Errors
    /// When messages are missing, empty or no objects with a role, or `tools`, `stop` or `chat_template_kwargs` are of
    /// another type than OpenAI's.
    pub fn parse(request: &Value) -> Result<Self, RequestError> {
        let messages = match request.get("messages") {
            Some(Value::Array(messages)) if !messages.is_empty() => messages,
            Some(Value::Array(_)) => return Err(RequestError::new("messages is empty: send at least one message")),
            Some(_) => return Err(RequestError::new("messages must be an array of messages")),
            None => return Err(RequestError::new("messages is missing")),
        };
        Ok(Self {
            messages: messages
                .iter()
                .enumerate()
                .map(|(at, message)| normalise(at, message))
                .collect::<Result<_, _>>()?,
            tools: match request.get("tools") {
                None | Some(Value::Null) => None,
                Some(Value::Array(tools)) if tools.is_empty() => None,
                Some(tools @ Value::Array(_)) => Some(tools.clone()),
                Some(_) => return Err(RequestError::new("tools must be an array")),
            },
            template_kwargs: match request.get("chat_template_kwargs") {
                None | Some(Value::Null) => Map::new(),
                Some(Value::Object(kwargs)) => kwargs.clone(),
                Some(_) => return Err(RequestError::new("chat_template_kwargs must be an object")),
            },
            stop: stops(request.get("stop"))?,
        })
    }
}

/// A message with its content as one text: templates want a string where OpenAI also allows parts.
fn normalise(at: usize, message: &Value) -> Result<Value, RequestError> {
    let wrong = |what: &str| RequestError::new(format!("messages[{at}] {what}"));
    let fields = message.as_object().ok_or_else(|| wrong("must be an object"))?;
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role"));
    }
    let content = match fields.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in parts {
                match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                    (Some("text"), Some(piece)) => text.push_str(piece),
                    (kind, _) => {
                        let kind = kind.unwrap_or("unknown");
                        return Err(wrong(&format!("has a content part of type {kind:?}; this model reads text only")));
                    }
                }
            }
            text
        }
        Some(_) => return Err(wrong("has a content that is neither text, parts nor null")),
    };
    let mut fields = fields.clone();
    fields.insert("content".into(), Value::String(content));
    Ok(Value::Object(fields))
}

fn stops(value: Option<&Value>) -> Result<Vec<String>, RequestError> {
    let wrong = || RequestError::new("stop must be a text or an array of texts");
    let texts = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(texts)) => {
            texts.iter().map(|t| t.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    if texts.len() > MAX_STOPS {
        return Err(RequestError::new(format!("stop has {} texts; at most {MAX_STOPS} are taken", texts.len())));
    }
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_parts_null_content_and_stops() {
        let request = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null}], "stop": ["x", ""], "tools": []});
        let parsed = ChatRequest::parse(&request).unwrap();
        assert_eq!(parsed.messages[0]["content"], "ab");
        assert_eq!(parsed.messages[1]["content"], "");
        assert_eq!((parsed.stop, parsed.tools), (vec!["x".to_owned()], None));
    }

    #[test]
    fn faults_say_where() {
        for (request, says) in [
            (json!({}), "messages is missing"),
            (json!({"messages": []}), "messages is empty"),
            (json!({"messages": "hi"}), "must be an array"),
            (json!({"messages": [{"role": "user", "content": "a"}, 7]}), "messages[1] must be an object"),
            (json!({"messages": [{"content": "a"}]}), "messages[0] has no role"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "image_url"),
            (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0] has a content"),
            (json!({"messages": [{"role": "user"}], "tools": {}}), "tools must be"),
            (json!({"messages": [{"role": "user"}], "stop": [1]}), "stop must be"),
            (json!({"messages": [{"role": "user"}], "stop": vec!["x"; 17]}), "17 texts"),
            (json!({"messages": [{"role": "user"}], "chat_template_kwargs": 1}), "chat_template_kwargs"),
        ] {
            let message = ChatRequest::parse(&request).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
        assert!(ChatRequest::parse(&Value::Null).is_err());
    }
}
