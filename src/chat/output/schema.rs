//! What the request's tools say of their parameters, and the values that a model's text stands for under it.
//!
//! The rules are those of sglang's `qwen3_coder` parser, which is what buyers' agents are used to; but a value that does
//! not fit its type stays the text that the model wrote, where sglang may write what is no JSON (`Infinity`, `NaN`). A
//! client can complain about a text, and the model can mend it.

use std::collections::HashMap;

use serde_json::Value;

use super::json::{self, Json};
use crate::chat::python;

/// Levels of `$ref`, `anyOf` and `allOf` that are followed: a schema may name itself.
pub(super) const DEEPEST: usize = 16;

/// The tools of a request, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolSchemas(HashMap<String, ToolSchema>);

/// One tool's parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolSchema(HashMap<String, Kind>);

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
    /// An array, an object, or a type that JSON schema does not have.
    Json,
}

impl ToolSchemas {
    /// Reads tool definitions, nested in `function` or flat.
    pub(super) fn of(tools: &Value) -> Self {
        let entries = tools.as_array().into_iter().flatten().filter_map(|tool| {
            let tool = tool.get("function").unwrap_or(tool);
            let parameters = tool.get("parameters").unwrap_or(&Value::Null);
            Some((tool.get("name")?.as_str()?.to_owned(), ToolSchema::of(parameters)))
        });
        Self(entries.collect())
    }

    /// The schema of a tool; `None` for tools that the request does not have.
    pub(super) fn get(&self, tool: &str) -> Option<&ToolSchema> {
        self.0.get(tool)
    }
}

impl ToolSchema {
    fn of(parameters: &Value) -> Self {
        let properties = parameters.get("properties").and_then(Value::as_object);
        let kinds = properties.into_iter().flatten();
        Self(kinds.map(|(name, schema)| (name.clone(), kind(schema, parameters))).collect())
    }

    /// Whether the schema has this parameter; true where it names none at all, since then any may come.
    pub(super) fn takes(&self, parameter: &str) -> bool {
        self.0.is_empty() || self.0.contains_key(parameter)
    }

    /// The JSON text of a value.
    pub(super) fn value(&self, parameter: &str, text: &str) -> String {
        value(self.0.get(parameter).copied().unwrap_or(Kind::Text), text)
    }
}

/// The JSON text of a value, for a parameter that no schema has.
pub(super) fn untyped(text: &str) -> String {
    value(Kind::Text, text)
}

fn value(kind: Kind, text: &str) -> String {
    if text.eq_ignore_ascii_case("null") {
        return "null".to_owned();
    }
    let typed = match kind {
        Kind::Text => None,
        Kind::Integer => integer(text),
        Kind::Number => number(text),
        Kind::Boolean => Some(text.trim().eq_ignore_ascii_case("true").to_string()),
        Kind::Json => Json::parse(text).or_else(|| Json::parse_python(text.trim())).map(|value| value.text()),
    };
    typed.unwrap_or_else(|| {
        let mut out = String::with_capacity(text.len() + 2);
        json::write_text(text, &mut out);
        out
    })
}

/// What Python's `int` reads, as JSON, however long.
fn integer(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let shaped = digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if !shaped {
        return None;
    }
    let plain = digits.replace('_', "");
    let plain = plain.trim_start_matches('0');
    Some(if plain.is_empty() { "0".to_owned() } else { format!("{sign}{plain}") })
}

/// What Python's `float` reads, as JSON: whole where it is written so. `None` for what is not finite.
fn number(text: &str) -> Option<String> {
    if let Some(whole) = integer(text) {
        return whole.parse::<f64>().is_ok_and(f64::is_finite).then_some(whole);
    }
    let text = text.trim();
    let plain = text.replace('_', "");
    let shaped = plain.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'-' | b'+'));
    let value: f64 = plain.parse().ok().filter(|value: &f64| shaped && value.is_finite())?;
    // Underscores stand between digits alone.
    let between = |(at, _): (usize, &str)| {
        let near = [at.checked_sub(1), Some(at + 1)].map(|at| at.and_then(|at| text.as_bytes().get(at)));
        near.iter().all(|byte| byte.is_some_and(u8::is_ascii_digit))
    };
    text.match_indices('_').all(between).then(|| python::float(value))
}

/// The kind of a parameter's schema within its tool's.
pub(super) fn kind(schema: &Value, root: &Value) -> Kind {
    // No type is text to sglang.
    let name = type_name(schema, root, 0).unwrap_or_default().to_ascii_lowercase();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name.as_str() {
        "" | "string" | "str" | "text" | "varchar" | "char" | "enum" => Kind::Text,
        "boolean" | "bool" | "binary" => Kind::Boolean,
        _ if starts(&["int", "uint", "long", "short", "unsigned"]) => Kind::Integer,
        _ if starts(&["num", "float", "double", "decimal"]) => Kind::Number,
        _ => Kind::Json,
    }
}

/// The type that a schema stands for: its own, or that of its alternatives, values or parts. `null` beside another type
/// says only that the value may be missing.
fn type_name<'a>(schema: &'a Value, root: &'a Value, depth: usize) -> Option<&'a str> {
    if depth > DEEPEST {
        return None;
    }
    let schema = schema.as_object()?;
    let of = |schema: &'a Value| type_name(schema, root, depth + 1);
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    match schema.get("type") {
        Some(Value::String(name)) => return Some(name),
        Some(Value::Array(names)) => {
            return names.iter().filter_map(Value::as_str).find(|name| *name != "null").or(Some("string"));
        }
        _ => {}
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#')) {
        return root.pointer(target).and_then(of);
    }
    if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")) {
        let mut names = schemas.iter().filter_map(of).filter(|name| *name != "null");
        let first = names.next()?;
        // Text holds every value as it was written.
        return Some(if names.any(|name| name == "string") { "string" } else { first });
    }
    if let Some(values) = list("enum") {
        let mut names = values.iter().map(name_of).filter(|name| *name != "null");
        let first = names.next().unwrap_or("string");
        return Some(if names.all(|name| name == first) { first } else { "string" });
    }
    if let Some(value) = schema.get("const") {
        return Some(name_of(value));
    }
    if let Some(schemas) = list("allOf") {
        return schemas.iter().filter_map(of).find(|name| *name != "string").or(Some("string"));
    }
    match (schema.get("properties"), schema.get("items")) {
        (Some(_), _) => Some("object"),
        (None, Some(_)) => Some("array"),
        (None, None) => None,
    }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(schema: Value, text: &str) -> String {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"p": schema}, "$defs": {"point": {"type": "object"},
            "loop": {"$ref": "#/$defs/loop"}}}}}]);
        ToolSchemas::of(&tools).get("f").unwrap().value("p", text)
    }

    // Expected values: Python's int, float and json, as sglang uses them.
    #[test]
    fn values_by_type() {
        for (name, text, want) in [
            ("integer", "3", "3"),
            ("integer", " +0042 ", "42"),
            ("integer", "-0", "0"),
            ("integer", "1_000", "1000"),
            ("integer", "1__0", "\"1__0\""),
            ("integer", "123456789012345678901234567890", "123456789012345678901234567890"),
            ("integer", "5.0", "\"5.0\""),
            ("integer", "three", "\"three\""),
            ("integer", "", "\"\""),
            ("uint8", "7", "7"),
            ("number", "5", "5"),
            ("number", "48.85", "48.85"),
            ("number", "5.0", "5.0"),
            ("number", "1e3", "1000.0"),
            ("number", "-.5", "-0.5"),
            ("number", "1_0.5", "10.5"),
            ("number", "1e_3", "\"1e_3\""),
            ("number", "1e999", "\"1e999\""),
            ("number", "inf", "\"inf\""),
            ("number", "NaN", "\"NaN\""),
            ("float64", "0.00001", "1e-05"),
            ("boolean", "TRUE", "true"),
            ("boolean", "yes", "false"),
            ("string", "75001", "\"75001\""),
            ("string", "Null", "null"),
            ("string", " null", "\" null\""),
            ("array", "[1,2]", "[1, 2]"),
            ("array", "['a', True]", "[\"a\", true]"),
            ("array", "[1, NaN]", "\"[1, NaN]\""),
            ("array", "a, b", "\"a, b\""),
            ("object", "{\"k\":{\"z\":1}}", "{\"k\": {\"z\": 1}}"),
            ("dict[str, int]", "{'a': 1}", "{\"a\": 1}"),
        ] {
            assert_eq!(read(json!({"type": name}), text), want, "{name} {text:?}");
        }
    }

    #[test]
    fn types_that_are_not_said_plainly() {
        for (schema, text, want) in [
            (json!({}), "7", "\"7\""),
            (json!({"type": ["null", "integer"]}), "7", "7"),
            (json!({"type": ["null"]}), "7", "\"7\""),
            (json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}), "7", "7"),
            (json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}), "7", "\"7\""),
            (json!({"anyOf": []}), "7", "\"7\""),
            (json!({"enum": [1, 2]}), "2", "2"),
            (json!({"enum": ["7", "8"]}), "7", "\"7\""),
            (json!({"enum": [1, "a"]}), "1", "\"1\""),
            (json!({"const": true}), "true", "true"),
            (json!({"allOf": [{"description": "x"}, {"type": "number"}]}), "7", "7"),
            (json!({"properties": {}}), "{}", "{}"),
            (json!({"items": {}}), "[]", "[]"),
            (json!({"$ref": "#/$defs/point"}), "{\"x\": 1}", "{\"x\": 1}"),
            (json!({"$ref": "#/$defs/loop"}), "7", "\"7\""),
            (json!({"$ref": "#/$defs/none"}), "7", "\"7\""),
            (json!(true), "7", "\"7\""),
        ] {
            assert_eq!(read(schema.clone(), text), want, "{schema} {text:?}");
        }
    }

    #[test]
    fn tools_of_any_shape() {
        let tools = json!([{"name": "flat", "parameters": {"properties": {"n": {"type": "integer"}}}},
                           {"type": "function", "function": {"name": "bare"}}, {"function": 7}, 7, null]);
        let schemas = ToolSchemas::of(&tools);
        assert_eq!(schemas.get("flat").unwrap().value("n", "5"), "5");
        assert_eq!(schemas.get("flat").unwrap().value("other", "5"), "\"5\"");
        let bare = schemas.get("bare").unwrap();
        assert!(bare.takes("anything") && !schemas.get("flat").unwrap().takes("other"));
        assert!(schemas.get("none").is_none() && ToolSchemas::of(&Value::Null).0.is_empty());
    }
}
