//! Reading a gateway's frames, also those that are not quite JSON.
//!
//! What a buyer wrote travels inside a serve frame. Clients that cut text in the middle of an emoji send half a surrogate
//! pair, which Python's JSON passes on and a strict reader refuses; numbers may be too large, lists too deep. A frame that
//! is dropped for it is a request that nobody answers, and the network counts that against the miner.

use serde::Deserialize;

use crate::protocol::GatewayFrame;

/// What a message from the gateway is.
#[derive(Debug, PartialEq)]
pub(super) enum Reading {
    /// A frame.
    Frame(GatewayFrame),
    /// A serve frame whose request cannot be read: to be answered, by its id, with the reason.
    UnreadableServe { corr_id: String, reason: String },
    /// Nothing that can be answered.
    Nothing,
}

/// Reads a message.
pub(super) fn read(text: &str) -> Reading {
    let error = match serde_json::from_str(text) {
        Ok(frame) => return Reading::Frame(frame),
        Err(error) => error,
    };
    if let Some(mended) = without_half_characters(text)
        && let Ok(frame) = serde_json::from_str(&mended)
    {
        return Reading::Frame(frame);
    }
    /// The outside of a frame; a skipped value need not make sense.
    #[derive(Deserialize)]
    struct Envelope {
        r#type: String,
        corr_id: String,
    }
    match serde_json::from_str::<Envelope>(text) {
        Ok(envelope) if envelope.r#type == "serve" => {
            Reading::UnreadableServe { corr_id: envelope.corr_id, reason: error.to_string() }
        }
        _ => Reading::Nothing,
    }
}

/// The text with each escaped half of a surrogate pair that stands alone replaced by the escape of U+FFFD; `None` where
/// there is none.
fn without_half_characters(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut mended = false;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        // An escape is two characters, or six: `\uXXXX`. An escaped backslash must not be read as the start of another.
        let unit = code_unit(escape);
        let length = match unit {
            Some(0xD800..0xDC00) if matches!(escape.get(6..).and_then(code_unit), Some(0xDC00..0xE000)) => 12,
            Some(0xD800..0xE000) => {
                out.push_str("\\ufffd");
                rest = &escape[6..];
                mended = true;
                continue;
            }
            Some(_) => 6,
            None => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        let (escape, after) = escape.split_at(length);
        out.push_str(escape);
        rest = after;
    }
    out.push_str(rest);
    mended.then_some(out)
}

/// The code unit of an escape `\uXXXX` at the start of a text.
fn code_unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str) -> String {
        let frame = format!(r#"{{"type":"serve","corr_id":"c","request":{{"content":"{text}"}}}}"#);
        match read(&frame) {
            Reading::Frame(GatewayFrame::Serve(serve)) => serve.request["content"].as_str().unwrap().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn half_an_emoji_becomes_a_replacement_character() {
        assert_eq!(content(r"cut \ud83d"), "cut \u{FFFD}");
        assert_eq!(content(r"\ude00 cut \ud83dx\ud83d\ud83d\ude00"), "\u{FFFD} cut \u{FFFD}x\u{FFFD}😀");
        assert_eq!(
            content(r"whole \ud83d\ude00, an escaped backslash \\ud83d, a cut \ud83d"),
            "whole 😀, an escaped backslash \\ud83d, a cut \u{FFFD}"
        );
    }

    #[test]
    fn a_serve_that_cannot_be_read_keeps_its_id() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for request in [r#"{"temperature":1e999}"#.to_owned(), deep] {
            let frame = format!(r#"{{"type":"serve","request":{request},"corr_id":"c-7"}}"#);
            let Reading::UnreadableServe { corr_id, .. } = read(&frame) else { panic!("{request}") };
            assert_eq!(corr_id, "c-7");
        }
        for other in
            ["", "[]", r#"{"type":"serve"}"#, r#"{"type":"cancel"}"#, r#"{"type":"#, r#"{"type":"serve","corr_id":7}"#]
        {
            assert_eq!(read(other), Reading::Nothing, "{other}");
        }
    }

    #[test]
    fn any_text_with_backslashes_is_read_without_a_panic() {
        for text in ["\\", "\\u", "\\u12", "\\uD83", "\\uD83é", "\\é", "\\\\\\", "\\ud83d\\", "\\ud83d\\u", "\\uZZZZ"]
        {
            let _ = without_half_characters(text);
            assert_eq!(read(text), Reading::Nothing);
        }
    }
}
