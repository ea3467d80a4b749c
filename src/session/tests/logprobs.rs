//! Log-probabilities on their way to the gateway.

use serde_json::{Value, json};

use super::scripted_backend::tokens;
use super::scripted_gateway::{Peer, chat};
use super::site::Site;

fn asking(extra: &[(&str, Value)]) -> Value {
    let mut request = chat();
    request["logprobs"] = true.into();
    extra.iter().for_each(|(key, value)| request[*key] = value.clone());
    request
}

/// Chunks of a streamed answer as (text, bytes of its tokens), and its response.
async fn streamed(leg: &mut Peer) -> (Vec<(String, Vec<Value>)>, Value) {
    let mut chunks = Vec::new();
    loop {
        let frame = leg.answer().await;
        if frame["type"] == "response" {
            return (chunks, frame);
        }
        let entries = frame["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        chunks.push((frame["delta"]["content"].as_str().unwrap().to_owned(), entries));
    }
}

fn bytes(entries: &[Value]) -> Vec<u8> {
    entries.iter().flat_map(|entry| serde_json::from_value::<Vec<u8>>(entry["bytes"].clone()).unwrap()).collect()
}

#[tokio::test]
async fn entries_that_wait_for_text_come_with_the_next_piece() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_request("c", asking(&[("top_logprobs", json!(2))]), true).await;
    let mut run = site.runs.next().await;
    assert_eq!(run.request.logprobs, Some(2));
    run.say("D");
    run.give(&[0xc3]);
    run.give(&[0xa9]);
    run.say("!");
    run.give(&[0xe2]);
    run.finish();
    let (chunks, response) = streamed(&mut leg).await;
    let pieces: Vec<_> = chunks.iter().map(|(text, entries)| (text.as_str(), bytes(entries))).collect();
    let want = [("D", "D".into()), ("é", "é".into()), ("!", "!".into()), ("\u{fffd}", vec![0xe2])];
    assert_eq!(pieces, want, "the id that ended the answer has no entry");
    assert_eq!(
        chunks[1].1[0],
        json!({"token": "\u{fffd}", "logprob": -0.125, "bytes": [0xc3], "top_logprobs": [
            {"token": "\u{0}", "logprob": -0.5, "bytes": [0]}, {"token": "\u{0}", "logprob": -0.5, "bytes": [0]}]})
    );
    let entries: Vec<Value> = chunks.into_iter().flat_map(|(_, entries)| entries).collect();
    assert_eq!(response["output"]["choices"][0]["logprobs"], json!({"content": entries, "refusal": null}));
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn entries_behind_the_last_text_come_in_a_piece_of_their_own() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_request("c", asking(&[("stop", json!(["END"]))]), true).await;
    let mut run = site.runs.next().await;
    run.say("one EN");
    run.say("D two");
    let (chunks, response) = streamed(&mut leg).await;
    let last = chunks.last().unwrap();
    assert_eq!((last.0.as_str(), bytes(&last.1)), ("", b"END".into()), "the stop string was generated too");
    let entries: Vec<Value> = chunks.iter().flat_map(|(_, entries)| entries.clone()).collect();
    assert_eq!(bytes(&entries), b"one END");
    assert_eq!(response["output"]["choices"][0]["logprobs"]["content"], json!(entries));
    assert_eq!(response["output"]["usage"]["completion_tokens"], 7);
    site.assert_serves(&mut leg).await;
}

#[tokio::test]
async fn unasked_no_frame_speaks_of_them() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_stream("c").await;
    let mut run = site.runs.next().await;
    assert_eq!(run.request.logprobs, None);
    run.say("Done.");
    run.finish();
    let mut frames = vec![leg.answer().await];
    while frames.last().unwrap()["type"] == "chunk" {
        frames.push(leg.answer().await);
    }
    assert!(frames.len() > 2 && frames.iter().all(|frame| !frame.to_string().contains("logprobs")), "{frames:?}");
}

#[tokio::test]
async fn a_backend_that_leaves_them_out_is_at_fault() {
    let (mut site, mut leg) = Site::with_leg().await;
    leg.serve_request("c", asking(&[]), false).await;
    let mut run = site.runs.next().await;
    let rows = run.random_rows(2);
    run.tell(tokens(&[65, 66], rows));
    let error = &leg.response("c").await["error"];
    assert_eq!((&error["status"], &error["type"]), (&json!(500), &json!("server_error")));
    assert_eq!(error["message"], "the backend gave 2 tokens with 0 log-probabilities");
    site.assert_serves(&mut leg).await;
}
