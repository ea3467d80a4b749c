//! Messages as buyers send them, made into messages as templates take them.
//!
//! Templates are written for one shape: content as text, roles of their own, arguments as a mapping. OpenAI's clients send
//! several. What changes here does not depend on the template; see `dialect` for what does.

use serde_json::{Map, Value};

use super::request::RequestError;

/// Roles that templates know. A `developer` speaks as `system`: only OpenAI's own models tell the two apart.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The messages of a request.
///
/// # Errors
/// When there are none, or one is no object with a role and a content that can be read as text.
pub(super) fn normalise(messages: Option<&Value>) -> Result<Vec<Value>, RequestError> {
    match messages {
        Some(Value::Array(messages)) if !messages.is_empty() => {
            messages.iter().enumerate().map(|(at, message)| one(&Place(format!("messages[{at}]")), message)).collect()
        }
        Some(Value::Array(_)) => Err(RequestError::new("messages is empty: send at least one message")),
        Some(Value::Null) | None => Err(RequestError::new("messages is missing")),
        Some(_) => Err(RequestError::new("messages must be an array of messages")),
    }
}

/// Where in a request something is wrong.
struct Place(String);

impl Place {
    fn wrong(&self, what: &str) -> RequestError {
        RequestError::new(format!("{} {what}", self.0))
    }
}

fn one(place: &Place, message: &Value) -> Result<Value, RequestError> {
    let mut fields = message.as_object().ok_or_else(|| place.wrong("must be an object"))?.clone();
    let role = match fields.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.clone(),
        Some(Value::String(role)) => {
            return Err(place.wrong(&format!("has the role {role:?}; known are {}", ROLES.join(", "))));
        }
        Some(_) => return Err(place.wrong("has a role that is no text")),
        None => return Err(place.wrong("has no role")),
    };
    if role == "developer" {
        fields.insert("role".into(), "system".into());
    }
    fields.insert("content".into(), Value::String(text(place, fields.get("content"))?));
    if fields.get("function_call").is_some_and(|call| !call.is_null()) {
        return Err(place.wrong("has a function_call; send tool_calls"));
    }
    calls(place, &mut fields)?;
    Ok(Value::Object(fields))
}

/// A content as one text. Parts are joined as templates that take parts join them: with nothing between.
fn text(place: &Place, content: Option<&Value>) -> Result<String, RequestError> {
    let parts = match content {
        // An assistant that only called tools.
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(place.wrong("has a content that is neither text, parts nor null")),
    };
    let mut text = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str);
        let piece = match (kind, part) {
            (Some("text"), _) => part.get("text").and_then(Value::as_str),
            // What an assistant said when it refused; clients send it back so.
            (Some("refusal"), _) => part.get("refusal").and_then(Value::as_str),
            (None, Value::String(text)) => Some(text.as_str()),
            _ => None,
        };
        match piece {
            Some(piece) => text.push_str(piece),
            None => {
                let kind = kind.unwrap_or("unknown");
                return Err(place.wrong(&format!("has a content part of type {kind:?}; this model reads text only")));
            }
        }
    }
    Ok(text)
}

/// The calls of a message (only an assistant has any, but templates may not ask), their arguments as mappings: templates write an argument at a time. Calls come
/// with their function nested, or flat.
fn calls(place: &Place, message: &mut Map<String, Value>) -> Result<(), RequestError> {
    let calls = match message.get_mut("tool_calls") {
        None => return Ok(()),
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        Some(Value::Null | Value::Array(_)) => {
            message.shift_remove("tool_calls");
            return Ok(());
        }
        Some(_) => return Err(place.wrong("has tool_calls that are no array")),
    };
    for (at, call) in calls.iter_mut().enumerate() {
        let place = Place(format!("{}.tool_calls[{at}]", place.0));
        let call = call.as_object_mut().ok_or_else(|| place.wrong("must be an object"))?;
        let function = match call.get("function") {
            None | Some(Value::Null) => call,
            Some(_) => call
                .get_mut("function")
                .and_then(Value::as_object_mut)
                .ok_or_else(|| place.wrong("has a function that is no object"))?,
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(place.wrong("has no name"));
        }
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => serde_json::from_str(text).ok().filter(Value::is_object),
            Some(Value::Object(_)) => continue,
            _ => None,
        };
        // A model's broken arguments must not end its conversation: the model sees the tool's complaint and mends them.
        function.insert("arguments".into(), arguments.unwrap_or_else(|| Value::Object(Map::new())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> Result<Vec<Value>, RequestError> {
        normalise(Some(&messages))
    }

    #[test]
    fn contents_become_text() {
        let messages = read(json!([
            {"role": "developer", "content": "d", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]},
            {"role": "assistant", "content": null},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
            {"role": "assistant"}, {"role": "user", "content": []}]))
        .unwrap();
        let contents: Vec<&str> = messages.iter().map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["d", "abc", "", "no", "12", "", ""]);
        assert_eq!((&messages[0]["role"], &messages[0]["name"]), (&json!("system"), &json!("n")));
    }

    // Field case FC-C01, the part that needs no template.
    #[test]
    fn arguments_become_mappings() {
        let call = |arguments: Value| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let sent = json!([{"role": "assistant", "content": null, "tool_calls": [
            call(json!("{\"b\": 1, \"a\": \"tea\"}")), call(json!("{\"a\": ")), call(json!("[1]")), call(json!("")),
            call(json!({"x": 1})), call(Value::Null), {"name": "flat", "arguments": "{\"y\": 2}"},
            {"type": "function", "function": {"name": "bare"}}]},
            {"role": "assistant", "tool_calls": null}, {"role": "assistant", "tool_calls": []}]);
        let before = sent.clone();
        let messages = read(sent.clone()).unwrap();
        assert_eq!(sent, before);
        let calls = messages[0]["tool_calls"].as_array().unwrap();
        let arguments: Vec<String> =
            calls.iter().map(|call| call.get("function").unwrap_or(call)["arguments"].to_string()).collect();
        assert_eq!(arguments, [r#"{"b":1,"a":"tea"}"#, "{}", "{}", "{}", r#"{"x":1}"#, "{}", r#"{"y":2}"#, "{}"]);
        assert!(messages[1].get("tool_calls").is_none() && messages[2].get("tool_calls").is_none());
    }

    #[test]
    fn faults_say_where() {
        for (messages, says) in [
            (json!([]), "messages is empty"),
            (json!("hi"), "must be an array"),
            (Value::Null, "messages is missing"),
            (json!([{"role": "user", "content": "a"}, 7]), "messages[1] must be an object"),
            (json!([{"content": "a"}]), "messages[0] has no role"),
            (json!([{"role": 7}]), "messages[0] has a role"),
            (json!([{"role": "wizard"}]), "known are system, developer, user, assistant, tool"),
            (json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "image_url"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "reads text only"),
            (json!([{"role": "user", "content": [7]}]), "unknown"),
            (json!([{"role": "user", "content": 7}]), "messages[0] has a content"),
            (json!([{"role": "assistant", "tool_calls": {}}]), "tool_calls that are no array"),
            (json!([{"role": "assistant", "tool_calls": [7]}]), "messages[0].tool_calls[0] must be an object"),
            (json!([{"role": "assistant", "tool_calls": [{"function": 7}]}]), "no object"),
            (json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]), "tool_calls[0] has no name"),
            (json!([{"role": "assistant", "function_call": {"name": "f"}}]), "send tool_calls"),
        ] {
            let message = read(messages).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
