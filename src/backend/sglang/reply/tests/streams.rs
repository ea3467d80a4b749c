//! Streams: framing, and rows that come again in every event.

use super::{Rows, fixture, stream};
use crate::backend::sglang::reply::{ReplyError, StreamEvent};

const BODY: &str = r#"{"text":"é","meta_info":{"completion_tokens":1,"hidden_states":[[[1,-1]]]}}"#;

/// What came of a stream, with each reply as its text.
fn events(bytes: &str) -> (usize, Vec<String>, Option<ReplyError>) {
    let (rows, events, error) = stream(bytes.as_bytes(), 2);
    let names = events.into_iter().map(|event| match event {
        StreamEvent::Reply(reply) => reply.text.unwrap_or_default(),
        StreamEvent::Done => "[DONE]".to_owned(),
    });
    (rows.len(), names.collect(), error)
}

#[test]
fn events_are_found_in_each_way_to_write_them() {
    let both = (1, vec!["é".to_owned(), "[DONE]".to_owned()], None);
    for end in ["\n", "\r\n", "\r"] {
        for form in [
            "data: BODY||data: [DONE]||",
            "data:BODY||data:[DONE]||",
            "data: BODY||data: [DONE]|",
            "data: BODY||data: [DONE]",
            ": a comment|data: BODY|||: another||data: [DONE]||",
            "event: message|id: 7|data: BODY|retry: 10||data: [DONE]||",
            "|||data: BODY||data:||data||dat: x||datas: {||data: [DONE]||",
            "data: BO|data: DY||data: [DONE]||",
            "data: BODY|data||data: [DONE]||",
            "data: BODY||data: [DONE]||data: nonsense||",
        ] {
            let split = form.contains("BO|");
            let body = if split { BODY.replacen(",\"meta", ",|data: \"meta", 1) } else { BODY.to_owned() };
            let text = form.replace("BO|data: DY", "BODY").replace("BODY", &body).replace('|', end);
            let (rows, mut names, error) = events(&text);
            if form.contains("nonsense") {
                // Nothing is promised after the end.
                names.truncate(2);
                assert_eq!((rows, names), (both.0, both.1.clone()));
                assert!(error.is_some());
            } else {
                assert_eq!((rows, names, error), both, "{text:?}");
            }
        }
    }
}

#[test]
fn a_stream_that_ends_early_ends_with_what_was_complete() {
    assert_eq!(events(&format!("data: {BODY}")), (1, vec!["é".to_owned()], None));
    let (rows, names, error) = events(&format!("data: {BODY}\n\ndata: {}", &BODY[..40]));
    assert_eq!((rows, names.len()), (1, 1));
    assert!(matches!(error, Some(ReplyError::Truncated { offset: 40, .. })));
    assert_eq!(events(""), (0, vec![], None));
    assert_eq!(events("data: [DO\n\n").2, Some(ReplyError::Batch));
    assert_eq!(events("data: [{}]\n\n").2, Some(ReplyError::Batch));
    assert!(matches!(events("data: oops\n\n").2, Some(ReplyError::NotJson { .. })));
    assert_eq!(events("<html>\n\n</html>\n"), (0, vec![], None));
}

/// Events of an answer as sglang sends it, with the rows up to each.
fn cumulative(block: &str, counts: &[usize]) -> String {
    let mut text = String::new();
    for count in counts {
        let rows: String = (1..*count).map(|n| format!(",[{n},-{n}]")).collect();
        text += &format!("data: {{\"text\":\"{count}\",\"meta_info\":{{\"hidden_states\":[{block}{rows}]}}}}\n\n");
    }
    text
}

#[test]
fn rows_that_come_again_are_given_once() {
    for (block, first) in [("[[7,7],[8,8],[0,-0]]", 1), ("[[0,-0]]", 1), ("[]", 0)] {
        let (rows, events, error) = stream(cumulative(block, &[1, 2, 2, 5, 9]).as_bytes(), 2);
        assert_eq!((events.len(), error), (5, None));
        let expected: Rows = (1 - first..9)
            .map(|n| vec![half::bf16::from_f32(n as f32).to_bits(), half::bf16::from_f32(-(n as f32)).to_bits()])
            .collect();
        assert_eq!(rows, expected, "{block}");
    }
    let shrunk = stream(cumulative("[[0,0]]", &[3, 2]).as_bytes(), 2);
    assert_eq!((shrunk.0.len(), shrunk.2), (3, Some(ReplyError::Fewer { before: 3, found: 2 })));
}

/// An event without hidden states between two with them changes nothing.
#[test]
fn events_without_hidden_states_are_no_step_back() {
    let text = cumulative("[[0,0]]", &[2]) + "data: {\"text\":\"\"}\n\n" + &cumulative("[[0,0]]", &[4]);
    let (rows, events, error) = stream(text.as_bytes(), 2);
    assert_eq!((rows.len(), events.len(), error), (4, 3, None));
}

#[test]
fn a_body_is_the_same_in_an_event() {
    let body = fixture("generate_length.body");
    let bytes = [b"data: ", &body[..], b"\n\ndata: [DONE]\n\n"].concat();
    let (rows, events, error) = stream(&bytes, 576);
    assert_eq!((rows, error), (super::read(&body, 576, 0).0, None));
    let StreamEvent::Reply(reply) = &events[0] else { panic!("{events:?}") };
    assert_eq!(**reply, super::read(&body, 576, 0).1.unwrap());
}
