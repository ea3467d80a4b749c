//! What a serve frame's request asks for.

use serde_json::Value;
use uuid::Uuid;

use crate::backend::SamplingParams;
use crate::chat::{ChatRequest, RequestError};

/// Every chosen id is looked for among them, on the thread that steps the model for everybody.
const MAX_STOP_IDS: usize = 64;

/// OpenAI's limit.
const MAX_TOP_LOGPROBS: i64 = 20;

/// A request that has been read and found sound.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRequest {
    /// Its name beyond the leg: `engy_request_id`, or one made here.
    pub request_id: String,
    /// Messages, tools, template switches, stop strings.
    pub chat: ChatRequest,
    /// Longest answer, tokens; `None` where the buyer names none.
    pub max_tokens: Option<usize>,
    /// Ids that end the answer beside the model's own.
    pub stop_ids: Vec<u32>,
    /// How ids are chosen. Greedy where the buyer says nothing, as the network's reference miner always is.
    pub sampling: SamplingParams,
    /// Whether pieces of the answer are wanted as they come: the frame says so, not the request in it.
    pub streamed: bool,
    /// `Some(k)` where the buyer wants each token's log-probability, and those of the `k` best tokens in its place.
    pub logprobs: Option<usize>,
}

impl JobRequest {
    /// The name of a request, also where the rest of it is wrong.
    #[must_use]
    pub fn request_id(request: &Value) -> String {
        let named = request.get("engy_request_id").and_then(Value::as_str).filter(|id| !id.is_empty());
        named.map_or_else(|| Uuid::new_v4().simple().to_string(), str::to_owned)
    }

    /// Reads an OpenAI-shaped request, with sglang's extra sampling keys. `request_id` is its name, from
    /// [`JobRequest::request_id`].
    ///
    /// # Errors
    /// When a value is of the wrong type or out of range: the buyer's fault.
    pub fn parse(request: &Value, request_id: String) -> Result<Self, RequestError> {
        let fields = Fields(request);
        let chat = ChatRequest::parse(request)?;
        fields.integer("n", 1, 1)?;
        let max_tokens = match fields.integer("max_completion_tokens", 1, i64::MAX)? {
            Some(n) => Some(n),
            None => fields.integer("max_tokens", 1, i64::MAX)?,
        };
        let defaults = SamplingParams::default();
        let sampling = SamplingParams {
            temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(defaults.temperature),
            top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(defaults.top_p),
            // 0 and -1 both say "all" to the serves that have this key.
            top_k: fields.integer("top_k", -1, i64::MAX)?.and_then(|k| usize::try_from(k).ok()).filter(|k| *k > 0),
            min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(defaults.min_p),
            repetition_penalty: fields.number("repetition_penalty", 0.01, 2.0)?.unwrap_or(defaults.repetition_penalty),
            presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(defaults.presence_penalty),
            frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(defaults.frequency_penalty),
            seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(i64::cast_unsigned),
        };
        Ok(Self {
            request_id,
            chat,
            max_tokens: max_tokens.and_then(|n| usize::try_from(n).ok()),
            stop_ids: fields.ids("stop_token_ids")?,
            sampling,
            streamed: false,
            logprobs: fields.logprobs()?,
        })
    }
}

/// A request's values with errors that name the key. `null` counts as absent, as OpenAI has it.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn number(&self, key: &str, low: f64, high: f64) -> Result<Option<f32>, RequestError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if (low..=high).contains(&x) => Ok(Some(x as f32)),
            _ => Err(RequestError::new(format!("{key} must be a number from {low} to {high}, not {value}"))),
        }
    }

    fn integer(&self, key: &str, low: i64, high: i64) -> Result<Option<i64>, RequestError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // Some clients write whole numbers as 4.0.
        let whole = value.as_i64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0).map(|x| x as i64));
        match whole {
            Some(n) if (low..=high).contains(&n) => Ok(Some(n)),
            _ if low == high => Err(RequestError::new(format!("{key} must be {low}, not {value}"))),
            _ if high == i64::MAX => {
                Err(RequestError::new(format!("{key} must be a whole number from {low}, not {value}")))
            }
            _ => Err(RequestError::new(format!("{key} must be a whole number from {low} to {high}, not {value}"))),
        }
    }

    /// `logprobs` and `top_logprobs`, which OpenAI allows only beside it.
    fn logprobs(&self) -> Result<Option<usize>, RequestError> {
        let top = self.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)?;
        let wanted = match self.get("logprobs") {
            None => false,
            Some(Value::Bool(wanted)) => *wanted,
            Some(other) => return Err(RequestError::new(format!("logprobs must be true or false, not {other}"))),
        };
        if top.is_some() && !wanted {
            return Err(RequestError::new("top_logprobs needs logprobs to be true"));
        }
        Ok(wanted.then_some(top.and_then(|k| usize::try_from(k).ok()).unwrap_or_default()))
    }

    fn ids(&self, key: &str) -> Result<Vec<u32>, RequestError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let wrong = || RequestError::new(format!("{key} must be an array of token ids"));
        let list = value.as_array().ok_or_else(wrong)?;
        if list.len() > MAX_STOP_IDS {
            let count = list.len();
            return Err(RequestError::new(format!("{key} has {count} ids; at most {MAX_STOP_IDS} are taken")));
        }
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(extra: Value) -> Result<JobRequest, RequestError> {
        let mut request = json!({"messages": [{"role": "user", "content": "x"}]});
        for (key, value) in extra.as_object().unwrap() {
            request[key] = value.clone();
        }
        JobRequest::parse(&request, "r".into())
    }

    #[test]
    fn silence_is_greedy() {
        let request = parse(json!({"temperature": null})).unwrap();
        assert_eq!((request.sampling, request.max_tokens), (SamplingParams::default(), None));
    }

    #[test]
    fn reads_all_sampling_keys() {
        let request = parse(json!({"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": -1, "n": 1,
            "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 9,
            "max_completion_tokens": 8.0, "stop_token_ids": [3]}))
        .unwrap();
        let want = SamplingParams {
            temperature: 0.7,
            top_p: 0.9,
            top_k: Some(20),
            min_p: 0.05,
            repetition_penalty: 1.1,
            presence_penalty: 0.5,
            frequency_penalty: -0.5,
            seed: Some(u64::MAX),
        };
        assert_eq!((request.sampling, request.max_tokens, request.stop_ids), (want, Some(8), vec![3]));
        assert_eq!(parse(json!({"top_k": -1})).unwrap().sampling.top_k, None);
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (key, value) in [
            ("temperature", json!(3)),
            ("temperature", json!("hot")),
            ("top_p", json!(1.5)),
            ("max_tokens", json!(0)),
            ("max_tokens", json!(1.5)),
            ("top_k", json!(-2)),
            ("n", json!(2)),
            ("seed", json!("x")),
            ("stop_token_ids", json!([-1])),
            ("stop_token_ids", json!(vec![7; 65])),
            ("logprobs", json!(5)),
            ("logprobs", json!("true")),
            ("top_logprobs", json!(21)),
            ("top_logprobs", json!(-1)),
            ("top_logprobs", json!("x")),
            ("top_logprobs", json!(2.5)),
            ("top_logprobs", json!(3)),
        ] {
            let message = parse(json!({ key: value })).unwrap_err().to_string();
            assert!(message.starts_with(key), "{message}");
        }
    }

    #[test]
    fn logprobs_are_asked_for_with_or_without_alternatives() {
        for (extra, want) in [
            (json!({}), None),
            (json!({"logprobs": null, "top_logprobs": null}), None),
            (json!({"logprobs": false}), None),
            (json!({"logprobs": true}), Some(0)),
            (json!({"logprobs": true, "top_logprobs": 0}), Some(0)),
            (json!({"logprobs": true, "top_logprobs": 20}), Some(20)),
        ] {
            assert_eq!(parse(extra).unwrap().logprobs, want);
        }
        for extra in [json!({"logprobs": false, "top_logprobs": 2}), json!({"top_logprobs": 0})] {
            assert_eq!(parse(extra).unwrap_err().to_string(), "top_logprobs needs logprobs to be true");
        }
        assert!(parse(json!({"logprobs": true, "top_logprobs": 21})).unwrap_err().to_string().contains("from 0 to 20"));
    }

    #[test]
    fn a_request_keeps_its_name_or_gets_one() {
        assert_eq!(JobRequest::request_id(&json!({"engy_request_id": "r-9"})), "r-9");
        assert_eq!(JobRequest::request_id(&json!({"engy_request_id": ""})).len(), 32);
        assert_eq!(JobRequest::request_id(&Value::Null).len(), 32);
    }
}
