//! One connection of a leg, from its hello to its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

use super::reading::{self, Reading};
use super::worker::{Shared, stopped, turned};
use super::{DEAD_AFTER, DRAIN_GRACE, HEARTBEAT, PING};
use crate::chat::RequestError;
use crate::job::{JobError, JobRequest};
use crate::openai::Piece;
use crate::protocol::{Chunk, GatewayFrame, MinerFrame, Output, Response, Serve};

/// How long the peer may take to answer a close.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How a connection ended.
#[derive(Debug)]
pub(super) enum Closed {
    /// The worker shuts down and nothing runs here any more.
    Shutdown,
    /// The backend takes no requests for now.
    Away,
    /// The gateway said no.
    Denied(String),
    /// It broke, or was left after a reconnect frame.
    Lost {
        /// Whether the gateway had admitted it.
        admitted: bool,
        /// What happened.
        reason: String,
    },
}

/// The gateway asks the leg to dial anew.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leave {
    /// Whether the connection had lived for a while, or was sent away as soon as it was there.
    pub(super) settled: bool,
}

/// A connection that lived this long was a real one.
const SETTLED: Duration = Duration::from_secs(5);

/// The state of a connection.
pub(super) struct Connection {
    shared: Arc<Shared>,
    leg: usize,
    legs: usize,
    shutdown: watch::Receiver<bool>,
    /// Told when the gateway asks us to leave; used once.
    leave: Option<oneshot::Sender<Leave>>,
    /// Requests that run for this connection, by their id on it.
    live: HashMap<String, LiveJob>,
    /// Their tasks; dropped with the connection, they are all cancelled.
    jobs: JoinSet<()>,
    next_job: u64,
    results: mpsc::UnboundedReceiver<JobFrame>,
    to_results: mpsc::UnboundedSender<JobFrame>,
    admitted: bool,
    opened: Instant,
    /// Set while no new requests are wanted: when this connection must end.
    drain_until: Option<Instant>,
}

struct LiveJob {
    number: u64,
    task: AbortHandle,
    request_id: String,
}

/// A frame from a job, with the job's number: an id may be used again after a cancel, and late frames of the first job
/// must not pass for the second's.
struct JobFrame {
    number: u64,
    frame: MinerFrame,
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        leg: usize,
        legs: usize,
        shutdown: watch::Receiver<bool>,
        leave: oneshot::Sender<Leave>,
    ) -> Self {
        let (to_results, results) = mpsc::unbounded_channel();
        Self {
            shared,
            leg,
            legs,
            shutdown,
            leave: Some(leave),
            live: HashMap::new(),
            jobs: JoinSet::new(),
            next_job: 0,
            results,
            to_results,
            admitted: false,
            opened: Instant::now(),
            drain_until: None,
        }
    }

    /// Says hello and serves until the connection ends. Requests that still run then are cancelled.
    pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(mut self, mut socket: WebSocketStream<S>) -> Closed {
        let closed = match self.serve(&mut socket).await {
            Ok(closed) => closed,
            Err(error) => self.lost(describe(&error)),
        };
        self.jobs.abort_all();
        // Closed from our side, the connection is read until the gateway has closed it too: a socket that is dropped with
        // unread bytes resets the connection, and with it a last response that the gateway has not read yet.
        let farewell = async {
            // One that was never admitted has sent nothing that could be lost.
            if socket.close(None).await.is_ok() && self.admitted {
                while let Some(Ok(message)) = socket.next().await
                    && !message.is_close()
                {}
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
        closed
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
    ) -> Result<Closed, tungstenite::Error> {
        send(socket, &MinerFrame::Hello(Box::new(self.shared.hello(self.legs)))).await?;
        let mut load = self.shared.load();
        let mut shutdown = self.shutdown.clone();
        let mut away = self.shared.away();
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        let mut heard = Instant::now();
        let mut stopping = false;
        loop {
            if let Some(until) = self.drain_until
                && (self.live.is_empty() || Instant::now() >= until)
            {
                return Ok(if *self.shutdown.borrow() { Closed::Shutdown } else { self.lost("drained".into()) });
            }
            let drain_until = self.drain_until.unwrap_or_else(|| Instant::now() + DRAIN_GRACE);
            tokio::select! {
                message = socket.next() => {
                    heard = Instant::now();
                    let Some(message) = message else { return Ok(self.lost("the gateway went away".into())) };
                    if let Some(closed) = self.on_message(socket, message?).await? {
                        return Ok(closed);
                    }
                }
                // Never `None`: this connection holds a sender itself.
                Some(result) = self.results.recv() => self.on_result(socket, result).await?,
                Some(ended) = self.jobs.join_next(), if !self.jobs.is_empty() => {
                    if let Err(error) = ended {
                        self.on_fault(socket, &error).await?;
                    }
                }
                Ok(()) = load.changed(), if self.admitted => {
                    send(socket, &MinerFrame::Heartbeat(self.shared.load_broadcast())).await?;
                }
                _ = heartbeat.tick() => {
                    send(socket, &MinerFrame::Heartbeat(self.shared.heartbeat(self.legs))).await?;
                }
                _ = ping.tick() => {
                    if heard.elapsed() >= DEAD_AFTER {
                        return Ok(self.lost(format!("nothing heard for {} s", DEAD_AFTER.as_secs())));
                    }
                    write(socket, Message::Ping(Vec::new().into())).await?;
                }
                // What runs here runs on a backend that is gone; the gateway must not send more.
                () = turned(&mut away, true) => return Ok(Closed::Away),
                () = stopped(&mut shutdown), if !stopping => {
                    stopping = true;
                    // A connection that is being left already may have been given longer than a shutdown gives.
                    let end = Instant::now() + self.shared.config.shutdown_grace;
                    self.drain_until = Some(self.drain_until.map_or(end, |until| until.min(end)));
                }
                () = sleep_until(drain_until), if self.drain_until.is_some() => {}
            }
        }
    }

    async fn on_message<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        message: Message,
    ) -> Result<Option<Closed>, tungstenite::Error> {
        let reading = match &message {
            Message::Text(text) => reading::read(text),
            Message::Binary(bytes) => str::from_utf8(bytes).map_or(Reading::Nothing, reading::read),
            Message::Close(close) => {
                let reason = close.as_ref().map_or_else(|| "no reason".into(), |close| close.to_string());
                return Ok(Some(self.lost(format!("the gateway closed the leg: {}", self.shared.quote(&reason)))));
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return Ok(None),
        };
        let frame = match reading {
            Reading::Frame(frame) => frame,
            Reading::UnreadableServe { corr_id, reason } => {
                self.count_bad_frame(&message);
                if !self.live.contains_key(&corr_id) {
                    let error = RequestError::new(format!("the request cannot be read: {reason}"));
                    let request_id = JobRequest::request_id(&serde_json::Value::Null);
                    let response = Response::failure(corr_id, request_id, JobError::Request(error).to_object());
                    send(socket, &MinerFrame::Response(Box::new(response))).await?;
                }
                return Ok(None);
            }
            Reading::Nothing => GatewayFrame::Unknown,
        };
        match frame {
            GatewayFrame::Admit => {
                if !std::mem::replace(&mut self.admitted, true) {
                    self.shared.admitted();
                    tracing::info!(leg = self.leg, "the leg is live");
                }
            }
            GatewayFrame::Deny { reason } => {
                let reason = reason.unwrap_or_else(|| "no reason given".into());
                return Ok(Some(Closed::Denied(self.shared.quote(&reason))));
            }
            GatewayFrame::Ping => {
                send(socket, &MinerFrame::Heartbeat(self.shared.heartbeat(self.legs))).await?;
            }
            GatewayFrame::Reconnect => {
                tracing::info!(leg = self.leg, running = self.live.len(), "the gateway asks the leg to move");
                self.drain_until.get_or_insert(Instant::now() + DRAIN_GRACE);
                if let Some(leave) = self.leave.take() {
                    let _ = leave.send(Leave { settled: self.opened.elapsed() >= SETTLED });
                }
            }
            GatewayFrame::Serve(serve) => self.start(serve),
            GatewayFrame::Cancel { corr_id } => {
                if let Some(job) = self.live.remove(&corr_id) {
                    job.task.abort();
                    self.shared.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                }
            }
            GatewayFrame::Unknown => self.count_bad_frame(&message),
        }
        Ok(None)
    }

    fn count_bad_frame(&self, message: &Message) {
        self.shared.counters.bad_frames.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(leg = self.leg, bytes = message.len(), "a frame that is not understood");
    }

    /// A job's task ended without its response: it was cancelled, or this program has a fault.
    async fn on_fault<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        error: &JoinError,
    ) -> Result<(), tungstenite::Error> {
        if !error.is_panic() {
            return Ok(());
        }
        let corr_id = self.live.iter().find(|(_, job)| job.task.id() == error.id()).map(|(id, _)| id.clone());
        let Some((corr_id, job)) = corr_id.and_then(|id| self.live.remove_entry(&id)) else { return Ok(()) };
        tracing::error!(leg = self.leg, request_id = self.shared.quote(&job.request_id), %error, "a fault of this program took a request");
        let fault = JobError::Fault("a request's task failed".into());
        let response = Response::failure(corr_id, job.request_id, fault.to_object());
        send(socket, &MinerFrame::Response(Box::new(response))).await
    }

    /// Starts a request as a task of its own.
    fn start(&mut self, serve: Serve) {
        if self.live.contains_key(&serve.corr_id) {
            // The first keeps the id; nothing can be answered for the second without harming it.
            self.shared.counters.duplicate_ids.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                leg = self.leg,
                corr_id = self.shared.quote(&serve.corr_id),
                "a serve frame with an id in use was ignored"
            );
            return;
        }
        let number = self.next_job;
        self.next_job += 1;
        let results = self.to_results.clone();
        let corr_id = serve.corr_id.clone();
        let request_id = JobRequest::request_id(&serve.request);
        let job = Job { serve, request_id: request_id.clone(), shutting_down: *self.shutdown.borrow() };
        let job = run_job(Arc::clone(&self.shared), job, move |frame| {
            // Fails only when the connection has ended, and then nobody wants the frame.
            let _ = results.send(JobFrame { number, frame });
        });
        let task = self.jobs.spawn(job);
        self.live.insert(corr_id, LiveJob { number, task, request_id });
    }

    /// Passes a job's frame on, unless the job was cancelled meanwhile.
    async fn on_result<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        result: JobFrame,
    ) -> Result<(), tungstenite::Error> {
        let (corr_id, terminal) = match &result.frame {
            MinerFrame::Chunk(chunk) => (&chunk.corr_id, false),
            MinerFrame::Response(response) => (&response.corr_id, true),
            MinerFrame::Hello(_) | MinerFrame::Heartbeat(_) => return Ok(()),
        };
        if self.live.get(corr_id).is_none_or(|job| job.number != result.number) {
            return Ok(());
        }
        if terminal {
            self.live.remove(corr_id);
        }
        send(socket, &result.frame).await
    }

    fn lost(&self, reason: String) -> Closed {
        Closed::Lost { admitted: self.admitted, reason }
    }
}

/// A request that is about to start.
struct Job {
    serve: Serve,
    request_id: String,
    shutting_down: bool,
}

/// One request, from its serve frame to its response. Aborting the task frees its slot and cancels its generation.
async fn run_job(shared: Arc<Shared>, job: Job, send: impl Fn(MinerFrame) + Send + Sync) {
    let Job { serve: Serve { corr_id, request, stream }, request_id, shutting_down } = job;
    let outcome = async {
        if shutting_down {
            return Err(JobError::ShuttingDown);
        }
        // Read before a slot is taken: a request that is wrong is answered at once, however busy the worker is.
        let request = JobRequest { streamed: stream, ..JobRequest::parse(&request, request_id.clone())? };
        let chunk = |Piece { delta, logprobs }: Piece| {
            if stream && !(delta.is_empty() && logprobs.is_none()) {
                let corr_id = corr_id.clone();
                send(MinerFrame::Chunk(Chunk { corr_id, delta, logprobs }));
            }
        };
        let work = async {
            let _slot = shared.slot().await.ok_or(JobError::ShuttingDown)?;
            shared.service.answer(&request, chunk).await
        };
        // The buyer's clock runs while a request waits for its slot, so ours does too.
        let limit = shared.service.limits.max_request;
        tokio::time::timeout(limit, work).await.unwrap_or(Err(JobError::Timeout(limit)))
    };
    let response = match outcome.await {
        Ok(answer) => {
            shared.counters.answered.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(request_id = shared.quote(&request_id), usage = ?answer.completion.usage, timings = ?answer.timings, "answered");
            Response {
                corr_id: corr_id.clone(),
                request_id,
                commitment: Some(answer.commitment),
                output: Output::Completion(Box::new(answer.completion)),
                error: None,
            }
        }
        Err(error) => {
            shared.counters.failed.fetch_add(1, Ordering::Relaxed);
            // Logged as it is sent: cut, and quoted, since it may repeat what a buyer wrote.
            let error = error.to_object();
            let request_id_shown = shared.quote(&request_id);
            tracing::warn!(
                request_id = request_id_shown,
                status = error.status,
                message = shared.quote(&error.message),
                "a request failed"
            );
            Response::failure(corr_id.clone(), request_id, error)
        }
    };
    send(MinerFrame::Response(Box::new(response)));
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    frame: &MinerFrame,
) -> Result<(), tungstenite::Error> {
    match serde_json::to_string(frame) {
        Ok(text) => write(socket, Message::text(text)).await,
        // Frames are plain data with string keys, which always serialise.
        Err(error) => {
            tracing::error!(%error, "a frame could not be written");
            Ok(())
        }
    }
}

/// Sends a message to a peer that still reads: one that takes nothing for [`DEAD_AFTER`] is as dead as one that says
/// nothing, and would otherwise hold the connection in this write.
async fn write<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    message: Message,
) -> Result<(), tungstenite::Error> {
    match tokio::time::timeout(DEAD_AFTER, socket.send(message)).await {
        Ok(sent) => sent,
        Err(_) => {
            let reason = format!("the gateway read nothing for {} s", DEAD_AFTER.as_secs());
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, reason).into())
        }
    }
}

/// A websocket error in an operator's words.
fn describe(error: &tungstenite::Error) -> String {
    match error {
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => "the connection was closed".into(),
        tungstenite::Error::Capacity(error) => format!("the gateway sent too long a message: {error}"),
        other => other.to_string(),
    }
}
