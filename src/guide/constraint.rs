//! The form of an answer, as plain data that every backend can make its own of.

use serde_json::Value;

/// What an answer must be: JSON, calls, or the one or the other. At least one of the two is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    /// What may stand before it.
    pub thought: Thought,
    /// The schema that the content must be JSON under.
    pub json: Option<Value>,
    /// Calls that it may consist of.
    pub calls: Option<Calls>,
}

/// What an answer may think before it takes its form. A thought ends with `</think>`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thought {
    /// Nothing.
    #[default]
    None,
    /// It may open a thought with its first token.
    Possible,
    /// It starts inside one, which the prompt has opened. Before calls its closer may be missing: models leave it out.
    Open,
}

/// One call or more.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// How the model writes them.
    pub form: CallForm,
    /// The tools that may be called, at least one.
    pub tools: Vec<Callable>,
    /// Whether there is to be one call alone.
    pub single: bool,
}

/// A form of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>`, `<function=name>`, and for each argument `<parameter=key>` and its value on lines of their own.
    QwenXml,
    /// `<tool_call>` around `{"name": "name", "arguments": {...}}`.
    Hermes,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Callable {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, an object.
    pub schema: Value,
    /// The same parameter by parameter, for forms that write them so; in the order in which they are written.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Whether each call has it.
    pub required: bool,
    /// What its value is written as.
    pub takes: Takes,
}

/// What a parameter's value is written as, where it is not quoted.
#[derive(Debug, Clone, PartialEq)]
pub enum Takes {
    /// Any text.
    Text,
    /// One of these texts.
    OneOf(Vec<String>),
    /// JSON under this schema, which stands for itself: what it refers to is in it.
    Json(Value),
}
