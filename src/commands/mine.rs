//! `engy-miner mine`: serve a gateway's requests.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use super::interrupted;
use super::load::{self, Served};
use crate::checkpoint::Checkpoint;
use crate::cli::{BackendKind, MineArgs};
use crate::machine;
use crate::session::{self, DEFAULT_SLOTS_PER_LEG, Identity, Worker, WorkerConfig, identity};

pub(super) async fn run(args: MineArgs) -> anyhow::Result<ExitCode> {
    if args.miner_key.is_blank() {
        bail!("MINER_KEY is empty: set it to the key that the network's console gave you");
    }
    // No default: a miner that says it serves another model than it does is judged a cheat.
    if args.model.model.is_none() && args.model.spec.is_none() {
        bail!("which model does the checkpoint hold? Give --model (MODEL) its name, or --spec a file");
    }
    let mut spec = load::spec(&args.model, "")?;
    if let Some(tokens) = args.max_input_tokens {
        spec.max_input_tokens = tokens.min(spec.max_input_tokens);
    }
    if let Some(tokens) = args.max_output_tokens {
        spec.max_output_tokens = tokens.min(spec.max_output_tokens);
    }
    if let Some(seconds) = args.max_request_s {
        if !seconds.is_finite() || seconds <= 0.0 {
            bail!("--max-request-s must be a number of seconds above 0");
        }
        spec.max_request_s = seconds.min(spec.max_request_s);
    }
    if spec.max_input_tokens == 0 || spec.max_output_tokens == 0 || args.default_max_tokens == 0 {
        bail!("token limits must be above 0");
    }
    if args.backend == BackendKind::Candle && !args.serve.serve_url.is_empty() {
        tracing::warn!(
            "--serve-url (SERVE_URL) is not used by --backend candle; give --backend sglang to mine over that serve"
        );
    }
    session::check_address(&args.gw)?;
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let name = args.worker_name.or_else(|| std::env::var("ENGY_INSTANCE_ID").ok().filter(|name| !name.is_empty()));
    let name = name.unwrap_or_else(|| identity::default_name(&machine::host_name(), &spec.name, args.backend.name()));
    let legs = match args.legs {
        Some(legs) => legs,
        None => session::ask_for_legs(&args.gw).await,
    };
    let max_inflight = args.max_inflight.unwrap_or(DEFAULT_SLOTS_PER_LEG * legs);
    let state_dir = match args.state_dir {
        Some(folder) => folder,
        None => default_state_dir()?,
    };
    // Before the weights: a taken name must not cost a load.
    let (identity, _lock) = Identity::keep(&state_dir, &name, &spec.name, max_inflight)?;
    // A broken tokenizer must not cost a load either.
    let chat = load::chat(&checkpoint, &spec)?;
    let backend = match args.backend {
        BackendKind::Candle => load::candle(&checkpoint, &args.engine, Some(&chat)).await?,
        BackendKind::Sglang => load::sglang(Served::new(&checkpoint, &chat, &args.serve, &spec, max_inflight)?).await?,
    };
    let mut service = load::service(backend, chat, &checkpoint, &spec, args.default_max_tokens)?;
    service.greedy = args.greedy;
    let info = service.backend.info();
    tracing::info!(
        model = service.model,
        architecture = info.architecture,
        hidden = info.hidden,
        context = info.context,
        worker = identity.worker_name,
        gateway = args.gw,
        "the model is loaded; dialling"
    );
    let config = WorkerConfig {
        gateway: args.gw,
        key: args.miner_key,
        identity,
        legs,
        max_inflight,
        shutdown_grace: Duration::from_secs(args.shutdown_grace_s),
    };
    Worker::new(config, service).run(interrupted()).await?;
    Ok(ExitCode::SUCCESS)
}

/// `$XDG_STATE_HOME/engy-miner`, or `~/.local/state/engy-miner`.
fn default_state_dir() -> anyhow::Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    let folder =
        state.or_else(home).context("there is no home folder: give --state-dir a folder for the worker's id")?;
    Ok(folder.join("engy-miner"))
}
