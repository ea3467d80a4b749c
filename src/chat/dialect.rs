//! What a template cannot take, found by trying it once at start, and how conversations are made to suit it.
//!
//! Qwen3.5 and 3.6 take one system message, at the start; agents also send several, and late ones when they shorten a
//! conversation. Qwen3.8 knows three degrees of thinking; gateways send others. A template that takes all of it gets
//! conversations as they are.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::request::{ChatRequest, EFFORTS};
use super::template::ChatTemplate;

/// What a template cannot take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dialect {
    /// More than one system message at the start.
    one_system: bool,
    /// A system message behind other messages.
    no_late_system: bool,
    /// Degrees of thinking, by their place among [`EFFORTS`].
    refused_efforts: [bool; EFFORTS.len()],
}

impl Dialect {
    /// Tries a template.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        // A template may also leave a message out without a word.
        let takes = |messages: Vec<Value>, shown: &str| {
            let request = ChatRequest { messages, ..ChatRequest::default() };
            template.render(&request).is_ok_and(|text| text.contains(shown))
        };
        // A template that cannot take the plain conversation tells nothing by refusing others.
        let system = takes(vec![say("system", "probe-1"), say("user", "probe-2")], "probe-1");
        let several = vec![say("system", "probe-1"), say("system", "probe-3"), say("user", "probe-2")];
        let late =
            vec![say("user", "probe-1"), say("assistant", "probe-2"), say("system", "probe-3"), say("user", "p")];
        let effort = |effort: &str| {
            let mut request = ChatRequest { messages: vec![say("user", "probe-1")], ..ChatRequest::default() };
            request.template_kwargs.insert("reasoning_effort".into(), effort.into());
            template.render(&request).is_err()
        };
        let refused_efforts = EFFORTS.map(effort);
        Self {
            one_system: system && !takes(several, "probe-3"),
            no_late_system: system && !takes(late, "probe-3"),
            refused_efforts: if refused_efforts.contains(&false) { refused_efforts } else { Default::default() },
        }
    }

    /// The request as the template takes it.
    pub(super) fn adapt<'a>(&self, request: &'a ChatRequest) -> Cow<'a, ChatRequest> {
        let mut request = Cow::Borrowed(request);
        let is_system = |message: &Value| message["role"] == "system";
        let leading = request.messages.iter().take_while(|message| is_system(message)).count();
        if self.one_system && leading > 1 {
            let messages = &mut request.to_mut().messages;
            let contents =
                messages.drain(1..leading).filter_map(|message| message["content"].as_str().map(str::to_owned));
            let rest: Vec<String> = contents.collect();
            if let Some(first) = messages.first_mut() {
                let first_text = first["content"].as_str().unwrap_or_default().to_owned();
                let texts = std::iter::once(first_text).chain(rest).filter(|text| !text.trim().is_empty());
                first["content"] = texts.collect::<Vec<_>>().join("\n\n").into();
            }
        }
        // In their place and no further forward: the prompt up to there stays as it was, and with it what is cached.
        if self.no_late_system && request.messages.iter().skip(leading.min(1)).any(is_system) {
            let skip = request.messages.iter().take_while(|message| is_system(message)).count();
            for message in request.to_mut().messages.iter_mut().skip(skip).filter(|message| is_system(message)) {
                message["role"] = "user".into();
            }
        }
        let effort = request.template_kwargs.get("reasoning_effort").and_then(Value::as_str);
        if let Some(nearest) = effort.and_then(|effort| self.nearest_effort(effort)) {
            request.to_mut().template_kwargs.insert("reasoning_effort".into(), nearest.into());
        }
        request
    }

    /// The degree to give a template in place of one that it refuses: the next above it, or else below.
    fn nearest_effort(&self, effort: &str) -> Option<&'static str> {
        let at = EFFORTS.iter().position(|known| *known == effort)?;
        if !self.refused_efforts[at] {
            return None;
        }
        let taken = |at: &usize| !self.refused_efforts[*at];
        let nearest = (at..EFFORTS.len()).find(taken).or_else(|| (0..at).rev().find(taken))?;
        Some(EFFORTS[nearest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::TemplateSource;

    const LENIENT: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('first') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}\
        {% if reasoning_effort is defined and reasoning_effort not in ('low', 'xhigh') %}{{ raise_exception('e') }}{% endif %}";
    /// As some templates do: only a first system message is shown.
    const SILENT: &str = "{% for m in messages %}{% if loop.first or m.role != 'system' %}[{{ m.role }}]{{ m.content }}\
        {% endif %}{% endfor %}";

    fn template(text: &str) -> ChatTemplate {
        ChatTemplate::new(&TemplateSource { template: text.into(), bos_token: None, eos_token: None }).unwrap()
    }

    fn render(text: &str, messages: &[(&str, &str)]) -> String {
        let messages = messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        let request = ChatRequest { messages, ..ChatRequest::default() };
        let template = template(text);
        template.render(&Dialect::of(&template).adapt(&request)).unwrap()
    }

    const CONVERSATION: [(&str, &str); 6] =
        [("system", "a"), ("system", " "), ("system", "b"), ("user", "c"), ("system", "d"), ("user", "e")];

    #[test]
    fn a_template_that_takes_all_gets_all() {
        assert_eq!(Dialect::of(&template(LENIENT)), Dialect::default());
        assert_eq!(render(LENIENT, &CONVERSATION), "[system]a[system] [system]b[user]c[system]d[user]e");
    }

    #[test]
    fn system_messages_are_merged_at_the_start_and_demoted_behind_it() {
        for text in [STRICT, SILENT] {
            assert_eq!(render(text, &CONVERSATION), "[system]a\n\nb[user]c[user]d[user]e");
            assert_eq!(render(text, &[("user", "c"), ("system", "d")]), "[user]c[user]d");
            assert_eq!(render(text, &[("system", "a"), ("system", "b")]), "[system]a\n\nb");
        }
    }

    #[test]
    fn a_degree_of_thinking_becomes_the_nearest_that_is_known() {
        let dialect = Dialect::of(&template(STRICT));
        let nearest: Vec<_> = EFFORTS.iter().map(|effort| dialect.nearest_effort(effort)).collect();
        assert_eq!(nearest, [Some("low"), None, Some("xhigh"), Some("xhigh"), None, Some("xhigh")]);
    }
}
