//! Requests that go well.

use half::bf16;
use serde_json::{Value, json};

use super::scripted_backend::{END, HIDDEN, Run, ScriptedBackend};
use super::scripted_gateway::chat;
use super::site::{Setup, Site, TOPK};
use crate::backend::{SamplingParams, StopReason};
use crate::proof::{DEFAULT_BATCH, ProofParams, build_proofs};

/// Asserts that a response commits to these ids, with the proofs of these rows, for the prompt that the backend saw.
fn assert_committed(response: &Value, prompt: &[u32], (ids, rows): (Vec<u32>, Vec<bf16>)) {
    let params = ProofParams { topk: TOPK, batch: DEFAULT_BATCH };
    let proofs = build_proofs(&rows, HIDDEN, params, None).unwrap();
    assert_eq!(proofs.len(), ids.len().div_ceil(32));
    assert_eq!(rows.len(), ids.len() * HIDDEN);
    let root = Setup::default().service(ScriptedBackend::new().0).model_root;
    assert_eq!(
        response["commitment"],
        json!({"model_root": root, "output_token_ids": ids, "toploc": {
            "proofs": proofs.iter().map(|proof| proof.to_base64()).collect::<Vec<_>>(), "topk": TOPK,
            "decode_batching_size": 32, "skip_prefill": true, "n_tokens": ids.len(), "prompt_ids": prompt}})
    );
}

fn choice(response: &Value) -> (Option<&str>, &str) {
    let choice = &response["output"]["choices"][0];
    (choice["message"]["content"].as_str(), choice["finish_reason"].as_str().unwrap())
}

/// A text of this many ids.
fn long_text(len: usize) -> String {
    "abcdefghij".chars().cycle().take(len).collect()
}

#[tokio::test]
async fn a_plain_serve_has_one_response_with_text_ids_and_proofs() {
    let (mut site, mut leg) = Site::with_leg().await;
    let mut request = chat();
    request["engy_request_id"] = json!("r-9001");
    leg.serve_request("c-1", request, false).await;
    let mut run = site.runs.next().await;
    assert_eq!((run.request.max_tokens, run.request.stop_ids.as_slice()), (64, [END].as_slice()));
    let text = long_text(40);
    for piece in [&text[..7], &text[7..31], &text[31..]] {
        run.say(piece);
    }
    let prompt = run.request.prompt.clone();
    let told = run.finish();
    let response = leg.response("c-1").await;
    assert_eq!(response["request_id"], "r-9001");
    assert_eq!(choice(&response), (Some(text.as_str()), "stop"));
    let output = &response["output"];
    assert_eq!([&output["id"], &output["object"], &output["model"]], ["chatcmpl-r-9001", "chat.completion", "m"]);
    assert_eq!(
        output["usage"],
        json!({"prompt_tokens": prompt.len(), "completion_tokens": 41, "total_tokens": prompt.len() + 41})
    );
    assert_eq!(response.get("error"), None);
    assert_committed(&response, &prompt, told);
    assert_eq!(site.count(|c| &c.answered), 1);
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn a_greedy_worker_leaves_sampling_out_of_account() {
    for greedy in [false, true] {
        let mut site = Site::with(Setup { greedy, ..Setup::default() }).await;
        let mut leg = site.gateway.live_leg().await;
        let mut request = chat();
        (request["temperature"], request["top_p"], request["seed"]) = (json!(0.7), json!(0.9), json!(5));
        leg.serve_request("c", request, false).await;
        let run = site.runs.next().await;
        assert_eq!(run.request.sampling == SamplingParams::default(), greedy);
        run.finish();
        leg.response("c").await;
    }
}

#[tokio::test]
async fn a_prompt_is_the_rendered_conversation() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve("c").await;
    let run = site.runs.next().await;
    let chat = Setup::default().service(ScriptedBackend::new().0).chat;
    let text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(run.request.prompt, chat.tokenizer().encode(text).unwrap());
    run.finish();
    leg.response("c").await;
}

#[tokio::test]
async fn proofs_count_full_and_short_batches() {
    let (mut site, mut leg) = Site::with_leg().await;
    for len in [1, 32, 33, 64] {
        leg.serve("c").await;
        let mut run = site.runs.next().await;
        run.say(&long_text(len));
        let prompt = run.request.prompt.clone();
        let told = run.end(StopReason::Length);
        let response = leg.response("c").await;
        assert_eq!(choice(&response), (Some(long_text(len).as_str()), "length"));
        assert_committed(&response, &prompt, told);
    }
}

#[tokio::test]
async fn a_streamed_serve_has_chunks_that_add_up_to_the_message() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_stream("c").await;
    let mut run = site.runs.next().await;
    run.say("Do");
    let first = leg.answer().await;
    assert_eq!(
        (&first["type"], &first["delta"]),
        (&json!("chunk"), &json!({"content": "D"})),
        "a chunk comes while the generation still runs"
    );
    // The two bytes of é, apart.
    run.give(&[0xc3]);
    run.give(&[0xa9]);
    run.say("ne €.");
    let prompt = run.request.prompt.clone();
    let told = run.finish();
    let (text, response) = leg.streamed("c").await;
    assert_eq!(format!("D{text}"), "Doéne €.");
    assert_eq!(choice(&response), (Some("Doéne €."), "stop"));
    assert_committed(&response, &prompt, told);
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn streams_of_several_requests_do_not_mix() {
    let (mut site, mut leg) = Site::with_leg().await;
    let mut runs: Vec<Run> = Vec::new();
    for name in ["a", "b"] {
        leg.serve_stream(name).await;
        runs.push(site.runs.next().await);
    }
    for _ in 0..20 {
        runs[0].say("a");
        runs[1].say("b");
    }
    runs.into_iter().for_each(|run| drop(run.finish()));
    let mut texts = [String::new(), String::new()];
    let mut ended = 0;
    while ended < 2 {
        let frame = leg.answer().await;
        let at = usize::from(frame["corr_id"] == "b");
        match frame["delta"]["content"].as_str() {
            Some(text) => texts[at].push_str(text),
            None => {
                assert_eq!(choice(&frame).0, Some(texts[at].as_str()));
                ended += 1;
            }
        }
    }
    assert_eq!(texts, ["a".repeat(20), "b".repeat(20)]);
}

#[tokio::test]
async fn a_stop_string_ends_the_generation_and_cuts_the_text() {
    let (mut site, mut leg) = Site::with_leg().await;
    for stream in [false, true] {
        let mut request = chat();
        request["stop"] = json!(["END"]);
        leg.serve_request("c", request, stream).await;
        let mut run = site.runs.next().await;
        run.say("one EN");
        run.say("D two");
        run.dropped().await;
        let (text, response) = leg.streamed("c").await;
        assert_eq!(text, if stream { "one " } else { "" });
        assert_eq!(choice(&response), (Some("one "), "stop"));
        // What came after the stop string in the same event is neither billed nor proven.
        let told = "one END".len();
        let kept = (run.ids[..told].to_vec(), run.rows[..told * HIDDEN].to_vec());
        assert_eq!(response["output"]["usage"]["completion_tokens"], json!(told));
        assert_committed(&response, &run.request.prompt, kept);
    }
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn the_buyers_stop_ids_end_an_answer_too() {
    let (mut site, mut leg) = Site::with_leg().await;
    let mut request = chat();
    request["stop_token_ids"] = json!([33]);
    leg.serve_request("c", request, false).await;
    let mut run = site.runs.next().await;
    assert_eq!(run.request.stop_ids, [END, 33]);
    run.say("Hi!");
    let prompt = run.request.prompt.clone();
    let told = run.end(StopReason::StopId(33));
    let response = leg.response("c").await;
    assert_eq!(choice(&response), (Some("Hi"), "stop"), "the id that ended the answer has no text");
    assert_committed(&response, &prompt, told);
}

#[tokio::test]
async fn a_serve_frame_of_17_mib_is_read() {
    let (mut site, mut leg) = Site::with_leg().await;
    let mut request = chat();
    request["metadata"] = json!("x".repeat(17 << 20));
    leg.serve_request("big", request, false).await;
    site.runs.next().await.finish();
    leg.response("big").await;
}
