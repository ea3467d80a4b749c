//! Fields of each version, in any order, with what a client must not trip over.

use super::read;
use crate::backend::sglang::reply::{FinishReason, Logprob, Matched, Reply, ServeError};

fn reply(body: &str) -> Reply {
    read(body.as_bytes(), 1, 0).1.unwrap()
}

fn finished(reason: &str) -> Option<FinishReason> {
    reply(&format!(r#"{{"meta_info":{{"finish_reason":{reason}}}}}"#)).meta.finish_reason
}

#[test]
fn each_reason_for_an_end_is_known() {
    let text = |text: &str| Some(text.to_owned());
    for (json, reason) in [
        (r#"{"type":"stop","matched":151645}"#, FinishReason::Stop(Matched::Id(151_645))),
        (r#"{"matched":[1,2],"type":"stop"}"#, FinishReason::Stop(Matched::Ids(vec![1, 2]))),
        (r#"{"type":"stop","matched":"</a>\n"}"#, FinishReason::Stop(Matched::Text("</a>\n".into()))),
        (r#"{"type":"stop","matched":null}"#, FinishReason::Stop(Matched::Unsaid)),
        (r#"{"type":"stop"}"#, FinishReason::Stop(Matched::Unsaid)),
        (r#"{"type":"length","length":16}"#, FinishReason::Length { length: Some(16) }),
        (r#"{"type":"length"}"#, FinishReason::Length { length: None }),
        (
            r#"{"type":"abort","message":"Abort in waiting queue"}"#,
            FinishReason::Abort { message: text("Abort in waiting queue"), status_code: None, err_type: None },
        ),
        (
            r#"{"type":"abort","message":"full","status_code":503,"err_type":"ServiceUnavailable"}"#,
            FinishReason::Abort { message: text("full"), status_code: Some(503), err_type: text("ServiceUnavailable") },
        ),
        (
            r#"{"type":"abort","message":null,"status_code":null,"err_type":null}"#,
            FinishReason::Abort { message: None, status_code: None, err_type: None },
        ),
    ] {
        assert_eq!(finished(json), Some(reason), "{json}");
    }
    assert_eq!(finished("null"), None);
    for odd in
        [r#"{"type":"pause","x":1}"#, r#""stop""#, "{}", r#"{"type":null}"#, r#"{"type":"stop","matched":{}}"#, "7"]
    {
        assert_eq!(finished(odd), Some(FinishReason::Unknown(odd.to_owned())), "{odd}");
    }
}

#[test]
fn fields_come_in_any_order_and_strangers_are_passed_over() {
    let body = r#" { "weight_version" : {"meta_info":{"hidden_states":[[8]]}}, "meta_info":{
        "hidden_states":[[[7]],[-2]] , "cached_tokens":3,"nested":{"hidden_states":[[9]]},
        "a \"hidden_states\":[[1]]":"\"meta_info\":{\"hidden_states\":[[5]]}\\","prompt_tokens":4,
        "routed_experts":[[["hidden_states",[{"hidden_states":[1]}]]]],"completion_tokens":2,
        "output_top_logprobs":[[[-0.5,3,"é"],[null,4,null,"more"]],null,[]],
        "output_token_logprobs":[[-1e-3,3,"\ud83d\ude00"],[null,4]]},
        "hidden_states":[[6]],"output_ids":[3,4],"text":"meta_info]}[{\"hidden_states\": \u00e9" } "#;
    let (rows, reply) = read(body.as_bytes(), 1, 0);
    let reply = reply.unwrap();
    assert_eq!(rows, [[0x40E0], [0xC000]]);
    assert_eq!(reply.text.as_deref(), Some("meta_info]}[{\"hidden_states\": é"));
    assert_eq!(reply.output_ids, Some(vec![3, 4]));
    let meta = reply.meta;
    assert_eq!((meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens), (Some(4), Some(2), Some(3)));
    let logprob = |logprob, id, text: Option<&str>| Logprob { logprob, id, text: text.map(str::to_owned) };
    assert_eq!(meta.output_token_logprobs, [logprob(Some(-0.001), 3, Some("😀")), logprob(None, 4, None)]);
    assert_eq!(
        meta.output_top_logprobs,
        [vec![logprob(Some(-0.5), 3, Some("é")), logprob(None, 4, None)], vec![], vec![]]
    );
}

#[test]
fn nulls_are_absence() {
    let nothing = reply("{}");
    assert_eq!(nothing, Reply::default());
    let nulls = r#"{"text":null,"output_ids":null,"error":null,"detail":null,"object":null,"message":null,"meta_info":
        {"id":null,"finish_reason":null,"prompt_tokens":null,"completion_tokens":null,"cached_tokens":null,
        "output_token_logprobs":null,"output_top_logprobs":null,"hidden_states":null}}"#;
    assert_eq!(reply(nulls), nothing);
    assert_eq!(reply(r#"{"meta_info":null}"#), nothing);
}

#[test]
fn errors_are_found_in_each_form() {
    let error = |message: &str, code, kind: Option<&str>| {
        Some(ServeError { message: message.to_owned(), code, kind: kind.map(str::to_owned) })
    };
    for (body, expected) in [
        (r#"{"error":{"message":"too long"}}"#, error("too long", None, None)),
        (
            r#"{"error":{"message":"no","type":"invalid_request_error","code":400,"retryable":false}}"#,
            error("no", Some(400), Some("invalid_request_error")),
        ),
        (r#"{"error":"Unauthorized"}"#, error("Unauthorized", None, None)),
        (r#"{"error":{"why":1}}"#, error(r#"{"why":1}"#, None, None)),
        (
            r#"{"object":"error","message":"full","type":"503","param":null,"code":503}"#,
            error("full", Some(503), Some("503")),
        ),
        (r#"{"detail":"Not Found"}"#, error("Not Found", None, None)),
        (r#"{"detail":[{"loc":["body"],"msg":"bad"}]}"#, error(r#"[{"loc":["body"],"msg":"bad"}]"#, None, None)),
        (r#"{"message":"hello"}"#, None),
    ] {
        assert_eq!(reply(body).error, expected, "{body}");
    }
}
