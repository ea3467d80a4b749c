//! A gateway that does what the test says.

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::site::within;

/// Listens on a real port; every socket that dials in is the test's to drive.
pub(super) struct ScriptedGateway {
    pub(super) address: String,
    dialled: mpsc::UnboundedReceiver<Peer>,
}

/// The gateway's end of one connection.
pub(super) struct Peer<S = TcpStream> {
    /// What was dialled, for example `/gw/3`.
    pub(super) path: String,
    pub(super) socket: WebSocketStream<S>,
}

impl ScriptedGateway {
    /// A gateway that hangs up on the first `rude` dials before any handshake.
    pub(super) async fn open(rude: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("ws://{}/gw", listener.local_addr().unwrap());
        let (to_test, dialled) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for _ in 0..rude {
                drop(listener.accept().await.unwrap());
            }
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let mut path = String::new();
                #[expect(clippy::result_large_err, reason = "the handshake wants a callback of this shape")]
                let note_path = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
                    request.uri().path().clone_into(&mut path);
                    Ok(response)
                };
                let Ok(socket) = accept_hdr_async(stream, note_path).await else {
                    continue;
                };
                if to_test.send(Peer { path, socket }).is_err() {
                    return;
                }
            }
        });
        Self { address, dialled }
    }

    /// The next connection, not yet heard.
    pub(super) async fn dialled(&mut self) -> Peer {
        within(self.dialled.recv()).await.unwrap()
    }

    /// The next connection and its hello.
    pub(super) async fn leg(&mut self) -> (Peer, Value) {
        let mut leg = self.dialled().await;
        let hello = leg.next().await.expect("a hello");
        assert_eq!(hello["type"], "hello", "{hello}");
        (leg, hello)
    }

    /// The next connection, heard and let in.
    pub(super) async fn live_leg(&mut self) -> Peer {
        let (mut leg, _) = self.leg().await;
        leg.send(&json!({"type": "admit"})).await;
        leg
    }

    /// True when nobody has dialled since the last one was taken.
    pub(super) fn is_quiet(&self) -> bool {
        self.dialled.is_empty()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(super) async fn send(&mut self, frame: &Value) {
        self.send_raw(Message::text(frame.to_string())).await;
    }

    pub(super) async fn send_raw(&mut self, message: Message) {
        within(self.socket.send(message)).await.unwrap();
    }

    /// The miner's next frame, `None` once it closed the connection.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            match within(self.socket.next()).await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => {
                    // The answer to a close is queued; it leaves with the next write.
                    let _ = self.socket.flush().await;
                    return None;
                }
                Err(_) => return None,
                other => panic!("unexpected on a leg: {other:?}"),
            }
        }
    }

    /// The miner's next frame about a request.
    pub(super) async fn answer(&mut self) -> Value {
        // Around the whole, since heartbeats come for ever.
        within(async {
            loop {
                let frame = self.next().await.expect("the connection is open");
                if frame["type"] != "heartbeat" {
                    return frame;
                }
            }
        })
        .await
    }

    /// The miner's next frame about a request, which must be the end of this one.
    pub(super) async fn response(&mut self, corr_id: &str) -> Value {
        let frame = self.answer().await;
        assert_eq!((&frame["type"], &frame["corr_id"]), (&json!("response"), &json!(corr_id)), "{frame}");
        frame
    }

    /// Frames of a streamed answer: its text in chunks, and its response.
    pub(super) async fn streamed(&mut self, corr_id: &str) -> (String, Value) {
        let mut text = String::new();
        loop {
            let frame = self.answer().await;
            assert_eq!(frame["corr_id"], corr_id, "{frame}");
            if frame["type"] == "response" {
                return (text, frame);
            }
            assert_eq!(frame["type"], "chunk", "{frame}");
            text.push_str(frame["delta"]["content"].as_str().unwrap());
        }
    }

    /// The miner's next frame, which must be a heartbeat.
    pub(super) async fn heartbeat(&mut self) -> Value {
        let frame = self.next().await.expect("the connection is open");
        assert_eq!(frame["type"], "heartbeat", "{frame}");
        frame
    }

    /// Pings and waits for the answer: all that was sent before has been read then.
    pub(super) async fn ping(&mut self) -> Value {
        self.send(&json!({"type": "ping"})).await;
        self.heartbeat_where(|beat| beat.get("capacity").is_some()).await
    }

    /// The miner's next heartbeat of this kind; other heartbeats may come before it, and nothing else.
    pub(super) async fn heartbeat_where(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        within(async {
            loop {
                let beat = self.heartbeat().await;
                if wanted(&beat) {
                    return beat;
                }
            }
        })
        .await
    }

    pub(super) async fn serve(&mut self, corr_id: &str) {
        self.serve_request(corr_id, chat(), false).await;
    }

    pub(super) async fn serve_stream(&mut self, corr_id: &str) {
        self.serve_request(corr_id, chat(), true).await;
    }

    pub(super) async fn serve_request(&mut self, corr_id: &str, request: Value, stream: bool) {
        let frame = json!({"type": "serve", "corr_id": corr_id, "request": request, "stream": stream});
        self.send(&frame).await;
    }

    pub(super) async fn cancel(&mut self, corr_id: &str) {
        self.send(&json!({"type": "cancel", "corr_id": corr_id})).await;
    }

    pub(super) async fn reconnect(&mut self) {
        self.send(&json!({"type": "reconnect"})).await;
    }

    pub(super) async fn deny(&mut self, reason: &str) {
        self.send(&json!({"type": "deny", "reason": reason})).await;
    }

    /// Waits for the miner to close the connection, which must say nothing about a request until then.
    pub(super) async fn closed(&mut self) {
        within(async {
            while let Some(frame) = self.next().await {
                assert_eq!(frame["type"], "heartbeat", "{frame}");
            }
        })
        .await;
    }
}

/// A small request.
pub(super) fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64})
}
