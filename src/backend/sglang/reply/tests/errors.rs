//! Bodies that are no reply.

use super::{Cut, read, read_from};
use crate::backend::sglang::reply::ReplyError;
use crate::backend::sglang::reply::skeleton::{MAX_DEPTH, MAX_SKELETON_BYTES};

fn error(body: &str) -> ReplyError {
    read(body.as_bytes(), 2, 0).1.unwrap_err()
}

#[test]
fn what_is_not_json_shows_how_it_begins() {
    for text in [
        "Internal Server Error",
        "<html>\n<body>502 Bad Gateway</body></html>",
        "null",
        "\"text\"",
        "12",
        "\u{feff}{}",
        "data: {}",
    ] {
        assert_eq!(error(text), ReplyError::NotJson { start: text.to_owned() });
    }
    let long = "x".repeat(5000);
    assert_eq!(error(&long), ReplyError::NotJson { start: long[..160].to_owned() });
    assert!(matches!(read(b"\x1f\x8b\x00\xff", 2, 0).1, Err(ReplyError::NotJson { .. })));
}

#[test]
fn a_list_is_a_batch() {
    for text in ["[]", r#" [{"text":"a"}]"#, "["] {
        assert_eq!(error(text), ReplyError::Batch);
    }
}

#[test]
fn a_body_cut_short_says_where_and_in_what() {
    let body = r#" {"text":"a","meta_info":{"hidden_states":[[[1,2]],[3,4]],"id":"b"}} "#;
    for length in 0..body.len() - 1 {
        let (offset, inside) = match length {
            0..=1 => (length as u64, "nothing"),
            43..57 => (length as u64, "hidden states"),
            _ => (length as u64, "its fields"),
        };
        assert_eq!(error(&body[..length]), ReplyError::Truncated { offset, inside }, "{length}");
    }
    assert!(read(&body.as_bytes()[..body.len() - 1], 2, 0).1.is_ok());
}

/// Offsets are those of the body, whatever was taken out of it.
#[test]
fn a_mistake_is_placed_in_the_body() {
    for (body, mistake) in [
        (r#"{"text":~}"#, "~"),
        (r#"{"text":"a",}"#, "}"),
        (r#"  {"text":"a" "b"}"#, "\"b"),
        (r#"{"meta_info":{"hidden_states":[[[1,2]],[3,4]],"id":~}}"#, "~"),
        ("{\n\"meta_info\":{\"hidden_states\":[[[1,2]]\n,[3,4]],\n\"id\":~}}", "~"),
        (r#"{"meta_info":{"hidden_states":[[[1,2]],[3,~]],"id":1}}"#, "~"),
        (r#"{"meta_info":{"hidden_states":[[[1,2],[3,~4]],[3,4]],"id":1}}"#, "~"),
        (r#"{"meta_info":{"hidden_states":[[[1,[2]],[3,4]]],"id":1}}"#, "[2"),
        (r#"{"meta_info":{"hidden_states":[[[1,2]];[3,4]],"id":1}}"#, ";"),
        (r#"{"text":"a"} {"#, " {"),
    ] {
        let ReplyError::Malformed { offset, what } = error(body) else { panic!("{body}: {:?}", error(body)) };
        let place = body.find(mistake).unwrap() as u64;
        assert!(offset == place || offset == place + 1, "{body}: {what} at {offset}, not {place}");
        assert!(!what.contains(" line "), "{what}");
    }
    for body in [
        r#"{"output_ids":[-1]}"#,
        r#"{"output_ids":[4294967296]}"#,
        r#"{"meta_info":{"cached_tokens":"3"}}"#,
        r#"{"meta_info":{"output_token_logprobs":[[1]]}}"#,
        r#"{"text":"a","text":"b"}"#,
    ] {
        assert!(matches!(error(body), ReplyError::Malformed { .. }), "{body}");
    }
}

#[test]
fn hidden_states_come_once() {
    for body in [
        r#"{"meta_info":{"hidden_states":[[[1,2]]],"hidden_states":[[[1,2]]]}}"#,
        r#"{"meta_info":{"hidden_states":null},"meta_info":{"hidden_states":[[1,2]]}}"#,
    ] {
        assert_eq!(error(body), ReplyError::Twice { offset: body.rfind(":[").unwrap() as u64 + 1 });
    }
}

#[test]
fn depth_and_size_have_a_limit() {
    let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(read(deep(MAX_DEPTH).as_bytes(), 2, 0).1.is_ok());
    assert_eq!(error(&deep(MAX_DEPTH + 1)), ReplyError::TooDeep { offset: 4 + MAX_DEPTH as u64, limit: MAX_DEPTH });
    let large = vec![b'a'; MAX_SKELETON_BYTES];
    let (_, reply) = read_from(&[b"{\"text\":\"", &large[..]].concat(), 2, 0, Cut::Every(1 << 20));
    assert_eq!(reply, Err(ReplyError::TooLarge { limit: MAX_SKELETON_BYTES }));
}
