//! The tools of a request, and what the buyer says of their use.

use serde_json::Value;

use super::request::RequestError;

/// What a buyer says of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls. The prompt then shows no tools, and what looks like a call is text.
    None,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(String),
}

/// Reads `tools`. `None` where there are none.
pub(super) fn tools(value: Option<&Value>) -> Result<Option<Value>, RequestError> {
    let tools = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(tools)) if tools.is_empty() => return Ok(None),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(RequestError::new("tools must be an array")),
    };
    for (at, tool) in tools.iter().enumerate() {
        let wrong = |what: &str| RequestError::new(format!("tools[{at}] {what}"));
        if !tool.is_object() {
            return Err(wrong("must be an object"));
        }
        match tool.get("type").unwrap_or(&Value::Null) {
            Value::Null => {}
            Value::String(kind) if kind == "function" => {}
            kind => return Err(wrong(&format!("is of type {kind}; only \"function\" is served"))),
        }
        if name(tool).is_none_or(str::is_empty) {
            return Err(wrong("has no function with a name"));
        }
        let parameters = tool.get("function").unwrap_or(tool).get("parameters").unwrap_or(&Value::Null);
        if !matches!(parameters, Value::Null | Value::Object(_)) {
            return Err(wrong("has parameters that are no object"));
        }
    }
    Ok(value.cloned())
}

/// A tool's name; tools come with their function nested, or flat.
fn name(tool: &Value) -> Option<&str> {
    tool.get("function").unwrap_or(tool).get("name")?.as_str()
}

/// Reads `tool_choice`, which must suit the tools.
pub(super) fn tool_choice(value: Option<&Value>, tools: Option<&Value>) -> Result<ToolChoice, RequestError> {
    let choice = match value {
        None | Some(Value::Null) => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => return Err(RequestError::new(format!("tool_choice is {word:?}; known are {KNOWN}"))),
        },
        Some(choice) if choice.get("type").and_then(Value::as_str) == Some("function") => {
            let name = name(choice).ok_or_else(|| RequestError::new("tool_choice names no function"))?;
            ToolChoice::Named(name.to_owned())
        }
        Some(_) => return Err(RequestError::new(format!("tool_choice must be {KNOWN}"))),
    };
    let tools = tools.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match &choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            Err(RequestError::new("tool_choice asks for a call, but the request has no tools"))
        }
        ToolChoice::Named(wanted) if !tools.iter().any(|tool| name(tool) == Some(wanted)) => {
            Err(RequestError::new(format!("tool_choice names {wanted:?}, which is none of the tools")))
        }
        _ => Ok(choice),
    }
}

const KNOWN: &str = r#""auto", "none", "required" or {"type": "function", "function": {"name": ...}}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sent() -> Value {
        json!([{"type": "function", "function": {"name": "f", "parameters": {}}}, {"name": "g", "parameters": null}])
    }

    #[test]
    fn choices() {
        let choose = |value: Value| tool_choice(Some(&value), Some(&sent()));
        assert_eq!(choose(Value::Null), Ok(ToolChoice::Auto));
        assert_eq!(choose(json!("auto")), Ok(ToolChoice::Auto));
        assert_eq!(choose(json!("required")), Ok(ToolChoice::Required));
        assert_eq!(choose(json!({"type": "function", "function": {"name": "f"}})), Ok(ToolChoice::Named("f".into())));
        assert_eq!(choose(json!({"type": "function", "name": "g"})), Ok(ToolChoice::Named("g".into())));
        for (choice, says) in [
            (json!("any"), "\"any\""),
            (json!({"type": "function", "function": {"name": "h"}}), "\"h\", which is none of the tools"),
            (json!({"type": "function"}), "names no function"),
            (json!({"type": "allowed_tools"}), "must be"),
            (json!(7), "must be"),
        ] {
            let message = choose(choice).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
            let message = tool_choice(Some(&choice), None).unwrap_err().to_string();
            assert!(message.contains("the request has no tools"), "{message}");
        }
        assert_eq!(tool_choice(Some(&json!("none")), None), Ok(ToolChoice::None));
    }

    #[test]
    fn tools_must_be_functions_with_names() {
        assert_eq!(tools(Some(&sent())), Ok(Some(sent())));
        assert_eq!((tools(Some(&json!([]))), tools(Some(&Value::Null)), tools(None)), (Ok(None), Ok(None), Ok(None)));
        for (sent, says) in [
            (json!({}), "must be an array"),
            (json!([7]), "tools[0] must be an object"),
            (json!([{"type": "web_search"}]), "web_search"),
            (json!([{"type": "function"}]), "no function with a name"),
            (json!([{"type": "function", "function": {"name": ""}}]), "no function with a name"),
            (json!([{"type": "function", "function": {"name": "f", "parameters": []}}]), "no object"),
        ] {
            let message = tools(Some(&sent)).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
