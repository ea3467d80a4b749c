//! What is asked of `/generate`, checked as the version checks it.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::config::{FakeServeConfig, HiddenStatesFlag};
use super::dialect::Dialect;
use super::refusal::{Refusal, not_a_list};
use crate::backend::SamplingParams;

/// Tokens of an answer where the request says nothing.
const DEFAULT_MAX_NEW_TOKENS: usize = 128;

/// Sampling parameters of all versions.
const PARAMETERS: [&str; 23] = [
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "custom_params",
    "stream_interval",
    "logit_bias",
];

/// A request in order.
#[derive(Debug, Clone)]
pub(super) struct GenerateRequest {
    pub(super) rid: String,
    pub(super) prompt: Vec<u32>,
    pub(super) return_logprob: bool,
    /// The first prompt token whose log-probability is told; `None` for the last alone.
    pub(super) logprob_start: Option<usize>,
    pub(super) top_logprobs: usize,
    pub(super) text_in_logprobs: bool,
    pub(super) hidden_states: bool,
    pub(super) sampling: SamplingParams,
    pub(super) max_new_tokens: usize,
    pub(super) min_new_tokens: usize,
    /// Those of the serve included, unless they are to be ignored.
    pub(super) stop_ids: Vec<u32>,
    pub(super) stop_texts: Vec<String>,
    pub(super) no_stop_trim: bool,
    pub(super) stream_interval: Option<usize>,
}

/// Whether the answer is to be streamed: known before anything is checked.
pub(super) fn is_stream(body: &Value) -> bool {
    body.get("stream").and_then(Value::as_bool).unwrap_or(false)
}

impl GenerateRequest {
    /// Reads and checks.
    pub(super) fn read(body: &Value, config: &FakeServeConfig) -> Result<Self, Refusal> {
        let dialect = config.dialect;
        let Some(fields) = body.as_object() else {
            return Err(Refusal::Validation("1 validation error:\n  Input should be a valid dictionary".into()));
        };
        let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let empty = Map::new();
        let parameters = match field("sampling_params") {
            None => &empty,
            Some(Value::Object(parameters)) => parameters,
            Some(_) => {
                return Err(Refusal::Validation("1 validation error:\n  Input should be a valid dictionary".into()));
            }
        };
        let prompt = prompt_ids(field("input_ids"))?;
        check_contract(fields, parameters, dialect)?;
        let mut prompt = match (prompt, field("text")) {
            (Some(_), Some(_)) => {
                return Err(value("Either text, input_ids or input_embeds should be provided."));
            }
            (None, Some(_)) => return Err(value("This fake serve has no tokenizer: give input_ids.")),
            (None, None) => return Err(value("Either text, input_ids or input_embeds should be provided.")),
            (Some(prompt), None) => prompt,
        };
        let parameters = Parameters { fields: parameters, dialect };
        let max_new_tokens = parameters.max_new_tokens()?;
        let hidden_states = field("return_hidden_states").is_some_and(|wanted| wanted != &Value::Bool(false));
        check_length(&mut prompt, max_new_tokens, config)?;
        if hidden_states {
            check_flag(config)?;
        }
        let sampling = parameters.sampling()?;
        let number = |name: &str| field(name).and_then(Value::as_u64).map(|number| number as usize);
        let flag = |name: &str| field(name).and_then(Value::as_bool).unwrap_or(false);
        let ignore_eos = parameters.flag("ignore_eos", false)?;
        let mut stop_ids = parameters.ids("stop_token_ids")?;
        stop_ids.extend(&config.eos_ids);
        if ignore_eos {
            // Those of the request too.
            stop_ids.clear();
        }
        let room = config.context.saturating_sub(prompt.len() + 1);
        Ok(Self {
            rid: field("rid").and_then(Value::as_str).map_or_else(|| Uuid::new_v4().simple().to_string(), Into::into),
            return_logprob: flag("return_logprob"),
            logprob_start: number("logprob_start_len"),
            top_logprobs: number("top_logprobs_num").unwrap_or_default(),
            text_in_logprobs: flag("return_text_in_logprobs"),
            hidden_states,
            sampling,
            max_new_tokens: max_new_tokens.map_or(room, |tokens| tokens.min(room.max(1))),
            min_new_tokens: parameters.whole("min_new_tokens")?.unwrap_or_default(),
            stop_ids,
            stop_texts: parameters.texts("stop")?,
            no_stop_trim: parameters.flag("no_stop_trim", false)?,
            stream_interval: parameters.whole("stream_interval")?.filter(|&interval| interval > 0),
            prompt,
        })
    }
}

fn value(message: impl Into<String>) -> Refusal {
    Refusal::Value(message.into())
}

fn prompt_ids(ids: Option<&Value>) -> Result<Option<Vec<u32>>, Refusal> {
    let Some(ids) = ids else { return Ok(None) };
    let Some(list) = ids.as_array() else {
        let input = ids.as_str().map_or_else(|| ids.to_string(), str::to_owned);
        return Err(Refusal::Validation(not_a_list(&input)));
    };
    if list.first().is_some_and(Value::is_array) {
        return Err(value("This fake serve answers one prompt at a time."));
    }
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    match ids {
        Some(ids) if ids.is_empty() => Err(value("The input_ids are empty.")),
        Some(ids) => Ok(Some(ids)),
        None => Err(Refusal::Validation("1 validation error:\n  Input should be a valid integer".into())),
    }
}

/// The contract passes over keys that it does not know, except among the sampling parameters.
fn check_contract(
    fields: &Map<String, Value>,
    parameters: &Map<String, Value>,
    dialect: Dialect,
) -> Result<(), Refusal> {
    let known = known_parameters(dialect);
    let unknown = parameters.keys().find(|key| !known.contains(&key.as_str()));
    if !dialect.has_contract() {
        // A keyword argument that the constructor does not have.
        return if unknown.is_some() { Err(Refusal::Crash) } else { Ok(()) };
    }
    if let Some(unknown) = unknown {
        let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
        let known = known.join(", ");
        return Err(Refusal::Contract(format!("unknown field `{unknown}`, expected one of {known}")));
    }
    for name in ["return_hidden_states", "return_logprob"] {
        if let Some(wrong) = fields.get(name).filter(|value| !value.is_null() && !value.is_boolean()) {
            let expected = "a value or an array of values for BoolOrList";
            return Err(Refusal::Contract(format!("invalid type: {}, expected {expected}", kind(wrong))));
        }
    }
    Ok(())
}

fn known_parameters(dialect: Dialect) -> Vec<&'static str> {
    let mut known = PARAMETERS.to_vec();
    if dialect.has_stop_regex() {
        known.push("stop_regex");
    }
    if dialect.has_sampling_seed() {
        known.push("sampling_seed");
    }
    if dialect.has_contract() {
        known.extend(["beam_width", "watermark", "choice"]);
    }
    known
}

fn check_length(prompt: &mut Vec<u32>, max_new_tokens: Option<usize>, config: &FakeServeConfig) -> Result<(), Refusal> {
    let context = config.context;
    if prompt.len() >= context {
        if !config.allow_auto_truncate {
            let tokens = prompt.len();
            let what =
                format!("The input ({tokens} tokens) is longer than the model's context length ({context} tokens).");
            return Err(Refusal::Value(what));
        }
        prompt.truncate(config.max_input());
    }
    let total = prompt.len() + max_new_tokens.unwrap_or_default();
    if total >= context && !config.allow_auto_truncate {
        let (input, completion) = (prompt.len(), max_new_tokens.unwrap_or_default());
        return Err(value(format!(
            "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of \
             {total} tokens: {input} tokens from the input messages and {completion} tokens for the completion. Please reduce \
             the number of tokens in the input messages or the completion to fit within the limit."
        )));
    }
    let most = config.max_input();
    if prompt.len() > most {
        if !config.allow_auto_truncate {
            let tokens = prompt.len();
            return Err(value(format!(
                "Input length ({tokens} tokens) exceeds the maximum allowed length ({most} tokens). Use a shorter input or \
                 enable --allow-auto-truncate."
            )));
        }
        prompt.truncate(most);
    }
    Ok(())
}

fn check_flag(config: &FakeServeConfig) -> Result<(), Refusal> {
    let message = match config.hidden_states {
        HiddenStatesFlag::On => return Ok(()),
        HiddenStatesFlag::LastOnly => {
            "The requested return_hidden_states mode exceeds the server maximum `last`. Please launch with \
             `--return-hidden-states-mode full` to allow return_hidden_states=True."
        }
        HiddenStatesFlag::Off if config.dialect.has_hidden_states_mode() => {
            "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, \
             `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
        }
        HiddenStatesFlag::Off => {
            "The server is not configured to return the hidden states. Please set `--enable-return-hidden-states` to enable \
             this feature."
        }
    };
    Err(value(message))
}

/// Sampling parameters, each read as its type.
struct Parameters<'a> {
    fields: &'a Map<String, Value>,
    dialect: Dialect,
}

impl Parameters<'_> {
    fn wrong<T>(&self, found: &Value, expected: &str) -> Result<T, Refusal> {
        Err(match self.dialect.has_contract() {
            true => Refusal::Contract(format!("invalid type: {}, expected {expected}", kind(found))),
            // It is compared with a number, far from where errors are caught.
            false => Refusal::Crash,
        })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str, default: f64) -> Result<f32, Refusal> {
        match self.fields.get(name) {
            None => Ok(default as f32),
            Some(Value::Null) if self.dialect >= Dialect::V0_5_15 => Ok(default as f32),
            Some(number) => number.as_f64().map_or_else(|| self.wrong(number, "f64"), |number| Ok(number as f32)),
        }
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(number) = self.get(name) else { return Ok(None) };
        number.as_i64().map_or_else(|| self.wrong(number, "i64"), |number| Ok(Some(number)))
    }

    fn whole(&self, name: &str) -> Result<Option<usize>, Refusal> {
        Ok(self.integer(name)?.map(|number| usize::try_from(number).unwrap_or_default()))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, Refusal> {
        let Some(flag) = self.get(name) else { return Ok(default) };
        flag.as_bool().map_or_else(|| self.wrong(flag, "a boolean"), Ok)
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, Refusal> {
        let Some(ids) = self.get(name) else { return Ok(Vec::new()) };
        let list: Option<Vec<u32>> =
            ids.as_array().and_then(|list| list.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect());
        list.map_or_else(|| self.wrong(ids, "a sequence"), Ok)
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let list = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => Some(vec![text.clone()]),
            Some(Value::Array(list)) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
            Some(_) => None,
        };
        list.map_or_else(|| self.wrong(&self.fields[name], "a string"), Ok)
    }

    /// `None` for as many as there is room for.
    fn max_new_tokens(&self) -> Result<Option<usize>, Refusal> {
        match self.integer("max_new_tokens")? {
            None if self.fields.contains_key("max_new_tokens") => Ok(None),
            None => Ok(Some(DEFAULT_MAX_NEW_TOKENS)),
            Some(tokens) => match usize::try_from(tokens) {
                Ok(tokens) => Ok(Some(tokens)),
                Err(_) => Err(value(format!("max_new_tokens must be at least 0, got {tokens}."))),
            },
        }
    }

    /// Checks ranges in the order in which serves do.
    fn sampling(&self) -> Result<SamplingParams, Refusal> {
        let shown = |name: &str| self.fields.get(name).map_or_else(String::new, Value::to_string);
        let refuse = |name: &str, what: &str| Err(value(format!("{name} must be {what}, got {}.", shown(name))));
        let temperature = self.number("temperature", 1.0)?;
        let top_p = self.number("top_p", 1.0)?;
        let min_p = self.number("min_p", 0.0)?;
        let top_k = self.integer("top_k")?.unwrap_or(-1);
        let frequency_penalty = self.number("frequency_penalty", 0.0)?;
        let presence_penalty = self.number("presence_penalty", 0.0)?;
        let repetition_penalty = self.number("repetition_penalty", 1.0)?;
        if temperature < 0.0 {
            return refuse("temperature", "non-negative");
        }
        if !(0.0 < top_p && top_p <= 1.0) {
            return refuse("top_p", "in (0, 1]");
        }
        if !(0.0..=1.0).contains(&min_p) {
            return refuse("min_p", "in [0, 1]");
        }
        if top_k < 1 && top_k != -1 {
            return refuse("top_k", "-1 (disable) or at least 1");
        }
        if !(-2.0..=2.0).contains(&frequency_penalty) {
            return refuse("frequency_penalty", "in [-2, 2]");
        }
        if !(-2.0..=2.0).contains(&presence_penalty) {
            return refuse("presence_penalty", "in [-2, 2]");
        }
        if !(0.0..=2.0).contains(&repetition_penalty) {
            return refuse("repetition_penalty", "in [0, 2]");
        }
        if self.integer("n")?.is_some_and(|n| n != 1) {
            return Err(value("This fake serve gives one answer at a time."));
        }
        Ok(SamplingParams {
            temperature,
            top_p,
            // The number that stands for all in newer versions is beyond any vocabulary.
            top_k: usize::try_from(top_k).ok().filter(|&k| k < 1 << 30),
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed: self.integer("sampling_seed")?.map(|seed| seed as u64),
        })
    }
}

/// A value as the contract's complaint names it.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => format!("boolean `{flag}`"),
        Value::Number(number) if number.is_f64() => format!("floating point `{number}`"),
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => format!("string \"{text}\""),
        Value::Array(_) => "sequence".into(),
        Value::Object(_) => "map".into(),
    }
}
