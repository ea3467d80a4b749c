//! The form that a buyer wants an answer in.

use serde_json::Value;

use super::request::RequestError;

/// What the content of an answer must be.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ResponseFormat {
    /// Anything.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON under this schema.
    JsonSchema(Value),
}

/// Reads `response_format`.
pub(super) fn response_format(value: Option<&Value>) -> Result<ResponseFormat, RequestError> {
    let format = match value {
        None | Some(Value::Null) => return Ok(ResponseFormat::Text),
        Some(format) => format,
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(ResponseFormat::Text),
        Some("json_object") => Ok(ResponseFormat::JsonObject),
        Some("json_schema") => match format.get("json_schema").and_then(|named| named.get("schema")) {
            Some(schema @ Value::Object(_)) => Ok(ResponseFormat::JsonSchema(schema.clone())),
            _ => Err(RequestError::new("response_format.json_schema.schema must be an object")),
        },
        _ => Err(RequestError::new(r#"response_format.type must be "text", "json_object" or "json_schema""#)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn formats() {
        let read = |value: Value| response_format(Some(&value));
        assert_eq!(
            (read(Value::Null), read(json!({"type": "text"}))),
            (Ok(ResponseFormat::Text), Ok(ResponseFormat::Text))
        );
        assert_eq!(read(json!({"type": "json_object"})), Ok(ResponseFormat::JsonObject));
        let schema = json!({"type": "object"});
        let sent = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
        assert_eq!(read(sent), Ok(ResponseFormat::JsonSchema(schema)));
        for bad in [
            json!({}),
            json!("json"),
            json!({"type": "xml"}),
            json!({"type": "json_schema"}),
            json!(7),
            json!({"type": "json_schema", "json_schema": {"schema": "x"}}),
        ] {
            assert!(read(bad.clone()).unwrap_err().to_string().starts_with("response_format"), "{bad}");
        }
    }
}
