//! Server-sent events, as far as sglang uses them: from the bytes of a `text/event-stream` to the data of its events,
//! without holding a line, as a line here is a whole reply.

use memchr::memchr2;

/// The only field that counts.
const FIELD: &[u8] = b"data";

/// Finds the data in a stream.
#[derive(Debug, Default)]
pub(super) struct EventFramer {
    position: Position,
    /// The line feed of a carriage return that ended a line may follow.
    after_return: bool,
    /// This event has data.
    has_data: bool,
}

/// Where in a line the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// In its name, of which this many bytes were those of [`FIELD`].
    Name(usize),
    /// After the colon, where one space does not count.
    Colon,
    Data,
    /// In a line that does not count.
    Ignored,
}

impl Default for Position {
    fn default() -> Self {
        Self::Name(0)
    }
}

/// A part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// More of an event's data.
    Data(&'a [u8]),
    /// The event's end.
    End,
}

impl EventFramer {
    /// Takes the next piece off `bytes`; `None` once all are used up.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                *bytes = rest;
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                *bytes = rest;
                self.after_return = byte == b'\r';
                if let Some(piece) = self.end_line() {
                    return Some(piece);
                }
                continue;
            }
            match self.position {
                Position::Name(read) => {
                    *bytes = rest;
                    self.position = match byte {
                        b':' if read == FIELD.len() => Position::Colon,
                        byte if FIELD.get(read) == Some(&byte) => Position::Name(read + 1),
                        _ => Position::Ignored,
                    };
                    if self.position == Position::Colon && self.begin_data() {
                        return Some(Piece::Data(b"\n"));
                    }
                }
                Position::Colon => {
                    if byte == b' ' {
                        *bytes = rest;
                    }
                    self.position = Position::Data;
                }
                Position::Data | Position::Ignored => {
                    let (line, rest) = bytes.split_at(memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len()));
                    *bytes = rest;
                    if self.position == Position::Data {
                        return Some(Piece::Data(line));
                    }
                }
            }
        }
        None
    }

    /// What the end of a line ends.
    fn end_line(&mut self) -> Option<Piece<'static>> {
        match std::mem::take(&mut self.position) {
            Position::Name(0) => std::mem::take(&mut self.has_data).then_some(Piece::End),
            // A name alone is a line without data.
            Position::Name(read) if read == FIELD.len() => self.begin_data().then_some(Piece::Data(b"\n")),
            _ => None,
        }
    }

    /// True if this is not the event's first line of data, so that a line feed comes between.
    fn begin_data(&mut self) -> bool {
        std::mem::replace(&mut self.has_data, true)
    }
}
