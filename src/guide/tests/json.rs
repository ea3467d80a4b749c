use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::schema::validates;
use super::{GuideError, Site, Thought, json_under};

/// The schemas of agents: nested, with choices, lists, and texts of any script.
fn schemas() -> Vec<Value> {
    let text = json!({"type": "string", "maxLength": 12});
    vec![
        json!({"type": "object", "properties": {"city": text, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["°C", "°F"]}}, "required": ["city", "unit"], "additionalProperties": false}),
        json!({"type": "object", "required": ["steps"], "properties": {"steps": {"type": "array", "minItems": 1,
            "maxItems": 3, "items": {"type": "object", "required": ["what"], "additionalProperties": false,
            "properties": {"what": text, "done": {"type": "boolean"}, "why": {"type": ["string", "null"], "maxLength": 5}}}}},
            "additionalProperties": false}),
        json!({"$defs": {"tree": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
            "name": {"enum": ["дом", "家", "🏠"]}, "below": {"type": "array", "maxItems": 2,
            "items": {"$ref": "#/$defs/tree"}}}}}, "$ref": "#/$defs/tree"}),
        json!({"anyOf": [{"type": "number"}, {"const": null}, {"type": "array", "items": {"type": "boolean"},
            "minItems": 2, "maxItems": 2}]}),
        json!({"type": "array", "items": {"enum": ["a\"b", "\\", "\n", 7, true]}, "minItems": 1, "maxItems": 4}),
    ]
}

/// `None` for numbers that are JSON and no `f64`.
fn parse(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("number out of range") => None,
        Err(error) => panic!("{error}: {text}"),
    }
}

#[test]
fn whoever_knows_nothing_still_writes_what_validates() {
    let site = Site::tiny();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for schema in schemas() {
        let mut ended = 0;
        for _ in 0..30 {
            let mut guide = site.guide(json_under(schema.clone())).unwrap();
            let Some(ids) = site.walk(&mut guide, &mut rng, 600) else { continue };
            let text: Vec<u8> = ids.iter().flat_map(|id| site.bytes(*id)).collect();
            let text = String::from_utf8(text).unwrap();
            let Some(value) = parse(&text) else { continue };
            assert!(validates(&value, &schema), "{text} under {schema}");
            ended += 1;
        }
        assert!(ended >= 20, "{ended} of 30 under {schema}");
    }
}

#[test]
fn any_object() {
    let site = Site::tiny();
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let constraint = json_under(json!({"type": "object"}));
    let mut ended = 0;
    for _ in 0..60 {
        let Some(ids) = site.walk(&mut site.guide(constraint.clone()).unwrap(), &mut rng, 400) else { continue };
        let text: Vec<u8> = ids.iter().flat_map(|id| site.bytes(*id)).collect();
        let Some(value) = parse(&String::from_utf8(text).unwrap()) else { continue };
        assert!(value.is_object());
        ended += 1;
    }
    assert!(ended >= 40, "{ended}");
    assert!(site.takes(&constraint, "{}") && site.takes(&constraint, r#"{"é": [1, {"a": "<b>\u00e9"}], "b": null}"#));
    assert!(site.takes(&constraint, "{\n    \"a\": [\n        1\n    ]\n}"));
    for wrong in ["[]", "7", "{\"a\"}", "{\"a\": 1,}", " {}", "{} ", "{'a': 1}", "{\"a\": 01}", "```json\n{}"] {
        assert!(!site.takes(&constraint, wrong), "{wrong}");
    }
    // Marks are no text: a string that spells one has to spell it.
    let mut guide = site.guide(constraint).unwrap();
    assert_eq!(site.accepts(&mut guide, "{\"a\": \"").0, site.tokenizer.encode("{\"a\": \"").unwrap().len());
    for mark in ["<think>", "</think>", "<tool_call>", "<|im_start|>", "<|im_end|>"] {
        assert!(!guide.mask().unwrap().allows(site.tokenizer.id(mark).unwrap()), "{mark}");
    }
}

#[test]
fn a_thought_comes_first_where_it_may() {
    let site = Site::tiny();
    let mut constraint = json_under(json!({"type": "object"}));
    let thinking = "I shall say {\"a\": 1}.\n\nOr <|not.\n</think>\n\n{\"a\": 2}";
    assert!(!site.takes(&constraint, thinking) && !site.takes(&constraint, "<think>x</think>{}"));
    constraint.thought = Thought::Open;
    assert!(
        site.takes(&constraint, thinking)
            && site.takes(&constraint, "</think>{}")
            && site.takes(&constraint, "\n</think>\n{}")
    );
    for wrong in ["{}", "x</think>\n\n\n{}", "x</think> {}", "x</think></think>{}", "x<think></think>{}"] {
        assert!(!site.takes(&constraint, wrong), "{wrong}");
    }
    constraint.thought = Thought::Possible;
    assert!(site.takes(&constraint, "{}") && site.takes(&constraint, "<think>\nx\n</think>\n\n{}"));
    assert!(!site.takes(&constraint, "x</think>{}"));
}

#[test]
fn a_schema_that_cannot_be_held_is_the_buyers_fault() {
    let site = Site::tiny();
    for (schema, says) in [
        (json!({"type": "strin"}), "strin"),
        (json!({"type": 7}), "type"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"$ref": "https://example.org/schema"}), "example.org"),
        (json!({"type": "object", "patternProperties": 7}), "patternProperties"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "string", "pattern": "(?<=a)b"}), "look"),
        (json!({"type": "string", "pattern": "("}), "pars"),
        (json!({"not": {}}), "not"),
        (json!({"$ref": "#"}), "nothing can be written"),
        (json!({"enum": []}), "nsatisfiable"),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), "nsatisfiable"),
        (json!({"x-guidance": {"whitespace_pattern": "("}, "type": "nul"}), "nul"),
    ] {
        let error = site.guide(json_under(schema.clone())).map(|_| ()).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, GuideError::Form(_)) && message.contains(says), "{schema}: {message}");
        assert!(!message.contains("backtrace") && !message.contains('\n') && message.len() < 600, "{message}");
    }
}
