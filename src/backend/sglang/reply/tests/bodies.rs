//! Recorded replies, against a plain reading of the same JSON.

use serde_json::Value;

use super::{fixture, plain_rows, read, stream};
use crate::backend::sglang::reply::{FinishReason, Matched, Reply, RowsFound, StreamEvent};

const HIDDEN: usize = 576;

/// Compares a reply's fields with the same JSON's.
fn compare(reply: &Reply, json: &Value) {
    let meta = &json["meta_info"];
    let ids = |list: &Value| -> Vec<u64> { list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect() };
    let read: Vec<u64> = reply.output_ids.as_ref().unwrap().iter().map(|&id| u64::from(id)).collect();
    assert_eq!(read, ids(&json["output_ids"]));
    assert_eq!(reply.text.as_deref(), json["text"].as_str());
    assert_eq!(reply.meta.id.as_deref(), meta["id"].as_str());
    for (read, written) in [
        (reply.meta.prompt_tokens, &meta["prompt_tokens"]),
        (reply.meta.completion_tokens, &meta["completion_tokens"]),
        (reply.meta.cached_tokens, &meta["cached_tokens"]),
    ] {
        assert_eq!(read.map(|count| count as u64), written.as_u64());
    }
    let logprobs = meta["output_token_logprobs"].as_array().unwrap();
    assert_eq!(reply.meta.output_token_logprobs.len(), logprobs.len());
    for (read, written) in reply.meta.output_token_logprobs.iter().zip(logprobs) {
        assert_eq!((read.logprob, Some(u64::from(read.id))), (written[0].as_f64(), written[1].as_u64()));
        assert_eq!(read.text, None);
    }
    assert_eq!(reply.error, None);
}

#[test]
fn recorded_bodies_are_read_as_by_a_plain_reader() {
    for (name, ended) in [
        ("generate_length", FinishReason::Length { length: Some(4) }),
        ("generate_continuation", FinishReason::Length { length: Some(3) }),
        ("generate_one_prompt_token", FinishReason::Length { length: Some(3) }),
        ("generate_stop_string", FinishReason::Stop(Matched::Text("France".into()))),
        (
            "generate_aborted",
            FinishReason::Abort { message: Some("Aborted".into()), status_code: None, err_type: None },
        ),
    ] {
        let body = fixture(&format!("{name}.body"));
        let json: Value = serde_json::from_slice(&body).unwrap();
        let expected = plain_rows(&json);
        let (rows, reply) = read(&body, HIDDEN, 0);
        let reply = reply.unwrap();
        assert!(rows == expected, "{name}");
        assert_eq!(reply.meta.finish_reason, Some(ended));
        assert_eq!(reply.meta.completion_tokens, Some(rows.len()));
        let prompt_rows = reply.meta.prompt_tokens.unwrap() - 1;
        assert_eq!(reply.rows, Some(RowsFound { rows: rows.len(), prompt_rows, first_row_missing: false }));
        compare(&reply, &json);
        for skip in [1, 2, rows.len()] {
            let (after, same) = read(&body, HIDDEN, skip);
            assert!(after == expected[skip..], "{name} after {skip}");
            assert_eq!(same.unwrap(), reply);
        }
    }
}

#[test]
fn a_recorded_body_without_hidden_states_has_none() {
    let body = fixture("generate_without_hidden_states.body");
    let (rows, reply) = read(&body, HIDDEN, 0);
    let reply = reply.unwrap();
    assert!(rows.is_empty());
    assert_eq!(reply.rows, None);
    compare(&reply, &serde_json::from_slice(&body).unwrap());
}

#[test]
fn a_recorded_stream_gives_each_row_once() {
    let bytes = fixture("generate_stream_interval.sse");
    let text = String::from_utf8(bytes.clone()).unwrap();
    let jsons: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: ").filter(|data| *data != "[DONE]"))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (rows, events, error) = stream(&bytes, HIDDEN);
    assert_eq!(error, None);
    assert!(rows == plain_rows(jsons.last().unwrap()));
    assert_eq!(rows.len(), 8);
    assert_eq!((jsons.len(), events.len(), events.last()), (2, 3, Some(&StreamEvent::Done)));
    for (event, json) in events.iter().zip(&jsons) {
        let StreamEvent::Reply(reply) = event else { panic!("{event:?}") };
        compare(reply, json);
        assert_eq!(reply.rows.unwrap().rows, reply.meta.completion_tokens.unwrap());
    }
}

/// Recorded refusals: status aside, their text.
#[test]
fn recorded_errors_keep_their_message() {
    for (name, message, code) in [
        ("error_bad_ids", "2 validation errors:", Some(400)),
        ("error_bad_temperature", "temperature must be non-negative, got -1.", None),
        ("error_no_input", "Either text, input_ids or input_embeds should be provided.", None),
        ("error_too_long", "The input (3000 tokens) is longer than the model's context length (2048 tokens).", None),
        (
            "error_total_too_long",
            "Requested token count exceeds the model's maximum context length of 2048 tokens.",
            None,
        ),
    ] {
        let (_, reply) = read(&fixture(&format!("{name}.body")), HIDDEN, 0);
        let error = reply.unwrap().error.unwrap();
        assert!(error.message.starts_with(message), "{error:?}");
        assert_eq!(error.code, code);
    }
    let (_, events, error) = stream(&fixture("error_too_long_stream.sse"), HIDDEN);
    assert_eq!((events.len(), &events[1], error), (2, &StreamEvent::Done, None));
    let StreamEvent::Reply(reply) = &events[0] else { panic!("{events:?}") };
    assert!(reply.error.as_ref().unwrap().message.starts_with("The input (3000 tokens)"));
}
