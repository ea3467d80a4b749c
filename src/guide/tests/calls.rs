use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::schema::validates;
use super::{Constraint, Site};
use crate::chat::tests::model;
use crate::chat::{AnswerEnd, ChatModel, ChatRequest};
use crate::openai::FinishReason;
use crate::spec::{ReasoningParser, ToolCallParser};

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {
            "to": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                "required": ["x", "y"], "additionalProperties": false},
            "how": {"type": "string", "enum": ["слева", "right"]}, "fast": {"type": "boolean"},
            "speed": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "required": ["to", "how"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "stop"}},
        {"type": "function", "function": {"name": "say", "parameters": {"type": "object", "properties": {
            "what": {"type": "string"}, "times": {"type": "integer"}}, "required": ["what"]}}},
    ])
}

fn chat(parser: ToolCallParser) -> ChatModel {
    model().with_parsers(None, Some(parser))
}

fn request(extra: Value) -> ChatRequest {
    let mut request =
        json!({"messages": [{"role": "user", "content": "x"}], "tools": tools(), "tool_choice": "required"});
    request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    ChatRequest::parse(&request).unwrap()
}

fn constraint(chat: &ChatModel, request: &ChatRequest) -> Constraint {
    chat.constraint(request, &chat.prompt(request, 1000).unwrap()).unwrap().unwrap()
}

fn named(name: &str) -> Value {
    json!({"tool_choice": {"type": "function", "function": {"name": name}}})
}

/// The calls that are read from ids: names and arguments.
fn read(chat: &ChatModel, request: &ChatRequest, ids: &[u32]) -> Vec<(String, Value)> {
    let mut answer = chat.answer(request, false);
    for id in ids {
        if answer.push(*id).stopped {
            break;
        }
    }
    let (_, message, reason) = answer.finish(AnswerEnd::Stop);
    assert_eq!((message.content, reason), (None, FinishReason::ToolCalls));
    let calls = message.tool_calls.unwrap().into_iter();
    calls.map(|call| (call.function.name, serde_json::from_str(&call.function.arguments).unwrap())).collect()
}

#[test]
fn whoever_knows_nothing_still_writes_calls() {
    let site = Site::tiny();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for parser in [ToolCallParser::Qwen3Coder, ToolCallParser::Hermes] {
        let chat = chat(parser);
        for (extra, single) in [
            (named("move"), true),
            (named("stop"), true),
            (json!({"parallel_tool_calls": false}), true),
            (json!({}), false),
        ] {
            let mut request = request(extra);
            // Nobody who knows nothing ends a text by `\n</parameter>\n`.
            request.tools.as_mut().unwrap().as_array_mut().unwrap().truncate(2);
            let constraint = constraint(&chat, &request);
            let (mut ended, mut most) = (0, 0);
            for _ in 0..20 {
                let mut guide = site.guide(constraint.clone()).unwrap();
                let Some(ids) = site.walk(&mut guide, &mut rng, 1500) else { continue };
                let calls = read(&chat, &request, &ids);
                for (name, arguments) in &calls {
                    let tools = tools();
                    let tool = tools.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == *name).unwrap();
                    let written: Vec<u8> = ids.iter().flat_map(|id| site.bytes(*id)).collect();
                    let written = String::from_utf8_lossy(&written);
                    assert!(validates(arguments, &tool["function"]["parameters"]), "{name} {arguments}: {written}");
                }
                ended += 1;
                most = most.max(calls.len());
            }
            assert!(ended >= 10, "{ended} of 20");
            assert!(if single { most == 1 } else { most > 1 }, "{most} calls");
        }
    }
}

#[test]
fn whoever_knows_the_form_is_let_through() {
    let site = Site::tiny();
    let chat = chat(ToolCallParser::Qwen3Coder);
    let request = request(json!({}));
    let constraint = constraint(&chat, &request);
    let say = |what: &str| {
        format!("<tool_call>\n<function=say>\n<parameter=what>\n{what}\n</parameter>\n</function>\n</tool_call>")
    };
    let stop = "<tool_call>\n<function=stop>\n</function>\n</tool_call>";
    let texts = ["", "two\nlines\n\n  and an indent", "a < b </parameter> c", "<b>\n</b>\n", "\n\n", "é 家 \u{1F3E0}"];
    for text in texts {
        let call = say(text);
        assert!(site.takes(&constraint, &call), "{text:?}");
        let ids = site.tokenizer.encode(&call).unwrap();
        assert_eq!(read(&chat, &request, &ids), [("say".to_owned(), json!({"what": text}))]);
    }
    assert!(site.takes(&constraint, &format!("{}\n{stop}\n{stop}", say("x"))));
    for wrong in [
        "x",
        "Sure.\n<tool_call>\n<function=stop>\n</function>\n</tool_call>",
        "<tool_call>\n<function=go>\n</function>\n</tool_call>",
        "<tool_call>\n<function=say>\n</function>\n</tool_call>",
        "<tool_call>\n<function=say>\n<parameter=times>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=stop>\n<parameter=what>\nx\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=move>\n<parameter=to>\n{\"x\": 1}\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>\nDone.",
        "<tool_call>\n<function=stop>\n</function>\n",
    ] {
        assert!(!site.takes(&constraint, wrong), "{wrong}");
    }
}

#[test]
fn a_thought_may_come_before_calls_and_need_not_be_closed() {
    let site = Site::tiny();
    let chat = model().with_parsers(Some(ReasoningParser::Qwen3), Some(ToolCallParser::Qwen3Coder));
    let mut constraint = constraint(&chat, &request(json!({})));
    assert_eq!(constraint.thought, crate::guide::Thought::Possible);
    constraint.thought = crate::guide::Thought::Open;
    let stop = "<tool_call>\n<function=stop>\n</function>\n</tool_call>";
    for before in ["", "I stop.\n", "I stop.\n</think>\n\n", "</think>"] {
        assert!(site.takes(&constraint, &format!("{before}{stop}")), "{before:?}");
    }
    assert!(!site.takes(&constraint, &format!("I stop.\n</think>\n\nNow.\n{stop}")));
}

#[test]
fn content_or_calls() {
    let site = Site::tiny();
    let chat = chat(ToolCallParser::Qwen3Coder);
    let either = request(json!({"tool_choice": "auto", "response_format": {"type": "json_object"}}));
    let constraint = constraint(&chat, &either);
    assert!(site.takes(&constraint, "{\"a\": 1}"));
    assert!(site.takes(&constraint, "<tool_call>\n<function=stop>\n</function>\n</tool_call>"));
    assert!(!site.takes(&constraint, "stop"));
}
