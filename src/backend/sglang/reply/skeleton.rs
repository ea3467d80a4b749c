//! A reply without its hidden states: what is small enough to hold and to parse at the end.
//!
//! Only strings, brackets and the names of two keys are looked at here; whether it is JSON at all is found by the parser
//! that reads the whole.

use memchr::memchr2;

use super::error::ReplyError;

/// The most that is held beside hidden states. The largest honest reply has the 20 best ids of 32,768 tokens, at 40 to
/// 50 bytes an id.
pub(super) const MAX_SKELETON_BYTES: usize = 32 << 20;
/// The deepest nesting that is read. sglang's replies have 5 levels; the JSON parser's own limit is 128.
pub(super) const MAX_DEPTH: usize = 64;

/// Where the hidden states are in a reply.
const META: &[u8] = b"meta_info";
const HIDDEN_STATES: &[u8] = b"hidden_states";
/// What stands for them in the skeleton.
const STAND_IN: &[u8] = b"null";

/// Collects a reply's text and finds the hidden states in it.
#[derive(Debug, Default)]
pub(super) struct Skeleton {
    text: Vec<u8>,
    /// Brackets that are open.
    depth: usize,
    /// The second of these is that of `meta_info`.
    in_meta: bool,
    position: Position,
    /// Where the stand-in begins, and how many bytes it stands for.
    hidden_states: Option<(usize, u64)>,
    /// Where the text begins in the body.
    spaces: u64,
}

/// What the next byte belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Position {
    /// Not to a string, nor is it where a key of interest may begin.
    #[default]
    Other,
    /// A key of the reply or of `meta_info` comes next, if any.
    BeforeKey,
    /// That key, whose text begins at this byte of the skeleton.
    Key { from: usize, escaped: bool },
    /// Any other string.
    String { escaped: bool },
    /// After the key `meta_info` of the reply.
    AfterMetaKey,
    /// After the key `hidden_states` of `meta_info`, before its colon.
    AfterRowsKey,
    /// After that colon.
    BeforeRows,
    /// After the reply.
    End,
}

impl Skeleton {
    /// For a reply that begins after this many spaces.
    pub(super) fn after_spaces(spaces: u64) -> Self {
        Self { spaces, ..Self::default() }
    }

    /// True once the reply's own brackets are closed.
    pub(super) fn is_complete(&self) -> bool {
        self.position == Position::End
    }

    /// True if hidden states, or null for them, were found.
    pub(super) fn has_hidden_states(&self) -> bool {
        self.hidden_states.is_some()
    }

    /// The text, with `null` for hidden states.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Where a byte of the text stands in the body.
    pub(super) fn offset(&self, at: usize) -> u64 {
        let within = match self.hidden_states {
            Some((from, bytes)) if at > from => (at - from).saturating_sub(STAND_IN.len()) as u64 + from as u64 + bytes,
            _ => at as u64,
        };
        self.spaces + within
    }

    /// Says that the value of `hidden_states` took this many bytes, which were not pushed.
    pub(super) fn stand_in(&mut self, bytes: u64) {
        self.hidden_states = Some((self.text.len(), bytes));
        self.text.extend_from_slice(STAND_IN);
        self.position = Position::Other;
    }

    /// Takes bytes up to the value of `hidden_states`: how many these are, or `None` if it does not begin among them.
    /// `offset` is where they stand in the body.
    pub(super) fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let here = offset + at as u64;
            match self.position {
                Position::Key { escaped, .. } | Position::String { escaped } => {
                    let taken = self.string(escaped, &bytes[at..]);
                    self.hold(&bytes[at..at + taken])?;
                    at += taken;
                    continue;
                }
                Position::BeforeRows if !is_space(byte) => {
                    return match self.hidden_states {
                        Some(_) => Err(ReplyError::Twice { offset: here }),
                        None => Ok(Some(at)),
                    };
                }
                Position::End if !is_space(byte) => {
                    return Err(ReplyError::Malformed { offset: here, what: "more after the reply's end".to_owned() });
                }
                _ => {}
            }
            self.hold(&[byte])?;
            self.between(here, byte)?;
            at += 1;
        }
        Ok(None)
    }

    /// Appends to the text.
    fn hold(&mut self, bytes: &[u8]) -> Result<(), ReplyError> {
        if self.text.len() + bytes.len() > MAX_SKELETON_BYTES {
            return Err(ReplyError::TooLarge { limit: MAX_SKELETON_BYTES });
        }
        self.text.extend_from_slice(bytes);
        Ok(())
    }

    /// How many bytes belong to the string: up to a quote or backslash, one at least.
    fn string(&mut self, escaped: bool, bytes: &[u8]) -> usize {
        if escaped {
            self.set_escaped(false);
            return 1;
        }
        match memchr2(b'"', b'\\', bytes) {
            None => bytes.len(),
            Some(end) if bytes[end] == b'\\' => {
                self.set_escaped(true);
                end + 1
            }
            Some(end) => {
                self.position = match self.position {
                    Position::Key { from, .. } => self.key(from, &bytes[..end]),
                    _ => Position::Other,
                };
                end + 1
            }
        }
    }

    fn set_escaped(&mut self, now: bool) {
        match &mut self.position {
            Position::Key { escaped, .. } | Position::String { escaped } => *escaped = now,
            _ => {}
        }
    }

    /// What comes after a key, whose text is that from `from` on and these bytes. A key of interest that is written with
    /// escapes is not known, and what it holds has to fit the skeleton.
    fn key(&self, from: usize, end: &[u8]) -> Position {
        let begin = self.text.get(from..).unwrap_or_default();
        let is = |name: &[u8]| name.strip_prefix(begin) == Some(end);
        if self.depth == 1 && is(META) {
            Position::AfterMetaKey
        } else if self.depth == 2 && is(HIDDEN_STATES) {
            Position::AfterRowsKey
        } else {
            Position::Other
        }
    }

    /// What a byte outside strings means.
    fn between(&mut self, here: u64, byte: u8) -> Result<(), ReplyError> {
        self.position = match byte {
            space if is_space(space) => return Ok(()),
            b'"' if self.position == Position::BeforeKey => Position::Key { from: self.text.len(), escaped: false },
            b'"' => Position::String { escaped: false },
            b':' if self.position == Position::AfterMetaKey => return Ok(()),
            b':' if self.position == Position::AfterRowsKey => Position::BeforeRows,
            b'{' | b'[' => {
                if self.depth == MAX_DEPTH {
                    return Err(ReplyError::TooDeep { offset: here, limit: MAX_DEPTH });
                }
                if self.depth == 1 {
                    self.in_meta = byte == b'{' && self.position == Position::AfterMetaKey;
                }
                self.depth += 1;
                if byte == b'{' { self.before_key() } else { Position::Other }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 { Position::End } else { Position::Other }
            }
            b',' => self.before_key(),
            _ => Position::Other,
        };
        Ok(())
    }

    /// Where a comma or a brace leads to.
    fn before_key(&self) -> Position {
        if self.depth == 1 || (self.depth == 2 && self.in_meta) { Position::BeforeKey } else { Position::Other }
    }
}

/// JSON's spaces.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
