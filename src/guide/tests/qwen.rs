//! The true vocabulary of Qwen3.6, fetched by `scripts/fetch-test-assets`.

#![allow(clippy::print_stderr, reason = "figures")]

use std::time::Instant;

use serde_json::json;

use super::bombs::bombs;
use super::{Constraint, Site, json_under};
use crate::guide::{CallForm, Callable, Calls, Parameter, Takes, Thought};

/// Ids of the model's table; the tokenizer has 248,077.
const TABLE: usize = 248_320;

fn site() -> Option<Site> {
    let assets = std::env::var_os("ENGY_TEST_ASSETS")?;
    Some(Site::open(&std::path::Path::new(&assets).join("qwen3.6"), TABLE))
}

fn calls(thought: Thought) -> Constraint {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]});
    let parameters = vec![
        Parameter { name: "city".into(), required: true, takes: Takes::Text },
        Parameter { name: "days".into(), required: false, takes: Takes::Json(json!({"type": "integer"})) },
    ];
    let tools = vec![Callable { name: "get_weather".into(), schema, parameters }];
    Constraint { thought, json: None, calls: Some(Calls { form: CallForm::QwenXml, tools, single: false }) }
}

#[test]
fn right_calls_are_taken_token_by_token_and_wrong_ones_are_not() {
    let Some(site) = site() else { return };
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York\n</parameter>\n<parameter=days>\n2\n\
        </parameter>\n</function>\n</tool_call>";
    assert!(site.takes(&calls(Thought::None), call));
    assert!(site.takes(&calls(Thought::None), &format!("{call}\n{call}")));
    assert!(site.takes(&calls(Thought::Open), &format!("The user asks.\n</think>\n\n{call}")));
    assert!(site.takes(&calls(Thought::Open), &format!("The user asks.\n{call}")));
    for wrong in [
        "The weather",
        "<tool_call>\n<function=get_wether>\n<parameter=city>\nNew York\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\ntwo\n</parameter>\n\
         </function>\n</tool_call>",
    ] {
        assert!(!site.takes(&calls(Thought::None), wrong), "{wrong}");
    }
    let object =
        json_under(json!({"type": "object", "properties": {"ü": {"enum": ["日本", "🥶"]}}, "required": ["ü"]}));
    assert!(site.takes(&object, "{\"ü\": \"🥶\"}") && site.takes(&object, "{\n  \"ü\": \"日本\"\n}"));
    assert!(!site.takes(&object, "{\"ü\": \"🥵\"}"));
    let mut guide = site.guide(object).unwrap();
    let mask = guide.mask().unwrap();
    assert!((248_077..248_320).chain([248_044, 248_045]).all(|id| !mask.allows(id)), "unused and control ids");
}

/// Figures for the documents: `cargo test --release -- --ignored --nocapture masks_are_measured`.
#[test]
#[ignore = "measures"]
fn masks_are_measured() {
    let Some(site) = site() else { return };
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().find(|line| line.starts_with("VmRSS")).map(str::to_owned)
    };
    let (began, before) = (Instant::now(), resident());
    drop(site.guide(json_under(json!({}))).unwrap());
    eprintln!("the trie and a first guide: {:?}, from {before:?} to {:?}", began.elapsed(), resident());
    let object = json_under(json!({"type": "object"}));
    let step = json!({"type": "object", "required": ["what", "done"], "additionalProperties": false,
        "properties": {"what": {"type": "string"}, "done": {"type": "boolean"}}});
    let plan = json_under(json!({"type": "object", "required": ["title", "steps"], "additionalProperties": false,
        "properties": {"title": {"type": "string", "maxLength": 80}, "steps": {"type": "array", "items": step}}}));
    let text = "{\n  \"title\": \"A walk through the harbour, if the weather holds\",\n  \"steps\": [\n    {\"what\": \"Pack \
        an umbrella; it rains in Bergen on two days of three\", \"done\": false},\n    {\"what\": \"食べる 🍣\", \"done\": true}\n  ]\n}";
    let call = "I have to look.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nSaint Petersburg, which has \
        had other names\n</parameter>\n<parameter=days>\n14\n</parameter>\n</function>\n</tool_call>";
    for (name, constraint, text) in
        [("object", &object, text), ("schema", &plan, text), ("call behind a thought", &calls(Thought::Open), call)]
    {
        for round in 0..2 {
            let began = Instant::now();
            let mut guide = site.guide(constraint.clone()).unwrap();
            let compiled = began.elapsed();
            let mut times = Vec::new();
            for id in site.tokenizer.encode(text).unwrap() {
                assert!(guide.mask().unwrap().allows(id));
                let began = Instant::now();
                guide.accept(id);
                guide.mask().unwrap();
                times.push(began.elapsed());
            }
            let mean = times.iter().sum::<std::time::Duration>() / times.len() as u32;
            times.sort();
            let (half, most) = (times[times.len() / 2], times[times.len() - 1]);
            eprintln!(
                "{name}, round {round}: guide {compiled:?}; {} masks: mean {mean:?}, median {half:?}, worst {most:?}",
                times.len()
            );
        }
    }
    for (name, schema) in bombs() {
        let began = Instant::now();
        let outcome = site.guide(json_under(schema)).map(|_| ());
        eprintln!("{name}: {:?} {outcome:?}", began.elapsed());
    }
}
