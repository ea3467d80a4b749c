//! `POST /generate`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::calls::{CallEnd, Ticket};
use super::fault::Fault;
use super::layout::{HiddenStates, lay_out};
use super::refusal::{Refusal, empty, respond, with};
use super::reply::{ABORT_MESSAGE, EVENT_STREAM, Frame, JSON, Telling, Told, aborted_in_queue};
use super::request::{GenerateRequest, is_stream};
use super::run::{Finish, NotBegun, Run};
use super::script::{Piece, ScriptedReply};
use super::server::Shared;
use super::wire::{CutKind, Wire};
use super::writer::{BodyWriter, FLUSH_TIME, Gone};

/// Ends a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// What is behind a port that belongs to something else.
const GARBAGE: &[u8] = b"\x00\x1f\x8b\xff\xfe{\x00garbage\xc3\x28\x00\x00\xf0\x9f";
const PAGE: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad \
                    Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n";

/// A call on its way.
struct Job {
    shared: Arc<Shared>,
    wire: Wire,
    ticket: Ticket,
    fault: Option<Fault>,
}

pub(super) async fn generate(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(wire): ConnectInfo<Wire>,
    body: Bytes,
) -> Response {
    // An earlier call's fault has missed its chance.
    wire.spare();
    let json = serde_json::from_slice::<Value>(&body);
    let asked = Arc::new(json.unwrap_or_default());
    let ticket = shared.calls.begin("/generate", Arc::clone(&asked));
    let fault = shared.faults.next();
    let job = Job { shared, wire, ticket, fault };
    match job.instead() {
        Ok(response) => response,
        Err(job) => job.answer(&asked).await,
    }
}

impl Job {
    /// What a fault makes the serve say whatever was asked.
    fn instead(mut self) -> Result<Response, Self> {
        let response = match &self.fault {
            Some(Fault::Busy) => Refusal::Status(503, "The request queue is full.".into()).response(),
            Some(Fault::Error(form)) => form.response(),
            Some(Fault::ResetBeforeReply) => {
                self.wire.cut_now(CutKind::Reset);
                self.ticket.end(CallEnd::Broken);
                return Ok(empty(500));
            }
            Some(Fault::Garbage) => with(200, JSON, GARBAGE),
            Some(Fault::HtmlPage) => with(502, "text/html", PAGE),
            Some(Fault::EmptyBody) => with(200, JSON, ""),
            Some(Fault::Scripted(script)) => {
                let (writer, body) = BodyWriter::new(None);
                let response = with(script.status, &script.content_type, body);
                tokio::spawn(script.clone().play(writer, self.wire, self.ticket));
                return Ok(response);
            }
            Some(Fault::ResetAfter { bytes }) => {
                self.wire.cut_after(CutKind::Reset, *bytes);
                return Err(self);
            }
            Some(Fault::CloseAfter { bytes }) => {
                self.wire.cut_after(CutKind::Close, *bytes);
                return Err(self);
            }
            _ => return Err(self),
        };
        let status = response.status();
        self.ticket.end(if status.is_success() { CallEnd::Finished } else { CallEnd::Refused(status.as_u16()) });
        Ok(response)
    }

    async fn answer(self, asked: &Value) -> Response {
        let request = GenerateRequest::read(asked, &self.shared.config);
        let request = match request {
            Err(refusal) if refusal.comes_first() || !is_stream(asked) => return refuse(self.ticket, &refusal),
            Ok(request) if !is_stream(asked) => return self.whole(request).await,
            request => request,
        };
        let (writer, body) = BodyWriter::new(self.most_bytes());
        tokio::spawn(async move {
            let mut stream = Stream { writer, shared: Arc::clone(&self.shared) };
            let told = match request {
                Ok(request) => stream.answer(self, request).await,
                Err(refusal) => stream.refuse(self.ticket, &refusal).await,
            };
            // The ticket has told of it.
            let _: Result<(), Gone> = told;
        });
        with(200, EVENT_STREAM, body)
    }

    /// The answer as one body.
    async fn whole(self, request: GenerateRequest) -> Response {
        let most = self.most_bytes();
        let dialect = self.shared.config.dialect;
        let mut run = match Run::begin(self.shared, self.ticket, request, self.fault).await {
            Ok(run) => run,
            Err((ticket, NotBegun::Refused(refusal))) => return refuse(ticket, &refusal),
            Err((mut ticket, NotBegun::Aborted(request, started))) => {
                ticket.end(CallEnd::Aborted);
                return respond(200, &aborted_in_queue(&request, dialect, started));
            }
        };
        while run.answer.finish.is_none() {
            if let Err(refusal) = run.step().await {
                return refuse(run.ticket, &refusal);
            }
        }
        match run.answer.finish {
            Some(Finish::AbortStatus(400)) => return refuse(run.ticket, &Refusal::Value(ABORT_MESSAGE.into())),
            Some(Finish::AbortStatus(status @ (500 | 503))) => {
                return refuse(run.ticket, &Refusal::Status(status, ABORT_MESSAGE.into()));
            }
            _ => {}
        }
        run.shared.remember(&run.answer.request.prompt, &run.answer.ids);
        let (writer, body) = BodyWriter::new(most);
        tokio::spawn(write_whole(run, writer));
        with(200, JSON, body)
    }

    fn most_bytes(&self) -> Option<u64> {
        match self.fault {
            Some(Fault::CutBody { bytes }) => Some(bytes),
            _ => None,
        }
    }
}

fn refuse(mut ticket: Ticket, refusal: &Refusal) -> Response {
    ticket.end(CallEnd::Refused(refusal.status()));
    refusal.response()
}

/// Writes the body of an answer that is complete.
async fn write_whole(mut run: Run, mut writer: BodyWriter) {
    let (frame, states) = reply(&run, &run.text(), &mut Told::default(), false);
    let batch = run.fault == Some(Fault::Batch);
    let written = async {
        if batch {
            writer.write(b"[").await?;
        }
        write_reply(&mut writer, &frame, states.as_ref()).await?;
        if batch {
            writer.write(b"]").await?;
        }
        writer.flush().await
    };
    let written = written.await;
    let end = end_of(&run, written);
    run.ticket.end(end);
}

/// The reply as it is now.
fn reply(run: &Run, text: &str, told: &mut Told, streams: bool) -> (Frame, Option<HiddenStates>) {
    let (shared, answer) = (&run.shared, &run.answer);
    let states = lay_out(&shared.config, answer, run.fault.as_ref());
    let fewer_ids = match run.fault {
        Some(Fault::FewerIds { by }) => by,
        _ => 0,
    };
    let has_states = states.is_some();
    let telling = Telling { config: &shared.config, answer, text, fewer_ids, streams, has_states };
    (telling.frame(told, |ids| shared.config.engine.text(ids)), states)
}

async fn write_reply(writer: &mut BodyWriter, frame: &Frame, states: Option<&HiddenStates>) -> Result<(), Gone> {
    writer.write(frame.before.as_bytes()).await?;
    if let Some(states) = states {
        writer.states(states).await?;
    }
    writer.write(frame.after.as_bytes()).await
}

/// How a call ended whose answer was written, or not to its end.
fn end_of(run: &Run, written: Result<(), Gone>) -> CallEnd {
    match (&run.fault, &run.answer.finish, written) {
        (Some(Fault::ResetAfter { .. } | Fault::CloseAfter { .. } | Fault::CutBody { .. }), ..) => CallEnd::Broken,
        (_, _, Err(Gone)) => CallEnd::Disconnected,
        (_, Some(Finish::Abort | Finish::AbortStatus(_)), _) => CallEnd::Aborted,
        _ => CallEnd::Finished,
    }
}

/// A stream of events.
struct Stream {
    writer: BodyWriter,
    shared: Arc<Shared>,
}

impl Stream {
    async fn answer(&mut self, job: Job, request: GenerateRequest) -> Result<(), Gone> {
        let dialect = self.shared.config.dialect;
        let begun = tokio::select! {
            biased;
            () = self.writer.gone() => return Err(Gone),
            begun = Run::begin(job.shared, job.ticket, request, job.fault) => begun,
        };
        let mut run = match begun {
            Ok(run) => run,
            Err((ticket, NotBegun::Refused(refusal))) => return self.refuse(ticket, &refusal).await,
            Err((mut ticket, NotBegun::Aborted(request, started))) => {
                ticket.end(CallEnd::Aborted);
                self.event(&aborted_in_queue(&request, dialect, started)).await?;
                return self.done().await;
            }
        };
        let streamed = self.events(&mut run).await;
        match streamed {
            Ok(Some(refusal)) => return self.refuse(run.ticket, &refusal).await,
            Ok(None) => run.ticket.end(end_of(&run, Ok(()))),
            // A place may be kept for a while: the ticket's drop sees to it.
            Err(Gone) if end_of(&run, Err(Gone)) == CallEnd::Disconnected => {}
            Err(Gone) => run.ticket.end(CallEnd::Broken),
        }
        Ok(())
    }

    /// All events of an answer, or what it failed with.
    async fn events(&mut self, run: &mut Run) -> Result<Option<Refusal>, Gone> {
        let interval = run.answer.request.stream_interval.unwrap_or(self.shared.config.stream_interval).max(1);
        let (mut told, mut text, mut due) = (Told::default(), String::new(), 0);
        while run.answer.finish.is_none() {
            tokio::select! {
                biased;
                () = self.writer.gone() => return Err(Gone),
                step = run.step() => if let Err(refusal) = step {
                    return Ok(Some(refusal));
                },
            }
            let (made, ended) = (run.answer.ids.len(), run.answer.finish.is_some());
            if !ended && interval > 1 && made % interval != 1 {
                continue;
            }
            due += 1;
            if let Some(refusal) = self.raised(run) {
                return Ok(Some(refusal));
            }
            match run.fault {
                Some(Fault::SkippedEvents { of }) if !ended && due % of.max(1) != 0 => continue,
                Some(Fault::EmptyDeltas) if !ended && due % 2 == 0 => {}
                _ => text = run.text(),
            }
            let (frame, states) = reply(run, &text, &mut told, true);
            self.writer.write(b"data: ").await?;
            write_reply(&mut self.writer, &frame, states.as_ref()).await?;
            self.writer.write(b"\n\n").await?;
            self.writer.flush().await?;
        }
        self.shared.remember(&run.answer.request.prompt, &run.answer.ids);
        self.done().await?;
        Ok(None)
    }

    /// What older versions raise in the middle of a stream for an abort with a status.
    fn raised(&self, run: &Run) -> Option<Refusal> {
        match run.answer.finish {
            Some(Finish::AbortStatus(status)) if !self.shared.config.dialect.streams_aborts() => Some(match status {
                400 => Refusal::Value(ABORT_MESSAGE.into()),
                status => Refusal::Status(status, ABORT_MESSAGE.into()),
            }),
            _ => None,
        }
    }

    /// An error where 200 has been sent already.
    async fn refuse(&mut self, mut ticket: Ticket, refusal: &Refusal) -> Result<(), Gone> {
        let dialect = self.shared.config.dialect;
        if let Some(event) = refusal.event(dialect) {
            ticket.end(CallEnd::Refused(200));
            self.event(&event).await?;
            return self.done().await;
        }
        if let (Refusal::Status(status, message), true) = (refusal, dialect.streams_aborts()) {
            ticket.end(CallEnd::Refused(200));
            let reason = json!({"type": "abort", "status_code": status, "message": message});
            let meta =
                json!({"id": null, "finish_reason": reason, "weight_version": "default", "completion_tokens": 0});
            self.event(&json!({"text": "", "output_ids": [], "meta_info": meta})).await?;
            return self.done().await;
        }
        ticket.end(CallEnd::Broken);
        let (writer, _) = BodyWriter::new(None);
        std::mem::replace(&mut self.writer, writer).break_off().await;
        Ok(())
    }

    async fn event(&mut self, event: &Value) -> Result<(), Gone> {
        self.writer.write(format!("data: {event}\n\n").as_bytes()).await?;
        self.writer.flush().await
    }

    async fn done(&mut self) -> Result<(), Gone> {
        self.writer.write(DONE).await?;
        self.writer.flush().await
    }
}

impl ScriptedReply {
    /// Sends the pieces in their time.
    async fn play(self, mut writer: BodyWriter, wire: Wire, mut ticket: Ticket) {
        for piece in self.pieces {
            let played = match piece {
                Piece::Bytes(bytes) => async { writer.write(&bytes).await.and(writer.flush().await) }.await,
                Piece::Pause(time) => tokio::select! {
                    () = sleep(time) => Ok(()),
                    () = writer.gone() => Err(Gone),
                },
                Piece::Reset | Piece::Close => {
                    let kind = if piece == Piece::Reset { CutKind::Reset } else { CutKind::Close };
                    // What was written is on its way first.
                    sleep(FLUSH_TIME).await;
                    ticket.end(CallEnd::Broken);
                    return wire.cut_now(kind);
                }
            };
            if played.is_err() {
                return;
            }
        }
        ticket.end(CallEnd::Finished);
    }
}
