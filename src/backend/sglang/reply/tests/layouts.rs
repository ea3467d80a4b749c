//! Which elements of `hidden_states` are rows.

use super::{Rows, read};
use crate::backend::sglang::reply::{ReplyError, RowsFound};

/// Reads hidden states of width 2.
fn states(text: &str, skip: usize) -> (Rows, Result<Option<RowsFound>, ReplyError>) {
    let body = format!(r#"{{"text":"x","meta_info":{{"id":"a","hidden_states":{text},"e2e_latency":1.5}}}}"#);
    let (rows, reply) = read(body.as_bytes(), 2, skip);
    (rows, reply.map(|reply| reply.rows))
}

/// Rows `[n, -n]`, by their numbers.
pub(super) fn numbered(rows: &[u8]) -> Rows {
    rows.iter().map(|&n| [f32::from(n), -f32::from(n)].map(|x| half::bf16::from_f32(x).to_bits()).to_vec()).collect()
}

/// Writes a layout: digits stand for such rows.
pub(super) fn layout(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { format!("[{c},-{c}.0]") } else { c.to_string() }).collect()
}

#[test]
fn rows_are_told_by_depth() {
    // Elements; rows; rows of the prompt that do not count; whether row 0 is missing.
    for (text, rows, prompt_rows, first_row_missing) in [
        ("[[1],2,3]", &[1, 2, 3][..], 0, false),
        ("[[1]]", &[1], 0, false),
        ("[1,2]", &[1, 2], 0, false),
        ("[1]", &[1], 0, false),
        ("[[1],[2],[3]]", &[1, 2, 3], 0, false),
        ("[[1],[2],3,[4]]", &[1, 2, 3, 4], 0, false),
        ("[[5,6,7,1],2,3]", &[1, 2, 3], 3, false),
        ("[[5,1]]", &[1], 1, false),
        ("[[5,6],[7,8,1],2]", &[1, 2], 4, false),
        ("[[5,6],[7,1]]", &[1], 3, false),
        ("[[5],[6,1],2]", &[1, 2], 2, false),
        ("[[5,1],[2],3]", &[1, 2, 3], 1, false),
        ("[[5,1],[2]]", &[1, 2], 1, false),
        ("[[],[5,1],2]", &[1, 2], 1, false),
        ("[[[]],[5,1],2]", &[1, 2], 1, false),
        ("[[],null,[5,1],2]", &[1, 2], 1, false),
        ("[[],2,3]", &[2, 3], 0, true),
        ("[[[]],2,3]", &[2, 3], 0, true),
        ("[null,2,3]", &[2, 3], 0, true),
        ("[[],[2],3]", &[2, 3], 0, true),
        ("[]", &[], 0, false),
        ("[[]]", &[], 0, false),
        ("[[[]]]", &[], 0, false),
        ("[null]", &[], 0, false),
        ("[[],[],[[]],null]", &[], 0, false),
    ] {
        let found = RowsFound { rows: rows.len(), prompt_rows, first_row_missing };
        for spaced in [layout(text), layout(text).replace(',', " ,\n\t").replace('[', "\r[ ").replace(']', " ] ")] {
            assert_eq!(states(&spaced, 0), (numbered(rows), Ok(Some(found))), "{text}");
            for skip in 1..=rows.len() {
                assert_eq!(states(&spaced, skip), (numbered(&rows[skip..]), Ok(Some(found))), "{text} after {skip}");
            }
            // More than there are.
            assert_eq!(states(&spaced, 9), (Rows::new(), Ok(Some(found))), "{text}");
        }
    }
}

#[test]
fn rows_that_cannot_be_placed_are_errors() {
    let missing = |row| ReplyError::Missing { row };
    let late = |row| ReplyError::LateBlock { row };
    // Elements; rows given before; the error.
    for (text, rows, error) in [
        ("[[1],[],2]", &[][..], missing(1)),
        ("[[1],2,[],3]", &[1, 2], missing(2)),
        ("[[1],2,null]", &[1, 2], missing(2)),
        ("[[1],[[]]]", &[], missing(1)),
        ("[[],2,[]]", &[2], missing(2)),
        ("[[],[],2]", &[], missing(1)),
        ("[[1],2,[5,6],3]", &[1, 2], late(1)),
        ("[1,[5,6]]", &[1], late(0)),
        ("[[],2,[5,6]]", &[2], late(1)),
    ] {
        assert_eq!(states(&layout(text), 0), (numbered(rows), Err(error.clone())), "{text}");
        let after_all = states(&layout(text), 9);
        assert_eq!(after_all, (Rows::new(), Err(error)), "{text}, all skipped");
    }
}

#[test]
fn one_vector_alone_is_the_mode_last() {
    for text in ["[1.5,2.5]", "[-1,2]", "[0]", "[null,1]"] {
        assert_eq!(states(text, 0), (Rows::new(), Err(ReplyError::LastOnly)), "{text}");
    }
    assert!(matches!(states("[[1,2],3]", 0), (rows, Err(ReplyError::Malformed { .. })) if rows.len() == 1));
    assert!(matches!(states("[[[1,2]],3]", 0), (_, Err(ReplyError::Malformed { .. }))));
}

#[test]
fn a_row_of_another_width_is_named() {
    let width = |row, found| Err(ReplyError::Width { row, found, expected: 2 });
    for (text, rows, error) in [
        ("[[[1,-1]],[2]]", &[1][..], width(1, 1)),
        ("[[[1,-1]],[2,-2],[3,4,5,6]]", &[1, 2], width(2, 4)),
        ("[[[9]],[2,-2]]", &[], width(0, 1)),
        ("[[[9,9],[9,9,9]],[2,-2]]", &[], width(0, 3)),
        ("[[[9,9],[]],[2,-2]]", &[], width(0, 0)),
        ("[[],[2,-2],[3]]", &[2], width(2, 1)),
        ("[[[1,-1]],[[2]]]", &[1], width(1, 1)),
    ] {
        assert_eq!(states(text, 0), (numbered(rows), error), "{text}");
    }
    // A row that does not count may be anything.
    assert_eq!(states("[[[9,null,x],[1,-1]],[2,-2]]", 0).0, numbered(&[1, 2]));
    assert_eq!(states("[[[1,-1]],[2,-2,5],[3,-3]]", 2).0, numbered(&[3]));
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    for (text, row, column, found) in [
        ("[[[0.5,null]],[1,-1]]", 0, 1, "null"),
        ("[[[5,5],[null,1]],[1,-1]]", 0, 0, "null"),
        ("[[[1,-1]],[2,-2],[NaN,1]]", 2, 0, "NaN"),
        ("[[],[2,-2],[1,-Infinity]]", 2, 1, "-Infinity"),
        ("[[[1,-1]],[[1,4e38]]]", 1, 1, "4e38"),
        ("[[null,1]]", 0, 0, "null"),
    ] {
        let error = ReplyError::NonFinite { row, column, found: found.to_owned() };
        assert_eq!(states(text, 0).1, Err(error), "{text}");
    }
}

#[test]
fn what_is_no_list_of_rows_is_an_error() {
    assert_eq!(states("null", 0), (Rows::new(), Ok(None)));
    for (text, found) in
        [("\"AAAA\"", "a string"), ("{}", "an object"), ("true", "a boolean"), ("3", "a number"), ("]", "no JSON")]
    {
        assert_eq!(states(text, 0).1, Err(ReplyError::NotAList { offset: 50, found }), "{text}");
    }
    for text in [
        "[[1,2],]",
        "[,[1,2]]",
        "[[1,2][3,4]]",
        "[[1,2],\"a\"]",
        "[[1,2],{}]",
        "[[[1,2],3]]",
        "[[[1,2],]]",
        "[[[[1,2]]]]",
        "[[1,[2]]]",
        "[[1,2,]]",
        "[[1 2]]",
        "[[,1]]",
        "[[1,,2]]",
        "[nulx]",
        "nul1",
        "[[1,\"2\"]]",
        "[[1,2}]",
        "[[[1,2]},[1,2]]",
        "[[true,2]]",
        "[[1,2]}",
    ] {
        let (_, reply) = states(text, 0);
        assert!(matches!(reply, Err(ReplyError::Malformed { .. })), "{text} {reply:?}");
    }
}

#[test]
fn a_row_of_a_block_has_a_longest_text() {
    let blank = " ".repeat(5000);
    assert_eq!(states(&format!("[[[1,{blank}1]]]"), 0).1, Err(ReplyError::RowTooLong { row: 0, limit: 4096 }));
    assert!(matches!(states(&format!("[[[1,{blank}1],[1,-1]]]"), 0).1, Err(ReplyError::RowTooLong { .. })));
    let body = format!("[[1,{blank}-1]]");
    assert_eq!(states(&body, 0).0, numbered(&[1]));
}
