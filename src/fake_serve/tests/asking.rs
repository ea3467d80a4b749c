//! What may be asked, and what is refused in which form.

use super::*;
use crate::fake_serve::HiddenStatesFlag;

fn message(got: &Got) -> String {
    got.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

fn ids(got: &Got) -> Vec<u32> {
    serde_json::from_value(got.json()["output_ids"].clone()).unwrap()
}

fn finish(got: &Got) -> Value {
    got.json()["meta_info"]["finish_reason"].clone()
}

#[tokio::test]
async fn hidden_states_without_the_flag_are_refused_in_the_words_of_the_version() {
    for (dialect, flag, words) in [
        (
            Dialect::V0_4_9,
            HiddenStatesFlag::Off,
            "not configured to return the hidden states. Please set `--enable-return",
        ),
        (
            Dialect::V0_5_15,
            HiddenStatesFlag::Off,
            "not configured to return the hidden states. Please set `--enable-return",
        ),
        (
            Dialect::V0_5_23,
            HiddenStatesFlag::Off,
            "return hidden states. Please set `--return-hidden-states-mode last`",
        ),
        (Dialect::V0_5_23, HiddenStatesFlag::LastOnly, "return_hidden_states mode exceeds the server maximum `last`"),
    ] {
        let asker = start(FakeServeConfig { hidden_states: flag, ..config(dialect) }).await;
        let got = asker.generate(&ask(&[1, 2], 2)).await;
        assert_eq!(got.status, 400);
        assert!(message(&got).contains(words), "{}", got.text());
        let got = asker.generate(&ask_stream(&[1, 2], 2)).await;
        let (events, done) = got.events();
        assert!((got.status, events.len(), done) == (200, 1, true));
        let error = &events[0]["error"];
        assert!(error["message"].as_str().unwrap().contains(words));
        let named =
            if dialect == Dialect::V0_5_23 { vec!["message", "type", "code", "retryable"] } else { vec!["message"] };
        assert_eq!(keys(error), named);
        let got = asker.generate(&with(ask(&[1, 2], 2), "/return_hidden_states", false.into())).await;
        assert_eq!(got.status, 200);
    }
}

#[tokio::test]
async fn what_does_not_validate_is_refused_before_a_stream_begins() {
    for dialect in Dialect::ALL {
        let asker = start(config(dialect)).await;
        for request in [ask(&[1], 2), ask_stream(&[1], 2)] {
            let got = asker.generate(&with(request, "/input_ids", "x".into())).await;
            assert_eq!(got.status, 400, "{dialect}");
            assert_eq!(keys(&got.json()), ["object", "message", "type", "param", "code"]);
            assert_eq!((&got.json()["type"], &got.json()["code"]), (&"Bad Request".into(), &400.into()));
        }
        let got = asker.generate(&json!([1])).await;
        assert_eq!(got.json()["object"], "error");
    }
}

#[tokio::test]
async fn unknown_keys_are_passed_over_and_unknown_parameters_are_not() {
    for dialect in Dialect::ALL {
        let asker = start(config(dialect)).await;
        let got = asker.generate(&with(ask(&[1], 2), "/surprise", 1.into())).await;
        assert_eq!(got.status, 200, "{dialect}");
        let wrong = [
            with(ask(&[1], 2), "/sampling_params/surprise", 1.into()),
            with(ask(&[1], 2), "/sampling_params/temperature", "hot".into()),
        ];
        for (request, contract) in
            wrong.into_iter().zip(["unknown field `surprise`, expected one of `", "invalid type: string"])
        {
            let got = asker.generate(&request).await;
            if dialect == Dialect::V0_5_23 {
                assert!(
                    got.status == 400 && got.json()["error"].as_str().unwrap().starts_with(contract),
                    "{}",
                    got.text()
                );
            } else {
                assert_eq!((got.status, got.text().as_str()), (500, "Internal Server Error"));
                assert_eq!(got.content_type.as_deref(), Some("text/plain; charset=utf-8"));
                // The exception comes when 200 is sent already.
                let got = asker.generate(&with(request, "/stream", true.into())).await;
                assert_eq!((got.status, got.body.len(), got.whole), (200, 0, false));
            }
        }
    }
    let asker = start(config(Dialect::V0_5_23)).await;
    let got = asker.generate(&with(ask(&[1], 2), "/return_hidden_states", "last".into())).await;
    assert!(got.json()["error"].as_str().unwrap().starts_with("invalid type: string \"last\""), "{}", got.text());
}

#[tokio::test]
async fn seeds_are_a_parameter_of_newer_versions() {
    let sampled = with(ask(&[1, 2], 6), "/sampling_params/temperature", 1.0.into());
    let seeded = |seed: u32| with(sampled.clone(), "/sampling_params/sampling_seed", seed.into());
    for dialect in Dialect::ALL {
        let asker = start(config(dialect)).await;
        let got = asker.generate(&seeded(1)).await;
        assert_eq!(got.status, if dialect >= Dialect::V0_5_6 { 200 } else { 500 }, "{dialect}");
    }
    let asker = start(config(Dialect::V0_5_6)).await;
    let first = ids(&asker.generate(&seeded(1)).await);
    assert_eq!(ids(&asker.generate(&seeded(1)).await), first);
    assert_ne!(ids(&asker.generate(&seeded(2)).await), first);
    assert_ne!(ids(&asker.generate(&sampled).await), ids(&asker.generate(&sampled).await));
    let greedy = with(seeded(1), "/sampling_params/top_k", 1.into());
    assert_eq!(ids(&asker.generate(&greedy).await), model().greedy(&[1, 2], 6));
}

#[tokio::test]
async fn values_out_of_range_are_named() {
    let asker = start(config(Dialect::V0_5_6)).await;
    for (name, value, words) in [
        ("temperature", json!(-1), "temperature must be non-negative, got -1."),
        ("top_p", json!(0), "top_p must be in (0, 1], got 0."),
        ("min_p", json!(1.5), "min_p must be in [0, 1], got 1.5."),
        ("top_k", json!(0), "top_k must be -1 (disable) or at least 1, got 0."),
        ("max_new_tokens", json!(-2), "max_new_tokens must be at least 0, got -2."),
        ("repetition_penalty", json!(3.0), "repetition_penalty must be in [0, 2], got 3.0."),
    ] {
        let got = asker.generate(&with(ask(&[1], 2), &format!("/sampling_params/{name}"), value)).await;
        assert_eq!((got.status, message(&got).as_str()), (400, words));
    }
    let got = asker.generate(&with(ask(&[1], 2), "/sampling_params/top_k", (-1).into())).await;
    assert_eq!(got.status, 200);
}

#[tokio::test]
async fn long_prompts_are_refused_or_cut() {
    let model = Seeded { context: 40, ..model() };
    let short =
        FakeServeConfig { max_total_tokens: 30, ..FakeServeConfig::new(Dialect::V0_5_6, Engine::seeded(model)) };
    let asker = start(short.clone()).await;
    let prompt: Vec<u32> = (0..60).collect();
    for (tokens, new, words) in [
        (40, 1, "The input (40 tokens) is longer than the model's context length (40 tokens)."),
        (
            20,
            20,
            "You requested a total of 40 tokens: 20 tokens from the input messages and 20 tokens for the completion.",
        ),
        (25, 2, "Input length (25 tokens) exceeds the maximum allowed length (24 tokens)."),
    ] {
        let got = asker.generate(&ask(&prompt[..tokens], new)).await;
        assert!(got.status == 400 && message(&got).contains(words), "{}", got.text());
    }
    let asker = start(FakeServeConfig { allow_auto_truncate: true, ..short }).await;
    let got = asker.generate(&ask(&prompt, 3)).await;
    assert_eq!(got.json()["meta_info"]["prompt_tokens"], 24);
    // As many tokens as there is room for.
    let got = asker.generate(&with(ask(&[1, 2], 1), "/sampling_params/max_new_tokens", Value::Null)).await;
    assert_eq!(finish(&got), json!({"type": "length", "length": 37}));
}

#[tokio::test]
async fn answers_end_where_they_are_asked_to() {
    let whole = model().greedy(&[1, 2], 200);
    let asker = start(FakeServeConfig { eos_ids: vec![whole[9]], ..config(Dialect::V0_5_6) }).await;
    let set = |request: Value, name: &str, value: Value| with(request, &format!("/sampling_params/{name}"), value);

    let got = asker.generate(&ask(&[1, 2], 50)).await;
    assert_eq!((ids(&got), finish(&got)), (whole[..10].to_vec(), json!({"type": "stop", "matched": whole[9]})));
    let text = got.json()["text"].as_str().unwrap().to_owned();
    assert!(text.ends_with(&format!(" w{}", whole[8])), "{text}");
    // The budget is looked at first.
    let got = asker.generate(&ask(&[1, 2], 10)).await;
    assert_eq!(finish(&got), json!({"type": "length", "length": 10}));
    let got = asker.generate(&set(ask(&[1, 2], 50), "stop_token_ids", json!([whole[4], 999_999]))).await;
    assert_eq!((ids(&got).len(), finish(&got)), (5, json!({"type": "stop", "matched": whole[4]})));
    let ignoring = set(set(ask(&[1, 2], 50), "stop_token_ids", json!([whole[4]])), "ignore_eos", true.into());
    assert_eq!(ids(&asker.generate(&ignoring).await), whole[..50]);
    let stop = format!("w{} w{}", whole[2], whole[3]);
    let stopping = set(ask(&[1, 2], 50), "stop", json!([stop]));
    let got = asker.generate(&stopping).await;
    assert_eq!((ids(&got).len(), finish(&got)), (4, json!({"type": "stop", "matched": stop})));
    assert_eq!(got.json()["text"], format!(" w{} w{} ", whole[0], whole[1]));
    let got = asker.generate(&set(stopping, "no_stop_trim", true.into())).await;
    assert!(got.json()["text"].as_str().unwrap().ends_with(&stop));
    let got = asker.generate(&set(ask(&[1, 2], 50), "min_new_tokens", 20.into())).await;
    assert!(ids(&got).len() >= 20 && !ids(&got)[..20].contains(&whole[9]));
    let got = asker.generate(&with(ask(&[1, 2], 0), "/sampling_params", json!({"ignore_eos": true}))).await;
    assert_eq!(ids(&got).len(), 128, "the default");
    let got = asker.generate(&ask(&[1, 2], 0)).await;
    assert_eq!((ids(&got), finish(&got)), (vec![], json!({"type": "length", "length": 0})));
}

#[tokio::test]
async fn logprobs_are_told_as_asked_for() {
    let asker = start(config(Dialect::V0_5_6)).await;
    let request = with(with(ask(&[1, 2, 3], 4), "/top_logprobs_num", 3.into()), "/logprob_start_len", 0.into());
    let got = asker.generate(&with(request, "/return_text_in_logprobs", true.into())).await.json();
    let meta = &got["meta_info"];
    let ids: Vec<u32> = serde_json::from_value(got["output_ids"].clone()).unwrap();
    let told = meta["output_token_logprobs"].as_array().unwrap();
    for ((entry, top), id) in told.iter().zip(meta["output_top_logprobs"].as_array().unwrap()).zip(ids) {
        assert!(entry[1] == id && entry[2] == format!(" w{id}") && entry[0].as_f64().unwrap() <= 0.0, "{entry}");
        assert!(top.as_array().unwrap().len() == 3 && top[0] == *entry, "{top}");
    }
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert!(input.len() == 3 && input[0][0].is_null() && input[1][0].is_f64());
    let got = asker.generate(&with(ask(&[1], 2), "/return_logprob", false.into())).await.json();
    assert!(!keys(&got["meta_info"]).iter().any(|key| key.contains("logprob")));
}

#[tokio::test]
async fn a_key_is_asked_for_but_not_for_health() {
    let asker = start(FakeServeConfig { api_key: Some("secret".into()), ..config(Dialect::V0_5_6) }).await;
    let got = asker.generate(&ask(&[1], 1)).await;
    assert_eq!((got.status, got.json()), (401, json!({"error": "Unauthorized"})));
    assert_eq!(asker.get("/get_model_info").await.status, 401);
    assert_eq!(asker.get("/health").await.status, 200);
    let sent = asker.http.get(format!("{}/get_model_info", asker.serve.url())).bearer_auth("secret").send().await;
    assert_eq!(sent.unwrap().status(), 200);
}
