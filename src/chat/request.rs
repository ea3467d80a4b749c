//! What of a buyer's request shapes the prompt and the text of the answer.

use serde_json::{Map, Value};

use super::response_format::{ResponseFormat, response_format};
use super::tools::{ToolChoice, tool_choice, tools};
use super::{messages, refused};

/// The conversation part of a chat request. The buyer's object is copied from, never changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatRequest {
    /// The messages, each an object with a `role`, its `content` a text, arguments of calls as objects.
    pub messages: Vec<Value>,
    /// Tool definitions, `None` when there are none or the buyer wants no calls. Only with them are calls read.
    pub tools: Option<Value>,
    /// What the buyer says of calls.
    pub tool_choice: ToolChoice,
    /// Whether the answer has at most one call: `parallel_tool_calls` is false.
    pub single_call: bool,
    /// What the content must be.
    pub response_format: ResponseFormat,
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
    /// When messages are missing, empty or no messages, another field is of another type than OpenAI's, `tool_choice` does
    /// not suit the tools, or a field asks for what is not served.
    pub fn parse(request: &Value) -> Result<Self, RequestError> {
        refused::check(request)?;
        let messages = messages::normalise(request.get("messages"))?;
        let tools = tools(request.get("tools"))?;
        let tool_choice = tool_choice(request.get("tool_choice"), tools.as_ref())?;
        Ok(Self {
            messages,
            tools: tools.filter(|_| tool_choice != ToolChoice::None),
            tool_choice,
            single_call: flag(request, "parallel_tool_calls")? == Some(false),
            response_format: response_format(request.get("response_format"))?,
            template_kwargs: template_kwargs(request)?,
            stop: stops(request.get("stop"))?,
        })
    }
}

fn flag(request: &Value, key: &str) -> Result<Option<bool>, RequestError> {
    match request.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(RequestError::new(format!("{key} must be true or false, not {other}"))),
    }
}

/// The template's switches: those of `chat_template_kwargs`, and those that clients send beside it, which count less.
fn template_kwargs(request: &Value) -> Result<Map<String, Value>, RequestError> {
    let mut kwargs = match request.get("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(kwargs)) => kwargs.clone(),
        Some(_) => return Err(RequestError::new("chat_template_kwargs must be an object")),
    };
    let mut set = |key: &str, value: Value| {
        kwargs.entry(key).or_insert(value);
    };
    if let Some(thinking) = flag(request, "enable_thinking")? {
        set("enable_thinking", thinking.into());
    }
    match request.get("reasoning_effort") {
        None | Some(Value::Null) => {}
        Some(Value::String(effort)) if effort == "none" => set("enable_thinking", false.into()),
        Some(Value::String(effort)) if EFFORTS.contains(&effort.as_str()) => {
            set("reasoning_effort", effort.as_str().into());
        }
        Some(other) => {
            let known = EFFORTS.join(", ");
            return Err(RequestError::new(format!("reasoning_effort is {other}; known are none, {known}")));
        }
    }
    Ok(kwargs)
}

/// Degrees of thinking, least first, beside `none`.
pub(super) const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

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
    fn switches_come_from_two_places() {
        let kwargs = |extra: Value| {
            let mut request = json!({"messages": [{"role": "user", "content": "x"}]});
            request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            ChatRequest::parse(&request).map(|request| Value::Object(request.template_kwargs))
        };
        assert_eq!(kwargs(json!({"enable_thinking": false})).unwrap(), json!({"enable_thinking": false}));
        assert_eq!(kwargs(json!({"reasoning_effort": "none"})).unwrap(), json!({"enable_thinking": false}));
        assert_eq!(kwargs(json!({"reasoning_effort": "high"})).unwrap(), json!({"reasoning_effort": "high"}));
        let both = json!({"enable_thinking": false, "chat_template_kwargs": {"enable_thinking": true, "z": 1}});
        assert_eq!(kwargs(both).unwrap(), json!({"enable_thinking": true, "z": 1}));
        for bad in
            [json!({"enable_thinking": "no"}), json!({"reasoning_effort": "huge"}), json!({"reasoning_effort": 3})]
        {
            assert!(kwargs(bad).is_err());
        }
    }

    #[test]
    fn without_leave_to_call_there_are_no_tools() {
        let mut request = json!({"messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false});
        let parsed = ChatRequest::parse(&request).unwrap();
        assert!(parsed.tools.is_some() && parsed.single_call);
        request["tool_choice"] = json!("none");
        assert!(ChatRequest::parse(&request).unwrap().tools.is_none());
    }

    #[test]
    fn faults_say_where() {
        for (request, says) in [
            (json!({}), "messages is missing"),
            (json!({"messages": []}), "messages is empty"),
            (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "image_url"),
            (json!({"messages": [{"role": "user"}], "tools": {}}), "tools must be"),
            (json!({"messages": [{"role": "user"}], "tool_choice": "required"}), "no tools"),
            (json!({"messages": [{"role": "user"}], "parallel_tool_calls": 0}), "parallel_tool_calls must be"),
            (json!({"messages": [{"role": "user"}], "response_format": {}}), "response_format"),
            (json!({"messages": [{"role": "user"}], "logit_bias": {"1": 5}}), "logit_bias is not served"),
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
