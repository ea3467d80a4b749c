//! A model's tokens, and the trie that masks are computed over.

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

/// The first byte of a control token in the trie: none of UTF-8, so that no text matches it.
const CONTROL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// What an id stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// These bytes, whole characters or not.
    Text(Vec<u8>),
    /// A mark of this name, which no text can be: a control token, or one like `<think>`.
    Control(String),
    /// Nothing: ids of the model's table that its tokenizer does not know.
    Unused,
}

/// All ids of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// By id. May be shorter than the model's table, whose other ids are then unused.
    pub tokens: Vec<Token>,
    /// Ids that end a turn.
    pub end_ids: Vec<u32>,
}

/// The marks that forms are made of, where the vocabulary has them as tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) think: Option<u32>,
    pub(super) think_end: Option<u32>,
    pub(super) call: Option<u32>,
    pub(super) call_end: Option<u32>,
}

impl Vocabulary {
    pub(super) fn marks(&self) -> Marks {
        let id = |name: &str| {
            let at = self.tokens.iter().position(|token| matches!(token, Token::Control(own) if own == name))?;
            u32::try_from(at).ok()
        };
        Marks { think: id("<think>"), think_end: id("</think>"), call: id("<tool_call>"), call_end: id("</tool_call>") }
    }

    /// The trie, for a model with a table of `size` ids.
    pub(super) fn into_trie(self, size: usize) -> TokEnv {
        let mut words: Vec<Vec<u8>> = self.tokens.into_iter().map(word).collect();
        words.resize(size, Vec::new());
        let end_ids: Vec<u32> = self.end_ids.into_iter().filter(|id| (*id as usize) < size).collect();
        let first = end_ids.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, first), &words);
        if end_ids.len() > 1 {
            trie = trie.with_eos_tokens(&end_ids);
        }
        // How the tokenizer itself would cut a text does not matter: masks leave that to the model.
        std::sync::Arc::new(ApproximateTokEnv::new(trie))
    }
}

fn word(token: Token) -> Vec<u8> {
    match token {
        // A byte that no text has.
        Token::Text(bytes) if bytes.first() == Some(&CONTROL) => Vec::new(),
        Token::Text(bytes) => bytes,
        Token::Control(name) => [&[CONTROL], name.as_bytes()].concat(),
        Token::Unused => Vec::new(),
    }
}
