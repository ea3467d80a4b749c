//! What a reply says beside hidden states, in types. Unknown keys are ignored and any value may be null, as each version
//! of sglang has its own set.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

use super::rows::RowsFound;

/// One reply of `/generate`: a whole body, or one event of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The answer's text, without the token that ended it.
    pub text: Option<String>,
    /// The answer's ids, the one that ended it included. Missing below sglang 0.5; whether an event's are all so far or
    /// the new ones depends on version and flags.
    pub output_ids: Option<Vec<u32>>,
    /// Counts, reasons and log-probabilities.
    pub meta: Meta,
    /// The serve refuses or failed.
    pub error: Option<ServeError>,
    /// What was found of hidden states; `None` if there are none or they are null.
    pub rows: Option<RowsFound>,
}

/// A reply's `meta_info`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Meta {
    /// The request's id.
    pub id: Option<String>,
    /// Why the answer ended; `None` while it goes on.
    #[serde(deserialize_with = "finish_reason")]
    pub finish_reason: Option<FinishReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the answer so far.
    pub completion_tokens: Option<usize>,
    /// Tokens of the prompt whose states came from a cache.
    pub cached_tokens: Option<usize>,
    /// One a token of the answer.
    #[serde(deserialize_with = "or_default")]
    pub output_token_logprobs: Vec<Logprob>,
    /// The best ids beside each token of the answer, best first.
    #[serde(deserialize_with = "lists")]
    pub output_top_logprobs: Vec<Vec<Logprob>>,
}

/// How likely the model found an id: `[logprob, id, text]` on the wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    /// Natural logarithm. `None` for an impossible id, as JSON has no minus infinity.
    pub logprob: Option<f64>,
    /// The id.
    pub id: u32,
    /// Its text, if that was asked for.
    pub text: Option<String>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// An id or text that ends answers.
    Stop(Matched),
    /// The budget is used up.
    Length {
        /// The budget, tokens.
        length: Option<usize>,
    },
    /// The serve gave up, or was asked to.
    Abort {
        /// Why.
        message: Option<String>,
        /// The HTTP status that would say so.
        status_code: Option<u16>,
        /// A class of errors.
        err_type: Option<String>,
    },
    /// Not known here, as JSON. Must not pass for an end of the answer.
    Unknown(String),
}

/// What ended an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// This id, the answer's last.
    Id(u32),
    /// These ids, the answer's last.
    Ids(Vec<u32>),
    /// A stop string or pattern, as it was asked for.
    Text(String),
    /// The serve does not say.
    Unsaid,
}

/// An error that a serve reports, in whichever form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeError {
    /// What it says.
    pub message: String,
    /// The status that it names in the text.
    pub code: Option<u16>,
    /// The class that it names.
    pub kind: Option<String>,
}

impl Reply {
    /// Reads a reply's JSON, in which hidden states are not.
    pub(super) fn from_json(text: &[u8]) -> Result<Self, serde_json::Error> {
        let body: Body = serde_json::from_slice(text)?;
        let error = ServeError::find(&body);
        let meta = body.meta_info.unwrap_or_default();
        Ok(Self { text: body.text, output_ids: body.output_ids, meta, error, rows: None })
    }
}

/// The keys of a reply and of the forms that errors have.
#[derive(Deserialize)]
struct Body {
    text: Option<String>,
    output_ids: Option<Vec<u32>>,
    meta_info: Option<Meta>,
    error: Option<Value>,
    detail: Option<Value>,
    object: Option<Value>,
    message: Option<Value>,
    r#type: Option<Value>,
    code: Option<Value>,
}

impl ServeError {
    /// `{"error":{"message":..}}` and `{"error":"..."}`, `{"object":"error","message":..}` of the OpenAI form,
    /// `{"detail":..}` of the web framework.
    fn find(body: &Body) -> Option<Self> {
        if let Some(error) = &body.error {
            return Some(match error.get("message") {
                Some(message) => Self::new(message, error.get("code"), error.get("type")),
                None => Self::new(error, None, None),
            });
        }
        if let (Some(message), Some("error")) = (&body.message, body.object.as_ref().and_then(Value::as_str)) {
            return Some(Self::new(message, body.code.as_ref(), body.r#type.as_ref()));
        }
        body.detail.as_ref().map(|detail| Self::new(detail, None, None))
    }

    fn new(message: &Value, code: Option<&Value>, kind: Option<&Value>) -> Self {
        Self {
            message: plain(message),
            code: code.and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()),
            kind: kind.filter(|kind| !kind.is_null()).map(plain),
        }
    }
}

impl From<&Value> for FinishReason {
    fn from(reason: &Value) -> Self {
        let unknown = || Self::Unknown(reason.to_string());
        match reason.get("type").and_then(Value::as_str) {
            Some("stop") => Matched::read(reason.get("matched")).map_or_else(unknown, Self::Stop),
            Some("length") => Self::Length { length: whole(reason.get("length")) },
            Some("abort") => Self::Abort {
                message: reason.get("message").filter(|message| !message.is_null()).map(plain),
                status_code: whole(reason.get("status_code")),
                err_type: reason.get("err_type").filter(|class| !class.is_null()).map(plain),
            },
            _ => unknown(),
        }
    }
}

impl Matched {
    fn read(matched: Option<&Value>) -> Option<Self> {
        match matched {
            None | Some(Value::Null) => Some(Self::Unsaid),
            Some(Value::String(text)) => Some(Self::Text(text.clone())),
            Some(Value::Array(ids)) => ids.iter().map(|id| whole(Some(id))).collect::<Option<_>>().map(Self::Ids),
            Some(id) => whole(Some(id)).map(Self::Id),
        }
    }
}

/// A string's text, or a value as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn whole<T: TryFrom<u64>>(value: Option<&Value>) -> Option<T> {
    value.and_then(Value::as_u64).and_then(|value| T::try_from(value).ok())
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn lists<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<Logprob>>, D::Error> {
    let lists: Vec<Option<Vec<Logprob>>> = or_default(deserializer)?;
    Ok(lists.into_iter().map(Option::unwrap_or_default).collect())
}

fn finish_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FinishReason>, D::Error> {
    Ok(Option::<Value>::deserialize(deserializer)?.as_ref().map(FinishReason::from))
}

impl<'de> Deserialize<'de> for Logprob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tuple;

        impl<'de> Visitor<'de> for Tuple {
            type Value = Logprob;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("[logprob or null, id, text or null]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Logprob, A::Error> {
                let missing = |index| A::Error::invalid_length(index, &self);
                let logprob = list.next_element()?.ok_or_else(|| missing(0))?;
                let id = list.next_element()?.ok_or_else(|| missing(1))?;
                let text = list.next_element::<Option<String>>()?.flatten();
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Logprob { logprob, id, text })
            }
        }

        deserializer.deserialize_seq(Tuple)
    }
}
