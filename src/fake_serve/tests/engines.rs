//! What a serve says is what its engine says.

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::backend::candle::{CandleBackend, EngineOptions};
use crate::backend::{Backend, GenerationEvent, GenerationRequest, SamplingParams};
use crate::chat::Tokenizer;
use crate::checkpoint::Checkpoint;

/// The llama fixture: the backend, a serve on it, and its way from ids to text.
async fn tiny(dialect: Dialect) -> (Arc<dyn Backend>, Asker, Tokenizer) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama");
    let checkpoint = Checkpoint::open(Path::new(path)).unwrap();
    let options = EngineOptions { max_total_tokens: Some(4096), ..EngineOptions::default() };
    let backend: Arc<dyn Backend> = Arc::new(CandleBackend::open(&checkpoint, &options, &|_, _| {}).unwrap());
    let [tokenizer, decoder] = [(), ()].map(|()| Tokenizer::open(&checkpoint).unwrap());
    let engine = Engine::backend(Arc::clone(&backend), Arc::new(move |ids| decoder.decode(ids)));
    let asker = start(FakeServeConfig::new(dialect, engine)).await;
    (backend, asker, tokenizer)
}

/// The backend's own answer.
async fn directly(
    backend: &dyn Backend,
    prompt: &[u32],
    tokens: usize,
    sampling: SamplingParams,
) -> (Vec<u32>, Vec<Vec<bf16>>) {
    let prompt = prompt.to_vec();
    let request = GenerationRequest { sampling, ..GenerationRequest::greedy(prompt, tokens) };
    let (mut generation, mut all_ids, mut rows) = (backend.generate(request), Vec::new(), Vec::new());
    while let Some(event) = generation.next().await {
        if let GenerationEvent::Tokens { ids, fin, .. } = event.unwrap() {
            all_ids.extend(ids);
            rows.extend(fin.iter().map(<[bf16]>::to_vec));
        }
    }
    (all_ids, rows)
}

/// The rows of `hidden_states`, the prompt's and the answer's, read plainly.
fn states(reply: &Value) -> Vec<Vec<bf16>> {
    let row = |row: &Value| -> Vec<bf16> {
        row.as_array().unwrap().iter().map(|value| bf16::from_f64(value.as_f64().unwrap())).collect()
    };
    let elements = reply["meta_info"]["hidden_states"].as_array().unwrap();
    let matrix = elements[0].as_array().unwrap();
    matrix.iter().chain(&elements[1..]).map(row).collect()
}

#[tokio::test]
async fn candle_behind_a_serve_says_what_candle_says() {
    let (backend, asker, tokenizer) = tiny(Dialect::V0_5_6).await;
    let prompt = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").unwrap();
    let sampled =
        SamplingParams { temperature: 0.9, top_p: 0.95, top_k: Some(40), seed: Some(7), ..SamplingParams::default() };
    let parameters = json!({
        "temperature": 0.9, "top_p": 0.95, "top_k": 40, "sampling_seed": 7, "max_new_tokens": 12, "ignore_eos": true});
    let greedy = json!({"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": true});
    for (sampling, parameters) in [(SamplingParams::default(), greedy), (sampled, parameters)] {
        let (ids, rows) = directly(&*backend, &prompt, 12, sampling).await;
        for stream in [false, true] {
            let request = with(ask(&prompt, 12), "/sampling_params", parameters.clone());
            let got = asker.generate(&with(request, "/stream", stream.into())).await;
            let reply = if stream { got.events().0.pop().unwrap() } else { got.json() };
            assert_eq!(reply["output_ids"], json!(ids));
            assert_eq!(reply["text"], tokenizer.decode(&ids));
            let told = states(&reply);
            assert_eq!(told.len(), prompt.len() - 1 + 12);
            assert!(told[prompt.len() - 1..] == rows);
            let of_prompt = backend.hidden_states(prompt.clone(), 0).await.unwrap();
            assert!(told[..prompt.len()].iter().zip(&of_prompt).all(|(told, row)| told == row));
        }
    }
}

#[tokio::test]
async fn half_a_character_is_not_told() {
    let (_, asker, _) = tiny(Dialect::V0_5_6).await;
    let (events, done) = asker.generate(&ask_stream(&[1, 2, 3], 40)).await.events();
    assert!(done);
    let held = events[..events.len() - 1].iter().map(|event| event["text"].as_str().unwrap());
    assert!(held.clone().all(|text| !text.ends_with('\u{FFFD}')));
}

#[tokio::test]
async fn what_a_backend_refuses_is_refused() {
    let (_, asker, _) = tiny(Dialect::V0_5_6).await;
    let got = asker.generate(&ask(&[1, 4_000_000_000], 2)).await;
    assert_eq!(got.status, 400, "{}", got.text());
    assert!(got.json()["error"]["message"].is_string());
}

#[tokio::test]
async fn the_rest_of_an_answer_is_regenerated_from_its_beginning() {
    let asker = start(config(Dialect::V0_5_6)).await;
    let prompt = [3, 1, 4];
    let (all, whole) = asker.generate(&ask(&prompt, 9)).await.reply().unwrap();
    assert!(all == rows(&prompt, 9));
    let ids = whole.output_ids.unwrap();
    let begun = [&prompt[..], &ids[..4]].concat();
    let (rest, reply) = asker.generate(&ask(&begun, 5)).await.reply().unwrap();
    assert_eq!(reply.output_ids.unwrap(), ids[4..]);
    assert!(rest == all[4..]);
}
