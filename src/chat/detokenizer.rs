//! Ids to text as they come, never half a character.

use std::sync::Arc;

use super::tokenizer::Tokenizer;

/// What stands for bytes that are no UTF-8, an unfinished character among them.
const REPLACEMENT: char = '\u{FFFD}';
/// A character has at most four bytes and a token at least one: with more tokens than this behind the last whole
/// character, the text before the unfinished end cannot change any more.
const LONGEST_CHARACTER: usize = 4;
/// Tokens that may pile up behind the last whole character before the window is cut.
const LONGEST_WAIT: usize = 2 * LONGEST_CHARACTER;

/// Turns a sequence of ids into pieces of text that add up to the decoded whole.
///
/// Each id decodes a window of a few ids, not the whole answer, so the cost of an id is constant. The window starts at
/// the last piece's ids, because some decoders treat the first id of a text differently.
#[derive(Debug)]
pub(super) struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    window: Vec<u32>,
    /// The start of the window's text, as it was given out.
    given: String,
    /// Where in the window the ids of the last piece end.
    settled: usize,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, window: Vec::new(), given: String::new(), settled: 0 }
    }

    /// Adds an id; gives the text that is now certain.
    pub(super) fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_silent(id) {
            return String::new();
        }
        self.window.push(id);
        let text = self.text();
        let waiting = self.window.len() - self.settled;
        if !text.ends_with(REPLACEMENT) {
            let piece = text[self.given.len()..].to_owned();
            if !piece.is_empty() || waiting > LONGEST_WAIT {
                self.move_window(self.settled);
            }
            return piece;
        }
        if waiting <= LONGEST_WAIT {
            return String::new();
        }
        // A model that writes no valid text: give out all but the end, which may still become a character.
        let given = self.given.len();
        self.move_window(self.window.len() - LONGEST_CHARACTER);
        let mut certain = text.as_str();
        if let Some(start) = self.given.strip_suffix(REPLACEMENT) {
            self.given.truncate(start.len());
            certain = &text[..text.len() - REPLACEMENT.len_utf8()];
        }
        certain.get(given..).unwrap_or_default().to_owned()
    }

    /// What is left once no more ids come: an unfinished character shows as U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        let text = self.text();
        let piece = text[self.given.len()..].to_owned();
        self.given = text;
        piece
    }

    /// The window's text, which starts with what was given out.
    ///
    /// Decoders with a fallback to bytes take back a character when an invalid byte follows it: they spoil a whole run of
    /// byte tokens at once. What was given out cannot be taken back, so the window then starts behind it.
    fn text(&mut self) -> String {
        let text = self.tokenizer.decode(&self.window);
        if text.starts_with(&self.given) {
            return text;
        }
        self.window.drain(..self.settled);
        self.settled = 0;
        self.given.clear();
        self.tokenizer.decode(&self.window)
    }

    /// Forgets the ids before `from`; what remains of the window's text counts as given.
    fn move_window(&mut self, from: usize) {
        self.window.drain(..from);
        self.settled = self.window.len();
        self.given = self.tokenizer.decode(&self.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tokenizer::tests::{fixture, sentence_piece};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn pieces(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
        let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        pieces.push(detokenizer.finish());
        pieces
    }

    #[test]
    fn never_gives_half_a_character() {
        let tokenizer = Arc::new(fixture());
        let text = "añ€😀é 你好 z👩‍👩‍👧‍👦!";
        // One id a byte, so that every character falls apart.
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let pieces = pieces(&tokenizer, &ids);
        assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)), "{pieces:?}");
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn an_unfinished_end_shows_as_replacement() {
        let tokenizer = Arc::new(fixture());
        let ids = [u32::from(b'a'), 0xE2, 0x82];
        assert_eq!(pieces(&tokenizer, &ids), ["a", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn pieces_add_up_to_the_decoded_whole_for_any_ids() {
        let tokenizer = Arc::new(fixture());
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for round in 0..2000 {
            let length = rng.random_range(0..80);
            // Mostly continuation bytes and lead bytes in some rounds: long runs of invalid text.
            // Others are mostly control tokens, which have no text, and an unknown id.
            let low = [0, 0x80, 380][round % 3];
            let ids: Vec<u32> = (0..length)
                .map(|_| if rng.random_bool(0.2) { rng.random_range(0..256) } else { rng.random_range(low..385) })
                .collect();
            assert_eq!(pieces(&tokenizer, &ids).concat(), tokenizer.decode(&ids), "{ids:?}");
        }
    }

    #[test]
    fn an_invalid_byte_does_not_swallow_what_follows() {
        let tokenizer = Arc::new(sentence_piece());
        let bytes =
            |text: &str| text.bytes().map(|b| tokenizer.id(&format!("<0x{b:02X}>")).unwrap()).collect::<Vec<_>>();
        let word = tokenizer.id("▁ok").unwrap();
        // A whole character, a stray lead byte, a word.
        let ids = [bytes("😀"), bytes("😀")[..1].to_vec(), vec![word]].concat();
        assert_eq!(pieces(&tokenizer, &ids).concat(), "😀\u{FFFD} ok");
        // More invalid bytes than are waited for, then a word.
        let ids = [vec![bytes("é")[1]], bytes("😀😀"), vec![word, word]].concat();
        assert!(pieces(&tokenizer, &ids).concat().ends_with("ok ok"));
        // Valid text falls into bytes and back.
        let ids = [bytes("é€"), vec![word], bytes("😀"), vec![word]].concat();
        assert_eq!(pieces(&tokenizer, &ids).concat(), "é€ ok😀 ok");
    }

    #[test]
    fn the_window_stays_short() {
        let tokenizer = Arc::new(fixture());
        let mut detokenizer = Detokenizer::new(tokenizer);
        for _ in 0..1000 {
            detokenizer.push(0x80);
            (0..20).for_each(|_| drop(detokenizer.push(382)));
            assert!(detokenizer.window.len() <= 32, "{}", detokenizer.window.len());
        }
    }
}
