//! Many requests at once: each must get what it gets alone, to the bit.

use std::collections::HashMap;
use std::sync::Arc;

use engy_miner::backend::candle::{CandleBackend, EngineOptions, KvDtype};
use engy_miner::backend::{Backend, FinRows, GenerationEvent, GenerationRequest, SamplingParams, TokenLogprobs};
use engy_miner::checkpoint::Checkpoint;
use engy_miner::proof::{Policy, ProofParams, build_proofs, verify_proofs};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::site::fixture;

const MODELS: [&str; 5] =
    ["tiny-llama", "tiny-qwen3", "tiny-qwen3_moe", "tiny-qwen3_5_moe-f32", "tiny-qwen3_5_moe-fp8"];
const PARAMS: ProofParams = ProofParams { topk: 16, batch: 32 };

fn open(model: &str, options: &EngineOptions) -> Arc<CandleBackend> {
    let checkpoint = Checkpoint::open(&fixture("models").join(model)).unwrap();
    Arc::new(CandleBackend::open(&checkpoint, options, &|_, _| {}).unwrap())
}

/// One request after the other, nothing kept.
fn alone(kv_dtype: KvDtype) -> EngineOptions {
    EngineOptions {
        max_running: 1,
        max_total_tokens: Some(1024),
        prefix_tokens: Some(0),
        kv_dtype,
        ..EngineOptions::default()
    }
}

/// Ids, rows, log-probabilities and cached tokens of a generation; stops reading after `read` tokens.
async fn generate(
    backend: &dyn Backend,
    request: GenerationRequest,
    read: usize,
) -> (Vec<u32>, FinRows, Vec<TokenLogprobs>, usize) {
    let wanted = request.logprobs.is_some();
    let mut generation = backend.generate(request);
    let (mut all_ids, mut all_logprobs, mut cached) = (Vec::new(), Vec::new(), 0);
    let mut rows = FinRows::new(backend.info().hidden, vec![]).unwrap();
    while all_ids.len() < read {
        match generation.next().await.unwrap().unwrap() {
            GenerationEvent::Started { cached_tokens } => cached = cached_tokens,
            GenerationEvent::Tokens { ids, fin, logprobs } => {
                assert_eq!(logprobs.len(), if wanted { ids.len() } else { 0 });
                all_ids.extend(ids);
                all_logprobs.extend(logprobs);
                assert!(rows.append(&fin));
            }
            GenerationEvent::Finished { .. } => break,
            GenerationEvent::FirstRowMissing => panic!("the engine loses no rows"),
        }
    }
    (all_ids, rows, all_logprobs, cached)
}

/// Forty requests of mixed lengths, some forks of others, some sampled, some that hang up half-way.
fn requests(seed: u64) -> Vec<(GenerationRequest, usize)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    (0..40)
        .map(|n| {
            let mut prompt = match prompts.get(rng.random_range(0..prompts.len().max(1))) {
                Some(other) if rng.random_bool(0.5) => other[..rng.random_range(1..=other.len())].to_vec(),
                _ => Vec::new(),
            };
            prompt.extend((0..rng.random_range(1..60)).map(|_| rng.random_range(0..380_u32)));
            prompt.truncate(120);
            prompts.push(prompt.clone());
            let max_tokens = rng.random_range(1..70);
            let sampled = SamplingParams { temperature: 0.8, top_p: 0.95, seed: Some(n), ..SamplingParams::default() };
            let sampling = if rng.random_bool(0.3) { sampled } else { SamplingParams::default() };
            let read = if rng.random_bool(0.15) { rng.random_range(1..=max_tokens) } else { usize::MAX };
            let logprobs = (n % 3 == 0).then_some(n as usize % 7);
            let fin = n % 5 != 4;
            (GenerationRequest { sampling, logprobs, fin, ..GenerationRequest::greedy(prompt, max_tokens) }, read)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_requests_in_a_cache_too_small_for_them_get_what_they_get_alone() {
    let settings =
        [(1, KvDtype::F32), (2, KvDtype::Bf16), (3, KvDtype::Fp8E4m3), (4, KvDtype::F32), (5, KvDtype::Fp8E4m3)];
    for (model, (seed, kv_dtype)) in MODELS.iter().zip(settings) {
        crowd_together(model, seed, kv_dtype, 1).await;
    }
}

/// The same over several ranks, which add in an order of their own, but always the same one.
#[tokio::test(flavor = "multi_thread")]
async fn forty_requests_over_several_ranks_get_what_they_get_alone() {
    for (model, seed, ranks) in [("tiny-llama", 6, 4), ("tiny-qwen3_5_moe-f32", 7, 2), ("tiny-qwen3_moe", 8, 4)] {
        crowd_together(model, seed, KvDtype::F32, ranks).await;
    }
}

async fn crowd_together(model: &str, seed: u64, kv_dtype: KvDtype, ranks: usize) {
    let alone = open(model, &EngineOptions { ranks, ..alone(kv_dtype) });
    // Room for two of the longest: most steps preempt somebody or evict a prefix.
    let crowded = EngineOptions {
        max_running: 12,
        prefill_chunk: 23,
        max_total_tokens: Some(400),
        // Where the model has states: a few snapshots, so that most are soon given up.
        state_cache_bytes: 300_000,
        kv_dtype,
        ranks,
        ..EngineOptions::default()
    };
    let crowd = open(model, &crowded);
    let requests = requests(seed);
    let together = futures::future::join_all(requests.iter().map(|(request, read)| {
        let crowd = Arc::clone(&crowd);
        async move { generate(crowd.as_ref(), request.clone(), *read).await }
    }))
    .await;
    let mut found = 0;
    for ((request, _), (ids, rows, logprobs, cached)) in requests.iter().zip(&together) {
        let proven = GenerationRequest { fin: true, ..request.clone() };
        let (want, want_rows, want_logprobs, _) = generate(alone.as_ref(), proven, usize::MAX).await;
        assert_eq!(ids[..], want[..ids.len()], "{model}: ids of {request:?}");
        assert_eq!(logprobs[..], want_logprobs[..logprobs.len()], "{model}: log-probabilities of {request:?}");
        found += cached;
        if !request.fin {
            assert!(rows.is_empty(), "{model}: rows that nobody wants, of {request:?}");
            continue;
        }
        let same = rows.iter().zip(&want_rows).all(|(got, want)| got == want);
        assert!(same, "{model}: rows of {request:?}");
        let flat = rows.iter().flatten().copied().collect::<Vec<_>>();
        let proofs = build_proofs(&flat, rows.hidden(), PARAMS, None).unwrap();
        let mut sequence = request.prompt.clone();
        sequence.extend(&ids[..ids.len() - 1]);
        let again = crowd.hidden_states(sequence, request.prompt.len() - 1).await.unwrap();
        let again = again.iter().flatten().copied().collect::<Vec<_>>();
        let verification = verify_proofs(proofs, &again, rows.hidden(), PARAMS, None).unwrap();
        assert!(verification.batches.iter().all(|batch| batch.exp_mismatches == 0), "{model}: {verification:?}");
        assert!(Policy::default().judge(&verification).is_pass());
    }
    assert!(found > 0, "{model}: forks found nothing in the cache");
    // Counters are published after the step that answered.
    while crowd.load().running + crowd.load().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(crowd.load().kv_used, 0, "{model}: blocks are lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_reads_only_what_is_new_and_says_how_much_was_known() {
    let over_ranks = [("tiny-llama", 4), ("tiny-qwen3_5_moe-f32", 2)];
    for (model, ranks) in MODELS.into_iter().map(|model| (model, 1)).chain(over_ranks) {
        let cached = open(model, &EngineOptions { max_total_tokens: Some(2048), ranks, ..EngineOptions::default() });
        let plain = open(model, &EngineOptions { ranks, ..alone(KvDtype::F32) });
        let mut conversations = vec![vec![5_u32; 40]];
        let mut known: HashMap<Vec<u32>, ()> = HashMap::new();
        for turn in 0..4_u32 {
            let mut next = Vec::new();
            for conversation in &conversations {
                let request = GenerationRequest::greedy(conversation.clone(), 20);
                let (ids, rows, _, hit) = generate(cached.as_ref(), request.clone(), usize::MAX).await;
                let (want, want_rows, _, none) = generate(plain.as_ref(), request.clone(), usize::MAX).await;
                assert_eq!((&ids, &rows, none), (&want, &want_rows, 0), "{model}");
                // Every whole block that some former turn has computed, short of the last token.
                let blocks = (0..conversation.len())
                    .step_by(16)
                    .take_while(|at| known.contains_key(&conversation[..at + 16.min(conversation.len() - at)]));
                let expected = (blocks.count() * 16).min((conversation.len() - 1) / 16 * 16);
                assert_eq!(hit, expected, "{model}, turn {turn}");
                let mut whole = conversation.clone();
                whole.extend(&ids);
                // The last token is chosen and never read.
                for end in (16..whole.len()).step_by(16) {
                    known.insert(whole[..end].to_vec(), ());
                }
                for fork in 0..2 {
                    let mut prompt = whole.clone();
                    prompt.extend([turn * 2 + fork + 100; 9]);
                    next.push(prompt);
                }
            }
            conversations = next;
        }
    }
}

/// What this process holds now, bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Two thousand requests through a crowded engine, some cancelled: nothing is lost and memory stays flat.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_day_ends_with_every_block_back_and_memory_flat() {
    let options =
        EngineOptions { max_running: 12, prefill_chunk: 48, max_total_tokens: Some(600), ..Default::default() };
    let engine = open("tiny-llama", &options);
    let day: Vec<_> = (0..50).flat_map(requests).collect();
    assert_eq!(day.len(), 2000);
    let mut after_the_morning = 0;
    for (hour, requests) in day.chunks(100).enumerate() {
        let answers = futures::future::join_all(requests.iter().map(|(request, read)| {
            let engine = Arc::clone(&engine);
            let request = GenerationRequest { max_tokens: request.max_tokens.min(12), ..request.clone() };
            async move { generate(engine.as_ref(), request, *read).await.0.len() }
        }));
        assert!(answers.await.into_iter().all(|tokens| tokens > 0));
        if hour == 4 {
            after_the_morning = resident_bytes();
        }
    }
    while engine.load().running + engine.load().waiting > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(engine.load().kv_used, 0);
    // Other tests of this program run beside this one and hold a few megabytes each.
    let grown = resident_bytes().saturating_sub(after_the_morning);
    assert!(grown < 64 << 20, "grown by {grown} bytes over 1,500 requests");
}
