//! Log-probabilities: their values against the reference implementation, and their way to a buyer.

use engy_miner::backend::{Backend, GenerationEvent, GenerationRequest, SamplingParams, TokenLogprobs};
use engy_miner::chat::ChatModel;
use engy_miner::checkpoint::Checkpoint;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::site::{Site, events, fixture, load, question};

/// Engines in float32 agree to about 3e-5 on fin; a logit sums 64 products of it.
const TOLERANCE: f64 = 1e-3;

fn floats(tensors: &SafeTensors, name: &str) -> Vec<f64> {
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect()
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|x| x.exp()).sum();
    logits.iter().map(|x| x - total.ln()).collect()
}

async fn generate(backend: &dyn Backend, request: GenerationRequest) -> (Vec<u32>, Vec<TokenLogprobs>) {
    let mut generation = backend.generate(request);
    let (mut all_ids, mut all_logprobs) = (Vec::new(), Vec::new());
    while let Some(event) = generation.next().await {
        if let GenerationEvent::Tokens { ids, logprobs, .. } = event.unwrap() {
            all_ids.extend(ids);
            all_logprobs.extend(logprobs);
        }
    }
    (all_ids, all_logprobs)
}

/// Asserts that an id's log-probability and the best 20 are what `want`, `[vocab]`, says.
fn assert_agree(id: u32, got: &TokenLogprobs, want: &[f64], what: &str) {
    let close = |got: f32, want: f64| (f64::from(got) - want).abs() < TOLERANCE;
    assert!(close(got.logprob, want[id as usize]), "{what}: {got:?} for {}", want[id as usize]);
    let mut best = want.to_vec();
    best.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(got.top.len(), 20);
    for ((top, logprob), best) in got.top.iter().zip(best) {
        // Neighbours closer than the tolerance may stand the other way round.
        assert!(close(*logprob, want[*top as usize]) && close(*logprob, best), "{what}: {top} in {got:?}");
    }
    assert!(got.top.is_sorted_by(|a, b| a.1 >= b.1), "{what}: {got:?}");
}

#[tokio::test]
async fn values_are_the_log_softmax_of_the_reference_implementations_logits() {
    let folder = fixture("models/tiny-llama");
    let (_, backend) = load(&folder);
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("golden/f32.json")).unwrap()).unwrap();
    let (bytes, weights) =
        (std::fs::read(folder.join("golden/f32.safetensors")), std::fs::read(folder.join("model.safetensors")));
    let (bytes, weights) = (bytes.unwrap(), weights.unwrap());
    let goldens = SafeTensors::deserialize(&bytes).unwrap();
    let head = floats(&SafeTensors::deserialize(&weights).unwrap(), "model.embed_tokens.weight");
    let hidden = backend.info().hidden;
    for (at, prompt) in json["prompts"].as_array().unwrap().iter().enumerate() {
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let chosen = ids(&prompt["chosen_ids"]);
        let greedy = GenerationRequest::greedy(ids(&prompt["prompt_ids"]), chosen.len());
        let request = GenerationRequest { logprobs: Some(20), ..greedy };
        let (got, logprobs) = generate(backend.as_ref(), request.clone()).await;
        assert_eq!((&got, logprobs.len()), (&chosen, chosen.len()));
        let first = log_softmax(&floats(&goldens, &format!("p{at}.last_logits")));
        assert_agree(chosen[0], &logprobs[0], &first, &format!("p{at}, from its logits"));
        let fin = floats(&goldens, &format!("p{at}.step_fin"));
        for (step, (row, got)) in fin.chunks_exact(hidden).zip(&logprobs).enumerate() {
            let logits: Vec<f64> =
                head.chunks_exact(hidden).map(|word| word.iter().zip(row).map(|(w, x)| w * x).sum()).collect();
            assert_agree(chosen[step], got, &log_softmax(&logits), &format!("p{at}, token {step}"));
        }
        // However an id is chosen, its log-probability is the model's own.
        let hot = SamplingParams {
            temperature: 1.7,
            top_k: Some(50),
            repetition_penalty: 1.5,
            presence_penalty: 1.0,
            seed: Some(at as u64),
            ..SamplingParams::default()
        };
        let sampled = GenerationRequest { sampling: hot, max_tokens: 1, logprobs: Some(20), ..request };
        let (got, logprobs) = generate(backend.as_ref(), sampled).await;
        assert_agree(got[0], &logprobs[0], &first, &format!("p{at}, sampled"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_gets_an_entry_a_token_plain_and_streamed_alone_and_in_company() {
    let site = Site::start().await;
    let chat = ChatModel::open(&Checkpoint::open(&fixture("models/tiny-llama")).unwrap()).unwrap();
    let request = |n: usize| {
        let mut request = question(&format!("tell me of {n}"), 50);
        request["logprobs"] = true.into();
        request["top_logprobs"] = n.into();
        request
    };
    let mut wholes = Vec::new();
    for n in 0..5 {
        let (plain, proof) = site.ask(&request(n)).await;
        let choice = &plain["choices"][0];
        assert_eq!(choice["logprobs"]["refusal"], Value::Null);
        let entries = choice["logprobs"]["content"].as_array().unwrap();
        // The id that ends the answer has none; an answer of full length has no such id.
        let mut ids = proof.commitment.output_token_ids.as_slice();
        if choice["finish_reason"] == "stop" {
            ids = &ids[..ids.len() - 1];
        }
        assert_eq!(entries.len(), ids.len());
        let mut text = Vec::new();
        for (entry, id) in entries.iter().zip(ids) {
            let bytes = chat.tokenizer().bytes(*id);
            assert_eq!(entry["bytes"], json!(bytes));
            let bytes = bytes.unwrap_or_default();
            assert_eq!(entry["token"], String::from_utf8_lossy(&bytes).as_ref());
            let top = entry["top_logprobs"].as_array().unwrap();
            assert_eq!(top.len(), n);
            // Greedy: the chosen token is the best.
            assert!(top.first().is_none_or(|best| ["token", "logprob", "bytes"].iter().all(|k| best[k] == entry[k])));
            assert!(entry["logprob"].as_f64().unwrap() < 0.0, "{entry}");
            if !chat.tokenizer().is_silent(*id) {
                text.extend(bytes);
            }
        }
        assert_eq!(choice["message"]["content"], String::from_utf8_lossy(&text).as_ref());
        wholes.push(choice["logprobs"].clone());
    }
    let streamed = futures::future::join_all((0..5).map(|n| {
        let mut request = request(n);
        request["stream"] = true.into();
        let site = &site;
        async move { events(site.post(&request).await).await }
    }));
    let mut bringing = 0;
    for (events, whole) in streamed.await.iter().zip(&wholes) {
        let entries: Vec<&Value> =
            events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
        assert_eq!(entries, whole["content"].as_array().unwrap().iter().collect::<Vec<_>>());
        bringing += events.iter().filter(|e| !e["choices"][0]["logprobs"].is_null()).count();
    }
    assert!(bringing > 30, "entries come with their pieces, not at the end: {bringing}");
    let together = futures::future::join_all((0..5).map(|n| {
        let (site, request) = (&site, request(n));
        async move { site.ask(&request).await.0 }
    }));
    for (plain, whole) in together.await.iter().zip(&wholes) {
        assert_eq!(plain["choices"][0]["logprobs"], *whole);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unasked_there_are_none_and_wrong_wishes_are_the_buyers_fault() {
    let site = Site::start().await;
    let mut request = question("hello", 8);
    assert_eq!(site.ask(&request).await.0["choices"][0].get("logprobs"), None);
    request["logprobs"] = false.into();
    request["stream"] = true.into();
    let events = events(site.post(&request).await).await;
    assert!(events.iter().all(|event| event["choices"][0]["logprobs"].is_null()));
    for (logprobs, top, says) in [
        (json!(true), json!(21), "top_logprobs must be a whole number from 0 to 20, not 21"),
        (json!(true), json!(-1), "top_logprobs must be a whole number from 0 to 20, not -1"),
        (json!(true), json!("x"), "top_logprobs must be a whole number from 0 to 20, not \"x\""),
        (Value::Null, json!(3), "top_logprobs needs logprobs to be true"),
        (json!(3), Value::Null, "logprobs must be true or false, not 3"),
    ] {
        (request["logprobs"], request["top_logprobs"]) = (logprobs, top);
        let response = site.post(&request).await;
        assert_eq!(response.status(), 400);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["message"], says);
    }
}
