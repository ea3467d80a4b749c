//! The candle backend through its door, against goldens of the reference implementation.

use engy_miner::backend::{Backend, BackendError, FinRows, GenerationEvent, GenerationRequest, StopReason};
use half::bf16;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::site::{fixture, load};

/// A bf16 keeps 8 bits of a value; the rows are of order 1 to 8.
fn close(row: &[bf16], want: &[f32]) -> bool {
    row.iter().zip(want).all(|(got, want)| (got.to_f32() - want).abs() <= want.abs() / 256.0 + 1e-4)
}

async fn generate(
    backend: &dyn Backend,
    request: GenerationRequest,
) -> Result<(Vec<u32>, FinRows, StopReason), BackendError> {
    let mut generation = backend.generate(request);
    let mut all_ids = Vec::new();
    let mut all_rows = FinRows::new(backend.info().hidden, vec![]).unwrap();
    while let Some(event) = generation.next().await {
        match event? {
            GenerationEvent::Started { cached_tokens } => assert_eq!(cached_tokens, 0),
            GenerationEvent::Tokens { ids, fin, logprobs } => {
                assert!(logprobs.is_empty(), "not asked for");
                all_ids.extend(ids);
                assert!(all_rows.append(&fin));
            }
            GenerationEvent::FirstRowMissing => panic!("the engine loses no rows"),
            GenerationEvent::Finished { reason, .. } => return Ok((all_ids, all_rows, reason)),
        }
    }
    panic!("no end")
}

#[tokio::test]
async fn ids_and_rows_of_all_fixtures() {
    for model in ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe"] {
        let folder = fixture("models").join(model);
        let (_, backend) = load(&folder);
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("golden/f32.json")).unwrap()).unwrap();
        let bytes = std::fs::read(folder.join("golden/f32.safetensors")).unwrap();
        let goldens = SafeTensors::deserialize(&bytes).unwrap();
        let rows = |name: String| -> Vec<f32> {
            goldens.tensor(&name).unwrap().data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        for (at, prompt) in json["prompts"].as_array().unwrap().iter().enumerate() {
            let (prompt_ids, chosen) = (ids(&prompt["prompt_ids"]), ids(&prompt["chosen_ids"]));
            let (got, fin, reason) =
                generate(backend.as_ref(), GenerationRequest::greedy(prompt_ids.clone(), chosen.len())).await.unwrap();
            assert_eq!((&got, reason), (&chosen, StopReason::Length), "{model} p{at}");
            let want = rows(format!("p{at}.step_fin"));
            assert_eq!(fin.len(), chosen.len());
            assert!(
                fin.iter().zip(want.chunks_exact(fin.hidden())).all(|(row, want)| close(row, want)),
                "{model} p{at}"
            );

            // The verifier's recompute of the same rows.
            let mut sequence = prompt_ids.clone();
            sequence.extend(&chosen[..chosen.len() - 1]);
            let again = backend.hidden_states(sequence, prompt_ids.len() - 1).await.unwrap();
            assert_eq!(again.len(), chosen.len());
            assert!(
                again.iter().zip(want.chunks_exact(fin.hidden())).all(|(row, want)| close(row, want)),
                "{model} p{at}"
            );
        }
    }
}

#[tokio::test]
async fn a_stop_id_is_the_last_token_with_its_row() {
    let (_, backend) = load(&fixture("models/tiny-qwen3"));
    let (ids, ..) = generate(backend.as_ref(), GenerationRequest::greedy(vec![84], 10)).await.unwrap();
    let mut stopping = GenerationRequest::greedy(vec![84], 10);
    stopping.stop_ids = vec![ids[4]];
    let (stopped, fin, reason) = generate(backend.as_ref(), stopping).await.unwrap();
    assert_eq!((stopped.as_slice(), fin.len(), reason), (&ids[..5], 5, StopReason::StopId(ids[4])));
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_the_callers_fault() {
    let (_, backend) = load(&fixture("models/tiny-llama"));
    for (bad, says) in [
        (GenerationRequest::greedy(vec![], 4), "no tokens"),
        (GenerationRequest::greedy(vec![1], 0), "0 tokens"),
        (GenerationRequest::greedy(vec![1, 384], 4), "token id 384 is outside the vocabulary of 384"),
        (GenerationRequest::greedy(vec![1; 5000], 4), "5000 tokens leave no room in a context of 4096"),
    ] {
        match generate(backend.as_ref(), bad).await {
            Err(BackendError::Client(message)) => assert!(message.contains(says), "{message}"),
            other => panic!("{says}: {other:?}"),
        }
    }
    let error = backend.hidden_states(vec![1, 2], 2).await.unwrap_err();
    assert!(matches!(error, BackendError::Client(_)));
    assert_eq!(
        generate(backend.as_ref(), GenerationRequest::greedy(vec![1], 2)).await.unwrap().0.len(),
        2,
        "and it still serves"
    );
}
