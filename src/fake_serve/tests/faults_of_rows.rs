//! Rows, ids and ends that are not what they should be, as the project's reader sees them.

use super::*;
use crate::backend::sglang::reply::FinishReason;

const PROMPT: [u32; 3] = [5, 6, 7];
const TOKENS: usize = 4;

async fn got(fault: Fault) -> Got {
    faulty(Dialect::V0_5_6, fault).await.generate(&ask(&PROMPT, TOKENS)).await
}

#[tokio::test]
async fn rows_are_wrong_missing_or_too_many() {
    let right = rows(&PROMPT, TOKENS);
    let read = |got: Got| got.reply().unwrap().0;
    let wrong = read(got(Fault::OtherRow { row: 2 }).await);
    assert!(wrong.len() == 4 && wrong[2] != right[2] && wrong[..2] == right[..2] && wrong[3] == right[3]);
    let missing = read(got(Fault::MissingRow { row: 2 }).await);
    assert!(missing == [&right[..2], &right[3..]].concat());
    let (first_missing, reply) = got(Fault::MissingRow { row: 0 }).await.reply().unwrap();
    assert!(first_missing == right[1..] && reply.rows.unwrap().first_row_missing);
    let fewer = read(got(Fault::FewerRows { by: 3 }).await);
    assert!(fewer == right[..1]);
    let more = read(got(Fault::ExtraRow).await);
    assert!(more.len() == 5 && more[4] == right[3]);
}

#[tokio::test]
async fn rows_have_no_values_or_broken_ones() {
    assert_eq!(got(Fault::NoHiddenStates).await.reply().unwrap().1.rows, None);
    let empty = got(Fault::EmptyElements).await;
    assert_eq!(empty.json()["meta_info"]["hidden_states"], json!([[], [], [], []]));
    let (none, reply) = empty.reply().unwrap();
    assert!(none.is_empty() && reply.rows.unwrap().rows == 0);
    let null = got(Fault::NullValue { row: 1, column: 3 }).await.reply().unwrap_err();
    assert_eq!(null, ReplyError::NonFinite { row: 1, column: 3, found: "null".into() });
    let nan = got(Fault::NanValue { row: 0, column: 2 }).await.reply().unwrap_err();
    assert_eq!(nan, ReplyError::NonFinite { row: 0, column: 2, found: "NaN".into() });
    for values in [4, 12] {
        let width = got(Fault::Width { values }).await.reply().unwrap_err();
        assert_eq!(width, ReplyError::Width { row: 0, found: values, expected: HIDDEN });
    }
    assert_eq!(got(Fault::LastOnly).await.reply().unwrap_err(), ReplyError::LastOnly);
}

#[tokio::test]
async fn ids_are_fewer_than_rows() {
    let (read, reply) = got(Fault::FewerIds { by: 1 }).await.reply().unwrap();
    assert_eq!((read.len(), reply.output_ids.unwrap().len(), reply.meta.output_token_logprobs.len()), (4, 3, 3));
}

#[tokio::test]
async fn another_first_token_leads_to_another_answer() {
    let greedy = model().greedy(&PROMPT, TOKENS);
    let (read, reply) = got(Fault::OtherToken).await.reply().unwrap();
    let ids = reply.output_ids.unwrap();
    assert_ne!(ids[0], greedy[0]);
    let branch = [&PROMPT[..], &ids[..1]].concat();
    assert_eq!(ids[1..], model().greedy(&branch, TOKENS - 1));
    assert!(read[0] == rows(&PROMPT, 1)[0] && read[1..] == rows(&branch, TOKENS - 1));
}

#[tokio::test]
async fn answers_end_too_early() {
    let (read, reply) = got(Fault::EarlyLength { tokens: 2 }).await.reply().unwrap();
    assert_eq!((read.len(), reply.meta.completion_tokens), (2, Some(2)));
    assert_eq!(reply.meta.finish_reason, Some(FinishReason::Length { length: Some(TOKENS) }));
    let (read, reply) = got(Fault::NoTokens).await.reply().unwrap();
    assert!(read.is_empty() && reply.meta.completion_tokens == Some(0) && reply.meta.finish_reason.is_some());
    let (read, reply) = got(Fault::GivesUp { after: 2 }).await.reply().unwrap();
    assert_eq!(read.len(), 2);
    let message = Some("Aborted".to_owned());
    assert_eq!(reply.meta.finish_reason, Some(FinishReason::Abort { message, status_code: None, err_type: None }));
}

#[tokio::test]
async fn a_prompt_is_cut_without_a_word() {
    let (read, reply) = got(Fault::CutPrompt { to: 2 }).await.reply().unwrap();
    assert_eq!(reply.meta.prompt_tokens, Some(2));
    assert!(read == rows(&PROMPT[..2], TOKENS));
}

#[tokio::test]
async fn a_batch_is_no_reply() {
    let got = got(Fault::Batch).await;
    assert_eq!(got.json().as_array().unwrap().len(), 1);
    assert_eq!(got.reply().unwrap_err(), ReplyError::Batch);
}

#[tokio::test]
async fn faults_of_rows_befall_streams_too() {
    let asker = faulty(Dialect::V0_5_6, Fault::NullValue { row: 1, column: 0 }).await;
    let error = asker.generate(&ask_stream(&PROMPT, TOKENS)).await.stream().unwrap_err();
    assert_eq!(error, ReplyError::NonFinite { row: 1, column: 0, found: "null".into() });
    asker.serve.inject(Fault::FewerRows { by: 1 }).await;
    let (read, _) = asker.generate(&ask_stream(&PROMPT, TOKENS)).await.stream().unwrap();
    assert!(read == rows(&PROMPT, TOKENS)[..3]);
}
