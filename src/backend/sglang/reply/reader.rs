//! One reply, from the pieces in which it comes.

use half::bf16;

use super::error::ReplyError;
use super::fields::Reply;
use super::prompt::{PromptReader, PromptRows};
use super::rows::{RowsFound, RowsReader};
use super::skeleton::{Skeleton, is_space};

/// As much of a reply that is not JSON as its error shows.
const SHOWN_BYTES: usize = 160;

/// Reads a reply of `/generate` and gives its rows of hidden states as they come.
///
/// Pieces may be cut anywhere, within numbers and characters too. What is held: one row, as text or as values, and the
/// reply without its hidden states. The work for a piece is linear in its length.
///
/// Rows are only as good as the reply around them: keep what is made of them until [`finish`](Self::finish) has
/// returned it. After an error each further call returns the same error.
///
/// ```
/// # use engy_miner::backend::sglang::reply::ReplyReader;
/// let mut rows = Vec::new();
/// let mut reader = ReplyReader::new(2);
/// for piece in [r#"{"text":"ab","meta_info":{"hidden_states":[[[9,9],[1,2"#, r#".5]],[-3e-1,4]]}}"#] {
///     reader.push(piece.as_bytes(), &mut |row| rows.push(row.iter().map(|x| x.to_f32()).collect::<Vec<_>>()))?;
/// }
/// let reply = reader.finish()?;
/// assert_eq!(rows, [[1.0, 2.5], [-0.30078125, 4.0]]);
/// assert_eq!(reply.text.as_deref(), Some("ab"));
/// assert_eq!(reply.rows.map(|found| (found.rows, found.prompt_rows)), Some((2, 1)));
/// # Ok::<(), engy_miner::backend::sglang::reply::ReplyError>(())
/// ```
#[derive(Debug)]
pub struct ReplyReader {
    state: State,
    skeleton: Skeleton,
    rows: Rows,
    /// Bytes that came.
    offset: u64,
    /// How a reply begins that is not JSON.
    start: Vec<u8>,
}

/// Whose rows are given.
#[derive(Debug)]
enum Rows {
    OfAnswer(RowsReader),
    OfPrompt(PromptReader),
}

#[derive(Debug)]
enum State {
    /// Nothing but spaces has come.
    Start,
    /// It is not JSON.
    Foreign,
    /// In the reply, outside hidden states.
    Fields,
    /// In hidden states, which began at this byte of the body.
    Rows { from: u64 },
    /// It cannot be read.
    Failed(ReplyError),
}

impl Rows {
    fn push(&mut self, offset: u64, bytes: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<Option<usize>, ReplyError> {
        match self {
            Self::OfAnswer(rows) => rows.push(offset, bytes, sink),
            Self::OfPrompt(rows) => rows.push(offset, bytes, sink),
        }
    }

    fn found(&self) -> Option<RowsFound> {
        match self {
            Self::OfAnswer(rows) => rows.found(),
            Self::OfPrompt(rows) => rows.found(),
        }
    }
}

impl ReplyReader {
    /// For an answer's rows of `hidden` values.
    #[must_use]
    pub fn new(hidden: usize) -> Self {
        Self::skipping(hidden, 0)
    }

    /// For a reply that repeats rows which are known, as each event of a stream does: passes over the first `rows`
    /// without reading their numbers.
    #[must_use]
    pub fn skipping(hidden: usize, rows: usize) -> Self {
        Self::of(Rows::OfAnswer(RowsReader::new(hidden, rows)))
    }

    /// For rows of `hidden` values of the prompt, from a position on: what a serve computed of a text that it was given. Either each
    /// token has its row and no row is left over, or there is an error; until the reply has ended, rows that were given may be
    /// other tokens'.
    ///
    /// ```
    /// # use engy_miner::backend::sglang::reply::{PromptRows, ReplyReader};
    /// let mut rows = Vec::new();
    /// let mut reader = ReplyReader::of_prompt(2, PromptRows { tokens: 3, from: 1, new_tokens: 1 });
    /// let body = br#"{"text":"a","meta_info":{"hidden_states":[[[9,9],[1,2],[3,4]]]}}"#;
    /// reader.push(body, &mut |row| rows.push(row.iter().map(|x| x.to_f32()).collect::<Vec<_>>()))?;
    /// reader.finish()?;
    /// assert_eq!(rows, [[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), engy_miner::backend::sglang::reply::ReplyError>(())
    /// ```
    #[must_use]
    pub fn of_prompt(hidden: usize, wanted: PromptRows) -> Self {
        Self::of(Rows::OfPrompt(PromptReader::new(hidden, wanted)))
    }

    fn of(rows: Rows) -> Self {
        Self { state: State::Start, skeleton: Skeleton::default(), rows, offset: 0, start: Vec::new() }
    }

    /// Reads on. `sink` gets each row that is wanted as soon as it is complete and known to count: `[hidden]`, finite.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: what is wrong with the reply, and where.
    pub fn push(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        let read = self.read(bytes, sink);
        if let Err(error) = &read {
            self.state = State::Failed(error.clone());
        }
        read
    }

    fn read(&mut self, mut bytes: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        while let Some(&first) = bytes.first() {
            let taken = match &self.state {
                State::Start if is_space(first) => Some(1),
                State::Start => {
                    self.state = match first {
                        b'{' => State::Fields,
                        b'[' => return Err(ReplyError::Batch),
                        _ => State::Foreign,
                    };
                    // The skeleton's offsets are the body's.
                    self.skeleton = Skeleton::after_spaces(self.offset);
                    Some(0)
                }
                State::Foreign => {
                    let shown = &bytes[..bytes.len().min(SHOWN_BYTES - self.start.len())];
                    self.start.extend_from_slice(shown);
                    if self.start.len() == SHOWN_BYTES {
                        return Err(self.not_json());
                    }
                    None
                }
                State::Fields => {
                    let taken = self.skeleton.push(self.offset, bytes)?;
                    if let Some(taken) = taken {
                        self.state = State::Rows { from: self.offset + taken as u64 };
                    }
                    taken
                }
                &State::Rows { from } => {
                    let taken = self.rows.push(self.offset, bytes, sink)?;
                    if let Some(taken) = taken {
                        self.skeleton.stand_in(self.offset + taken as u64 - from);
                        self.state = State::Fields;
                    }
                    taken
                }
                State::Failed(error) => return Err(error.clone()),
            };
            let taken = taken.unwrap_or(bytes.len());
            self.offset += taken as u64;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// What the reply says before its hidden states, while these come, or where they have come to an error: all known serves name
    /// the tokens first. `None` before that, and where it cannot be told.
    #[must_use]
    pub fn before_rows(&self) -> Option<Reply> {
        let (State::Rows { .. } | State::Failed(_)) = self.state else { return None };
        // Hidden states stand in an object of the reply.
        let text = [self.skeleton.text(), b"null}}"].concat();
        Reply::from_json(&text).ok()
    }

    /// Whether row 0 of the answer is missing; known once the first row has been given.
    #[must_use]
    pub fn first_row_missing(&self) -> bool {
        matches!(&self.rows, Rows::OfAnswer(rows) if rows.first_row_missing())
    }

    /// The reply, once all of it has come.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: it ended too early, or what it says beside hidden states is wrong.
    pub fn finish(self) -> Result<Reply, ReplyError> {
        let truncated = |inside| ReplyError::Truncated { offset: self.offset, inside };
        match self.state {
            State::Failed(error) => return Err(error),
            State::Start => return Err(truncated("nothing")),
            State::Foreign => return Err(self.not_json()),
            State::Rows { .. } => return Err(truncated("hidden states")),
            State::Fields if !self.skeleton.is_complete() => return Err(truncated("its fields")),
            State::Fields => {}
        }
        let mut reply = Reply::from_json(self.skeleton.text()).map_err(|error| self.malformed(&error))?;
        reply.rows = self.skeleton.has_hidden_states().then(|| self.rows.found()).flatten();
        Ok(reply)
    }

    fn not_json(&self) -> ReplyError {
        ReplyError::NotJson { start: String::from_utf8_lossy(&self.start).into_owned() }
    }

    /// The JSON parser's complaint about the skeleton, with the place in the body.
    fn malformed(&self, error: &serde_json::Error) -> ReplyError {
        // It counts lines and columns, both from 1.
        let lines = self.skeleton.text().split_inclusive(|&byte| byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let offset = self.skeleton.offset(before + error.column().saturating_sub(1));
        let what = error.to_string();
        // The place at the end of the message is the skeleton's.
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what).to_owned();
        ReplyError::Malformed { offset, what }
    }
}
