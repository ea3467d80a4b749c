//! A tool as something to be called: its parameters, and how each value must be written to be read back under its schema.

use serde_json::{Map, Value, json};

use super::schema::{DEEPEST, Kind, kind};
use crate::guide::{Callable, Parameter, Takes};

/// Where schemas keep the parts that others refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Types as JSON schema has them. Tools also come with others (`int`, `dict`), which are read by what they mean.
const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "array", "object", "null"];

/// A tool definition, nested in `function` or flat; `None` where it has no name.
pub(in crate::chat) fn callable(tool: &Value) -> Option<Callable> {
    let tool = tool.get("function").unwrap_or(tool);
    let name = tool.get("name")?.as_str()?.to_owned();
    let mut schema = match tool.get("parameters") {
        Some(Value::Object(keys)) => keys.clone(),
        _ => Map::new(),
    };
    // Arguments are an object whatever the definition leaves out.
    if !schema.contains_key("type") {
        schema.insert("type".into(), "object".into());
    }
    // To leave parameters out is to have none, OpenAI says.
    if !schema.contains_key("properties") && !schema.contains_key("additionalProperties") {
        schema.insert("properties".into(), json!({}));
        schema.insert("additionalProperties".into(), false.into());
    }
    let schema = Value::Object(schema);
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|own| own == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let parameters = properties
        .map(|(name, own)| Parameter { name: name.clone(), required: required(name), takes: takes(own, &schema) })
        .collect();
    Some(Callable { name, parameters, schema })
}

/// How a parameter's value is written. `root` is the tool's schema.
fn takes(schema: &Value, root: &Value) -> Takes {
    let plain = match kind(schema, root) {
        Kind::Text => {
            return texts(schema, root, 0).filter(|texts| !texts.is_empty()).map_or(Takes::Text, Takes::OneOf);
        }
        Kind::Integer => json!({"type": "integer"}),
        Kind::Number => json!({"type": "number"}),
        Kind::Boolean => json!({"type": "boolean"}),
        Kind::Json => json!({}),
    };
    let mut own = match schema {
        Value::Object(keys) if is_standard(schema) => keys.clone(),
        _ => return Takes::Json(plain),
    };
    for key in DEFINITIONS {
        if let Some(definitions) = root.get(key) {
            own.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    Takes::Json(Value::Object(own))
}

fn is_standard(schema: &Value) -> bool {
    let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match schema.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().all(known),
        Some(name) => known(name),
    }
}

/// The only texts that a schema takes, if it takes no others. A text that reads as `null` is none.
fn texts(schema: &Value, root: &Value, depth: usize) -> Option<Vec<String>> {
    if depth > DEEPEST {
        return None;
    }
    let text = |value: &Value| value.as_str().filter(|text| !text.eq_ignore_ascii_case("null")).map(str::to_owned);
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.iter().filter_map(text).collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(text(value).into_iter().collect());
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#')) {
        return texts(root.pointer(target)?, root, depth + 1);
    }
    let choices = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array)?;
    let is_null = |choice: &&Value| choice.get("type").is_some_and(|name| name == "null");
    let mut all = Vec::new();
    for choice in choices.iter().filter(|choice| !is_null(choice)) {
        all.extend(texts(choice, root, depth + 1)?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_as_they_are_read() {
        let parameters = json!({"type": "object", "required": ["a", "n"], "$defs": {
            "unit": {"enum": ["C", "F", "null"]}, "point": {"type": "object"}}, "properties": {
            "a": {"type": "string"}, "n": {"type": "integer"}, "u": {"$ref": "#/$defs/unit"}, "c": {"const": "x"},
            "o": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}, "m": {"enum": [1, true]},
            "p": {"$ref": "#/$defs/point"}, "d": {"type": "dict"}, "i": {"type": "int32"}, "x": true}});
        let tool = callable(&json!({"type": "function", "function": {"name": "f", "parameters": parameters}})).unwrap();
        assert_eq!(
            tool.parameters.iter().filter(|p| p.required).map(|p| p.name.as_str()).collect::<Vec<_>>(),
            ["a", "n"]
        );
        let takes = |name: &str| &tool.parameters.iter().find(|p| p.name == name).unwrap().takes;
        let one_of = |texts: &[&str]| Takes::OneOf(texts.iter().map(|text| (*text).to_owned()).collect());
        assert_eq!((takes("a"), takes("x"), takes("m")), (&Takes::Text, &Takes::Text, &Takes::Text));
        assert_eq!((takes("u"), takes("o"), takes("c")), (&one_of(&["C", "F"]), &one_of(&["C", "F"]), &one_of(&["x"])));
        let defs = &parameters["$defs"];
        assert_eq!(takes("n"), &Takes::Json(json!({"type": "integer", "$defs": defs})));
        assert_eq!(takes("p"), &Takes::Json(json!({"$ref": "#/$defs/point", "$defs": defs})));
        assert_eq!((takes("d"), takes("i")), (&Takes::Json(json!({})), &Takes::Json(json!({"type": "integer"}))));
    }

    #[test]
    fn a_tool_without_parameters_takes_none() {
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        for tool in [json!({"name": "f"}), json!({"function": {"name": "f", "parameters": null}})] {
            assert_eq!(callable(&tool), Some(Callable { name: "f".into(), schema: none.clone(), parameters: vec![] }));
        }
        let any = json!({"type": "object", "additionalProperties": true});
        assert_eq!(callable(&json!({"name": "f", "parameters": any})).unwrap().schema, any);
        assert_eq!(callable(&json!({"function": {}})), None);
    }
}
