//! The checkpoint's chat template: Jinja text, rendered as Hugging Face's Python code would.

use std::borrow::Cow;
use std::path::PathBuf;

use minijinja::value::Value;
use minijinja::{Environment, Error, context};

use super::python;
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

/// Instructions that one prompt may take, each some tens of nanoseconds. The Qwen3.6 template takes about a hundred a
/// message, so this is for templates that do not come to an end.
const FUEL: u64 = 50_000_000;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it is no valid Jinja.
    pub fn new(source: &TemplateSource) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        python::install(&mut environment);
        environment.set_fuel(Some(FUEL));
        let text = without_generation_marks(&source.template).into_owned();
        environment.add_template_owned(NAME, text).map_err(TemplateError::Syntax)?;
        Ok(Self { environment, bos_token: source.bos_token.clone(), eos_token: source.eos_token.clone() })
    }

    /// The prompt text of a request, the opening of the assistant's turn included.
    ///
    /// # Errors
    /// When the template refuses the messages, or uses them in a way that their types do not allow.
    pub fn render(&self, request: &ChatRequest) -> Result<String, RequestError> {
        // A token that the tokenizer lacks is not defined, rather than none.
        let token = |text: &Option<String>| text.as_ref().map_or(Value::UNDEFINED, Value::from);
        let fixed = context! {
            messages => request.messages,
            tools => request.tools,
            add_generation_prompt => true,
            bos_token => token(&self.bos_token),
            eos_token => token(&self.eos_token),
        };
        // Python passes the switches as keyword arguments beside these; a clash is an error there. Here the fixed names
        // win, so that no switch replaces the messages.
        let all = context! { ..fixed, ..Value::from_serialize(&request.template_kwargs) };
        let refused = |e: Error| RequestError::new(format!("the chat template refuses these messages: {}", reason(&e)));
        self.environment.get_template(NAME).and_then(|template| template.render(all)).map_err(refused)
    }
}

/// The template without `{% generation %}` and its end. Transformers has these tags to mark what a model is trained on;
/// a block that is always taken leaves the text between them as it is, white space included.
fn without_generation_marks(template: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let tag = &rest[start + 2..start + 2 + length];
        let instead = match tag.trim_matches(['-', '+']).trim() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => "",
        };
        // A tag's text may hold what looks like its end; then its rest is looked through as if it were text.
        let end = start + length + 4;
        if instead.is_empty() {
            out.push_str(&rest[..end]);
        } else {
            let mark = |letter: Option<char>| {
                letter.filter(|letter| matches!(letter, '-' | '+')).map_or("", |l| if l == '-' { "-" } else { "+" })
            };
            let (before, after) = (mark(tag.chars().next()), mark(tag.chars().next_back()));
            out.push_str(&format!("{}{{%{before} {instead} {after}%}}", &rest[..start]));
        }
        rest = &rest[end..];
    }
    if out.is_empty() {
        return Cow::Borrowed(template);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The template's own words where it raised, the renderer's otherwise.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.to_string(),
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
    fn a_token_that_the_tokenizer_lacks_is_not_defined() {
        assert_eq!(
            render("{{ bos_token is defined }} {{ eos_token is defined }}{{ eos_token }}", one("x")).unwrap(),
            "True False"
        );
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
    fn marks_of_training_change_nothing() {
        let template = "{% for m in messages %}\n<a>\n  {%- generation -%}\n {{ m.content }} \n{%- endgeneration %}\n</a>\n{% endfor %}\
            {% generation %}\nx\n{%endgeneration%}{# {% generation %} #}";
        // As transformers' own tags have it.
        assert_eq!(render(template, one("hi")).unwrap(), "<a>hi</a>\nx\n");
        let plain = "{% if a %}{{ '{%' }}{% endif";
        assert_eq!(without_generation_marks(plain), plain);
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped() {
        let nest = |inner: &str| format!("{{% for x in range(10000) %}}{inner}{{% endfor %}}");
        let error = render(&nest(&nest(&nest(""))), one("x")).unwrap_err();
        assert!(error.to_string().contains("fuel"), "{error}");
        let recursive = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        assert!(render(recursive, one("x")).is_err());
    }

    #[test]
    fn todays_date_may_stand_in_a_prompt() {
        let text = render("{{ strftime_now('%d %b %Y') }}", one("x")).unwrap();
        assert_eq!(text.split(' ').count(), 3, "{text}");
    }

    #[test]
    fn a_broken_template_is_an_error_at_start() {
        let source = TemplateSource { template: "{% if %}".into(), bos_token: None, eos_token: None };
        assert!(matches!(ChatTemplate::new(&source), Err(TemplateError::Syntax(_))));
    }
}
