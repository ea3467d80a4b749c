//! A response body that is written piece by piece, as fast as its client reads.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::layout::{Element, HiddenStates};
use super::row::Row;

/// Bytes that are gathered before they are handed on.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that may wait for a slow client.
const PIECES_AHEAD: usize = 2;
/// In which a connection surely writes what it was given.
pub(super) const FLUSH_TIME: Duration = Duration::from_millis(10);

/// The client reads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// The writing end of a response body.
#[derive(Debug)]
pub(super) struct BodyWriter {
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
    buffer: Vec<u8>,
    /// Bytes after which the body ends without a word; what is written after them is lost.
    left: u64,
}

impl BodyWriter {
    /// Both ends. The body has at most `most` bytes.
    pub(super) fn new(most: Option<u64>) -> (Self, Body) {
        let (sender, mut receiver) = mpsc::channel::<Result<Bytes, io::Error>>(PIECES_AHEAD);
        let body = Body::from_stream(futures::stream::poll_fn(move |cx| receiver.poll_recv(cx)));
        (Self { sender, buffer: Vec::new(), left: most.unwrap_or(u64::MAX) }, body)
    }

    /// Returns once nobody reads any more.
    pub(super) async fn gone(&self) {
        self.sender.closed().await;
    }

    /// Writes on.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.buffer.extend_from_slice(bytes);
        self.flush_full().await
    }

    /// Hands on what is gathered.
    pub(super) async fn flush(&mut self) -> Result<(), Gone> {
        let mut piece = std::mem::take(&mut self.buffer);
        piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= piece.len() as u64;
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.send(Ok(piece.into())).await.map_err(|_| Gone)
    }

    /// Ends the body, and with it the connection, without its proper end.
    pub(super) async fn break_off(self) {
        // What went before is on its way first.
        sleep(FLUSH_TIME).await;
        // An error is what tells the connection; nobody there to be told has the same effect.
        let _ = self.sender.send(Err(io::ErrorKind::ConnectionAborted.into())).await;
    }

    /// Writes hidden states, made as they are written.
    pub(super) async fn states(&mut self, states: &HiddenStates) -> Result<(), Gone> {
        let elements = match states {
            HiddenStates::List(elements) => elements,
            HiddenStates::Flat(row) => return self.row(row).await,
        };
        self.buffer.push(b'[');
        for (index, element) in elements.iter().enumerate() {
            self.comma(index);
            match element {
                Element::Empty => self.buffer.extend_from_slice(b"[]"),
                Element::Vector(row) => self.row(row).await?,
                Element::Matrix(rows) => {
                    self.buffer.push(b'[');
                    for (index, row) in rows.iter().enumerate() {
                        self.comma(index);
                        self.row(row).await?;
                    }
                    self.buffer.push(b']');
                }
            }
        }
        self.buffer.push(b']');
        Ok(())
    }

    async fn row(&mut self, row: &Row) -> Result<(), Gone> {
        row.write(&mut self.buffer);
        self.flush_full().await
    }

    fn comma(&mut self, index: usize) {
        if index > 0 {
            self.buffer.push(b',');
        }
    }

    async fn flush_full(&mut self) -> Result<(), Gone> {
        if self.buffer.len() < PIECE_BYTES { Ok(()) } else { self.flush().await }
    }
}
