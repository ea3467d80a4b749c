//! Log-probabilities of an answer's tokens, for its pieces and for the whole.

use crate::backend::TokenLogprobs;
use crate::chat::Tokenizer;
use crate::openai::{ChoiceLogprobs, Delta, LogprobEntry, Piece, TokenLogprob};
use crate::protocol::MAX_MESSAGE_BYTES;

/// The response repeats all entries in one message, and a message too long costs the leg with every request on it. With 20
/// alternatives a token takes 2 kB, so this is reached after about 20,000 tokens. It leaves room for text, ids and proofs.
const MOST_BYTES: usize = MAX_MESSAGE_BYTES / 4 * 3;

/// The entries of one answer. Its pieces' entries put together are the whole's.
///
/// Every generated token has one but the id that ends the answer, which has no text either. The tokens of a stop string
/// have theirs, although its text is cut off: a token may hold the end of the text and the start of the stop string, so
/// cutting entries would not make them fit the text, and what was generated is billed. Tokens of thoughts and tool calls
/// have theirs too.
#[derive(Debug)]
pub(super) struct Entries {
    wanted: bool,
    all: Vec<LogprobEntry>,
    /// How many of them pieces have brought.
    told: usize,
    /// At least what they take as JSON.
    bytes: usize,
}

impl Entries {
    /// No entries yet, or ever, where they are not `wanted`.
    pub(super) fn new(wanted: bool) -> Self {
        Self { wanted, all: Vec::new(), told: 0, bytes: 0 }
    }

    /// Adds the entry of an id.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprobs: TokenLogprobs) {
        if !self.wanted {
            return;
        }
        let entry = LogprobEntry {
            chosen: token(tokenizer, id, logprobs.logprob),
            top_logprobs: logprobs.top.into_iter().map(|(id, logprob)| token(tokenizer, id, logprob)).collect(),
        };
        let tokens = std::iter::once(&entry.chosen).chain(&entry.top_logprobs);
        self.bytes += tokens.map(json_bytes).sum::<usize>() + r#","top_logprobs":[]"#.len();
        self.all.push(entry);
    }

    /// True when no more entries fit into a response: the answer must end.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > MOST_BYTES
    }

    /// Makes pieces of deltas. The first takes along the entries that wait: an id often adds no text yet.
    pub(super) fn pieces(&mut self, deltas: Vec<Delta>) -> impl Iterator<Item = Piece> {
        deltas.into_iter().map(|delta| Piece { delta, logprobs: self.waiting() })
    }

    /// A piece without text, for entries that still wait behind the last delta.
    pub(super) fn last_piece(&mut self) -> Option<Piece> {
        self.waiting().map(|logprobs| Piece { delta: Delta::content(""), logprobs: Some(logprobs) })
    }

    /// All entries, where they are wanted.
    pub(super) fn into_whole(self) -> Option<ChoiceLogprobs> {
        self.wanted.then_some(ChoiceLogprobs { content: self.all, refusal: None })
    }

    /// The entries that no piece has brought, if any; they count as brought from now on.
    fn waiting(&mut self) -> Option<ChoiceLogprobs> {
        let content = self.all.get(self.told..).unwrap_or_default().to_vec();
        self.told = self.all.len();
        (!content.is_empty()).then_some(ChoiceLogprobs { content, refusal: None })
    }
}

fn token(tokenizer: &Tokenizer, id: u32, logprob: f32) -> TokenLogprob {
    let bytes = tokenizer.bytes(id);
    let token = String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    TokenLogprob { token, logprob, bytes }
}

/// No less than a token takes as JSON: a byte is up to 4 characters in the list and, escaped, 6 in the text.
fn json_bytes(token: &TokenLogprob) -> usize {
    const KEYS: usize = r#"{"token":"","logprob":-9999.12345678,"bytes":null},"#.len();
    KEYS + 10 * token.bytes.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tests::model;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Any ids (half characters, control tokens, none at all) through an answer with a stop string.
    #[test]
    fn streamed_entries_add_up_to_the_wholes() {
        let model = model();
        let stop = crate::chat::ChatRequest { stop: vec!["ab".into()], ..Default::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        for round in 0..500 {
            let mut answer = model.answer(&stop, false);
            let mut entries = Entries::new(true);
            let (mut ids, mut pieces) = (Vec::new(), Vec::new());
            for _ in 0..rng.random_range(0..60) {
                let id = if round % 2 == 0 { rng.random_range(0..386) } else { rng.random_range(96..100) };
                ids.push(id);
                let top = (0..rng.random_range(0..4)).map(|id| (id, -1.5)).collect();
                entries.push(model.tokenizer(), id, TokenLogprobs { logprob: -0.1 * ids.len() as f32, top });
                let piece = answer.push(id);
                pieces.extend(entries.pieces(piece.deltas));
                if piece.stopped {
                    break;
                }
            }
            pieces.extend(entries.pieces(answer.finish(crate::chat::AnswerEnd::Stop).0));
            pieces.extend(entries.last_piece());
            assert_eq!(entries.last_piece(), None);
            let streamed: Vec<_> = pieces.into_iter().filter_map(|p| p.logprobs).flat_map(|l| l.content).collect();
            let whole = entries.into_whole().unwrap().content;
            assert_eq!(streamed, whole);
            assert_eq!(whole.len(), ids.len());
            for (at, (entry, id)) in whole.iter().zip(ids).enumerate() {
                assert_eq!(entry.chosen.bytes, model.tokenizer().bytes(id));
                assert_eq!(entry.chosen.logprob, -0.1 * (at + 1) as f32);
            }
        }
    }

    #[test]
    fn unasked_there_are_none() {
        let mut entries = Entries::new(false);
        entries.push(model().tokenizer(), 65, TokenLogprobs { logprob: 0.0, top: vec![] });
        assert!(entries.pieces(vec![Delta::content("A")]).all(|piece| piece.logprobs.is_none()));
        assert_eq!((entries.last_piece(), entries.into_whole()), (None, None));
    }

    #[test]
    fn entries_take_no_more_than_is_reckoned() {
        let model = model();
        let mut entries = Entries::new(true);
        for id in 0..386 {
            let top = (0..20).map(|n| ((id + n) % 386, -9999.0)).collect();
            entries.push(model.tokenizer(), id, TokenLogprobs { logprob: -1.234_567_8e-10, top });
        }
        let reckoned = entries.bytes;
        assert!(!entries.is_full());
        let written = serde_json::to_string(&entries.into_whole()).unwrap().len();
        assert!(written <= reckoned && reckoned < 2 * written, "{written} of {reckoned}");
        let full = Entries { wanted: true, all: vec![], told: 0, bytes: MOST_BYTES + 1 };
        assert!(full.is_full());
    }
}
