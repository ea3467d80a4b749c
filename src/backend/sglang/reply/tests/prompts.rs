//! Which elements of `hidden_states` are the rows of a prompt.

use serde_json::Value;

use super::layouts::{layout, numbered};
use super::{Cut, Rows, fixture, plain_row, read_by};
use crate::backend::sglang::reply::{PromptRows, Reply, ReplyError, ReplyReader, RowsFound};

/// Reads a body in all ways of cutting it, which must make no difference.
fn read(body: &[u8], hidden: usize, wanted: PromptRows) -> (Rows, Result<Reply, ReplyError>) {
    let read = |cut| read_by(ReplyReader::of_prompt(hidden, wanted), body, cut);
    let whole = read(Cut::Whole);
    for cut in Cut::ALL {
        assert_eq!(read(cut), whole, "{cut:?}");
    }
    whole
}

/// Reads hidden states of width 2.
fn states(text: &str, wanted: PromptRows) -> (Rows, Result<Option<RowsFound>, ReplyError>) {
    let body = format!(r#"{{"text":"x","meta_info":{{"id":"a","hidden_states":{text},"e2e_latency":1.5}}}}"#);
    let (rows, reply) = read(body.as_bytes(), 2, wanted);
    (rows, reply.map(|reply| reply.rows))
}

fn fewer(found: usize, expected: usize) -> ReplyError {
    ReplyError::FewerPromptRows { found, expected }
}

fn more(expected: usize) -> ReplyError {
    ReplyError::MorePromptRows { expected }
}

#[test]
fn each_token_has_its_row() {
    // Elements; tokens of the prompt; new tokens; decode steps.
    for (text, tokens, new_tokens, decode_rows) in [
        ("[[1,2,3,4]]", 4, 1, 0),
        ("[[1]]", 1, 1, 0),
        // As a trimmed serve may write it.
        ("[1]", 1, 1, 0),
        ("[[1],8]", 1, 2, 1),
        ("[1,8]", 1, 2, 1),
        ("[[1,2,3,4],8,9]", 4, 3, 2),
        ("[[1,2,3,4],[8],[9]]", 4, 3, 2),
        ("[[1,2,3,4],8]", 4, 3, 1),
        // A part at a time, of one token too.
        ("[[1,2],[3,4]]", 4, 1, 0),
        ("[[1,2],[3,4],[5],8,[9]]", 5, 4, 2),
        ("[[1],[2,3],[4]]", 4, 1, 0),
        ("[[1],[2]]", 2, 1, 0),
        ("[[],[1,2],[[]],null,[3]]", 3, 1, 0),
    ] {
        let found = RowsFound { rows: 1 + decode_rows, prompt_rows: tokens - 1, first_row_missing: false };
        for spaced in [layout(text), layout(text).replace(',', " ,\n\t").replace('[', "\r[ ").replace(']', " ] ")] {
            for from in 0..=tokens {
                let rows: Vec<u8> = (from + 1..=tokens).map(|row| row as u8).collect();
                let read = states(&spaced, PromptRows { tokens, from, new_tokens });
                assert_eq!(read, (numbered(&rows), Ok(Some(found))), "{text} from {from}");
            }
        }
    }
}

#[test]
fn rows_that_are_too_few_or_too_many_are_errors() {
    for (text, tokens, new_tokens, error) in [
        // A prefix cache, or a part that was lost.
        ("[[2,3,4]]", 4, 1, fewer(3, 4)),
        ("[[1,2],[3]]", 4, 1, fewer(3, 4)),
        ("[[2,3,4],8]", 4, 2, fewer(3, 4)),
        // A trim.
        ("[[4]]", 4, 1, fewer(1, 4)),
        ("[4]", 4, 1, fewer(1, 4)),
        ("[4,8]", 4, 2, fewer(1, 4)),
        ("[[],8]", 1, 2, fewer(0, 1)),
        ("[null,8]", 4, 2, fewer(0, 4)),
        ("[]", 1, 1, fewer(0, 1)),
        ("[[]]", 1, 1, fewer(0, 1)),
        ("[[[]]]", 1, 1, fewer(0, 1)),
        // Another request's.
        ("[[1,2,3,4,5]]", 4, 1, more(4)),
        ("[[1,2],[3,4,5]]", 4, 1, more(4)),
        ("[[1,2,3,4],[5]]", 4, 1, more(4)),
        ("[[1,2,3,4],[5,6]]", 4, 2, more(4)),
        // A decode step that was not asked for.
        ("[[1,2,3,4],8]", 4, 1, more(4)),
        ("[[1,2,3,4],8,9]", 4, 2, more(4)),
        ("[1,8]", 1, 1, more(1)),
    ] {
        for from in [0, tokens - 1, tokens] {
            let (_, read) = states(&layout(text), PromptRows { tokens, from, new_tokens });
            assert_eq!(read, Err(error.clone()), "{text} from {from}");
        }
    }
    for (error, remedies) in [
        (fewer(3, 4), &["3 of", "4 tokens", "--disable-radix-cache", "--chunked-prefill-size -1", "trims"][..]),
        (more(4), &["4 tokens", "--disable-radix-cache", "--chunked-prefill-size -1", "--speculative-algorithm"]),
    ] {
        assert!(remedies.iter().all(|remedy| error.to_string().contains(remedy)), "{error}");
    }
}

#[test]
fn rows_that_are_given_are_wide_and_finite() {
    let wanted = |from| PromptRows { tokens: 3, from, new_tokens: 2 };
    let width = |row, found| Err(ReplyError::Width { row, found, expected: 2 });
    let non_finite = |row, column, found: &str| Err(ReplyError::NonFinite { row, column, found: found.to_owned() });
    for (text, from, error) in [
        ("[[[1,-1],[2],[3,-3]]]", 0, width(1, 1)),
        ("[[[1,-1],[2,-2,5],[3,-3]]]", 1, width(1, 3)),
        ("[[[1,-1],[],[3,-3]]]", 0, width(1, 0)),
        ("[[[1,-1],[2,-2],[]]]", 2, width(2, 0)),
        ("[[[1,-1],[2,-2]],[[3]]]", 2, width(2, 1)),
        ("[[[1,-1],[2,null],[3,-3]]]", 0, non_finite(1, 1, "null")),
        ("[[[1,-1],[2,-2]],[[NaN,-3]]]", 1, non_finite(2, 0, "NaN")),
        ("[[[4e38,-1],[2,-2],[3,-3]]]", 0, non_finite(0, 0, "4e38")),
    ] {
        assert_eq!(states(text, wanted(from)).1, error, "{text} from {from}");
    }
    // A row that does not count may be anything, and counts all the same.
    for text in ["[[[null],[x,,1],[3,-3]],[null]]", "[[[],[],[3,-3]]]"] {
        let (rows, found) = states(text, wanted(2));
        assert_eq!((rows, found.map(|found| found.unwrap().prompt_rows)), (numbered(&[3]), Ok(2)), "{text}");
    }
}

#[test]
fn what_is_no_list_of_rows_is_an_error() {
    let wanted = PromptRows { tokens: 2, from: 0, new_tokens: 1 };
    assert_eq!(states("null", wanted), (Rows::new(), Ok(None)));
    assert_eq!(states("[1.5,2.5]", wanted).1, Err(ReplyError::LastOnly));
    assert_eq!(states("{}", wanted).1, Err(ReplyError::NotAList { offset: 50, found: "an object" }));
    for text in
        ["[[[1,2],[3,4]],]", "[[[1,2],[3,[4]]]]", "[[[1,2],3]]", "[[[1,2]};[3,4]]]", "[[[1,2],[3 4]]]", "[nulx]"]
    {
        assert!(matches!(states(text, wanted).1, Err(ReplyError::Malformed { .. })), "{text}");
    }
}

/// Recorded prompts, of which each row is that of a plain reading.
#[test]
fn recorded_prompts_are_read_as_by_a_plain_reader() {
    const HIDDEN: usize = 576;
    for name in [
        "generate_length",
        "generate_continuation",
        "generate_one_prompt_token",
        "generate_stop_string",
        "generate_aborted",
    ] {
        let body = fixture(&format!("{name}.body"));
        let json: Value = serde_json::from_slice(&body).unwrap();
        let meta = &json["meta_info"];
        let plain: Rows = meta["hidden_states"][0].as_array().unwrap().iter().map(plain_row).collect();
        let count = |key: &str| meta[key].as_u64().unwrap() as usize;
        let (tokens, new_tokens) = (count("prompt_tokens"), count("completion_tokens"));
        assert_eq!(plain.len(), tokens, "{name}");
        for from in [0, tokens / 2, tokens - 1] {
            let (rows, reply) = read(&body, HIDDEN, PromptRows { tokens, from, new_tokens });
            assert!(rows == plain[from..], "{name} from {from}");
            let found = RowsFound { rows: new_tokens, prompt_rows: tokens - 1, first_row_missing: false };
            assert_eq!(reply.unwrap().rows, Some(found), "{name}");
        }
        let of = |tokens, new_tokens| read(&body, HIDDEN, PromptRows { tokens, from: 0, new_tokens }).1;
        assert_eq!(of(tokens + 1, new_tokens), Err(fewer(tokens, tokens + 1)), "{name}");
        assert_eq!(of(tokens, new_tokens - 1), Err(more(tokens)), "{name}");
        if tokens > 1 {
            assert_eq!(of(tokens - 1, new_tokens), Err(more(tokens - 1)), "{name}");
        }
    }
}

/// What is wrong with rows is often told before them.
#[test]
fn the_words_before_rows_are_known_behind_an_error_in_them() {
    let body = br#"{"text":"a","meta_info":{"prompt_tokens":3,"cached_tokens":1,"hidden_states":[[[1,2],[3,4]]]}}"#;
    let mut reader = ReplyReader::of_prompt(2, PromptRows { tokens: 3, from: 0, new_tokens: 1 });
    assert_eq!(reader.push(body, &mut |_| {}), Err(fewer(2, 3)));
    let meta = reader.before_rows().unwrap().meta;
    assert_eq!((meta.prompt_tokens, meta.cached_tokens), (Some(3), Some(1)));
    assert_eq!(reader.finish(), Err(fewer(2, 3)));
}
