//! Answers held to a form, from buyer to engine: random weights know nothing of forms, so what is right is so by the masks.

#![allow(clippy::print_stderr, reason = "figures")]

use std::sync::Arc;
use std::time::Duration;

use engy_miner::backend::candle::{CandleBackend, EngineOptions};
use engy_miner::backend::{
    Backend, BackendError, FinRows, GenerationEvent, GenerationRequest, SamplingParams, StopReason,
};
use engy_miner::chat::{ChatModel, Tokenizer};
use engy_miner::checkpoint::Checkpoint;
use engy_miner::guide::{Constraint, Thought};
use engy_miner::job::{Limits, Service};
use engy_miner::spec::ToolCallParser;
use serde_json::{Value, json};

use crate::site::{events, fixture, load, serve, tiny_spec};

/// Serves the llama fixture as a model that writes calls as Qwen's do; gives the address for buyers.
async fn site() -> String {
    engy_miner::tls::install();
    let (checkpoint, backend) = load(&fixture("models/tiny-llama"));
    let spec = tiny_spec();
    let service = Service {
        chat: ChatModel::open(&checkpoint).unwrap().with_parsers(None, Some(ToolCallParser::Qwen3Coder)),
        model: spec.name.clone(),
        model_root: checkpoint.model_root().unwrap(),
        end_ids: checkpoint.end_ids(),
        limits: Limits {
            context: spec.context,
            max_input_tokens: spec.max_input_tokens,
            max_output_tokens: spec.max_output_tokens,
            default_max_tokens: 600,
            max_request: Duration::from_secs_f64(spec.max_request_s),
        },
        greedy: false,
        topk: spec.toploc.k,
        preparing: Service::places(),
        backend: backend as Arc<dyn Backend>,
    };
    serve(service).await.2
}

async fn post(base: &str, extra: &Value) -> reqwest::Response {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 600});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    reqwest::Client::new().post(format!("{base}/v1/chat/completions")).json(&body).send().await.unwrap()
}

/// A whole answer's message and finish reason, of usage how many tokens.
async fn ask(base: &str, extra: &Value) -> (Value, String, u64) {
    let response = post(base, extra).await;
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    let completion: Value = response.json().await.unwrap();
    let choice = &completion["choices"][0];
    let tokens = completion["usage"]["completion_tokens"].as_u64().unwrap();
    (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().to_owned(), tokens)
}

/// The same answer streamed: content, arguments of the calls by index, finish reason.
async fn stream(base: &str, extra: &Value) -> (String, Vec<String>, String) {
    let mut extra = extra.clone();
    extra["stream"] = true.into();
    let (mut content, mut arguments, mut finish) = (String::new(), Vec::new(), String::new());
    for event in events(post(base, &extra).await).await {
        let choice = &event["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap() as usize;
            arguments.resize(arguments.len().max(at + 1), String::new());
            arguments[at].push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            finish = reason.to_owned();
        }
    }
    (content, arguments, finish)
}

fn schema() -> Value {
    json!({"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties": {
        "city": {"enum": ["Zürich", "東京"]}, "note": {"type": "string", "maxLength": 8},
        "days": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "required": ["wet"],
            "additionalProperties": false, "properties": {"wet": {"type": "boolean"}}}}}})
}

fn under_schema() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "trip", "strict": true, "schema": schema()}}})
}

fn check_trip(text: &str) {
    let trip: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(["Zürich", "東京"].contains(&trip["city"].as_str().unwrap()), "{text}");
    let days = trip["days"].as_array().unwrap();
    assert!((1..=2).contains(&days.len()) && days.iter().all(|day| day["wet"].is_boolean()), "{text}");
    assert!(trip.as_object().unwrap().keys().all(|key| ["city", "days", "note"].contains(&key.as_str())), "{text}");
}

/// Greedy, and drawn by a few seeds.
fn ways() -> Vec<Value> {
    let drawn = (0..4).map(|seed| json!({"temperature": 1.5, "seed": seed, "top_p": 0.99}));
    std::iter::once(json!({"temperature": 0})).chain(drawn).collect()
}

fn with(base: &Value, extra: &Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    all
}

#[tokio::test]
async fn content_is_json_under_its_schema() {
    let base = site().await;
    for way in ways() {
        let request = with(&under_schema(), &way);
        let ((message, finish, tokens), (content, calls, streamed_finish)) =
            tokio::join!(ask(&base, &request), stream(&base, &request));
        let text = message["content"].as_str().unwrap();
        if finish == "stop" {
            check_trip(text);
        } else {
            assert_eq!((finish.as_str(), tokens), ("length", 600));
        }
        assert_eq!((content.as_str(), calls.len(), streamed_finish), (text, 0, finish));
    }
}

#[tokio::test]
async fn content_is_an_object() {
    let base = site().await;
    let mut ended = 0;
    for seed in 0..8 {
        let request = json!({"response_format": {"type": "json_object"}, "temperature": 2, "seed": seed});
        let (message, finish, _) = ask(&base, &request).await;
        let text = message["content"].as_str().unwrap();
        assert!(text.starts_with('{'), "{text}");
        if finish == "stop" {
            match serde_json::from_str::<Value>(text) {
                Ok(value) => assert!(value.is_object(), "{text}"),
                // JSON, but more than an f64 holds.
                Err(error) => assert!(error.to_string().contains("number out of range"), "{error}: {text}"),
            }
            ended += 1;
        }
    }
    assert!(ended >= 2, "{ended} of 8 ended");
    // Cut short, it says so.
    let cut = json!({"response_format": {"type": "json_object"}, "max_tokens": 1});
    let (message, finish, tokens) = ask(&base, &cut).await;
    assert!(message["content"].as_str().unwrap().starts_with('{'), "{message}");
    assert_eq!((finish.as_str(), tokens), ("length", 1));
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "turn", "parameters": {"type": "object", "required": ["to"],
            "properties": {"to": {"enum": ["left", "right"]}, "far": {"type": "boolean"}}}}},
        {"type": "function", "function": {"name": "halt"}},
    ])
}

fn check_call(call: &Value) -> &str {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let arguments = arguments.as_object().unwrap();
    let name = call["function"]["name"].as_str().unwrap();
    match name {
        "turn" => {
            assert!(arguments["to"] == "left" || arguments["to"] == "right", "{arguments:?}");
            assert!(arguments.get("far").is_none_or(Value::is_boolean), "{arguments:?}");
        }
        "halt" => assert!(arguments.is_empty(), "{arguments:?}"),
        other => panic!("there is no tool {other}"),
    }
    name
}

#[tokio::test]
async fn calls_come_where_they_are_asked_for() {
    let base = site().await;
    let named = json!({"type": "function", "function": {"name": "turn"}});
    for (choice, parallel, single) in
        [("required".into(), true, false), ("required".into(), false, true), (named.clone(), true, true)]
    {
        for way in ways() {
            let request = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel});
            let request = with(&request, &way);
            let ((message, finish, _), (content, arguments, streamed_finish)) =
                tokio::join!(ask(&base, &request), stream(&base, &request));
            let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{finish}: {message}"));
            assert!(finish == "tool_calls" || (finish == "length" && !single), "{finish}");
            assert!(!calls.is_empty() && (!single || calls.len() == 1), "{message}");
            for call in calls {
                let name = check_call(call);
                assert!(choice == "required" || name == "turn", "{message}");
            }
            assert_eq!((message["content"].as_str(), content.as_str(), streamed_finish), (None, "", finish));
            let whole: Vec<_> = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
            assert_eq!(arguments, whole);
        }
    }
}

#[tokio::test]
async fn a_form_that_cannot_be_held_is_refused() {
    let base = site().await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let body = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let response = post(&base, &body).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("cannot be held") && message.contains("uniqueItems"), "{message}");
    // The next one is served.
    assert_eq!(ask(&base, &json!({"max_tokens": 3})).await.2, 3);
}

/// Ids, rows and end of a generation.
async fn generate(
    backend: &CandleBackend,
    request: GenerationRequest,
) -> Result<(Vec<u32>, FinRows, StopReason), BackendError> {
    let mut generation = backend.generate(request);
    let (mut all, mut rows) = (Vec::new(), FinRows::new(backend.info().hidden, vec![]).unwrap());
    loop {
        match generation.next().await.unwrap()? {
            GenerationEvent::Tokens { ids, fin, .. } => {
                all.extend(ids);
                assert!(rows.append(&fin));
            }
            GenerationEvent::Finished { reason, .. } => return Ok((all, rows, reason)),
            GenerationEvent::Started { .. } | GenerationEvent::FirstRowMissing => {}
        }
    }
}

fn under(schema: Value, prompt: Vec<u32>, sampling: SamplingParams) -> GenerationRequest {
    let constraint = Constraint { thought: Thought::None, json: Some(schema), calls: None };
    let request = GenerationRequest { sampling, stop_ids: vec![382], ..GenerationRequest::greedy(prompt, 400) };
    GenerationRequest { constraint: Some(constraint), ..request }
}

#[tokio::test]
async fn neighbours_change_nothing_and_rows_are_the_models_own() {
    let (_, backend) = load(&fixture("models/tiny-llama"));
    let hot = |seed| SamplingParams { temperature: 1.0, seed: Some(seed), ..SamplingParams::default() };
    let free: Vec<_> = (0..3)
        .map(|at: u32| GenerationRequest {
            sampling: if at == 0 { SamplingParams::default() } else { hot(at.into()) },
            ..GenerationRequest::greedy(vec![65 + at, 66, 67], 60)
        })
        .collect();
    let held: Vec<_> = (0..3).map(|at: u32| under(schema(), vec![70 + at, 71], hot(at.into()))).collect();
    let mut alone = Vec::new();
    for request in free.iter().chain(&held) {
        alone.push(generate(&backend, request.clone()).await.unwrap());
    }
    let together = free.iter().chain(&held).map(|request| generate(&backend, request.clone()));
    let together: Vec<_> = futures::future::join_all(together).await.into_iter().map(Result::unwrap).collect();
    for (at, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert!(together == alone, "request {at}");
    }
    // Rows are what a verifier recomputes, whichever id was let through.
    let (ids, rows, reason) = &alone[3];
    assert_eq!(*reason, StopReason::StopId(382));
    let mut tokens = vec![70, 71];
    tokens.extend(&ids[..ids.len() - 1]);
    assert!(backend.hidden_states(tokens, 1).await.unwrap() == *rows);
    check_trip(&String::from_utf8(text(&ids[..ids.len() - 1])).unwrap());
}

#[tokio::test]
async fn ranks_hold_answers_too() {
    let checkpoint = Checkpoint::open(&fixture("models/tiny-llama")).unwrap();
    let options = EngineOptions { max_total_tokens: Some(1024), ranks: 2, ..EngineOptions::default() };
    let its = checkpoint.clone();
    let backend = CandleBackend::open(&checkpoint, &options, &|_, _| {})
        .unwrap()
        .with_vocabulary(Box::new(move || Ok(Tokenizer::open(&its).unwrap().vocabulary(its.end_ids()))));
    let drawn = SamplingParams { temperature: 1.0, seed: Some(3), ..SamplingParams::default() };
    let (ids, rows, reason) = generate(&backend, under(schema(), vec![72, 73], drawn)).await.unwrap();
    assert_eq!((reason, rows.len()), (StopReason::StopId(382), ids.len()));
    check_trip(&String::from_utf8(text(&ids[..ids.len() - 1])).unwrap());
}

fn text(ids: &[u32]) -> Vec<u8> {
    let checkpoint = Checkpoint::open(&fixture("models/tiny-llama")).unwrap();
    let tokenizer = Tokenizer::open(&checkpoint).unwrap();
    ids.iter().flat_map(|id| tokenizer.bytes(*id).unwrap()).collect()
}

#[tokio::test]
async fn an_engine_without_a_vocabulary_says_so() {
    let checkpoint = Checkpoint::open(&fixture("models/tiny-llama")).unwrap();
    let options = EngineOptions { max_total_tokens: Some(256), ..Default::default() };
    let backend = CandleBackend::open(&checkpoint, &options, &|_, _| {}).unwrap();
    let error = generate(&backend, under(json!({}), vec![70], SamplingParams::default())).await.unwrap_err();
    assert!(matches!(&error, BackendError::Client(reason) if reason.contains("vocabulary")), "{error}");
}

/// What neighbours pay: `cargo test --release --test end_to_end -- --ignored --nocapture forms::neighbours_are_timed`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn neighbours_are_timed() {
    let Some(assets) = std::env::var_os("ENGY_TEST_ASSETS") else { return };
    let (_, backend) = load(&std::path::Path::new(&assets).join("smollm2-135m-instruct/model.gguf"));
    let free = |at: u32| GenerationRequest::greedy(vec![100 + at, 200, 300], 64);
    let schema = json!({"type": "object", "properties": {"story": {"type": "string", "minLength": 4000}}, "required": ["story"]});
    let constraint = Constraint { thought: Thought::None, json: Some(schema), calls: None };
    for held in [0, 1, 2, 4, 0, 1, 2, 4] {
        let constraint = Some(constraint.clone());
        let neighbours = (0..4).map(|at| {
            let request = GenerationRequest { max_tokens: 96, ..free(10 + at) };
            if at < held { GenerationRequest { constraint: constraint.clone(), ..request } } else { request }
        });
        let neighbours: Vec<_> = neighbours.map(|request| backend.generate(request)).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let began = std::time::Instant::now();
        let all = futures::future::join_all((0..4).map(|at| generate(&backend, free(at)))).await;
        let tokens: usize = all.into_iter().map(|one| one.unwrap().0.len()).sum();
        eprintln!(
            "{held} of 4 neighbours held: {:.1} tok/s for 4 others",
            tokens as f64 / began.elapsed().as_secs_f64()
        );
        drop(neighbours);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
