//! The processes of a measurement: what each of them does, and how the one that measures starts them.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::backend::sglang::{Expected, ServedModel, SglangBackend};
use crate::backend::{Backend, BackendInfo};
use crate::chat::Tokenizer;
use crate::checkpoint::Checkpoint;
use crate::cli::{BackendKind, BenchOverheadArgs, OverheadSide};
use crate::commands::load;
use crate::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig, PromptBlock, TextOf};
use crate::machine;
use crate::overhead::{Account, Ask, CpuTimes, Process, ProcessError, answer_requests, die_with_parent, take};

/// Places of the stand-in beyond the requests at once.
const SPARE_PLACES: usize = 2;

/// What the one that measures asks of a backend's process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToBackend {
    /// First: what it is. The client of a serve is told where that is.
    Begin(Option<Served>),
    /// A turn.
    Take(Ask),
}

/// What a serve's client must know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Served {
    pub(super) urls: Vec<String>,
    pub(super) model: ServedModel,
    pub(super) expected: Expected,
}

/// A model in another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) architecture: String,
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) context: usize,
}

impl From<&BackendInfo> for About {
    fn from(info: &BackendInfo) -> Self {
        let BackendInfo { architecture, hidden, vocab, context, .. } = info.clone();
        Self { architecture, hidden, vocab, context }
    }
}

/// What a backend's process answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromBackend {
    Begun(About),
    Taken(Box<crate::overhead::Turn>),
}

/// Where the stand-in serve listens, and what it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) url: String,
    pub(super) about: About,
    pub(super) version: String,
}

/// What the stand-in serve is asked, and answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToServe {
    Begin,
    /// What it took since it was last asked.
    Account,
}

/// What the stand-in serve answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromServe {
    Listening(Listening),
    Account(Account),
}

/// This program's flags as they were given, for one of its processes.
fn flags(side: &str) -> Vec<OsString> {
    std::env::args_os().skip(1).chain(["--side".into(), side.into()]).collect()
}

/// Starts the stand-in serve, which returns all of a prompt's rows if it is `whole`.
pub(super) async fn start_serve(whole: bool) -> anyhow::Result<(Process, Listening)> {
    let mut serve = Process::start("the stand-in serve", flags(if whole { "whole-serve" } else { "serve" }))?;
    match serve.ask(&ToServe::Begin).await? {
        FromServe::Listening(listening) => Ok((serve, listening)),
        FromServe::Account(_) => bail!("the stand-in serve told no address"),
    }
}

/// What the stand-in serve took since it was last asked.
pub(super) async fn account(serve: &mut Process) -> anyhow::Result<Account> {
    match serve.ask(&ToServe::Account).await? {
        FromServe::Account(account) => Ok(account),
        FromServe::Listening(_) => bail!("the stand-in serve gave no account"),
    }
}

/// Starts a backend's process.
pub(super) async fn start_backend(kind: BackendKind, served: Option<Served>) -> anyhow::Result<(Process, About)> {
    let name = kind.name();
    let mut process = Process::start(name, flags(name))?;
    match process.ask(&ToBackend::Begin(served)).await? {
        FromBackend::Begun(about) => Ok((process, about)),
        FromBackend::Taken(_) => bail!("the process for {name} took a turn before it began"),
    }
}

/// Has a backend's process take a turn.
pub(super) async fn turn(process: &mut Process, ask: Ask) -> anyhow::Result<crate::overhead::Turn> {
    match process.ask::<FromBackend>(&ToBackend::Take(ask)).await {
        Ok(FromBackend::Taken(turn)) => Ok(*turn),
        Ok(FromBackend::Begun(_)) => bail!("a turn was asked for, and none was taken"),
        Err(error @ ProcessError::Refused { .. }) => bail!("a turn cannot be taken: {error}"),
        Err(error) => Err(error.into()),
    }
}

/// Is one of the processes, until it is told no more.
pub(super) async fn run(side: OverheadSide, args: &BenchOverheadArgs) -> anyhow::Result<()> {
    die_with_parent();
    match side {
        OverheadSide::Serve => be_serve(args, PromptBlock::LastRow).await,
        OverheadSide::WholeServe => be_serve(args, PromptBlock::Full).await,
        OverheadSide::Candle | OverheadSide::Sglang => be_backend(side, args).await,
    }
}

/// Loads the model that the flags name.
pub(super) async fn candle(args: &BenchOverheadArgs) -> anyhow::Result<Arc<dyn Backend>> {
    match (args.synthetic.clone(), &args.checkpoint) {
        (Some(model), _) => load::synthetic(model, &args.engine).await,
        (None, Some(checkpoint)) => load::candle(&Checkpoint::open(checkpoint)?, &args.engine, None).await,
        (None, None) => bail!("what is to be measured? Give --checkpoint or --synthetic"),
    }
}

async fn be_backend(side: OverheadSide, args: &BenchOverheadArgs) -> anyhow::Result<()> {
    let mut begun: Option<Arc<dyn Backend>> = None;
    let answer = async |request: ToBackend| match (request, &begun) {
        (ToBackend::Begin(served), _) => {
            let backend = match (side, served) {
                (OverheadSide::Sglang, Some(served)) => client(args, served).await,
                _ => candle(args).await,
            };
            let backend = backend.map_err(|e| format!("{e:#}"))?;
            let about = About::from(backend.info());
            begun = Some(backend);
            Ok(FromBackend::Begun(about))
        }
        (ToBackend::Take(ask), Some(backend)) => match take(backend, ask).await {
            Ok(turn) => Ok(FromBackend::Taken(Box::new(turn))),
            Err(error) => Err(error.to_string()),
        },
        (ToBackend::Take(_), None) => Err("it has not begun".into()),
    };
    Ok(answer_requests(answer).await?)
}

pub(super) async fn client(args: &BenchOverheadArgs, served: Served) -> anyhow::Result<Arc<dyn Backend>> {
    let options = load::serve_options(&args.serve, served.urls);
    Ok(Arc::new(SglangBackend::open(&options, served.model, served.expected).await?))
}

async fn be_serve(args: &BenchOverheadArgs, prompt_block: PromptBlock) -> anyhow::Result<()> {
    let backend = candle(args).await?;
    let about = About::from(backend.info());
    let text: TextOf = match &args.checkpoint {
        Some(path) => {
            let tokenizer = Tokenizer::open(&Checkpoint::open(path)?)?;
            Arc::new(move |ids| tokenizer.decode(ids))
        }
        None => Arc::new(|ids| ids.iter().map(|id| format!(" {id}")).collect()),
    };
    let dialect = Dialect::default();
    let mut config = FakeServeConfig::new(dialect, Engine::backend(backend, text));
    config.model_path = model_path(args);
    // A miner's probe wants a few more places than requests.
    config.max_running = args.engine.max_running_requests + SPARE_PLACES;
    config.prompt_block = prompt_block;
    config.remembered_calls = 0;
    let serve = FakeServe::bind(config).await.map_err(|e| anyhow!("the stand-in serve cannot listen: {e}"))?;
    let listening = Listening { url: serve.handle().url(), about, version: dialect.to_string() };
    let mut cpu = CpuTimes::now();
    let answer = async |request: ToServe| match request {
        ToServe::Begin => Ok(FromServe::Listening(listening.clone())),
        ToServe::Account => {
            let (cpu_us, other_cpu_us) = cpu.since();
            cpu = CpuTimes::now();
            let peak_rss_bytes = machine::peak_memory().unwrap_or_default();
            let account = Account { cpu_us, other_cpu_us, peak_rss_bytes };
            machine::forget_peak_memory();
            Ok(FromServe::Account(account))
        }
    };
    tokio::select! {
        () = serve.run(std::future::pending()) => bail!("the stand-in serve has ended"),
        // Nobody measures any more.
        outcome = answer_requests(answer) => Ok(outcome?),
    }
}

/// What the stand-in says that it serves.
pub(super) fn model_path(args: &BenchOverheadArgs) -> String {
    args.checkpoint.as_ref().map_or_else(|| "random weights".to_owned(), |path| path.display().to_string())
}
