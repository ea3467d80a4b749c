//! Text as a model wrote it, which knows where a token of its own made a marker.

/// A stretch of text, and the places in it where a marker (`<think>`, `<tool_call>` and their closers) came as one token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Written {
    text: String,
    /// Ascending byte offsets in `text`.
    tokens: Vec<usize>,
}

/// How much of a tag stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Whole,
    /// The text ends before the tag does: more of it may come.
    Started,
    Absent,
}

/// Looks for a tag at the start of a text.
pub(super) fn tag(text: &str, tag: &str) -> Tag {
    if text.starts_with(tag) {
        Tag::Whole
    } else if tag.starts_with(text) {
        Tag::Started
    } else {
        Tag::Absent
    }
}

impl Written {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Appends text; `tokens` are the places in it where marker tokens start.
    pub(super) fn push(&mut self, text: &str, tokens: &[usize]) {
        let before = self.text.len();
        self.tokens.extend(tokens.iter().map(|at| before + at));
        self.text.push_str(text);
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.push(&other.text, &other.tokens);
    }

    /// Whether a marker's own token starts at a place.
    pub(super) fn is_token(&self, at: usize) -> bool {
        self.tokens.binary_search(&at).is_ok()
    }

    /// Takes the first `bytes` bytes off; they must end at a character's border.
    pub(super) fn take(&mut self, bytes: usize) -> Self {
        let rest = self.text.split_off(bytes);
        let later = self.tokens.partition_point(|at| *at < bytes);
        let mut tokens = self.tokens.split_off(later);
        tokens.iter_mut().for_each(|at| *at -= bytes);
        Self { text: std::mem::replace(&mut self.text, rest), tokens: std::mem::replace(&mut self.tokens, tokens) }
    }

    /// Takes all of it.
    pub(super) fn take_all(&mut self) -> Self {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_move_with_the_text() {
        let mut written = Written::default();
        written.push("ab<think>", &[2]);
        written.push("<think>c", &[0]);
        let first = written.take(4);
        assert_eq!((first.text(), first.is_token(2)), ("ab<t", true));
        assert_eq!((written.text(), written.is_token(5), written.is_token(0)), ("hink><think>c", true, false));
        let mut whole = first;
        whole.append(&written.take_all());
        assert!(whole.is_token(2) && whole.is_token(9) && written.is_empty());
    }

    #[test]
    fn tags_may_be_cut() {
        assert_eq!(
            (tag("<a>x", "<a>"), tag("<a", "<a>"), tag("", "<a>"), tag("<b", "<a>")),
            (Tag::Whole, Tag::Started, Tag::Started, Tag::Absent)
        );
    }
}
