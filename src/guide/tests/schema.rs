//! As much of JSON schema as the tests' own schemas have.

use serde_json::Value;

/// Whether a value is one under a schema.
pub(super) fn validates(value: &Value, schema: &Value) -> bool {
    within(value, schema, schema)
}

fn within(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(keys) = schema.as_object() else { return schema != &Value::Bool(false) };
    keys.iter().all(|(key, rule)| match key.as_str() {
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is(value, name)),
            name => is(value, name),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "$ref" => within(value, root.pointer(&rule.as_str().unwrap()[1..]).unwrap(), root),
        "anyOf" => rule.as_array().unwrap().iter().any(|choice| within(value, choice, root)),
        "properties" => rule
            .as_object()
            .unwrap()
            .iter()
            .all(|(name, own)| value.get(name).is_none_or(|value| within(value, own, root))),
        "required" => rule.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
        "additionalProperties" => {
            let known = &schema["properties"];
            let others = value.as_object().into_iter().flatten().filter(|(name, _)| known.get(name).is_none());
            others.into_iter().all(|(_, value)| within(value, rule, root))
        }
        "items" => value.as_array().into_iter().flatten().all(|item| within(item, rule, root)),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap()),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap()),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap()),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
        "$defs" | "description" => true,
        other => panic!("the tests know no {other}"),
    })
}

fn is(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}
