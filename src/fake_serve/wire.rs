//! Connections that can be cut, and a listener that can go down.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::debug;

/// How long to wait before an address is tried again that cannot be had.
const LISTEN_AGAIN: Duration = Duration::from_millis(10);

/// How a connection ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutKind {
    /// As if the process had died with data unread: the peer's next read fails.
    Reset,
    /// As if a proxy had given up: the peer reads an end.
    Close,
}

/// A connection, from beside it. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Wire(Arc<WireState>);

#[derive(Debug)]
struct WireState {
    cut: Mutex<Option<(CutKind, u64)>>,
    /// Of the task that serves the connection.
    waker: AtomicWaker,
}

impl Wire {
    fn new() -> Self {
        Self(Arc::new(WireState { cut: Mutex::new(None), waker: AtomicWaker::new() }))
    }

    /// Ends the connection once so many bytes more were written to it.
    pub(super) fn cut_after(&self, kind: CutKind, bytes: u64) {
        *self.cut() = Some((kind, bytes));
        self.0.waker.wake();
    }

    /// Ends it now.
    pub(super) fn cut_now(&self, kind: CutKind) {
        self.cut_after(kind, 0);
    }

    /// It ends when it ends.
    pub(super) fn spare(&self) {
        *self.cut() = None;
    }

    fn cut(&self) -> MutexGuard<'_, Option<(CutKind, u64)>> {
        self.0.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All connections of a serve.
#[derive(Debug, Clone, Default)]
pub(super) struct Wires {
    open: Arc<Mutex<HashMap<u64, Wire>>>,
    next: Arc<AtomicU64>,
}

impl Wires {
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Resets all of them.
    pub(super) fn reset_all(&self) {
        self.lock().values().for_each(|wire| wire.cut_now(CutKind::Reset));
    }

    fn add(&self, stream: TcpStream) -> WireStream {
        let (number, wire) = (self.next.fetch_add(1, Ordering::Relaxed), Wire::new());
        self.lock().insert(number, wire.clone());
        WireStream { stream, wire, number, wires: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Wire>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct WireStream {
    stream: TcpStream,
    wire: Wire,
    number: u64,
    wires: Wires,
}

impl WireStream {
    /// How many bytes may be written; an error once the connection is cut.
    fn allowance(&self, cx: &Context<'_>) -> io::Result<u64> {
        self.wire.0.waker.register(cx.waker());
        match *self.wire.cut() {
            None => Ok(u64::MAX),
            Some((kind, 0)) => {
                if kind == CutKind::Reset {
                    self.stream.set_zero_linger()?;
                }
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Some((_, bytes)) => Ok(bytes),
        }
    }
}

impl AsyncRead for WireStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Err(error) = self.allowance(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for WireStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let allowance = match self.allowance(cx) {
            Ok(allowance) => allowance,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let length = usize::try_from(allowance).unwrap_or(usize::MAX).min(buf.len());
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, &buf[..length]))?;
        if let Some((_, left)) = self.wire.cut().as_mut() {
            *left = left.saturating_sub(written as u64);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for WireStream {
    fn drop(&mut self) {
        self.wires.lock().remove(&self.number);
    }
}

impl Connected<IncomingStream<'_, FakeListener>> for Wire {
    fn connect_info(stream: IncomingStream<'_, FakeListener>) -> Self {
        stream.io().wire.clone()
    }
}

/// Listens while it is told to.
#[derive(Debug)]
pub(super) struct FakeListener {
    listener: Option<TcpListener>,
    addr: SocketAddr,
    wires: Wires,
    /// Whether to listen.
    wanted: watch::Receiver<bool>,
    /// Whether it does.
    listens: watch::Sender<bool>,
}

impl FakeListener {
    pub(super) fn new(
        listener: TcpListener,
        addr: SocketAddr,
        wires: Wires,
        wanted: watch::Receiver<bool>,
        listens: watch::Sender<bool>,
    ) -> Self {
        Self { listener: Some(listener), addr, wires, wanted, listens }
    }
}

impl Listener for FakeListener {
    type Io = WireStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (WireStream, SocketAddr) {
        loop {
            if !*self.wanted.borrow_and_update() {
                self.listener = None;
                self.wires.reset_all();
                self.listens.send_replace(false);
                if self.wanted.changed().await.is_err() {
                    // Nobody is left who could want it.
                    return std::future::pending().await;
                }
                continue;
            }
            let Some(listener) = &self.listener else {
                match TcpListener::bind(self.addr).await {
                    Ok(listener) => {
                        self.listener = Some(listener);
                        self.listens.send_replace(true);
                    }
                    Err(error) => {
                        debug!(%error, "cannot listen again yet");
                        tokio::time::sleep(LISTEN_AGAIN).await;
                    }
                }
                continue;
            };
            tokio::select! {
                _ = self.wanted.changed() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        // An event is small and must not wait for the next one.
                        if let Err(error) = stream.set_nodelay(true) {
                            debug!(%error, "a connection without TCP_NODELAY");
                        }
                        return (self.wires.add(stream), peer);
                    }
                    // Of the connection alone, or of too many open files: later ones may do better.
                    Err(error) => {
                        debug!(%error, "a connection that could not be taken");
                        tokio::time::sleep(LISTEN_AGAIN).await;
                    }
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}
