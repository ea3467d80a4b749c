//! Requests through gateway, legs, engine and back.

use engy_miner::backend::Backend;
use engy_miner::verify::verify;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::site::{LEGS, Site, events, question, tiny_spec};

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_answer_is_whole_and_its_proof_passes() {
    let site = Site::start().await;
    let (completion, record) = site.ask(&question("hello", 40)).await;
    let choice = &completion["choices"][0];
    assert_eq!(
        (choice["finish_reason"].as_str(), completion["object"].as_str()),
        (Some("length"), Some("chat.completion"))
    );
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    let claim = &record.commitment;
    assert_eq!(claim.output_token_ids.len(), 40);
    assert_eq!(claim.toploc.proofs.len(), 2, "40 tokens are a batch of 32 and one of 8");
    let prompt = claim.toploc.prompt_ids.len() as u64;
    assert_eq!(
        completion["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 40, "total_tokens": prompt + 40})
    );
    let report = verify(site.backend.as_ref(), &site.model_root, claim, tiny_spec().toploc).await.unwrap();
    assert!(report.verdict.is_pass() && report.same_root, "{report:?}");
    assert!(report.verification.batches.iter().all(|batch| batch.exp_mismatches == 0), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_answer_adds_up_to_the_plain_one() {
    let site = Site::start().await;
    let mut request = question("tell me", 50);
    let (plain, _) = site.ask(&request).await;
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let events = events(site.post(&request).await).await;
    let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, plain["choices"][0]["message"]["content"].as_str().unwrap());
    assert!(
        events.iter().filter(|e| e["choices"][0]["delta"]["content"].is_string()).count() > 10,
        "it came in pieces"
    );
    // The same prompt again: its whole block was kept.
    let mut usage = plain["usage"].clone();
    usage["prompt_tokens_details"] = json!({"cached_tokens": 16});
    assert_eq!(events.last().unwrap()["usage"], usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_hangs_up_frees_the_slot_and_the_cache_and_nothing_is_sent_after() {
    let site = Site::start().await;
    let mut request = question("a long story", 1000);
    request["stream"] = true.into();
    let mut body = site.post(&request).await.bytes_stream();
    body.next().await.unwrap().unwrap();
    site.worker.wait_for_inflight(1).await;
    drop(body);
    site.worker.wait_for_inflight(0).await;
    site.gateway.wait_until(|status| status.inflight() == 0).await;
    // Frames of a leg come in order, and requests go to the legs in turn: behind an answer on each leg, all has come that
    // was on its way when the buyer hung up. From then on there is silence about that request.
    let both_legs = async || {
        for _ in 0..LEGS {
            let (completion, _) = site.ask(&question("hello", 8)).await;
            assert_eq!(completion["usage"]["completion_tokens"], 8);
        }
        site.gateway.status()
    };
    let before = both_legs().await;
    let after = both_legs().await;
    assert_eq!((after.open_legs(), after.bad_frames), (LEGS, 0));
    assert_eq!(after.unknown_corr_ids, before.unknown_corr_ids);
    while site.backend.load().running > 0 {
        tokio::task::yield_now().await;
    }
    let load = site.backend.load();
    assert_eq!((load.running, load.waiting), (0, 0), "{load:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_get_the_answers_that_they_get_alone() {
    let site = Site::start().await;
    let requests: Vec<Value> = (0..5).map(|n| question(&format!("question number {n}"), 20 + n)).collect();
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(site.ask(request).await.1.commitment);
    }
    let together = futures::future::join_all(requests.iter().map(|request| site.ask(request))).await;
    for (alone, (_, together)) in alone.iter().zip(&together) {
        assert_eq!(alone.output_token_ids, together.commitment.output_token_ids);
        let report = verify(site.backend.as_ref(), &site.model_root, &together.commitment, tiny_spec().toploc).await;
        let report = report.unwrap();
        assert!(report.verdict.is_pass(), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_repeats_an_answer_and_a_stop_string_ends_one() {
    let site = Site::start().await;
    let mut request = question("be creative", 30);
    request["temperature"] = json!(1.0);
    request["seed"] = json!(11);
    let (first, proof) = site.ask(&request).await;
    assert_eq!(first["choices"], site.ask(&request).await.0["choices"]);
    request["seed"] = json!(12);
    assert_ne!(first["choices"], site.ask(&request).await.0["choices"]);
    let report = verify(site.backend.as_ref(), &site.model_root, &proof.commitment, tiny_spec().toploc).await.unwrap();
    assert!(report.verdict.is_pass(), "sampled answers are proven alike: {report:?}");

    let (plain, _) = site.ask(&question("hello", 30)).await;
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let stop: String = text.chars().skip(4).take(2).collect();
    let mut request = question("hello", 30);
    request["stop"] = json!([stop]);
    let (stopped, proof) = site.ask(&request).await;
    let cut = &text[..text.find(&stop).unwrap()];
    assert_eq!(stopped["choices"][0]["message"]["content"], cut);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let report = verify(site.backend.as_ref(), &site.model_root, &proof.commitment, tiny_spec().toploc).await.unwrap();
    assert!(report.verdict.is_pass(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_is_the_buyers_fault_and_the_leg_stays_up() {
    let site = Site::start().await;
    for (body, says) in [
        // Field case FC-K03.
        (json!({"model": "tiny", "messages": [], "max_tokens": 8}), "messages is empty"),
        (json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": -1}), "temperature"),
        (question(&"long ".repeat(2000), 8), "takes at most 1024"),
        (
            json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stop_token_ids": "all"}),
            "stop_token_ids",
        ),
    ] {
        let response = site.post(&body).await;
        assert_eq!(response.status(), 400);
        let error: Value = response.json().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }
    assert_eq!(site.gateway.status().open_legs(), LEGS);
    assert_eq!(site.backend.load().kv_used, 0);
    site.ask(&question("still there?", 4)).await;
}
