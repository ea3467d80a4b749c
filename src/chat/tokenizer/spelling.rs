//! From a token, as its vocabulary spells it, to its bytes.

use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;

/// How a vocabulary spells its tokens' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One letter a byte, as GPT-2 has it.
    ByteLevel,
    /// As text, with marks that the decoder knows; bytes that no piece has as `<0x0A>` where `byte_fallback`.
    Pieces { byte_fallback: bool },
}

impl Spelling {
    /// What the tokenizer's decoder says.
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let decoders = match tokenizer.get_decoder() {
            Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        if decoders.iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_))) {
            return Self::ByteLevel;
        }
        let byte_fallback = decoders.iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteFallback(_)));
        Self::Pieces { byte_fallback }
    }

    /// The bytes of a token of the vocabulary, `None` for other ids.
    pub(super) fn bytes(self, tokenizer: &Tokenizer, id: u32) -> Option<Vec<u8>> {
        let token = tokenizer.id_to_token(id)?;
        // Added tokens stand for themselves.
        if tokenizer.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id) {
            return Some(token.into_bytes());
        }
        match self {
            // A token with a letter of no byte is text, as the library's decoder has it.
            Self::ByteLevel => {
                Some(token.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| token.into_bytes()))
            }
            Self::Pieces { byte_fallback } => {
                let byte = fallback_byte(&token).filter(|_| byte_fallback);
                byte.map(|byte| vec![byte]).or_else(|| Some(text_inside(tokenizer, id).into_bytes()))
            }
        }
    }
}

/// The text that a token has behind another: at the start of a text, decoders leave out a space.
fn text_inside(tokenizer: &Tokenizer, id: u32) -> String {
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
    let (once, twice) = (decode(&[id]), decode(&[id, id]));
    twice.strip_prefix(&once).map_or(once.clone(), str::to_owned)
}

/// The byte of a letter of the byte-level alphabet: printable bytes stand for themselves, all others, in order, for the
/// letters from U+0100.
fn byte_of(letter: char) -> Option<u8> {
    let letter = u32::from(letter);
    let byte = match letter {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => letter,
        0x100..=0x120 => letter - 0x100,
        0x121..=0x142 => letter - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The byte of a token like `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tokenizer::tests::{fixture, sentence_piece};

    #[test]
    fn the_byte_level_alphabet_is_the_librarys() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut bytes: Vec<u8> = alphabet.into_iter().map(|letter| byte_of(letter).unwrap()).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('ń'), byte_of('｜')), (Some(b' '), Some(b'\n'), None, None));
    }

    #[test]
    fn byte_level_tokens() {
        let tokenizer = fixture();
        for byte in 0..=255 {
            assert_eq!(tokenizer.bytes(byte.into()), Some(vec![byte]), "the fixture has one id a byte");
        }
        // Merges, added tokens, control tokens: what an id's bytes decode to is what the id decodes to.
        for id in 256..384 {
            let bytes = tokenizer.bytes(id).unwrap();
            let text = tokenizer.inner.decode(&[id], false).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes), text, "id {id}");
        }
        let special = tokenizer.id("<|im_end|>").unwrap();
        assert_eq!(tokenizer.bytes(special).unwrap(), b"<|im_end|>");
        assert_eq!(tokenizer.bytes(384), None, "an id behind the end of the vocabulary");
    }

    #[test]
    fn pieces_and_bytes_in_their_place() {
        let tokenizer = sentence_piece();
        let bytes = |token: &str| tokenizer.bytes(tokenizer.id(token).unwrap()).unwrap();
        assert_eq!((bytes("▁ok"), bytes("hell"), bytes("▁")), (b" ok".into(), b"hell".into(), b" ".into()));
        assert_eq!((bytes("<0xC3>"), bytes("<0x0A>"), bytes("</s>")), (vec![0xC3], vec![b'\n'], b"</s>".into()));
        let text = "ok hello é\n";
        let ids = tokenizer.encode(text).unwrap();
        let joined: Vec<u8> = ids.iter().flat_map(|id| tokenizer.bytes(*id).unwrap()).collect();
        assert_eq!(joined, format!(" {text}").into_bytes());
        assert_eq!((fallback_byte("<0x100>"), fallback_byte("<0xG0>"), fallback_byte("0x0A")), (None, None, None));
    }
}
