//! The form that a request wants its answer held to.

use serde_json::{Value, json};

use super::Prompt;
use super::output::{OutputFormat, callable};
use super::request::{ChatRequest, RequestError};
use super::response_format::ResponseFormat;
use super::tools::ToolChoice;
use crate::guide::{CallForm, Calls, Constraint};
use crate::spec::ToolCallParser;

/// The form, or `None` where the model may write what it likes.
///
/// A request that asks for a call gets calls alone, whatever its `response_format` says. One that leaves the choice and asks
/// for JSON gets either. That there be one call alone needs no form where the model has the choice: the answer ends with it.
pub(super) fn constraint(
    format: &OutputFormat,
    request: &ChatRequest,
    prompt: &Prompt,
) -> Result<Option<Constraint>, RequestError> {
    let must_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let json = match &request.response_format {
        _ if must_call => None,
        ResponseFormat::Text => return Ok(None),
        ResponseFormat::JsonObject => Some(json!({"type": "object"})),
        ResponseFormat::JsonSchema(schema) => Some(schema.clone()),
    };
    let form = format.call_form().map(|parser| match parser {
        ToolCallParser::Qwen3Coder => CallForm::QwenXml,
        ToolCallParser::Hermes => CallForm::Hermes,
    });
    if must_call && form.is_none() {
        return Err(RequestError::new(
            "tool_choice asks for a call, and this model's calls are not read: its spec names no tool_call_parser",
        ));
    }
    let named = match &request.tool_choice {
        ToolChoice::Named(name) => Some(name),
        _ => None,
    };
    let tools = request.tools.as_ref().and_then(Value::as_array).into_iter().flatten();
    let tools: Vec<_> = tools.filter_map(callable).filter(|tool| named.is_none_or(|name| *name == tool.name)).collect();
    let calls = form.filter(|_| !tools.is_empty()).map(|form| Calls {
        form,
        tools,
        // A named tool is wanted once.
        single: request.single_call || named.is_some(),
    });
    Ok(Some(Constraint { thought: format.thought(prompt), json, calls }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::ChatModel;
    use crate::chat::tests::{model, thinker};
    use crate::guide::Thought;

    const TEMPLATE: &str = "{{ messages[0].content }}{% if enable_thinking is not defined %}{% elif enable_thinking %}<think>\n\
        {% else %}<think>\n\n</think>\n\n{% endif %}";

    fn of(model: &ChatModel, extra: Value) -> Result<Option<Constraint>, RequestError> {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let mut request = json!({"messages": [{"role": "user", "content": "x"}], "tools": [tool("f"), tool("g")]});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request = ChatRequest::parse(&request).unwrap();
        model.constraint(&request, &model.prompt(&request, 1000).unwrap())
    }

    /// Schema of the content; names of the tools, and whether one call is all.
    type Shape = (Option<Value>, Option<(Vec<String>, bool)>);

    fn form(extra: Value) -> Option<Shape> {
        let constraint = of(&thinker(TEMPLATE), extra).unwrap()?;
        let calls = constraint.calls.map(|calls| {
            assert_eq!(calls.form, CallForm::QwenXml);
            (calls.tools.into_iter().map(|tool| tool.name).collect(), calls.single)
        });
        Some((constraint.json, calls))
    }

    #[test]
    fn calls_are_asked_for_json_is_either_and_all_else_is_free() {
        let both = || vec!["f".to_owned(), "g".to_owned()];
        let object = json!({"type": "object"});
        let json_object = json!({"type": "json_object"});
        assert_eq!(form(json!({})), None);
        assert_eq!(form(json!({"parallel_tool_calls": false})), None);
        assert_eq!(form(json!({"tool_choice": "required"})), Some((None, Some((both(), false)))));
        assert_eq!(
            form(json!({"tool_choice": "required", "parallel_tool_calls": false, "response_format": json_object})),
            Some((None, Some((both(), true))))
        );
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "g"}}});
        assert_eq!(form(named), Some((None, Some((vec!["g".to_owned()], true)))));
        assert_eq!(form(json!({"response_format": json_object})), Some((Some(object.clone()), Some((both(), false)))));
        assert_eq!(form(json!({"response_format": json_object, "tool_choice": "none"})), Some((Some(object), None)));
        let schema = json!({"type": "array"});
        let asked = json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "tools": []});
        assert_eq!(form(asked), Some((Some(schema), None)));
    }

    #[test]
    fn the_prompt_says_what_may_be_thought_before() {
        let thought = |kwargs: Value| {
            let extra = json!({"tool_choice": "required", "chat_template_kwargs": kwargs});
            of(&thinker(TEMPLATE), extra).unwrap().unwrap().thought
        };
        assert_eq!(thought(json!({})), Thought::Possible);
        assert_eq!(thought(json!({"enable_thinking": true})), Thought::Open);
        assert_eq!(thought(json!({"enable_thinking": false})), Thought::None);
        let plain = of(&model(), json!({"response_format": {"type": "json_object"}})).unwrap().unwrap();
        assert_eq!((plain.thought, plain.calls), (Thought::None, None));
    }

    #[test]
    fn calls_that_cannot_be_read_are_refused() {
        let message = of(&model(), json!({"tool_choice": "required"})).unwrap_err().to_string();
        assert!(message.contains("names no tool_call_parser"), "{message}");
    }
}
