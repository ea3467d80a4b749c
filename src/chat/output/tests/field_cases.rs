//! Cases that operators and users of engines have met (`tests/fixtures/field_cases.jsonl`), by their ids.

use super::*;

fn case(id: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/field_cases.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    cases.find(|case| case["id"] == id).unwrap()
}

/// Runs a case in the feeds that it names, and once more token by token.
fn check(id: &str) {
    let case = case(id);
    let (input, expect) = (&case["input"], &case["expect"]);
    let mut scene = Scene::new(input["text"].as_str().unwrap_or_default(), input["tools"].clone());
    if input["tool_choice"] == "none" {
        // As `ChatRequest::parse` has it.
        scene.tools = Value::Null;
    }
    scene.in_thought = input["think_open"].as_bool().unwrap();
    scene.cut = match input["ended_by"].as_str().unwrap() {
        "budget" => true,
        "model" => false,
        other => panic!("{other}"),
    };
    for feed in input["feed"].as_array().unwrap() {
        let outcomes = match feed.as_str().unwrap() {
            "whole" => vec![scene.whole()],
            "per_char" => vec![scene.per_char()],
            "random_3_to_9_chars" => (0..100).map(|seed| scene.random(seed)).collect(),
            "deltas" => {
                let pieces: Vec<&str> =
                    input["deltas"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
                scene.text = pieces.concat();
                vec![scene.in_pieces(pieces)]
            }
            other => panic!("{other}"),
        };
        outcomes.iter().for_each(|outcome| compare(&format!("{id}, {feed}"), outcome, expect));
    }
    compare(&format!("{id}, token by token"), &scene.by_tokens(), expect);
}

fn compare(what: &str, outcome: &Outcome, expect: &Value) {
    let text = |key: &str| expect.get(key).map(|value| value.as_str());
    if let Some(content) = text("content") {
        assert_eq!(outcome.content(), content, "{what}");
    }
    assert_eq!(outcome.thought(), text("reasoning_content").flatten(), "{what}");
    assert_eq!(serde_json::to_value(outcome.finish_reason).unwrap(), expect["finish_reason"], "{what}");
    let calls = outcome.calls();
    let expected = expect["tool_calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(calls.len(), expected.len(), "{what}: {calls:?}");
    assert_eq!(outcome.message.tool_calls.is_none(), expected.is_empty(), "{what}");
    for ((name, arguments), expected) in calls.iter().zip(&expected) {
        assert_eq!(*name, expected["name"], "{what}");
        match expected.get("arguments_text") {
            Some(text) => assert_eq!(arguments, text, "{what}"),
            None => assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), expected["arguments"], "{what}"),
        }
    }
}

macro_rules! cases {
    ($($name:ident: $id:literal,)*) => {
        $(#[test] fn $name() { check($id); })*
    };
}

cases! {
    fc_t01_parameter_closers_are_missing: "FC-T01",
    fc_t03_a_pair_of_tags_inside_a_value: "FC-T03",
    fc_t05_three_calls_one_without_arguments: "FC-T05",
    fc_t07_values_that_do_not_fit_their_types: "FC-T07",
    fc_t09_a_call_in_a_thought_that_is_never_closed: "FC-T09",
    fc_t11_markup_without_tools_is_text: "FC-T11",
    fc_t12_no_calls_where_the_buyer_wants_none: "FC-T12",
    fc_t13_the_outer_opener_is_missing: "FC-T13",
    fc_t14_a_call_that_the_budget_cut: "FC-T14",
    fc_t16_a_header_without_its_bracket: "FC-T16",
    fc_r01_a_thought_that_the_budget_cut: "FC-R01",
    fc_r03_only_the_first_closer_counts: "FC-R03",
    fc_r05_the_closer_comes_in_two_pieces: "FC-R05",
}

// The cases of these areas that a test elsewhere covers. A new one in the file is to be added here or above.
#[test]
fn no_case_is_left_out() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/field_cases.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let ids = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned());
    let here = include_str!("field_cases.rs");
    let elsewhere = ["FC-C01", "FC-C03", "FC-C05", "FC-K01", "FC-K03", "FC-K05"];
    let missing: Vec<String> =
        ids.filter(|id| !here.contains(&format!(": \"{id}\"")) && !elsewhere.contains(&id.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
