//! The bodies that `/generate` is asked with.

use serde::Serialize;

use super::form::Form;
use crate::backend::{GenerationRequest, SamplingParams};

/// The start of every rid, so that an operator finds our calls in a serve's log.
const RID_PREFIX: &str = "engy-";

/// A new name for a call. All have one length: old serves abort every call whose name begins with the given one.
pub(super) fn rid() -> String {
    format!("{RID_PREFIX}{}", uuid::Uuid::new_v4().simple())
}

/// A call of `/generate`. Keys that no known version lacks, but for those of [`Sampling`] that say so.
#[derive(Debug, Serialize)]
pub(super) struct GenerateBody<'a> {
    pub(super) rid: &'a str,
    pub(super) input_ids: &'a [u32],
    pub(super) sampling_params: Sampling<'a>,
    pub(super) stream: bool,
    pub(super) return_hidden_states: bool,
    /// Always: it is how the oldest versions tell ids.
    pub(super) return_logprob: bool,
    /// -1: of the answer alone.
    pub(super) logprob_start_len: i32,
    pub(super) top_logprobs_num: usize,
}

/// How a call chooses.
#[derive(Debug, Serialize)]
pub(super) struct Sampling<'a> {
    max_new_tokens: usize,
    temperature: f32,
    top_p: f32,
    /// -1 keeps all.
    top_k: i64,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    stop_token_ids: &'a [u32],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    /// Where nothing but its length ends the answer: the serve's own ids must not, either. With it a serve looks at no id of ours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_interval: Option<usize>,
    /// Versions that lack it refuse it; see [`super::probe::Version`].
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json_schema: Option<String>,
    /// Versions that lack its newer kind refuse it; see [`super::form`].
    #[serde(skip_serializing_if = "Option::is_none")]
    structural_tag: Option<String>,
}

/// What a call asks for beside its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) max_new_tokens: usize,
    /// Tokens between two events of a stream, where the serve's own choice would cost too much.
    pub(super) stream_interval: Option<usize>,
    /// Whether the serve's version knows `sampling_seed`.
    pub(super) knows_seed: bool,
}

impl<'a> GenerateBody<'a> {
    pub(super) fn new(rid: &'a str, input_ids: &'a [u32], request: &'a GenerationRequest, shape: Shape) -> Self {
        let SamplingParams { temperature, top_p, top_k, min_p, .. } = request.sampling;
        let (json_schema, structural_tag) = match request.constraint.as_ref().map(Form::of) {
            None => (None, None),
            Some(Form::JsonSchema(schema)) => (Some(schema), None),
            Some(Form::StructuralTag(tag)) => (None, Some(tag)),
        };
        Self {
            rid,
            input_ids,
            sampling_params: Sampling {
                max_new_tokens: shape.max_new_tokens,
                temperature,
                top_p,
                top_k: top_k.and_then(|k| i64::try_from(k).ok()).unwrap_or(-1),
                min_p,
                repetition_penalty: request.sampling.repetition_penalty,
                presence_penalty: request.sampling.presence_penalty,
                frequency_penalty: request.sampling.frequency_penalty,
                stop_token_ids: &request.stop_ids,
                stop: &request.stop,
                ignore_eos: request.stop_ids.is_empty(),
                stream_interval: shape.stream_interval,
                // Serves take seeds of 63 bits.
                sampling_seed: request.sampling.seed.filter(|_| shape.knows_seed).map(|seed| (seed >> 1).cast_signed()),
                json_schema,
                structural_tag,
            },
            stream: request.streamed,
            return_hidden_states: request.fin,
            return_logprob: true,
            logprob_start_len: -1,
            top_logprobs_num: request.logprobs.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guide::{Constraint, Thought};
    use serde_json::json;

    #[test]
    fn a_greedy_call_says_no_more_than_every_version_understands() {
        let request = GenerationRequest { stop_ids: vec![2], ..GenerationRequest::greedy(vec![1, 5], 100) };
        let shape = Shape { max_new_tokens: 16, stream_interval: None, knows_seed: false };
        let body = serde_json::to_value(GenerateBody::new("engy-0", &[1, 5, 6], &request, shape)).unwrap();
        assert_eq!(
            body,
            json!({
                "rid": "engy-0", "input_ids": [1, 5, 6], "stream": false, "return_hidden_states": true,
                "return_logprob": true, "logprob_start_len": -1, "top_logprobs_num": 0,
                "sampling_params": {
                    "max_new_tokens": 16, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
                    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [2]
                }
            })
        );
    }

    #[test]
    fn an_answer_that_no_id_ends_goes_on_behind_the_serves_own() {
        let shape = Shape { max_new_tokens: 9, stream_interval: None, knows_seed: false };
        let said = |request: &GenerationRequest| {
            serde_json::to_value(GenerateBody::new("engy-0", &[1], request, shape)).unwrap()["sampling_params"]
                .get("ignore_eos")
                .cloned()
        };
        let mut request = GenerationRequest::greedy(vec![1], 9);
        assert_eq!(said(&request), Some(json!(true)));
        request.stop_ids.push(2);
        assert_eq!(said(&request), None);
    }

    #[test]
    fn a_form_is_a_parameter_of_the_call() {
        let constraint = Constraint { thought: Thought::None, json: Some(json!({"type": "object"})), calls: None };
        let mut request = GenerationRequest { constraint: Some(constraint), ..GenerationRequest::greedy(vec![1], 9) };
        let shape = Shape { max_new_tokens: 9, stream_interval: None, knows_seed: false };
        let params = |request: &GenerationRequest| {
            serde_json::to_value(GenerateBody::new("engy-0", &[1], request, shape)).unwrap()["sampling_params"].clone()
        };
        let plain = params(&request);
        assert_eq!((&plain["json_schema"], plain.get("structural_tag")), (&json!(r#"{"type":"object"}"#), None));
        request.constraint.as_mut().unwrap().thought = Thought::Open;
        let thinking = params(&request);
        assert_eq!(thinking.get("json_schema"), None);
        assert!(thinking["structural_tag"].as_str().unwrap().starts_with(r#"{"type":"structural_tag","format":"#));
    }

    #[test]
    fn names_have_one_length_and_are_never_the_same() {
        let (a, b) = (rid(), rid());
        assert!(a.len() == 37 && b.len() == 37 && a != b && a.starts_with("engy-"), "{a} {b}");
    }
}
