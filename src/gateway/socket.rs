//! One leg's websocket, from its hello to its end.

use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes};
use futures::{Sink, SinkExt, Stream, StreamExt};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{debug, info};

use super::admission::judge;
use super::pool::{AdmittedLeg, Outgoing};
use super::server::Shared;
use super::ticket::Event;
use crate::openai::Piece;
use crate::protocol::{Chunk, GatewayFrame, Hello, MinerFrame};

/// How long a new leg may take to say hello: a miner says it at once, so only a stranger is late.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// How often each leg is asked for a heartbeat: as often as a miner sends one by itself.
pub(super) const PING_EVERY: Duration = Duration::from_secs(30);

/// A leg that sends no frame for this long is dropped. Production's limit: three heartbeats missed. The websocket's own
/// pings do not count, for a library answers them also when the miner behind it hangs.
pub(super) const SILENT_LIMIT: Duration = Duration::from_secs(90);

/// How long a peer may take to close its side; without this wait the last frame could be lost with the connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Runs leg `index` until its peer leaves, it is closed, it falls silent or the gateway stops.
pub(super) async fn run<S, E>(mut socket: S, index: usize, shared: &Shared)
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let mut stopping = shared.stopping.subscribe();
    tokio::select! {
        () = serve(&mut socket, index, shared) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    let goodbye = async {
        let _ = socket.send(Message::Close(None)).await;
        while let Some(Ok(_)) = socket.next().await {}
    };
    // Past the limit the connection is dropped as it is.
    let _ = timeout(CLOSE_WITHIN, goodbye).await;
}

async fn serve<S, E>(socket: &mut S, index: usize, shared: &Shared)
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let Some(judged) = handshake(socket, shared).await else {
        return;
    };
    let hello = match judged {
        Ok(hello) => hello,
        Err(reason) => {
            info!(leg = index, reason, "leg denied");
            if let Some(deny) = encode(Outgoing::Frame(GatewayFrame::Deny { reason: Some(reason) })) {
                let _ = socket.send(Message::Text(deny)).await;
            }
            return;
        }
    };
    let (outgoing, queue) = mpsc::unbounded_channel();
    let leg = shared.pool.admit(index, &hello, outgoing);
    info!(
        leg = index,
        worker = hello.worker_name,
        model = hello.model,
        max_inflight = hello.capacity.max_inflight,
        "leg admitted"
    );
    // Side by side, so that a peer slow to read does not keep what it writes from being read.
    let (sink, stream) = socket.split();
    let end = tokio::select! {
        end = write_frames(sink, queue) => end,
        end = read_frames(stream, &leg) => end,
    };
    info!(leg = index, worker = hello.worker_name, "leg ended: {end}");
}

/// Waits for the hello. `None` when the peer left before one.
async fn handshake<S, E>(socket: &mut S, shared: &Shared) -> Option<Result<Hello, String>>
where
    S: Stream<Item = Result<Message, E>> + Unpin,
{
    let first = async {
        loop {
            match socket.next().await? {
                Ok(Message::Text(text)) => return Some(text),
                // No frame of the protocol; judged as an empty one.
                Ok(Message::Binary(_)) => return Some(Utf8Bytes::default()),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) | Err(_) => return None,
            }
        }
    };
    match timeout(HELLO_WITHIN, first).await {
        Ok(text) => Some(judge(&text?, shared.config.miner_key.as_ref())),
        Err(_) => Some(Err(format!("no hello within {} s", HELLO_WITHIN.as_secs()))),
    }
}

/// Sends what the pool asks for. Returns why it stopped.
async fn write_frames<S>(mut sink: S, mut queue: mpsc::UnboundedReceiver<Outgoing>) -> &'static str
where
    S: Sink<Message> + Unpin,
{
    while let Some(outgoing) = queue.recv().await {
        if matches!(outgoing, Outgoing::Close) {
            return "its worker dialled anew and its work is done";
        }
        let Some(text) = encode(outgoing) else { continue };
        if sink.send(Message::Text(text)).await.is_err() {
            return "the connection failed";
        }
    }
    "the gateway let it go"
}

/// The text of a frame to send.
fn encode(outgoing: Outgoing) -> Option<Utf8Bytes> {
    match outgoing {
        Outgoing::Serve(text) => Some(text),
        Outgoing::Frame(frame) => serde_json::to_string(&frame).ok().map(Into::into),
        Outgoing::Close => None,
    }
}

/// Takes what the miner sends, and asks for signs of life. Returns why it stopped.
async fn read_frames<S, E>(mut stream: S, leg: &AdmittedLeg) -> &'static str
where
    S: Stream<Item = Result<Message, E>> + Unpin,
{
    let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silence = std::pin::pin!(sleep(SILENT_LIMIT));
    loop {
        tokio::select! {
            message = stream.next() => {
                match message {
                    Some(Ok(Message::Text(text))) => take(leg, &text),
                    Some(Ok(Message::Binary(_))) => {
                        debug!("a binary message on a leg");
                        leg.count_bad();
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_))) | None => return "the miner closed it",
                    Some(Err(_)) => return "the connection failed",
                }
                silence.as_mut().reset(Instant::now() + SILENT_LIMIT);
            }
            _ = pings.tick() => leg.ping(),
            () = &mut silence => return "no frame for 90 s",
        }
    }
}

/// Acts on one frame. One that cannot be read is counted and otherwise left alone, unless it ends a request.
fn take(leg: &AdmittedLeg, text: &str) {
    match serde_json::from_str(text) {
        Ok(MinerFrame::Heartbeat(beat)) => leg.heartbeat(&beat),
        Ok(MinerFrame::Chunk(Chunk { corr_id, delta, logprobs })) => {
            leg.event(&corr_id, Event::Piece(Piece { delta, logprobs }));
        }
        Ok(MinerFrame::Response(response)) => {
            let corr_id = response.corr_id.clone();
            leg.last_event(&corr_id, Event::Response(response));
        }
        Ok(MinerFrame::Hello(_)) => {
            debug!("a second hello on a leg");
            leg.count_bad();
        }
        Err(error) => {
            debug!(%error, "an unreadable frame on a leg");
            leg.count_bad();
            if let Some(corr_id) = ended_request(text) {
                leg.last_event(&corr_id, Event::Unreadable(error.to_string()));
            }
        }
    }
}

/// The request that an unreadable frame ends. Its buyer would otherwise wait for the time limit.
fn ended_request(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        r#type: String,
        corr_id: String,
    }
    let head: Head = serde_json::from_str(text).ok()?;
    (head.r#type == "response").then_some(head.corr_id)
}
