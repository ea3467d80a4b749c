//! Sixteen texts and what sglang's own parser makes of them (`tests/fixtures/qwen3_coder_sglang.json`): the same here,
//! but where sglang loses or invents something.

use super::*;

fn fixture_file() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_coder_sglang.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Content and calls of a case in all feeds.
fn run(name: &str, cut: bool) -> (Option<String>, Vec<(String, String)>) {
    let file = fixture_file();
    let mut scene = Scene::new(file["cases"][name]["text"].as_str().unwrap(), file["tools"].clone());
    scene.cut = cut;
    let outcome = scene.run();
    let calls = outcome.calls().into_iter().map(|(name, arguments)| (name.to_owned(), arguments.to_owned())).collect();
    (outcome.message.content, calls)
}

/// What sglang makes of the whole text; its content without the white space before a call, which is layout here.
fn sglang(name: &str) -> (Option<String>, Vec<(String, String)>) {
    let full = &fixture_file()["cases"][name]["sglang"]["full"];
    let calls: Vec<(String, String)> = serde_json::from_value(full["calls"].clone()).unwrap();
    let text = full["text"].as_str().unwrap();
    let text = if calls.is_empty() { text } else { text.trim_end() };
    (Some(text.to_owned()).filter(|text| !text.is_empty()), calls)
}

#[test]
fn all_that_sglang_reads_right() {
    let differ = ["08_bare_function", "10_text_after", "11_closing_tag_in_value", "14_truncated_name"];
    let file = fixture_file();
    let names: Vec<&String> = file["cases"].as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 16);
    for name in names.into_iter().filter(|name| !differ.contains(&name.as_str())) {
        assert_eq!(run(name, false), sglang(name), "{name}");
    }
}

/// The expected content and calls.
fn expected(content: Option<&str>, calls: &[(&str, &str)]) -> (Option<String>, Vec<(String, String)>) {
    let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned()));
    (content.map(str::to_owned), calls.collect())
}

// sglang cannot know that a budget cut the call.
#[test]
fn case_05_cut_by_the_budget_is_no_call() {
    assert_eq!(run("05_truncated_in_value", true), expected(Some("Let me see."), &[]));
}

// sglang reads text in one feed and a call in the other. The header names a tool of the request: it is a call.
#[test]
fn case_08_a_header_with_the_name_of_a_tool_is_a_call() {
    assert_eq!(run("08_bare_function", false), expected(Some("Hi"), &[("get_weather", r#"{"city": "Oslo"}"#)]));
}

// sglang drops the text behind a call of a whole answer and keeps it in a stream.
#[test]
fn case_10_text_behind_a_call_is_kept() {
    assert_eq!(run("10_text_after", false), expected(Some("Before\nAfter text 1 < 2"), &[("now", "{}")]));
}

// sglang cuts the value at the first closer, and in a stream writes a bracket too many.
#[test]
fn case_11_closers_inside_a_value_are_text() {
    let arguments = r#"{"path": "a.xml", "content": "<a></function></a> and </parameter> x"}"#;
    assert_eq!(run("11_closing_tag_in_value", false), expected(None, &[("write_file", arguments)]));
}

// As sglang, but for the white space before what would have been a call.
#[test]
fn case_14_a_call_cut_in_its_name_is_none() {
    for cut in [false, true] {
        assert_eq!(run("14_truncated_name", cut).1, []);
        assert_eq!(run("14_truncated_name", cut).0.unwrap().trim_end(), "text");
    }
}
