//! The thread that steps the model, and the channel to it.
//!
//! One loop: take commands, drop what nobody waits for any more, ask the scheduler for a step, run it, choose ids, tell
//! the readers. Readers are told over unbounded channels, so the loop never waits for one. A step that fails ends the
//! requests that have begun, whose caches it leaves in an unknown state, and nothing else; a panic, or a model that can compute
//! no more, ends the thread, which every open request and the health check then see.

mod client;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use self::client::{Client, GenerationClient, RowsClient};
use super::candidates::RowLogits;
use super::plan::{StepError, StepOutput, StepPlan, StepRunner};
use super::sampler::Sampler;
use super::scheduler::{RowUse, Scheduler, SchedulerConfig, SequenceId, Wanted};
use crate::backend::{BackendError, FinRows, GenerationRequest, GenerationSender, Load};
use crate::guide::Guide;

/// Constants of a running engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineConfig {
    pub(super) scheduler: SchedulerConfig,
    /// Width of a row of fin.
    pub(super) hidden: usize,
    /// Ids are below this.
    pub(super) vocab: usize,
    /// Longest sequence.
    pub(super) context: usize,
}

/// The way to the engine thread.
#[derive(Debug, Clone)]
pub(super) struct EngineHandle {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

/// What the engine shows of itself.
#[derive(Debug, Default)]
struct Shared {
    running: AtomicUsize,
    waiting: AtomicUsize,
    pending_tokens: AtomicUsize,
    kv_used: AtomicUsize,
    kv_limit: AtomicUsize,
    /// Why the thread ended.
    ended: OnceLock<String>,
}

enum Command {
    Generate(Box<GenerationRequest>, GenerationSender, Option<Guide>),
    Rows { tokens: Vec<u32>, from: usize, answer: oneshot::Sender<Result<FinRows, BackendError>> },
}

/// Starts the engine thread over a runner.
///
/// # Errors
/// When the system refuses a thread.
pub(super) fn start(runner: Box<dyn StepRunner + Send>, config: EngineConfig) -> std::io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let engine = Engine::new(runner, config, Arc::clone(&shared));
    let seen = Arc::clone(&shared);
    std::thread::Builder::new().name("engine".into()).spawn(move || {
        // The engine is dropped with all its senders inside the catch: readers see the end at once.
        let outcome = catch_unwind(AssertUnwindSafe(move || engine.serve(&inbox)));
        let why = match outcome {
            Ok(Ok(())) => "it was shut down".to_owned(),
            Ok(Err(reason)) => reason,
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
            }
        };
        let _ = seen.ended.set(why);
    })?;
    Ok(EngineHandle { commands, shared })
}

impl EngineHandle {
    /// Starts a generation, held to its form by `guide` where it has one; what comes of it goes to `sender`.
    pub(super) fn generate(&self, request: GenerationRequest, sender: GenerationSender, guide: Option<Guide>) {
        if let Err(mpsc::SendError(Command::Generate(_, sender, _))) =
            self.commands.send(Command::Generate(Box::new(request), sender, guide))
        {
            sender.send(Err(self.gone()));
        }
    }

    pub(super) async fn rows(&self, tokens: Vec<u32>, from: usize) -> Result<FinRows, BackendError> {
        let (answer, rows) = oneshot::channel();
        self.commands.send(Command::Rows { tokens, from, answer }).map_err(|_| self.gone())?;
        rows.await.map_err(|_| self.gone())?
    }

    /// Why the engine ended, or `None` while it runs.
    pub(super) fn ended(&self) -> Option<&str> {
        self.shared.ended.get().map(String::as_str)
    }

    pub(super) fn load(&self) -> Load {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Load {
            running: read(&self.shared.running),
            waiting: read(&self.shared.waiting),
            pending_tokens: read(&self.shared.pending_tokens),
            kv_used: read(&self.shared.kv_used),
            kv_limit: read(&self.shared.kv_limit),
        }
    }

    fn gone(&self) -> BackendError {
        BackendError::Broken(format!("the engine has ended: {}", self.ended().unwrap_or("its thread is gone")))
    }
}

struct Engine {
    runner: Box<dyn StepRunner + Send>,
    config: EngineConfig,
    scheduler: Scheduler,
    clients: HashMap<SequenceId, Client>,
    next_id: SequenceId,
    shared: Arc<Shared>,
}

impl Engine {
    fn new(runner: Box<dyn StepRunner + Send>, config: EngineConfig, shared: Arc<Shared>) -> Self {
        let scheduler = Scheduler::new(config.scheduler);
        shared.kv_limit.store(scheduler.capacity(), Ordering::Relaxed);
        Self { runner, config, scheduler, clients: HashMap::new(), next_id: 0, shared }
    }

    /// Works until every handle is gone, or the model can compute no more.
    fn serve(mut self, inbox: &mpsc::Receiver<Command>) -> Result<(), String> {
        loop {
            if self.clients.is_empty() {
                match inbox.recv() {
                    Ok(command) => self.accept(command),
                    Err(mpsc::RecvError) => return Ok(()),
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(command) => self.accept(command),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
                }
            }
            self.forget_cancelled();
            if let Err(reason) = self.step() {
                self.fail_all(&reason, inbox);
                return Err(reason);
            }
            self.publish();
        }
    }

    fn accept(&mut self, command: Command) {
        let id = self.next_id;
        self.next_id += 1;
        let outcome = match command {
            Command::Generate(request, sender, guide) => self.accept_generation(id, *request, sender, guide),
            Command::Rows { tokens, from, answer } => self.accept_rows(id, tokens, from, answer),
        };
        match outcome {
            Ok(client) => drop(self.clients.insert(id, client)),
            Err((client, reason)) => client.fail(BackendError::Client(reason)),
        }
    }

    fn accept_generation(
        &mut self,
        id: SequenceId,
        request: GenerationRequest,
        sender: GenerationSender,
        guide: Option<Guide>,
    ) -> Result<Client, (Client, String)> {
        let room = self.config.context.saturating_sub(request.prompt.len());
        let left = request.max_tokens.min(room);
        let client = Client::Generation(Box::new(GenerationClient {
            sender,
            sampler: Sampler::new(request.sampling, &request.prompt),
            guide,
            logprobs: request.logprobs,
            fin: request.fin,
            stop_ids: request.stop_ids,
            left,
            submitted: Instant::now(),
            began: None,
            first: None,
            rows: Duration::ZERO,
        }));
        if request.max_tokens == 0 {
            return Err((client, "an answer of 0 tokens was asked for; ask for at least 1".into()));
        }
        if let Err(reason) = self.check_tokens(&request.prompt, room) {
            return Err((client, reason));
        }
        // The last chosen token is never read, so it takes no room in the cache.
        let longest = request.prompt.len() + left - 1;
        match self.scheduler.submit(id, request.prompt, longest, Wanted::Next) {
            Ok(()) => Ok(client),
            Err(too_long) => Err((client, too_long.to_string())),
        }
    }

    fn accept_rows(
        &mut self,
        id: SequenceId,
        tokens: Vec<u32>,
        from: usize,
        answer: oneshot::Sender<Result<FinRows, BackendError>>,
    ) -> Result<Client, (Client, String)> {
        let length = tokens.len();
        let client = Client::Rows(RowsClient {
            answer,
            rows: Vec::new(),
            wanted: length.saturating_sub(from) * self.config.hidden,
        });
        let room = (self.config.context + 1).saturating_sub(length);
        if let Err(reason) = self.check_tokens(&tokens, room) {
            return Err((client, reason));
        }
        if from >= length {
            return Err((client, format!("rows from position {from} were asked of {length} tokens")));
        }
        match self.scheduler.submit(id, tokens, length, Wanted::RowsFrom(from)) {
            Ok(()) => Ok(client),
            Err(too_long) => Err((client, too_long.to_string())),
        }
    }

    fn check_tokens(&self, tokens: &[u32], room: usize) -> Result<(), String> {
        let EngineConfig { vocab, context, .. } = self.config;
        if tokens.is_empty() {
            return Err("the prompt has no tokens".into());
        }
        if room == 0 {
            return Err(format!("{} tokens leave no room in a context of {context}", tokens.len()));
        }
        match tokens.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => Err(format!("token id {id} is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }

    fn forget_cancelled(&mut self) {
        let gone: Vec<SequenceId> = self.clients.iter().filter(|(_, c)| c.is_gone()).map(|(&id, _)| id).collect();
        for id in gone {
            self.clients.remove(&id);
            self.scheduler.remove(id);
        }
    }

    /// Computes a step and tells its readers. A failed one ends their requests; `Err` if no other can be computed either.
    fn step(&mut self) -> Result<(), String> {
        let Some((mut plan, uses)) = self.scheduler.plan() else {
            return Ok(());
        };
        for (output, use_) in plan.outputs.iter_mut().zip(&uses) {
            if let (true, Some(Client::Generation(client))) = (use_.chooses, self.clients.get(&use_.sequence)) {
                output.logits = client.wants();
                output.fin = client.fin;
            }
        }
        let began = Instant::now();
        let output = self.runner.run(&plan).and_then(|output| self.check_output(output, &plan, &uses));
        let output = match output {
            Ok(output) => output,
            Err(StepError { reason, fatal }) => {
                if fatal {
                    return Err(reason);
                }
                self.fail_running(&reason);
                return Ok(());
            }
        };
        let StepOutput { fin, fin_time, logits } = output;
        let time_a_row = fin_time / u32::try_from(fin.len()).unwrap_or(u32::MAX).max(1);
        let mut rows = fin.into_iter();
        let mut logits = logits.into_iter();
        for (use_, output) in uses.iter().zip(&plan.outputs) {
            let logits = if use_.chooses { logits.next() } else { None };
            let row = if output.fin { rows.next().unwrap_or_default() } else { Vec::new() };
            let ended = match self.clients.get_mut(&use_.sequence) {
                None => true,
                Some(Client::Rows(client)) => {
                    client.rows.extend(row);
                    client.rows.len() >= client.wanted
                }
                Some(Client::Generation(client)) => {
                    client.rows += if output.fin { time_a_row } else { Duration::ZERO };
                    match client.advance(
                        logits.unwrap_or_else(|| RowLogits::All(Vec::new())),
                        row,
                        self.config.hidden,
                        began,
                        || self.scheduler.cached_tokens(use_.sequence),
                    ) {
                        Some(token) => {
                            self.scheduler.push(use_.sequence, token);
                            false
                        }
                        None => true,
                    }
                }
            };
            if ended {
                self.scheduler.remove(use_.sequence);
                if let Some(Client::Rows(client)) = self.clients.remove(&use_.sequence) {
                    let rows = FinRows::new(self.config.hidden, client.rows);
                    let _ = client.answer.send(rows.ok_or_else(|| BackendError::Broken("rows of no width".into())));
                }
            }
        }
        Ok(())
    }

    /// A runner that gives the wrong number of rows would silently shift every proof behind it.
    fn check_output(&self, output: StepOutput, plan: &StepPlan, uses: &[RowUse]) -> Result<StepOutput, StepError> {
        let chosen = uses.iter().filter(|use_| use_.chooses).count();
        let wanted = plan.outputs.iter().filter(|output| output.fin).count();
        let rows = output.fin.iter().filter(|row| row.len() == self.config.hidden).count();
        if (rows, output.fin.len(), output.logits.len()) != (wanted, wanted, chosen) {
            return Err(StepError::step(format!(
                "the model gave {} rows of fin, {rows} of them of the right width, and {} of logits where {wanted} and {chosen} \
                 were planned",
                output.fin.len(),
                output.logits.len()
            )));
        }
        Ok(output)
    }

    /// Ends the requests that have begun: a failed step leaves their caches in an unknown state. Those that wait have none.
    fn fail_running(&mut self, reason: &str) {
        tracing::error!(reason, "a step of the model failed; the requests that had begun end");
        for id in self.scheduler.discard_running() {
            if let Some(client) = self.clients.remove(&id) {
                client.fail(BackendError::Broken(reason.into()));
            }
        }
    }

    /// Tells everyone who waits for anything.
    fn fail_all(&mut self, reason: &str, inbox: &mpsc::Receiver<Command>) {
        let failure = || BackendError::Broken(reason.into());
        self.clients.drain().for_each(|(_, client)| client.fail(failure()));
        for command in inbox.try_iter() {
            match command {
                Command::Generate(_, sender, _) => sender.send(Err(failure())),
                Command::Rows { answer, .. } => drop(answer.send(Err(failure()))),
            }
        }
    }

    fn publish(&self) {
        let (running, waiting, pending, used) = self.scheduler.load();
        self.shared.running.store(running, Ordering::Relaxed);
        self.shared.waiting.store(waiting, Ordering::Relaxed);
        self.shared.pending_tokens.store(pending, Ordering::Relaxed);
        self.shared.kv_used.store(used, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
