//! Where thoughts begin and end.

use super::*;

fn now() -> Value {
    tools(&[("now", json!({})), ("write", json!({"path": {}, "content": {}}))])
}

const CALL: &str = "<tool_call>\n<function=now>\n</function>\n</tool_call>";

/// Thought, content and number of calls.
fn parts(outcome: &Outcome) -> (Option<&str>, Option<&str>, usize) {
    (outcome.thought(), outcome.content(), outcome.calls().len())
}

#[test]
fn layout_around_a_thought_is_no_part_of_it() {
    for text in
        ["Hm.\n</think>\n\nYes.", "Hm.</think>Yes.", "\n\nHm. \n\n</think>\n\n\nYes.", "<think>\nHm.\n</think>\n\nYes."]
    {
        let outcome = Scene::new(text, Value::Null).in_thought().run();
        assert_eq!(parts(&outcome), (Some("Hm."), Some("Yes."), 0), "{text:?}");
    }
    let outcome = Scene::new("Hm.\n</think>\n\n  indented\n", now()).in_thought().run();
    assert_eq!(outcome.content(), Some("  indented\n"));
}

#[test]
fn a_model_may_open_its_thought_itself() {
    let outcome = Scene::new("\n<think>\nHm.\n</think>\n\nYes, <think> is a tag.", now()).run();
    assert_eq!(parts(&outcome), (Some("Hm."), Some("Yes, <think> is a tag."), 0));
    // Thinking was turned off and the model closes nonetheless.
    assert_eq!(parts(&Scene::new("</think>\n\nYes.", now()).run()), (None, Some("Yes."), 0));
    assert_eq!(parts(&Scene::new("Yes. </think> No.", now()).run()), (None, Some("Yes. </think> No."), 0));
}

#[test]
fn nothing_is_null() {
    for text in ["", "\n", "</think>", "\n\n</think>\n\n"] {
        assert_eq!(parts(&Scene::new(text, now()).in_thought().run()), (None, None, 0), "{text:?}");
    }
    assert_eq!(parts(&Scene::new("", Value::Null).run()), (None, None, 0));
    assert_eq!(parts(&Scene::new("Hm.</think>\n\n", now()).in_thought().cut().run()), (Some("Hm."), None, 0));
}

#[test]
fn a_call_in_an_open_thought_ends_it_where_a_tool_has_that_name() {
    let outcome = Scene::new(&format!("Hm.\n{CALL}\n{CALL}"), now()).in_thought().run();
    assert_eq!(parts(&outcome), (Some("Hm."), None, 2));
    assert_eq!(outcome.finish_reason, FinishReason::ToolCalls);
    let outcome = Scene::new(&format!("Hm.\n{CALL}\nThat was it."), now()).in_thought().run();
    assert_eq!(parts(&outcome), (Some("Hm."), Some("That was it."), 1));
    let text = format!("Hm.\n{}", CALL.replace("now", "then"));
    assert_eq!(parts(&Scene::new(&text, now()).in_thought().run()), (Some(text.as_str()), None, 0));
    // No tools, no calls.
    let text = format!("Hm.\n{CALL}");
    assert_eq!(parts(&Scene::new(&text, Value::Null).in_thought().run()), (Some(text.as_str()), None, 0));
}

#[test]
fn a_call_that_was_only_thought_of_is_none() {
    let thought = format!("I could write\n{CALL}\nbut no");
    let outcome = Scene::new(&format!("{thought}</think>\n\nHello."), now()).in_thought().run();
    assert_eq!(parts(&outcome), (Some(thought.as_str()), Some("Hello."), 0));
    let outcome = Scene::new(&format!("{thought}</think>\n\n{CALL}"), now()).in_thought().run();
    assert_eq!(parts(&outcome), (Some(thought.as_str()), None, 1));
    // Unfinished ones as well.
    for start in [
        "<tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>\n<function=now>\n",
        "<tool_call> tags",
        "<tool_call>\n<function=write>\n<parameter=path>\nx",
    ] {
        let thought = format!("Not with {start}");
        let outcome = Scene::new(&format!("{thought}</think>Hello."), now()).in_thought().run();
        assert_eq!(parts(&outcome), (Some(thought.trim_end()), Some("Hello."), 0));
    }
}

#[test]
fn a_closer_in_an_argument_closes_nothing() {
    let call =
        "<tool_call>\n<function=write>\n<parameter=content>\na</think>b\n</parameter>\n</function>\n</tool_call>";
    let outcome = Scene::new(&format!("Hm.{call}"), now()).in_thought().run();
    assert_eq!(outcome.calls(), [("write", r#"{"content": "a</think>b"}"#)]);
    let outcome = Scene::new(&format!("Hm.</think>{call}"), now()).in_thought().run();
    assert_eq!((outcome.calls().len(), outcome.thought()), (1, Some("Hm.")));
}

#[test]
fn a_call_in_a_thought_that_the_budget_cut_is_none() {
    let outcome = Scene::new("Hm.\n<tool_call>\n<function=write>\n<parameter=path>\nx", now()).in_thought().cut().run();
    assert_eq!(parts(&outcome), (Some("Hm."), None, 0));
    assert_eq!(outcome.finish_reason, FinishReason::Length);
    let outcome = Scene::new(&format!("Hm.\n{CALL}"), now()).in_thought().cut().run();
    assert_eq!((outcome.calls().len(), outcome.finish_reason), (1, FinishReason::Length));
}

/// One id a letter, as a model does that writes about a marker.
fn spelled(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn a_marker_is_told_from_its_spelling_by_the_token() {
    let tokenizer = Arc::new(fixture());
    let token = |marker: &str| vec![tokenizer.id(marker).unwrap()];
    let ids =
        [spelled("It ends with </think>, then <tool_call>."), token("</think>"), spelled("Yes <tool_call>")].concat();
    let outcome = Scene::new("", now()).in_thought().by_ids(Arc::clone(&tokenizer), &ids);
    let thought = Some("It ends with </think>, then <tool_call>.");
    assert_eq!(parts(&outcome), (thought, Some("Yes <tool_call>"), 0));
    // A spelled opener with a tool's name behind it is a call; with another name it is text.
    for (name, calls) in [("now", 1), ("then", 0)] {
        let text = CALL.replace("now", name);
        let outcome = Scene::new("", now()).by_ids(Arc::clone(&tokenizer), &spelled(&text));
        assert_eq!((outcome.calls().len(), outcome.content().is_none()), (calls, calls == 1), "{name}");
        let ids = tokenizer.encode(&text).unwrap();
        assert_eq!(Scene::new("", now()).by_ids(Arc::clone(&tokenizer), &ids).calls().len(), 1, "{name}");
    }
}

#[test]
fn a_stop_string_may_hold_back_part_of_a_marker() {
    let tokenizer = Arc::new(fixture());
    let format = OutputFormat::new(Some(ReasoningParser::Qwen3), None, &tokenizer);
    for (stop, content) in [("nk>zzz", Some("Yes.")), ("k>Y", None), ("</think>", None), ("s.", Some("Ye"))] {
        let parser = format.parser(&ChatRequest::default(), true);
        let mut answer = Answer::new(Arc::clone(&tokenizer), format.clone(), vec![stop.into()], parser);
        for id in tokenizer.encode("Hm.</think>Yes.").unwrap() {
            if answer.push(id).stopped {
                break;
            }
        }
        let message = answer.finish(AnswerEnd::Stop).1;
        assert_eq!(message.content.as_deref(), content, "{stop}");
        assert!(message.reasoning_content.unwrap().starts_with("Hm."), "{stop}");
    }
}
