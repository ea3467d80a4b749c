//! Fields of a request that would change the answer and that nothing here honours.
//!
//! Left out of account without a word, they would make an answer other than the one that was asked for. A value that
//! changes nothing (`null`, `false`, empty) is taken, since some clients always send them. All other unknown fields are
//! left alone: what buyers send is wider than any list.

use serde_json::Value;

use super::request::RequestError;

/// The fields, and what to do instead.
const REFUSED: [(&str, &str); 26] = [
    ("logit_bias", "take it out"),
    ("functions", "send tools"),
    ("function_call", "send tool_choice"),
    ("audio", "this model writes text only"),
    ("web_search_options", "send a tool of your own"),
    ("regex", "send response_format"),
    ("ebnf", "send response_format"),
    ("json_schema", "send response_format"),
    ("structural_tag", "send response_format"),
    ("structured_outputs", "send response_format"),
    ("guided_json", "send response_format"),
    ("guided_regex", "send response_format"),
    ("guided_choice", "send response_format"),
    ("guided_grammar", "send response_format"),
    ("stop_regex", "send stop"),
    ("min_tokens", "take it out"),
    ("ignore_eos", "take it out"),
    ("best_of", "send one request an answer"),
    ("use_beam_search", "take it out"),
    ("echo", "take it out"),
    ("continue_final_message", "end the messages with a user or a tool"),
    ("no_stop_trim", "take it out"),
    ("include_stop_str_in_output", "take it out"),
    ("custom_logit_processor", "take it out"),
    ("lora_path", "take it out"),
    ("bad_words", "take it out"),
];

/// Fields of which only one value is served, which is also what their absence says.
const FIXED: [(&str, bool); 4] = [
    ("separate_reasoning", true),
    ("skip_special_tokens", true),
    ("spaces_between_special_tokens", true),
    ("add_generation_prompt", true),
];

/// Finds a field that cannot be honoured.
pub(super) fn check(request: &Value) -> Result<(), RequestError> {
    let one = |name: &str, value: &Value| name == "best_of" && value.as_f64() == Some(1.0);
    let given = |name: &str| request.get(name).filter(|value| !is_neutral(value) && !one(name, value));
    if let Some((name, instead)) = REFUSED.iter().find(|(name, _)| given(name).is_some()) {
        return Err(RequestError::new(format!("{name} is not served: {instead}")));
    }
    for (name, only) in FIXED {
        if request.get(name).is_some_and(|value| !value.is_null() && *value != Value::Bool(only)) {
            return Err(RequestError::new(format!("{name} must be {only}")));
        }
    }
    let modalities = request.get("modalities").and_then(Value::as_array);
    if modalities.is_some_and(|list| list.iter().any(|modality| modality != "text")) {
        return Err(RequestError::new("modalities must be [\"text\"]: this model writes text only"));
    }
    Ok(())
}

fn is_neutral(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_that_change_nothing_are_taken() {
        for fine in [
            json!({"logit_bias": {}, "functions": [], "ignore_eos": false, "min_tokens": 0, "best_of": 1, "regex": null, "ebnf": ""}),
            json!({"separate_reasoning": true, "skip_special_tokens": null, "modalities": ["text"]}),
            json!({"user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "unheard_of": 1}),
            json!([]),
        ] {
            assert_eq!(check(&fine), Ok(()), "{fine}");
        }
    }

    #[test]
    fn others_are_refused_by_name() {
        for (name, value) in [
            ("logit_bias", json!({"5": 100})),
            ("functions", json!([{"name": "f"}])),
            ("min_tokens", json!(5)),
            ("best_of", json!(2)),
            ("ignore_eos", json!(true)),
            ("guided_json", json!({"type": "object"})),
            ("separate_reasoning", json!(false)),
            ("add_generation_prompt", json!(false)),
            ("modalities", json!(["text", "audio"])),
        ] {
            let message = check(&json!({name: value})).unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
