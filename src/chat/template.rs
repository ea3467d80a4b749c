//! The checkpoint's chat template: Jinja text, rendered as Hugging Face's Python code would.

use std::path::PathBuf;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use serde_json::ser::Formatter;

use super::request::{ChatRequest, RequestError};
use crate::checkpoint::TemplateSource;

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// Why a checkpoint's template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// There is none.
    #[error(
        "{} has no chat template: add chat_template.jinja to the folder, or use an instruct or chat release",
        path.display()
    )]
    Missing {
        /// The checkpoint.
        path: PathBuf,
    },
    /// It does not compile.
    #[error("the checkpoint's chat template does not compile: {0}")]
    Syntax(minijinja::Error),
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it is no valid Jinja.
    pub fn new(source: &TemplateSource) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        // Hugging Face renders chat templates with these two on.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        // Templates call methods of Python's strings and dicts.
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, source.template.clone()).map_err(TemplateError::Syntax)?;
        Ok(Self { environment, bos_token: source.bos_token.clone(), eos_token: source.eos_token.clone() })
    }

    /// The prompt text of a request, the opening of the assistant's turn included.
    ///
    /// # Errors
    /// When the template refuses the messages, or uses them in a way that their types do not allow.
    pub fn render(&self, request: &ChatRequest) -> Result<String, RequestError> {
        let fixed = context! {
            messages => request.messages,
            tools => request.tools,
            add_generation_prompt => true,
            bos_token => self.bos_token,
            eos_token => self.eos_token,
        };
        // Python passes the switches as keyword arguments beside these; a clash is an error there. Here the fixed names
        // win, so that no switch replaces the messages.
        let all = context! { ..fixed, ..Value::from_serialize(&request.template_kwargs) };
        let refused = |e: Error| RequestError::new(format!("the chat template refuses these messages: {}", reason(&e)));
        self.environment.get_template(NAME).and_then(|template| template.render(all)).map_err(refused)
    }
}

/// The template's own words where it raised, the renderer's otherwise.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.to_string(),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's spacing, keys in their order, nothing escaped for HTML.
fn to_json(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    // Python's other arguments change nothing that a template of ours has shown; an unknown one is no reason to fail.
    let _ = kwargs.assert_all_used();
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        None => {
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonSpacing)).map_err(failed)?
        }
        Some(width) => {
            // More than any template asks for, and a bound on what a switch could make of it.
            let spaces = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).map_err(failed)?;
        }
    }
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// `", "` between elements and `": "` after keys.
struct PythonSpacing;

impl Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(template: &str, request: serde_json::Value) -> Result<String, RequestError> {
        let template = ChatTemplate::new(&TemplateSource {
            template: template.into(),
            bos_token: Some("<s>".into()),
            eos_token: None,
        });
        template.unwrap().render(&ChatRequest::parse(&request).unwrap())
    }

    fn one(content: &str) -> serde_json::Value {
        json!({"messages": [{"role": "user", "content": content}]})
    }

    #[test]
    fn renders_messages_with_python_methods_and_trimmed_blocks() {
        let template = "{{ bos_token }}{% for m in messages %}\n  {% if m.role.upper() == 'USER' %}\n[{{ m['content'].strip() }}]\n  {% endif %}\n{% endfor %}{{ 'A:' if add_generation_prompt }}";
        assert_eq!(render(template, one("  hi ")).unwrap(), "<s>[hi]\nA:");
    }

    #[test]
    fn tojson_writes_as_python_does() {
        let mut request = one("x");
        request["tools"] = json!([{"name": "é<b>", "z": 1, "a": [1, 2.5, null, true]}]);
        assert_eq!(
            render("{{ tools[0] | tojson }}", request.clone()).unwrap(),
            r#"{"name": "é<b>", "z": 1, "a": [1, 2.5, null, true]}"#
        );
        assert_eq!(render("{{ [1] | tojson(indent=2) }}", request).unwrap(), "[\n  1\n]");
    }

    #[test]
    fn a_raised_exception_is_the_buyers_fault_in_the_templates_words() {
        let error = render("{{ raise_exception('System message first.') }}", one("x")).unwrap_err();
        assert_eq!(error.to_string(), "the chat template refuses these messages: System message first.");
        assert!(render("{{ messages[0].content.nothing.at.all }}", one("x")).is_err());
    }

    #[test]
    fn switches_reach_the_template_but_cannot_replace_the_messages() {
        let mut request = one("x");
        request["chat_template_kwargs"] =
            json!({"enable_thinking": false, "messages": [], "add_generation_prompt": false});
        assert_eq!(
            render("{{ enable_thinking }}{{ messages | length }}{{ add_generation_prompt }}", request).unwrap(),
            "False1True"
        );
    }

    #[test]
    fn a_broken_template_is_an_error_at_start() {
        let source = TemplateSource { template: "{% if %}".into(), bos_token: None, eos_token: None };
        assert!(matches!(ChatTemplate::new(&source), Err(TemplateError::Syntax(_))));
    }
}
