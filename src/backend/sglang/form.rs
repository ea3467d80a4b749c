//! The form of an answer in a serve's own words.
//!
//! All known versions take `json_schema`. Thoughts before it, and calls, need structural tags by `format`, which 0.5.10 takes
//! and 0.5.2 does not: such a serve refuses the call, and the buyer hears why. The choice between JSON and calls is one that
//! 0.5.10 refuses too and 0.5.15 takes (by their xgrammar, 0.1.32 and 0.2.1, which the tests' tags were tried on). Marks are texts
//! there, as in the structural tags that newer serves make for these models themselves.

use serde_json::{Value, json};

use crate::guide::{CallForm, Callable, Calls, Constraint, Thought};

/// Parameters of a call: one of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// `json_schema`: the text of a schema.
    JsonSchema(String),
    /// `structural_tag`: the text of one.
    StructuralTag(String),
}

impl Form {
    pub(super) fn of(constraint: &Constraint) -> Self {
        let schema = constraint.json.as_ref().map(|schema| json!({"type": "json_schema", "json_schema": schema}));
        let body = match (&constraint.json, schema, &constraint.calls) {
            (Some(json), _, None) if constraint.thought == Thought::None => return Self::JsonSchema(json.to_string()),
            (_, Some(schema), Some(given)) => json!({"type": "or", "elements": [schema, calls(given)]}),
            (_, Some(schema), None) => schema,
            (_, None, Some(given)) => calls(given),
            (_, None, None) => json!({"type": "any_text"}),
        };
        let behind_thought = |begin: &str, body: Value| {
            let thought = json!({"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": "</think>"});
            json!({"type": "sequence", "elements": [thought, {"type": "const_string", "value": "\n\n"}, body]})
        };
        let format = match constraint.thought {
            Thought::None => body,
            Thought::Open => behind_thought("", body),
            Thought::Possible => json!({"type": "or", "elements": [body.clone(), behind_thought("<think>", body)]}),
        };
        Self::StructuralTag(json!({"type": "structural_tag", "format": format}).to_string())
    }
}

fn calls(calls: &Calls) -> Value {
    let tags: Vec<Value> = calls.tools.iter().map(|tool| tag(calls.form, tool)).collect();
    json!({
        "type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": true,
        "stop_after_first": calls.single
    })
}

fn tag(form: CallForm, Callable { name, schema, .. }: &Callable) -> Value {
    match form {
        CallForm::QwenXml => json!({
            "type": "tag", "begin": format!("<tool_call>\n<function={name}>\n"),
            "content": {"type": "qwen_xml_parameter", "json_schema": schema}, "end": "\n</function>\n</tool_call>"
        }),
        CallForm::Hermes => json!({
            "type": "tag", "begin": format!("<tool_call>\n{{\"name\": {}, \"arguments\": ", json!(name)),
            "content": {"type": "json_schema", "json_schema": schema}, "end": "}\n</tool_call>"
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constraint(thought: Thought, json: Option<Value>, calls: Option<(CallForm, bool)>) -> Constraint {
        let tool = Callable { name: "f".into(), schema: json!({"type": "object"}), parameters: vec![] };
        Constraint { thought, json, calls: calls.map(|(form, single)| Calls { form, tools: vec![tool], single }) }
    }

    fn format(constraint: &Constraint) -> Value {
        let Form::StructuralTag(text) = Form::of(constraint) else { panic!("{constraint:?}") };
        let tag: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(tag["type"], "structural_tag");
        tag["format"].clone()
    }

    #[test]
    fn plain_json_is_a_schema_on_every_version() {
        let object = json!({"type": "object"});
        let form = Form::of(&constraint(Thought::None, Some(object), None));
        assert_eq!(form, Form::JsonSchema(r#"{"type":"object"}"#.into()));
    }

    #[test]
    fn a_thought_comes_before_it() {
        let schema = json!({"type": "json_schema", "json_schema": {"type": "array"}});
        let behind = |begin: &str| {
            json!({"type": "sequence", "elements": [
                {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": "</think>"},
                {"type": "const_string", "value": "\n\n"}, schema]})
        };
        let array = Some(json!({"type": "array"}));
        assert_eq!(format(&constraint(Thought::Open, array.clone(), None)), behind(""));
        let possible = format(&constraint(Thought::Possible, array, None));
        assert_eq!(possible, json!({"type": "or", "elements": [schema, behind("<think>")]}));
    }

    #[test]
    fn calls_are_tags() {
        let required = format(&constraint(Thought::None, None, Some((CallForm::QwenXml, false))));
        let xml = json!({"type": "tag", "begin": "<tool_call>\n<function=f>\n", "end": "\n</function>\n</tool_call>",
            "content": {"type": "qwen_xml_parameter", "json_schema": {"type": "object"}}});
        let calls = |tag: &Value, single: bool| {
            json!({"type": "tags_with_separator", "tags": [tag], "separator": "\n", "at_least_one": true,
                "stop_after_first": single})
        };
        assert_eq!(required, calls(&xml, false));
        let one = format(&constraint(Thought::None, None, Some((CallForm::Hermes, true))));
        let hermes = json!({"type": "tag", "begin": "<tool_call>\n{\"name\": \"f\", \"arguments\": ",
            "content": {"type": "json_schema", "json_schema": {"type": "object"}}, "end": "}\n</tool_call>"});
        assert_eq!(one, calls(&hermes, true));
        let either = format(&constraint(Thought::None, Some(json!({})), Some((CallForm::QwenXml, true))));
        let schema = json!({"type": "json_schema", "json_schema": {}});
        assert_eq!(either, json!({"type": "or", "elements": [schema, calls(&xml, true)]}));
    }
}
