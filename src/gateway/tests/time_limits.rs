//! A leg's clock, on paused time and a websocket of channels.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::ws::Message;
use futures::channel::mpsc;
use futures::{Sink, SinkExt, Stream, StreamExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::fake_miner::hello;
use super::site::config;
use crate::gateway::server::Shared;
use crate::gateway::socket::{self, HELLO_WITHIN, PING_EVERY, SILENT_LIMIT};

/// One end of a websocket.
struct End {
    incoming: mpsc::UnboundedReceiver<Message>,
    outgoing: mpsc::UnboundedSender<Message>,
}

fn pair() -> (End, End) {
    let (to_miner, at_miner) = mpsc::unbounded();
    let (to_gateway, at_gateway) = mpsc::unbounded();
    let end = |incoming, outgoing| End { incoming, outgoing };
    (end(at_gateway, to_miner), end(at_miner, to_gateway))
}

impl Stream for End {
    type Item = Result<Message, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.incoming.poll_next_unpin(cx).map(|message| message.map(Ok))
    }
}

impl Sink<Message> for End {
    type Error = mpsc::SendError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.outgoing.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Self::Error> {
        self.outgoing.start_send_unpin(message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.outgoing.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.outgoing.poll_close_unpin(cx)
    }
}

impl End {
    async fn frame(&mut self) -> Option<Value> {
        match self.next().await?.unwrap() {
            Message::Text(text) => Some(serde_json::from_str(&text).unwrap()),
            Message::Close(_) => None,
            other => panic!("unexpected on a leg: {other:?}"),
        }
    }

    async fn say(&mut self, frame: &Value) {
        self.send(Message::text(frame.to_string())).await.unwrap();
    }
}

/// A leg on leg 0 of a gateway that listens nowhere.
fn leg() -> (Arc<Shared>, End, JoinHandle<()>) {
    let shared = Shared::new(config());
    let (gateway, miner) = pair();
    let task = tokio::spawn({
        let shared = Arc::clone(&shared);
        async move { socket::run(gateway, 0, &shared).await }
    });
    (shared, miner, task)
}

#[tokio::test(start_paused = true)]
async fn a_silent_leg_is_pinged_and_then_dropped() {
    let (shared, mut miner, task) = leg();
    miner.say(&hello("m", "w", 1)).await;
    assert_eq!(miner.frame().await.unwrap(), json!({"type": "admit"}));
    let start = Instant::now();
    for pings in 1..=2 {
        assert_eq!(miner.frame().await.unwrap(), json!({"type": "ping"}));
        assert_eq!(start.elapsed().as_secs(), (PING_EVERY * pings).as_secs());
    }
    // The third ping and the end fall on the same instant; either may come first.
    while miner.frame().await.is_some() {}
    assert_eq!(start.elapsed().as_secs(), SILENT_LIMIT.as_secs());
    assert!(shared.pool.status().legs.is_empty());
    drop(miner);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn any_frame_is_a_sign_of_life_but_a_websocket_ping_is_none() {
    let (shared, mut miner, _task) = leg();
    miner.say(&hello("m", "w", 1)).await;
    for frame in ["{\"type\":\"heartbeat\",\"inflight\":0,\"idle_seconds\":1.0}", "{", "{\"type\":\"new\"}"] {
        sleep(SILENT_LIMIT - PING_EVERY / 2).await;
        miner.send(Message::text(frame)).await.unwrap();
    }
    sleep(SILENT_LIMIT - PING_EVERY / 2).await;
    assert_eq!(shared.pool.status().open_legs(), 1);
    miner.send(Message::Ping(vec![].into())).await.unwrap();
    sleep(PING_EVERY).await;
    assert_eq!(shared.pool.status().open_legs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stranger_that_says_nothing_is_denied() {
    let (shared, mut miner, _task) = leg();
    let start = Instant::now();
    let frame = miner.frame().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), HELLO_WITHIN.as_secs());
    assert_eq!(frame["type"], "deny");
    assert!(frame["reason"].as_str().unwrap().contains("no hello"));
    assert_eq!(miner.frame().await, None);
    assert!(shared.pool.status().legs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_will_not_close_is_dropped() {
    let (shared, miner, task) = leg();
    shared.stopping.send_replace(true);
    task.await.unwrap();
    drop(miner);
}
