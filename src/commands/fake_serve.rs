//! `engy-miner fake-serve`: a stand-in for an sglang serve.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;

use super::{interrupted, load};
use crate::chat::Tokenizer;
use crate::checkpoint::Checkpoint;
use crate::cli::FakeServeArgs;
use crate::fake_serve::{Engine, FakeServe, FakeServeConfig, HiddenStatesFlag, Pace, TextOf};

pub(super) async fn run(args: FakeServeArgs) -> anyhow::Result<ExitCode> {
    let mut end_ids = Vec::new();
    let (engine, model) = match &args.checkpoint {
        Some(path) => {
            let checkpoint = Checkpoint::open(path)?;
            let tokenizer = Tokenizer::open(&checkpoint)?;
            let text: TextOf = Arc::new(move |ids| tokenizer.decode(ids));
            end_ids = checkpoint.end_ids();
            (Engine::backend(load::candle(&checkpoint, &args.engine, None).await?, text), path.display().to_string())
        }
        None => (Engine::seeded(args.seeded), "made-up".to_owned()),
    };
    let mut config = FakeServeConfig::new(args.dialect, engine);
    config.listen = args.listen;
    config.model_path = model;
    config.eos_ids.extend(end_ids);
    config.max_running = args.engine.max_running_requests;
    config.prompt_block = args.prompt_block.into();
    if args.disable_return_hidden_states {
        config.hidden_states = HiddenStatesFlag::Off;
    }
    config.stream_interval = args.stream_interval;
    config.incremental_output = args.incremental_streaming_output;
    config.radix_cache = args.enable_radix_cache;
    config.speculative_algorithm = args.speculative_algorithm;
    config.api_key = args.api_key;
    config.pace =
        Pace { token: Duration::from_millis(args.token_ms), prompt_token: Duration::from_micros(args.prompt_token_us) };
    // It may run for days.
    config.remembered_calls = 0;
    let bound = FakeServe::bind(config).await;
    let serve = bound.map_err(|error| anyhow!("cannot listen on {}: {error}", args.listen))?;
    tracing::info!(url = serve.handle().url(), dialect = %args.dialect, "a fake sglang serve listens");
    serve.run(interrupted()).await;
    Ok(ExitCode::SUCCESS)
}
