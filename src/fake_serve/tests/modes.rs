//! What a serve's flags and its version make of the rows.

use super::*;
use crate::fake_serve::{Layout, PromptBlock};

const PROMPT: [u32; 6] = [10, 20, 30, 40, 50, 60];

/// How many rows each element of `hidden_states` has; 0 is a vector.
fn shape(reply: &Value) -> Vec<Option<usize>> {
    let elements = reply["meta_info"]["hidden_states"].as_array().unwrap();
    elements
        .iter()
        .map(|element| match element.as_array().unwrap().first() {
            None => Some(0),
            Some(Value::Array(_)) => Some(element.as_array().unwrap().len()),
            Some(_) => None,
        })
        .collect()
}

#[tokio::test]
async fn the_prompt_block_is_whole_or_its_last_row_or_missing() {
    for (block, first, prompt_rows) in
        [(PromptBlock::Full, 6, 5), (PromptBlock::LastRow, 1, 0), (PromptBlock::Missing, 0, 0)]
    {
        let asker = start(FakeServeConfig { prompt_block: block, ..config(Dialect::V0_5_6) }).await;
        let got = asker.generate(&ask(&PROMPT, 4)).await;
        assert_eq!(shape(&got.json()), [Some(first), None, None, None], "{block:?}");
        let (read, reply) = got.reply().unwrap();
        let missing = block == PromptBlock::Missing;
        assert!(read == rows(&PROMPT, 4)[usize::from(missing)..]);
        let found = reply.rows.unwrap();
        assert_eq!((found.prompt_rows, found.first_row_missing), (prompt_rows, missing));
    }
}

#[tokio::test]
async fn a_trimmed_serve_has_hidden_states_in_the_last_event_alone() {
    let asker = start(FakeServeConfig { prompt_block: PromptBlock::LastRow, ..config(Dialect::V0_5_6) }).await;
    let got = asker.generate(&ask_stream(&PROMPT, 4)).await;
    let (events, _) = got.events();
    let counts: Vec<usize> = events.iter().map(|event| shape(event).len()).collect();
    assert_eq!(counts, [0, 0, 0, 4]);
    assert!(got.stream().unwrap().0 == rows(&PROMPT, 4));
}

#[tokio::test]
async fn the_bug_of_a_mixed_batch_gives_another_row_without_a_trace() {
    let asker = start(FakeServeConfig { prompt_block: PromptBlock::OfAnother, ..config(Dialect::V0_5_15) }).await;
    let got = asker.generate(&ask(&PROMPT, 3)).await;
    let (read, _) = got.reply().unwrap();
    let right = rows(&PROMPT, 3);
    assert!(read.len() == 3 && read[0] != right[0] && read[1..] == right[1..]);
}

#[tokio::test]
async fn decode_rows_may_be_matrices_of_one_row() {
    let asker = start(FakeServeConfig { layout: Layout::OneRowMatrices, ..config(Dialect::V0_5_6) }).await;
    let got = asker.generate(&ask(&PROMPT, 3)).await;
    assert_eq!(shape(&got.json()), [Some(6), Some(1), Some(1)]);
    assert!(got.reply().unwrap().0 == rows(&PROMPT, 3));
}

#[tokio::test]
async fn a_prompt_in_parts_loses_rows_as_its_version_does() {
    for (dialect, expected) in [
        // The last part alone.
        (Dialect::V0_5_6, vec![Some(2), None, None, None, None]),
        (Dialect::V0_5_15, vec![Some(2), None, None, None, None]),
        // A matrix each, and a decode row lost for each beyond the first.
        (Dialect::V0_5_23, vec![Some(4), Some(2), None, None, None]),
    ] {
        let asker = start(FakeServeConfig { chunked_prefill_size: Some(4), ..config(dialect) }).await;
        let got = asker.generate(&ask(&PROMPT, 5)).await;
        assert_eq!(shape(&got.json()), expected, "{dialect}");
        let (read, _) = got.reply().unwrap();
        assert!(read == rows(&PROMPT, 5)[..read.len()]);
        assert_eq!(read.len(), if dialect == Dialect::V0_5_23 { 4 } else { 5 });
    }
}

#[tokio::test]
async fn no_rows_come_back_for_what_is_cached() {
    let asker = start(FakeServeConfig { radix_cache: true, ..config(Dialect::V0_5_23) }).await;
    let first = asker.generate(&ask(&PROMPT, 3)).await.json();
    assert_eq!((&first["meta_info"]["cached_tokens"], shape(&first)[0]), (&0.into(), Some(6)));
    // The same again: all but the last token is known.
    let again = asker.generate(&ask(&PROMPT, 3)).await.json();
    assert_eq!((&again["meta_info"]["cached_tokens"], shape(&again)[0]), (&5.into(), Some(1)));
    // What was generated is known too.
    let ids = model().greedy(&PROMPT, 3);
    let longer = [&PROMPT[..], &ids, &[7, 8]].concat();
    let got = asker.generate(&ask_stream(&longer, 2)).await.events().0.pop().unwrap();
    assert_eq!((&got["meta_info"]["cached_tokens"], shape(&got)[0]), (&9.into(), Some(2)));
    assert_eq!(got["meta_info"]["prompt_tokens"], 11);
}

#[tokio::test]
async fn speculative_decoding_is_told_of() {
    let speculative_algorithm = Some("EAGLE".to_owned());
    let asker = start(FakeServeConfig { speculative_algorithm, ..config(Dialect::V0_5_10) }).await;
    assert_eq!(asker.get("/get_server_info").await.json()["speculative_algorithm"], "EAGLE");
}
