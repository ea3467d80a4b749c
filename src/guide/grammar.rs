//! From a constraint to a grammar in the notation of the library that computes masks: Lark's, with JSON schemas beside it.
//!
//! Marks are tokens where the vocabulary has them: `<[248059]>` is that id. A text cannot contain one then, so a thought
//! reaches up to the token that ends it. Elsewhere marks are texts, and what stands before one ends where it first comes.

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::constraint::{CallForm, Callable, Calls, Constraint, Takes, Thought};
use super::vocabulary::Marks;

/// White space between the tokens of a JSON text: enough for a newline and ten levels of indent. Without a bound, a weak model
/// that prefers white space to all that the schema allows never comes to an end.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,41}";

/// Terminals and rules that grammars share. `value` is what a parameter's text looks like up to its closer.
const SHARED: &str = r#"
THOUGHT: /(?s:.+)/
GAP: /\n{1,2}/
KEY: /[A-Za-z_][A-Za-z0-9_.-]{0,63}/
value[suffix="\n</parameter>\n"]: /(?s:.*)/
"#;

/// The grammar of a constraint.
pub(super) fn grammar(constraint: &Constraint, marks: &Marks) -> TopLevelGrammar {
    let mut writer = Writer { marks, rules: SHARED.to_owned(), schemas: Vec::new() };
    writer.start(constraint);
    let mut grammars = vec![GrammarWithLexer::from_lark(writer.rules)];
    grammars.append(&mut writer.schemas);
    TopLevelGrammar { grammars, max_tokens: None }
}

/// The bytes of a constraint's schemas and names.
pub(super) fn size(constraint: &Constraint) -> usize {
    let json = constraint.json.as_ref().map_or(0, text_len);
    let parameter = |takes: &Takes| match takes {
        Takes::Text => 0,
        Takes::OneOf(texts) => texts.iter().map(String::len).sum(),
        Takes::Json(schema) => text_len(schema),
    };
    let tool = |tool: &Callable| {
        let parameters = tool.parameters.iter().map(|own| own.name.len() + parameter(&own.takes)).sum::<usize>();
        tool.name.len() + text_len(&tool.schema) + parameters
    };
    json + constraint.calls.iter().flat_map(|calls| &calls.tools).map(tool).sum::<usize>()
}

fn text_len(schema: &Value) -> usize {
    schema.to_string().len()
}

struct Writer<'a> {
    marks: &'a Marks,
    rules: String,
    schemas: Vec<GrammarWithLexer>,
}

impl Writer<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    fn start(&mut self, constraint: &Constraint) {
        let mut forms = Vec::new();
        if let Some(schema) = &constraint.json {
            // The buyer's own schema: what it asks for and cannot be held is refused.
            forms.push(self.schema(schema, false));
        }
        if let Some(calls) = &constraint.calls {
            self.calls(calls);
            forms.push("calls".to_owned());
        }
        let form = forms.join(" | ");
        self.rule("form", &form);
        let Marks { think, think_end, .. } = *self.marks;
        match think_end {
            Some(id) => self.rule("thought", &format!("THOUGHT? <[{id}]> GAP?")),
            None => self.rules.push_str("thought[suffix=\"</think>\"]: /(?s:.*)/\n"),
        }
        let thought = if think_end.is_some() { "thought" } else { "thought GAP?" };
        let start = match constraint.thought {
            Thought::None => "form".to_owned(),
            Thought::Possible => format!("form | {} {thought} form", mark(think, "<think>")),
            Thought::Open if constraint.calls.is_some() && think_end.is_some() => {
                format!("{thought} form | THOUGHT? calls")
            }
            Thought::Open => format!("{thought} form"),
        };
        self.rule("start", &start);
    }

    fn calls(&mut self, calls: &Calls) {
        let Marks { call, call_end, .. } = *self.marks;
        let (open, close) = (mark(call, "<tool_call>"), mark(call_end, "</tool_call>"));
        let tools: Vec<String> = (0..calls.tools.len()).map(|at| format!("tool_{at}")).collect();
        for (tool, rule) in calls.tools.iter().zip(&tools) {
            match calls.form {
                CallForm::QwenXml => self.xml(tool, rule),
                CallForm::Hermes => {
                    let name = Value::from(tool.name.as_str());
                    let arguments = self.schema(&tool.schema, true);
                    let head = quoted(&format!("\n{{\"name\": {name}, \"arguments\": "));
                    self.rule(rule, &format!("{head} {arguments} {}", quoted("}\n")));
                }
            }
        }
        self.rule("call", &format!("{open} ({}) {close}", tools.join(" | ")));
        self.rule("calls", if calls.single { "call" } else { r#"call ("\n" call)*"# });
    }

    fn xml(&mut self, tool: &Callable, rule: &str) {
        let mut body = quoted(&format!("\n<function={}>\n", tool.name));
        for (at, parameter) in tool.parameters.iter().enumerate() {
            let name = format!("{rule}_{at}");
            let head = quoted(&format!("<parameter={}>\n", parameter.name));
            let value = match &parameter.takes {
                Takes::Text => "value".to_owned(),
                Takes::OneOf(texts) => {
                    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                    format!("({}) {}", texts.join(" | "), quoted("\n</parameter>\n"))
                }
                Takes::Json(schema) => format!("{} {}", self.schema(schema, true), quoted("\n</parameter>\n")),
            };
            self.rule(&name, &format!("{head} {value}"));
            let often = if parameter.required { "" } else { "?" };
            let _ = write!(body, " {name}{often}");
        }
        let open = tool.schema.get("additionalProperties") == Some(&Value::Bool(true));
        if tool.parameters.is_empty() && open {
            let name = format!("{rule}_any");
            self.rule(&name, r#""<parameter=" KEY ">\n" value"#);
            let _ = write!(body, " {name}*");
        }
        self.rule(rule, &format!("{body} {}", quoted("</function>\n")));
    }

    /// A grammar of its own for JSON under a schema; gives its name in rules. A lenient one leaves keywords that cannot be
    /// held out of account: tools are written for many models, and most of what they say is advice.
    fn schema(&mut self, schema: &Value, lenient: bool) -> String {
        let name = format!("json_{}", self.schemas.len());
        let mut schema = schema.clone();
        if let Some(keys) = schema.as_object_mut() {
            // A buyer's own settings of the library are replaced.
            let settings = json!({
                "whitespace_pattern": JSON_SPACE, "lenient": lenient, "json_allow_general_unicode_escapes": true
            });
            keys.insert("x-guidance".to_owned(), settings);
        }
        self.schemas.push(GrammarWithLexer { name: Some(name.clone()), ..GrammarWithLexer::from_json_schema(schema) });
        format!("@{name}")
    }
}

/// A mark as a token, or as its text.
fn mark(id: Option<u32>, text: &str) -> String {
    id.map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
}

/// A text as rules write it: as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
