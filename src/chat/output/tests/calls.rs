//! Calls in both forms.

use super::*;

fn files() -> Value {
    tools(&[
        ("write", json!({"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}})),
        ("now", json!({})),
    ])
}

/// The value of `content` in a call around it.
fn content(value: &str) -> Option<String> {
    let text = format!(
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n<parameter=content>\n{value}\n</parameter>\n\
         </function>\n</tool_call>"
    );
    let outcome = Scene::new(&text, files()).run();
    let [("write", arguments)] = outcome.calls()[..] else { return None };
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    (arguments["path"] == "a" && outcome.content().is_none()).then(|| arguments["content"].as_str().unwrap().to_owned())
}

#[test]
fn values_are_what_the_model_wrote() {
    for value in [
        "",
        "plain",
        "\n\nlines\n\n",
        "    indented\n\ttabs  ",
        "a &amp; b < c > d \"quoted\" \\n é 😀",
        "</b> <a href='x'>",
        "say <parameter=x> and </parameter> and </function> and <tool_call> to them",
        // Whole examples of the form, balanced.
        "Example:\n<tool_call>\n<function=f>\n<parameter=mode>\n1\n</parameter>\n</function>\n</tool_call>\nEnd.",
        "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n<parameter=content>\ny\n</parameter>\n</function>\n</tool_call>",
        "<parameter=other>\n12\n</parameter>\ntext",
        "<function=f></function>",
        "closers only: </tool_call></function></parameter> end",
        "</parameter",
        "<",
        "</",
    ] {
        assert_eq!(content(value).as_deref(), Some(value), "{value:?}");
    }
}

#[test]
fn an_opener_without_its_closer_in_a_value_does_not_cost_the_call() {
    for value in ["one <function=f> alone", "<tool_call>", "a\n<tool_call>\nb", "<function=now>", "<parameter=path>"] {
        assert_eq!(content(value).as_deref(), Some(value), "{value:?}");
    }
    // Nor those behind it.
    let text = "<tool_call>\n<function=write>\n<parameter=content>\none <function=f>\n</parameter>\n</function>\n\
                </tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nDone.";
    let outcome = Scene::new(text, files()).run();
    assert_eq!(outcome.calls(), [("write", r#"{"content": "one <function=f>"}"#), ("now", "{}")]);
    assert_eq!(outcome.content(), Some("Done."));
}

#[test]
fn closers_may_be_missing() {
    let all = "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n<parameter=mode>\n7\n</parameter>\n</function>\n</tool_call>";
    let want = [("write", r#"{"path": "x", "mode": 7}"#)];
    for missing in [
        &[][..],
        &["</parameter>\n"],
        &["</function>\n"],
        &["</tool_call>"],
        &["</function>\n", "</tool_call>"],
        &["</parameter>\n", "</function>\n"],
        &["</parameter>\n", "</function>\n", "</tool_call>"],
        &["<tool_call>\n"],
        &["<tool_call>\n", "</tool_call>"],
    ] {
        let text = missing.iter().fold(all.to_owned(), |text, closer| text.replace(closer, ""));
        assert_eq!(Scene::new(&text, files()).run().calls(), want, "{text}");
        let twice = format!("{text}\n{}", text.replace('x', "y"));
        let calls = Scene::new(&twice, files()).run();
        assert_eq!(calls.calls(), [want[0], ("write", r#"{"path": "y", "mode": 7}"#)], "{twice}");
    }
    let inline = all.replace('\n', "");
    assert_eq!(Scene::new(&inline, files()).run().calls(), want);
    assert_eq!(Scene::new(&inline.replacen("</parameter>", "", 1), files()).run().calls(), want);
}

#[test]
fn a_turn_that_ends_in_a_call_mends_it_and_a_budget_drops_it() {
    let text = "Ok.\n<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n<parameter=content>\nport = 80";
    let scene = Scene::new(text, files());
    assert_eq!(scene.run().calls(), [("write", r#"{"path": "x", "content": "port = 80"}"#)]);
    let cut = scene.cut().run();
    assert_eq!((cut.content(), cut.calls().len(), cut.finish_reason), (Some("Ok."), 0, FinishReason::Length));
    // Whole calls before it stay.
    let before = "<tool_call>\n<function=now>\n</function>\n</tool_call>\n";
    let cut = Scene::new(&format!("{before}{text}"), files()).cut().run();
    assert_eq!((cut.calls(), cut.finish_reason), (vec![("now", "{}")], FinishReason::Length));
    // At every place: no markup, no half value.
    let whole = "<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n</function>\n</tool_call>";
    for end in 0..whole.len() {
        let cut = Scene::new(&whole[..end], files()).cut().by_tokens();
        let calls = cut.calls();
        assert!(calls.is_empty() || (calls == [("write", r#"{"path": "x"}"#)] && end >= whole.len() - 13), "{end}");
        assert!(cut.content().is_none_or(|text| end < 12 && text == &whole[..end]), "{end}: {cut:?}");
    }
}

#[test]
fn names_that_no_tool_has_pass_through_and_talk_of_calls_does_not() {
    let call = "<tool_call>\n<function=rm>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(Scene::new(call, files()).run().calls(), [("rm", r#"{"x": "1"}"#)]);
    for text in [
        "Use <function=now> for that.",
        "Use <function=write>",
        "Calls start with <tool_call> and end with </tool_call>.",
        "<tool_call> <function= is how it starts",
        "<tool_call>\n<function=name> is how it starts",
        "<function=rm>\n</function>",
        "<tool_call>\n<function=>\n</function>",
    ] {
        let outcome = Scene::new(text, files()).run();
        assert_eq!((outcome.content(), outcome.calls().len()), (Some(text), 0), "{text}");
    }
}

#[test]
fn headers_may_be_odd() {
    for (header, key) in [
        ("<parameter=path>", "path"),
        ("<parameter=path", "path"),
        ("<parameter= path >", "path"),
        ("<parameter=\"path\">", "path"),
        ("<parameter=naïve key>", "naïve key"),
    ] {
        let text = format!("<tool_call>\n<function=write>\n{header}\nx\n</parameter>\n</function>\n</tool_call>");
        let want = format!("{{\"{key}\": \"x\"}}");
        assert_eq!(Scene::new(&text, files()).run().calls(), [("write", want.as_str())], "{header}");
    }
    let long = "n".repeat(300);
    let text = format!("<tool_call>\n<function=now>\n<parameter={long}>\nx\n</parameter>\n</function>\n</tool_call>");
    assert_eq!(Scene::new(&text, files()).run().calls(), [("now", "{}")]);
    let text = format!("<tool_call>\n<function={long}>\n</function>\n</tool_call>");
    assert_eq!(Scene::new(&text, files()).run().content(), Some(text.as_str()));
}

#[test]
fn of_two_equal_keys_the_last_counts() {
    let text = "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n<parameter=mode>\n1\n</parameter>\n\
                <parameter=path>\nb\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(Scene::new(text, files()).run().calls(), [("write", r#"{"path": "b", "mode": 1}"#)]);
}

#[test]
fn a_buyer_may_want_one_call_at_most() {
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let mut scene = Scene::new(&format!("Ok.\n{call}\n{call}\nmore"), files());
    scene.single = true;
    let outcome = scene.run();
    assert_eq!((outcome.content(), outcome.calls().len()), (Some("Ok."), 1));
    assert_eq!(outcome.finish_reason, FinishReason::ToolCalls);
    let mut thought = Scene::new(&format!("Hm.\n{call}\n{call}\nmore"), files()).in_thought();
    thought.single = true;
    let outcome = thought.run();
    assert_eq!((outcome.thought(), outcome.content(), outcome.calls().len()), (Some("Hm."), None, 1));
    thought.text.push_str("</think>Yes.");
    let outcome = thought.run();
    assert_eq!((outcome.content(), outcome.calls().len()), (Some("Yes."), 0));
    scene.text = "No call.".into();
    assert_eq!(scene.run().content(), Some("No call."));
}

#[test]
fn the_deltas_of_a_call_are_the_openai_clients() {
    let format = OutputFormat { tool_calls: Some(ToolCallParser::Qwen3Coder), ..OutputFormat::default() };
    let request = ChatRequest { tools: Some(files()), ..ChatRequest::default() };
    let mut parser = format.parser(&request, false);
    let mut deltas = parser.push("Ok.\n<tool_call>\n<function=write>\n<parameter=path>\nx\n</parameter>\n", &[]);
    assert_eq!(deltas, [Delta::content("Ok.")], "a call waits for its end");
    deltas = parser.push("<parameter=mode>\n7\n</parameter>\n</function>\n</tool_call>", &[]);
    let mut shown = serde_json::to_value(&deltas).unwrap();
    let id = std::mem::take(&mut shown[0]["tool_calls"][0]["id"]);
    assert!(id.as_str().unwrap().starts_with("call_"));
    let more = |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
    let head = json!({"tool_calls": [{"index": 0, "id": null, "type": "function",
                                      "function": {"name": "write", "arguments": ""}}]});
    assert_eq!(shown, json!([head, more("{"), more("\"path\": \"x\""), more(", \"mode\": 7"), more("}")]));
}

#[test]
fn hermes_calls() {
    let run = |text: &str| {
        let outcome = Scene::new(text, files()).hermes().run();
        let calls =
            outcome.calls().into_iter().map(|(name, arguments)| format!("{name}{arguments}")).collect::<Vec<_>>();
        (outcome.message.content.clone(), calls.join(";"))
    };
    for (text, content, calls) in [
        ("Ok.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", Some("Ok."), "now{}"),
        (
            "<tool_call>{\"name\":\"write\",\"arguments\":{\"path\":\"a\",\"mode\":7}}</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
            None,
            "write{\"path\": \"a\", \"mode\": 7};now{}",
        ),
        (
            "<tool_call>\n{\"name\": \"write\", \"arguments\": \"{\\\"path\\\": \\\"</tool_call>}\\\"}\"}",
            None,
            "write{\"path\": \"</tool_call>}\"}",
        ),
        ("<tool_call>\n{\"name\": \"now\", \"parameters\": null}</tool_call> after", Some(" after"), "now{}"),
        (
            "<tool_call>\n[{\"name\": \"now\"}, {\"name\": \"rm\", \"arguments\": {\"x\": 1}}]\n</tool_call>",
            None,
            "now{};rm{\"x\": 1}",
        ),
        (
            "<tool_call>\n{'name': 'write', 'arguments': {'path': 'a', 'mode': None}}\n</tool_call>",
            None,
            "write{\"path\": \"a\", \"mode\": null}",
        ),
        (
            "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"a\"}\n</tool_call>",
            None,
            "write{\"path\": \"a\"}",
        ),
        ("<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"a\"", None, "write{\"path\": \"a\"}"),
        ("<tool_call> is a tag", Some("<tool_call> is a tag"), ""),
        ("<tool_call>\n{\"nam\": 1}\n</tool_call>", Some("<tool_call>\n{\"nam\": 1}\n</tool_call>"), ""),
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}",
            Some("<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}"),
            "",
        ),
        ("<tool_call>\n", None, ""),
    ] {
        assert_eq!(run(text), (content.map(str::to_owned), calls.to_owned()), "{text}");
    }
    let cut = Scene::new("Ok.<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"a\"", files())
        .hermes()
        .cut()
        .run();
    assert_eq!((cut.content(), cut.calls().len()), (Some("Ok."), 0));
}

#[test]
fn a_long_value_in_small_pieces_is_read_in_linear_time() {
    let tags = "<a>{\n</parameter> x <parameter=y>   \n".repeat(8000);
    let spaces = " ".repeat(200_000);
    for value in [tags, spaces.clone(), format!("</parameter>{spaces}"), format!("</function>{spaces}x")] {
        let text = format!(
            "<tool_call>\n<function=write>\n<parameter=content>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        let started = std::time::Instant::now();
        let outcome = Scene::new(&text, files()).per_char();
        assert_eq!(outcome.calls().len(), 1);
        assert!(started.elapsed().as_secs() < 20, "{:?} for {:?}", started.elapsed(), &value[..20]);
    }
}
