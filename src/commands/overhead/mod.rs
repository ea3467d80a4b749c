//! `engy-miner bench overhead`: what a proof costs, backend by backend.
//!
//! This process measures and computes nothing: each backend has one of its own (`sides`), so that what it takes is its own too.
//! Prompts (`prompts`) go to them in turns; the matrix of makers and verifiers (`variants`) is computed here afterwards.

mod command_line;
mod files;
mod prompts;
mod sides;
mod variants;

use std::collections::HashSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use tokio::sync::watch;

use self::sides::{About, Served};
use super::bench::make_room;
use super::load;
use crate::backend::sglang::{Expected, ServedModel, Severity, examine};
use crate::chat::ChatModel;
use crate::checkpoint::Checkpoint;
use crate::cli::{BackendKind, BenchOverheadArgs};
use crate::machine;
use crate::overhead::{
    Account, BackendOverhead, COMPUTE_THREADS, Comparison, Load, Machine, Matrix, Mode, Process, Proofs, Run, Turn,
    TurnRecord, report,
};
use crate::spec::{DEMO_MODEL, ModelSpec};

/// The exit code where an honest answer was rejected or one of a control accepted: not 1, which says that nothing was measured.
const WRONG_VERDICTS: u8 = 3;

/// The exit code of a program that was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;

pub(super) async fn run(mut args: BenchOverheadArgs) -> anyhow::Result<ExitCode> {
    // 0 is a thread for each core.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0));
    pool.thread_name(|number| format!("{COMPUTE_THREADS}-{number}")).build_global()?;
    let at_once = args.concurrency.iter().copied().max().unwrap_or(1);
    let spec = load::spec(&args.model, DEMO_MODEL)?;
    let checkpoint = args.checkpoint.as_deref().map(Checkpoint::open).transpose()?;
    let chat = checkpoint.as_ref().map(|checkpoint| load::chat(checkpoint, &spec)).transpose()?;
    let prompts = chat.as_ref().map(|chat| prompts::read(args.prompts.as_deref(), chat)).transpose()?;
    let longest_prompt = prompts.iter().flatten().map(Vec::len).max().unwrap_or(args.prompt_tokens);
    let longest = longest_prompt + longest_answer(&args);
    make_room(&mut args.engine, at_once, longest.max(variants::LONGEST_TOKENS));
    // Each turn reads all of its prompts: those before had the same.
    args.engine.prefix_cache_tokens.get_or_insert(0);
    if let Some(side) = args.side {
        sides::run(side, &args).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if machine::cpu_time_of(&[""]).is_none() {
        tracing::warn!(
            "this system does not tell what each thread takes (/proc/self/task/*/schedstat): figures without the model's threads hold them"
        );
    }
    let backends = backends(&args)?;
    std::fs::create_dir_all(&args.output)
        .map_err(|e| anyhow!("cannot make the folder {}: {e}", args.output.display()))?;
    files::check(&args.output)?;
    let mut measurement = Measurement { args, spec, checkpoint, chat, sides: Sides::default() };
    if let Some(checkpoint) = &measurement.checkpoint {
        check_length(longest, ServedModel::of(checkpoint)?.context)?;
    }
    let about = measurement.start(&backends, longest, at_once).await?;
    // A serve's may be shorter than its model's.
    check_length(longest, about.context)?;
    let prompts = match prompts {
        Some(prompts) => prompts,
        None => prompts::random(about.vocab, measurement.args.prompt_tokens),
    };
    measurement.measure(&backends, prompts, about).await
}

fn check_length(longest: usize, context: usize) -> anyhow::Result<()> {
    if longest > context {
        bail!(
            "{longest} tokens do not fit {context}, the model's context or the cache's --max-total-tokens; lower --new-tokens, or give \
             shorter prompts"
        );
    }
    Ok(())
}

fn longest_answer(args: &BenchOverheadArgs) -> usize {
    let longest = args.new_tokens.iter().copied().max().unwrap_or(2);
    usize::try_from(longest).unwrap_or(usize::MAX)
}

/// The backends that are compared, each once.
fn backends(args: &BenchOverheadArgs) -> anyhow::Result<Vec<BackendKind>> {
    let served = args.fake_serve || !args.serve.serve_url.is_empty();
    let mut backends = args.backend.clone();
    if backends.is_empty() {
        backends.push(BackendKind::Candle);
        backends.extend(served.then_some(BackendKind::Sglang));
    }
    let mut seen = HashSet::new();
    backends.retain(|backend| seen.insert(backend.name()));
    if backends.contains(&BackendKind::Sglang) && !served {
        bail!("there is no serve to measure: give --serve-url its address, or --fake-serve for a stand-in");
    }
    if served && !backends.contains(&BackendKind::Sglang) {
        bail!(
            "a serve is given and not to be measured: add --backend sglang, or leave out --fake-serve and --serve-url (SERVE_URL)"
        );
    }
    if args.synthetic.is_some() && args.prompts.is_some() {
        bail!("--synthetic has no tokenizer for --prompts: its prompts are random, of --prompt-tokens each");
    }
    if args.fake_serve && !args.serve.serve_url.is_empty() {
        bail!("either a serve or a stand-in: leave out --fake-serve or --serve-url (SERVE_URL)");
    }
    Ok(backends)
}

/// The processes that take turns.
#[derive(Default)]
struct Sides {
    candle: Option<Process>,
    sglang: Option<Process>,
    /// The stand-in, where there is one.
    serve: Option<Process>,
    /// Where the serve is.
    served: Option<Served>,
    /// What it calls itself.
    described: Option<String>,
}

impl Sides {
    async fn turn(&mut self, mode: &Mode, ask: crate::overhead::Ask) -> anyhow::Result<(Turn, Option<Account>)> {
        let in_process = mode.backend == BackendKind::Candle.name();
        let side = if in_process { &mut self.candle } else { &mut self.sglang };
        let side = side.as_mut().with_context(|| format!("{} was not started", mode.backend))?;
        let serve = self.serve.as_mut().filter(|_| !in_process);
        match serve {
            None => Ok((sides::turn(side, ask).await?, None)),
            Some(serve) => {
                sides::account(serve).await?;
                let turn = sides::turn(side, ask).await?;
                Ok((turn, Some(sides::account(serve).await?)))
            }
        }
    }

    /// Ends all but the serve, of which there may be more to ask.
    async fn end_backends(&mut self) {
        for side in [self.candle.take(), self.sglang.take()].into_iter().flatten() {
            side.end().await;
        }
    }
}

/// All turns.
struct Taken {
    records: Vec<TurnRecord>,
    /// Seconds since 1970.
    began: u64,
    /// How long they took.
    seconds: f64,
    /// Share of the machine that other programs used.
    others: f64,
    /// The turn that failed, after which there were no more.
    ended: Option<anyhow::Error>,
    interrupted: bool,
}

/// Whether somebody wants to see what there is.
#[derive(Clone)]
struct Interrupted(watch::Receiver<bool>);

impl Interrupted {
    /// Listens from now on. Who interrupts twice wants nothing any more: the program ends at once, and its other processes with it.
    fn watch() -> Self {
        let (set, interrupted) = watch::channel(false);
        let first = super::interrupted();
        tokio::spawn(async move {
            first.await;
            set.send_replace(true);
            tracing::warn!("interrupted: what there is will be told; once more ends it at once");
            super::interrupted().await;
            std::process::exit(INTERRUPTED);
        });
        Self(interrupted)
    }

    fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Comes back once somebody interrupts.
    async fn wait(&self) {
        if self.0.clone().wait_for(|interrupted| *interrupted).await.is_err() {
            // Nobody listens any more.
            std::future::pending().await
        }
    }
}

struct Measurement {
    args: BenchOverheadArgs,
    spec: ModelSpec,
    checkpoint: Option<Checkpoint>,
    chat: Option<ChatModel>,
    sides: Sides,
}

impl Measurement {
    /// Starts a process for each backend; what the model is like.
    async fn start(&mut self, backends: &[BackendKind], longest: usize, at_once: usize) -> anyhow::Result<About> {
        let mut about = None;
        for backend in backends {
            let served = match backend {
                BackendKind::Candle => None,
                BackendKind::Sglang => Some(self.serve(longest, at_once).await?),
            };
            let (process, its) = sides::start_backend(*backend, served.clone()).await?;
            match backend {
                BackendKind::Candle => self.sides.candle = Some(process),
                BackendKind::Sglang => self.sides.sglang = Some(process),
            }
            self.sides.served = served.or(self.sides.served.take());
            let context = about.as_ref().map_or(its.context, |about: &About| about.context.min(its.context));
            about = Some(About { context, ..its });
        }
        about.context("no backend was started")
    }

    /// The serve, started where it is the stand-in, and looked at.
    async fn serve(&mut self, longest: usize, at_once: usize) -> anyhow::Result<Served> {
        let (urls, stand_in) = if self.args.fake_serve {
            let (process, listening) = sides::start_serve(false).await?;
            self.sides.serve = Some(process);
            self.sides.described = Some(format!(
                "a stand-in for sglang {} on the candle backend, which returns an answer's rows and the prompt's last one",
                listening.version
            ));
            (vec![listening.url], Some(listening.about))
        } else {
            (self.args.serve.serve_url.clone(), None)
        };
        let served = match (&self.checkpoint, &self.chat, stand_in) {
            (Some(checkpoint), Some(chat), _) => {
                let args = crate::cli::ServeArgs { serve_url: urls.clone(), ..self.args.serve.clone() };
                let served = load::Served::new(checkpoint, chat, &args, &self.spec, at_once)?;
                let expected = Expected { context: longest, ..served.expected };
                Served { urls, model: served.model, expected }
            }
            (_, _, Some(about)) => {
                let About { architecture, hidden, vocab, context } = about;
                let prompt = prompts::random(vocab, 4).pop().unwrap_or_default();
                let checkpoint = sides::model_path(&self.args);
                let expected = Expected { hidden, context: longest, checkpoint, at_once, prompt, recomputes: false };
                Served { urls, model: ServedModel { architecture, hidden, vocab, context }, expected }
            }
            _ => bail!("give --checkpoint the folder of the model that is served"),
        };
        if self.sides.described.is_none() {
            self.sides.described = Some(self.look_at(&served).await?);
        }
        Ok(served)
    }

    /// What a serve calls itself.
    async fn look_at(&self, served: &Served) -> anyhow::Result<String> {
        let options = load::serve_options(&self.args.serve, served.urls.clone());
        let mut described = Vec::new();
        for (serve, findings) in examine(&options, served.expected.clone()).await? {
            if let Some(fault) = findings.iter().find(|finding| finding.severity == Severity::Fault) {
                bail!("the serve {serve} cannot be measured: {}; engy-miner doctor says more", fault.what);
            }
            let version = findings.iter().find(|finding| finding.topic == "version");
            let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning);
            let warnings: String = warnings.map(|finding| format!("; {}: {}", finding.topic, finding.what)).collect();
            described.push(format!("{} at {serve}{warnings}", version.map_or("sglang", |finding| &finding.what)));
        }
        Ok(described.join(", "))
    }

    async fn measure(
        mut self,
        backends: &[BackendKind],
        prompts: Vec<Vec<u32>>,
        about: About,
    ) -> anyhow::Result<ExitCode> {
        let comparison = self.comparison(backends, prompts);
        let interrupted = Interrupted::watch();
        let taken = self.take_turns(&comparison, &interrupted).await?;
        self.sides.end_backends().await;
        let run = self.run(&taken, comparison.overhead(&taken.records), about.hidden);
        let cells = comparison.cells(&taken.records, about.hidden);
        let folder = self.args.output.clone();
        // What was measured for minutes is kept, whatever becomes of the matrix.
        files::write(&folder, &run, &cells, &taken.records, None)?;
        if let Some(error) = taken.ended {
            bail!("{error:#}; what was measured before is in {}", folder.join(files::PAGE).display());
        }
        let matrix = self.judged(&comparison.prompts, about.context, &interrupted).await;
        if let Some(serve) = self.sides.serve.take() {
            serve.end().await;
        }
        let matrix = matrix.map_err(|e| {
            anyhow!("there is no matrix: {e:#}; what was measured before is in {}", folder.join(files::PAGE).display())
        })?;
        if matrix.is_some() {
            files::write(&folder, &run, &cells, &taken.records, matrix.as_ref())?;
        }
        let summary = report::summary(&run, &cells, matrix.as_ref());
        writeln!(std::io::stdout(), "{summary}\nThe report: {}", folder.join(files::PAGE).display())?;
        let right = matrix.is_none_or(|matrix| matrix.cells.iter().all(|cell| cell.is_right()));
        Ok(if right { ExitCode::SUCCESS } else { ExitCode::from(WRONG_VERDICTS) })
    }

    /// The matrix, unless nobody wants it, or wants it any more.
    async fn judged(
        &mut self,
        prompts: &[Vec<u32>],
        context: usize,
        interrupted: &Interrupted,
    ) -> anyhow::Result<Option<Matrix>> {
        let answers = self.args.matrix_answers;
        if answers == 0 || interrupted.is_set() {
            return Ok(None);
        }
        self.have_prompts_returned().await?;
        self.matrix(prompts, answers, context, interrupted).await
    }

    /// Has the backends take turns until the time is over, or somebody interrupts.
    async fn take_turns(&mut self, comparison: &Comparison, interrupted: &Interrupted) -> anyhow::Result<Taken> {
        let bar = load::bar(comparison.bound.as_secs(), "[{bar:30}] {pos} of {len} s  {msg}");
        bar.set_message("warming up");
        for mode in &comparison.modes {
            self.sides.turn(mode, comparison.warm_up(mode)).await?;
        }
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (started, busy, cpu) = (Instant::now(), machine::busy_time(), machine::cpu_time());
        let told = |record: &TurnRecord| {
            bar.set_position(started.elapsed().as_secs());
            bar.set_message(said(record));
        };
        // Of requests that wait for one another each may take that long.
        let requests = comparison.loads.iter().map(|load| load.concurrency).max().unwrap_or(1);
        let longest = Duration::try_from_secs_f64(self.spec.max_request_s * requests as f64)?;
        let sides = &mut self.sides;
        let turn = async |mode: &Mode, ask| {
            tokio::select! {
                turn = sides.turn(mode, ask) => turn,
                () = interrupted.wait() => bail!("it was interrupted"),
                () = tokio::time::sleep(longest) => {
                    bail!("{} did not end a turn within {} s, the spec's max_request_s for each request", mode.backend, longest.as_secs())
                }
            }
        };
        let (records, ended) = comparison.run(turn, told).await;
        let seconds = started.elapsed().as_secs_f64();
        bar.finish_and_clear();
        let ended = ended.filter(|_| !interrupted.is_set());
        if records.is_empty() {
            return Err(ended.unwrap_or_else(|| anyhow!("it was interrupted before anything was measured")));
        }
        let theirs = records.iter().map(|record| record.turn.cpu_us + record.serve.map_or(0.0, |serve| serve.cpu_us));
        let ours = Duration::from_secs_f64(theirs.sum::<f64>() / 1e6) + machine::cpu_time().saturating_sub(cpu);
        let busy = machine::busy_time().zip(busy).map(|(now, then)| now.saturating_sub(then));
        let processors = machine::processors().unwrap_or_else(cores);
        let others = busy.map_or(0.0, |busy| busy.saturating_sub(ours).as_secs_f64() / (seconds * processors as f64));
        Ok(Taken { records, began, seconds, others: others.clamp(0.0, 1.0), ended, interrupted: interrupted.is_set() })
    }

    /// What was measured, where and how.
    fn run(&self, taken: &Taken, overhead: Vec<BackendOverhead>, hidden: usize) -> Run {
        Run {
            command: command_line::shown(std::env::args_os().map(|word| word.to_string_lossy().into_owned())),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            began: taken.began,
            seconds: taken.seconds,
            machine: Machine {
                processor: machine::processor(),
                cores: cores(),
                memory_bytes: machine::memory().map_or(0, |memory| memory.total),
                system: machine::system(),
            },
            model: self.model(),
            hidden,
            topk: self.spec.toploc.k,
            serve: self.sides.described.clone(),
            others: taken.others,
            overhead,
            complete: taken.ended.is_none() && !taken.interrupted,
        }
    }

    /// A verifier needs the rows of its prompts: the stand-in is started anew, not trimmed.
    async fn have_prompts_returned(&mut self) -> anyhow::Result<()> {
        if let (Some(trimmed), Some(served)) = (self.sides.serve.take(), &mut self.sides.served) {
            trimmed.end().await;
            let (process, listening) = sides::start_serve(true).await?;
            served.urls = vec![listening.url];
            self.sides.serve = Some(process);
        }
        Ok(())
    }

    fn comparison(&self, backends: &[BackendKind], prompts: Vec<Vec<u32>>) -> Comparison {
        let args = &self.args;
        let modes = backends.iter().flat_map(|backend| {
            [Proofs::Off, Proofs::Host].map(|proofs| Mode { backend: backend.name().to_owned(), proofs })
        });
        let loads = args.concurrency.iter().flat_map(|concurrency| {
            let load = |new_tokens: &u64| Load {
                concurrency: *concurrency,
                new_tokens: usize::try_from(*new_tokens).unwrap_or(usize::MAX),
            };
            args.new_tokens.iter().map(load)
        });
        // Each once: a load that is measured twice would pair with itself.
        let mut seen = HashSet::new();
        let loads = loads.filter(|load| seen.insert((load.concurrency, load.new_tokens)));
        Comparison {
            modes: modes.collect(),
            loads: loads.collect(),
            prompts,
            streamed: !args.whole,
            topk: self.spec.toploc.k,
            bound: Duration::from_secs(args.seconds),
        }
    }

    fn model(&self) -> String {
        let synthetic = self.args.synthetic.as_ref().map(|model| format!("random weights in the shape of {model}"));
        synthetic.or_else(|| self.checkpoint.as_ref().map(load::name_of)).unwrap_or_default()
    }
}

/// A turn in a few words.
fn said(record: &TurnRecord) -> String {
    let TurnRecord { mode, load, turn, .. } = record;
    let proofs = if mode.proofs == Proofs::Off { "no proofs" } else { "proofs" };
    let speed = turn.decode_tokens as f64 / turn.decode_seconds.max(f64::EPSILON);
    format!("{} {proofs}, {} at once, {} tokens: {speed:.0} tok/s", mode.backend, load.concurrency, load.new_tokens)
}

/// Processors that this program may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
