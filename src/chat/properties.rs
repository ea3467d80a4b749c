//! Any request, and what an answer to it becomes: no panic, and every fault is the buyer's in words.
//!
//! `PROPTEST_CASES` sets how many requests each property is tried on.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::tests::thinker;
use super::*;

/// Values that fields of a request may have, right and wrong ones.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        select(vec![
            "system",
            "developer",
            "user",
            "assistant",
            "tool",
            "auto",
            "none",
            "required",
            "function",
            "text",
            "f",
            "n",
            "object",
            "integer",
            "array",
            "string",
            "#",
            "#/$defs/a",
            "{\"n\": 1}",
            "{\"n\": ",
            "[]",
            "high",
            "<tool_call>\n<function=f>\n</function>",
            "</think>",
            "<think>",
            "<|im_end|>",
            "image_url",
            "json_schema",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let keys = select(vec![
            "type",
            "role",
            "content",
            "text",
            "function",
            "name",
            "parameters",
            "properties",
            "arguments",
            "tool_calls",
            "id",
            "n",
            "anyOf",
            "enum",
            "$ref",
            "$defs",
            "a",
            "items",
            "schema",
            "json_schema",
            "reasoning_content",
        ]);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((keys, inner), 0..5).prop_map(|fields| {
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>().into()
            }),
        ]
    })
}

/// A message of mostly the right shape.
fn message() -> impl Strategy<Value = Value> {
    let role = select(vec!["system", "developer", "user", "assistant", "tool"]).prop_map(Value::from);
    let parts = vec(any::<String>().prop_map(|text| json!({"type": "text", "text": text})), 0..3).prop_map(Value::from);
    let content =
        prop_oneof![4 => any::<String>().prop_map(Value::from), 1 => parts, 1 => Just(Value::Null), 1 => value()];
    let arguments = prop_oneof![value(), value().prop_map(|value| value.to_string().into())];
    let call = prop_oneof![
        4 => arguments.clone().prop_map(|arguments| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}})),
        1 => arguments.prop_map(|arguments| json!({"name": "f", "arguments": arguments})),
        1 => value(),
    ];
    (role, content, prop::option::of(vec(call, 0..3))).prop_map(|(role, content, calls)| {
        let mut message = json!({"role": role, "content": content});
        if let Some(calls) = calls {
            message["tool_calls"] = calls.into();
        }
        message
    })
}

/// A request of mostly the right shape.
fn request() -> impl Strategy<Value = Value> {
    let messages = prop_oneof![6 => vec(message(), 0..6).prop_map(Value::from), 1 => value()];
    let tool = value().prop_map(
        |schema| json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": schema}}}}),
    );
    let tools = prop_oneof![3 => vec(tool, 0..3).prop_map(Value::from), 1 => value()];
    let keys = select(vec![
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "chat_template_kwargs",
        "reasoning_effort",
        "enable_thinking",
        "stop",
        "logit_bias",
        "modalities",
        "n",
        "temperature",
        "separate_reasoning",
    ]);
    (messages, prop::option::of(tools), vec((keys, value()), 0..3)).prop_map(|(messages, tools, more)| {
        let mut request = json!({"messages": messages});
        if let Some(tools) = tools {
            request["tools"] = tools;
        }
        for (key, value) in more {
            request[key] = value;
        }
        request
    })
}

/// Refuses as Qwen3.6's template does, and writes all there is in a message.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
    {% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}\
    [{{ m.role }}]{{ m.content | trim }}{% for call in m.tool_calls %}{% set f = call.function or call %}<{{ f.name }}>\
    {% for key, value in f.arguments | items %}{{ key }}={{ value if value is string else value | tojson }};{% endfor %}\
    {% endfor %}{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% else %}<think>{% endif %}";

proptest! {
    #[test]
    fn any_request_is_served_or_refused(request in request(), text in "[ -~\n]{0,80}") {
        let model = thinker(TEMPLATE);
        let Ok(parsed) = ChatRequest::parse(&request) else { return Ok(()) };
        prop_assert!(parsed.messages.iter().all(|message| message["content"].is_string() && message["role"] != "developer"));
        // Sound messages never fail in the template: what it could refuse has been mended.
        let prompt = model.prompt(&parsed, usize::MAX).unwrap();
        let written = request.to_string().contains("[system]");
        prop_assert!(written || prompt.text.matches("[system]").count() <= 1, "{}", prompt.text);
        let call = format!("{text}</think>{text}<tool_call>\n<function=f>\n<parameter=n>\n{text}\n</parameter>\n</function>\n</tool_call>");
        let mut answer = model.answer(&parsed, prompt.in_thought);
        for id in model.tokenizer().encode(&call).unwrap() {
            if answer.push(id).stopped {
                break;
            }
        }
        let (_, message, _) = answer.finish(AnswerEnd::Stop);
        for call in message.tool_calls.iter().flatten() {
            prop_assert!(serde_json::from_str::<Map<String, Value>>(&call.function.arguments).is_ok());
        }
    }

    #[test]
    fn any_value_is_no_request_or_one(request in value()) {
        let _ = ChatRequest::parse(&request);
        let _ = crate::job::JobRequest::parse(&request, "r".into());
    }

    /// Templates are the checkpoint's, and may be damaged.
    #[test]
    fn any_template_compiles_or_not(
        pieces in vec(select(vec![
            "{%", "%}", "{{", "}}", "{#", "#}", " for m in messages ", " endfor ", " if m ", " endif ", " generation ",
            " endgeneration ", "-", "+", "m.content", "|tojson", "|trim", " set x = ", "messages", "[", "]", "(", ")", "'",
            "macro f() ", " endmacro ", "f()", ".strip()", "range(9)", " ~ ", "strftime_now('%Y')", "text", "é", "\n",
        ]), 0..24),
    ) {
        let source = crate::checkpoint::TemplateSource { template: pieces.concat(), bos_token: None, eos_token: None };
        if let Ok(template) = ChatTemplate::new(&source) {
            let messages = vec![json!({"role": "user", "content": "x"})];
            let _ = template.render(&ChatRequest { messages, ..ChatRequest::default() });
            let _ = Dialect::of(&template);
        }
    }
}
