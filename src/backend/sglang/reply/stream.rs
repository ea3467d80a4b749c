//! A stream of replies: what `/generate` sends where `stream` is asked for.

use half::bf16;

use super::error::ReplyError;
use super::events::{EventFramer, Piece};
use super::fields::Reply;
use super::reader::ReplyReader;

/// The data of the event after the last reply.
const DONE: &[u8] = b"[DONE]";

/// Reads a stream of replies. All versions of sglang repeat all rows in every event that has any: rows are given once,
/// and passed over where they are repeated.
///
/// What is held is what [`ReplyReader`] holds, whatever the length of a line; the work for a chunk is linear in its
/// length. Offsets in errors count from the start of an event's data.
#[derive(Debug)]
pub struct StreamReader {
    hidden: usize,
    framer: EventFramer,
    event: Event,
    /// Rows of the latest event that had any.
    rows: usize,
    failed: Option<ReplyError>,
}

/// What a stream consists of.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A reply: the state of the answer so far, or an error.
    Reply(Box<Reply>),
    /// The serve has said all.
    Done,
}

/// The event that is being read.
#[derive(Debug)]
enum Event {
    /// Its data is this many bytes of [`DONE`] so far.
    Marker(usize),
    Reply(Box<ReplyReader>),
}

impl StreamReader {
    /// For rows of `hidden` values.
    #[must_use]
    pub fn new(hidden: usize) -> Self {
        Self { hidden, framer: EventFramer::default(), event: Event::Marker(0), rows: 0, failed: None }
    }

    /// Takes the next event off `bytes`; `None` once all are used up, and the caller comes back with the next chunk.
    /// `sink` gets each row once, before the reply that it came with: `[hidden]`, finite.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: an event is wrong. Each further call returns the same error.
    pub fn next(
        &mut self,
        bytes: &mut &[u8],
        sink: &mut dyn FnMut(&[bf16]),
    ) -> Result<Option<StreamEvent>, ReplyError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let read = self.read(bytes, sink);
        self.failed = read.as_ref().err().cloned();
        read
    }

    /// The stream has ended: the event that was not yet ended by an empty line, if there is one.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]: that event is not complete, or wrong.
    pub fn finish(mut self) -> Result<Option<StreamEvent>, ReplyError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.end_event(),
        }
    }

    fn read(&mut self, bytes: &mut &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<Option<StreamEvent>, ReplyError> {
        while let Some(piece) = self.framer.next(bytes) {
            match piece {
                Piece::Data(data) => self.data(data, sink)?,
                Piece::End => {
                    if let Some(event) = self.end_event()? {
                        return Ok(Some(event));
                    }
                }
            }
        }
        Ok(None)
    }

    fn data(&mut self, mut data: &[u8], sink: &mut dyn FnMut(&[bf16])) -> Result<(), ReplyError> {
        if let Event::Marker(read) = &mut self.event {
            while let (Some((byte, rest)), Some(expected)) = (data.split_first(), DONE.get(*read)) {
                if byte != expected {
                    break;
                }
                *read += 1;
                data = rest;
            }
            if data.is_empty() {
                return Ok(());
            }
        }
        self.reply()?.push(data, sink)
    }

    /// The reader of this event, which is no marker.
    fn reply(&mut self) -> Result<&mut ReplyReader, ReplyError> {
        if let Event::Marker(read) = self.event {
            let mut reader = ReplyReader::skipping(self.hidden, self.rows);
            reader.push(&DONE[..read], &mut |_| ())?;
            self.event = Event::Reply(Box::new(reader));
        }
        match &mut self.event {
            Event::Reply(reader) => Ok(reader),
            Event::Marker(_) => Err(ReplyError::Batch),
        }
    }

    fn end_event(&mut self) -> Result<Option<StreamEvent>, ReplyError> {
        match std::mem::replace(&mut self.event, Event::Marker(0)) {
            Event::Marker(0) => Ok(None),
            Event::Marker(read) if read == DONE.len() => Ok(Some(StreamEvent::Done)),
            // The beginning of the marker is that of a list.
            Event::Marker(_) => Err(ReplyError::Batch),
            Event::Reply(reader) => {
                let reply = reader.finish()?;
                if let Some(found) = reply.rows {
                    if found.rows < self.rows {
                        return Err(ReplyError::Fewer { before: self.rows, found: found.rows });
                    }
                    self.rows = found.rows;
                }
                Ok(Some(StreamEvent::Reply(Box::new(reply))))
            }
        }
    }
}
