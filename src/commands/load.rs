//! From flags to a loaded model, with a progress bar.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};

use crate::backend::Backend;
use crate::backend::candle::{
    CandleBackend, DeviceError, Devices, EngineOptions, LoadError, ProgressFn, SyntheticModel,
};
use crate::backend::sglang::{Expected, ServedModel, SglangBackend, SglangOptions};
use crate::chat::{ChatModel, ChatRequest};
use crate::checkpoint::Checkpoint;
use crate::cli::{EngineArgs, ModelArgs, ServeArgs};
use crate::job::{Limits, Service};
use crate::spec::ModelSpec;

/// The spec that the flags name, or `default`'s.
pub(super) fn spec(args: &ModelArgs, default: &str) -> anyhow::Result<ModelSpec> {
    let mut spec = match &args.spec {
        Some(path) => ModelSpec::from_file(path)?,
        None => ModelSpec::named(args.model.as_deref().unwrap_or(default))?,
    };
    if let Some(name) = &args.model {
        spec.name.clone_from(name);
    }
    Ok(spec)
}

/// The devices by their flags.
fn devices(args: &EngineArgs) -> Result<Devices, DeviceError> {
    Devices::new(args.world.devices.as_deref(), args.world.tp_size)
}

/// The engine's options by its flags.
pub(super) fn options(args: &EngineArgs) -> anyhow::Result<EngineOptions> {
    devices(args)?;
    Ok(EngineOptions {
        max_running: args.max_running_requests,
        prefill_chunk: args.chunked_prefill_size,
        max_total_tokens: args.max_total_tokens,
        prefix_tokens: args.prefix_cache_tokens,
        state_cache_bytes: args.state_cache_bytes,
        fp8_activations: args.fp8_activations.into(),
        ranks: args.world.tp_size,
        collective_timeout: Duration::from_secs(args.world.collective_timeout),
        rank_fault: args.rank_fault,
        // No flag asks for it: nobody is to mine with other weights by accident.
        weights_change: None,
        mem_fraction: args.mem_fraction,
        kv_dtype: args.kv_cache_dtype.into(),
    })
}

/// A checkpoint's folder or file, as people call it.
pub(super) fn name_of(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path();
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Loads the candle backend, off the async threads. With `chat`, answers can be held to a form: its vocabulary serves for that too.
pub(super) async fn candle(
    checkpoint: &Checkpoint,
    args: &EngineArgs,
    chat: Option<&ChatModel>,
) -> anyhow::Result<Arc<dyn Backend>> {
    devices(args)?.for_models()?;
    let (options, checkpoint, chat) = (options(args)?, checkpoint.clone(), chat.cloned());
    shown(name_of(&checkpoint), move |progress| {
        let backend = CandleBackend::open(&checkpoint, &options, progress)?;
        Ok(match chat {
            None => backend,
            Some(chat) => {
                backend.with_vocabulary(Box::new(move || Ok(chat.tokenizer().vocabulary(checkpoint.end_ids()))))
            }
        })
    })
    .await
}

/// The text side of a checkpoint, with the parsers of its spec. Opened once: a large vocabulary takes a hundred megabytes.
pub(super) fn chat(checkpoint: &Checkpoint, spec: &ModelSpec) -> anyhow::Result<ChatModel> {
    Ok(ChatModel::open(checkpoint)?.with_parsers(spec.reasoning_parser, spec.tool_call_parser))
}

/// A question whose prompt serves are probed with. A new one each time: of a prompt that it knows, a serve with a prefix cache
/// returns no rows, and would pass for one that returns none of any.
fn probe_question(chat: &ChatModel) -> anyhow::Result<Vec<u32>> {
    let content = format!("Hello {}?", uuid::Uuid::new_v4().simple());
    let question = serde_json::json!({"messages": [{"role": "user", "content": content}]});
    Ok(chat.prompt(&ChatRequest::parse(&question)?, usize::MAX)?.ids)
}

/// How serves are used by their flags, at these addresses.
pub(super) fn serve_options(args: &ServeArgs, urls: Vec<String>) -> SglangOptions {
    SglangOptions {
        urls,
        api_key: args.serve_api_key.clone(),
        chunk: args.serve_chunk,
        max_live_rows: args.serve_max_live_rows,
    }
}

/// Serves by their flags, and what they should be like.
pub(super) struct Served {
    pub(super) options: SglangOptions,
    pub(super) model: ServedModel,
    pub(super) expected: Expected,
}

impl Served {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        chat: &ChatModel,
        args: &ServeArgs,
        spec: &ModelSpec,
        at_once: usize,
    ) -> anyhow::Result<Self> {
        let model = ServedModel::of(checkpoint)?;
        Ok(Self {
            options: serve_options(args, args.serve_url.clone()),
            expected: Expected {
                hidden: model.hidden,
                context: spec.context,
                checkpoint: name_of(checkpoint),
                at_once,
                prompt: probe_question(chat)?,
                recomputes: false,
            },
            model,
        })
    }

    /// The same, to recompute given texts.
    pub(super) fn recomputing(self) -> Self {
        Self { expected: Expected { recomputes: true, ..self.expected }, ..self }
    }
}

/// Probes the serves.
pub(super) async fn sglang(served: Served) -> anyhow::Result<Arc<dyn Backend>> {
    let Served { options, model, expected } = served;
    Ok(Arc::new(SglangBackend::open(&options, model, expected).await?))
}

/// The candle backend with random weights, for benchmarks.
pub(super) async fn synthetic(model: SyntheticModel, args: &EngineArgs) -> anyhow::Result<Arc<dyn Backend>> {
    devices(args)?.for_models()?;
    let options = options(args)?;
    shown("random weights".into(), move |progress| CandleBackend::synthetic(&model, &options, progress)).await
}

/// Loads off the async threads, with a bar.
async fn shown(
    name: String,
    load: impl FnOnce(&ProgressFn) -> Result<CandleBackend, LoadError> + Send + 'static,
) -> anyhow::Result<Arc<dyn Backend>> {
    let backend = tokio::task::spawn_blocking(move || {
        let bar =
            bar(0, "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}").with_message(format!("loading {name}"));
        let shown = bar.clone();
        let backend = load(&move |done, total| {
            shown.set_length(total);
            shown.set_position(done);
        });
        bar.finish_and_clear();
        backend
    });
    Ok(Arc::new(backend.await??))
}

/// A service on a loaded backend, within the spec's limits and the backend's context.
pub(super) fn service(
    backend: Arc<dyn Backend>,
    chat: ChatModel,
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    default_max_tokens: usize,
) -> anyhow::Result<Service> {
    let context = backend.info().context;
    if context < spec.context {
        tracing::warn!(context, promised = spec.context, "the checkpoint's context is shorter than the model spec's");
    }
    // Whoever serves another model than they say is judged a cheat; a stale MODEL is enough for that.
    if let Some(hidden) = spec.hidden.filter(|hidden| *hidden != backend.info().hidden) {
        bail!(
            "the checkpoint is another model than {}: its hidden states have {} values, where that model's have {hidden}; correct \
             --model (MODEL) or --checkpoint",
            spec.name,
            backend.info().hidden
        );
    }
    if spec.toploc.k > backend.info().hidden {
        bail!(
            "an answer of one token has {} values of hidden states, fewer than the {} points of a proof; give --spec a model \
             spec with a smaller toploc.k",
            backend.info().hidden,
            spec.toploc.k
        );
    }
    let end_ids = checkpoint.end_ids();
    if end_ids.is_empty() {
        tracing::warn!("the checkpoint names no end-of-turn token: every answer will run to its token limit");
    }
    Ok(Service {
        chat,
        model: spec.name.clone(),
        model_root: checkpoint.model_root()?,
        end_ids,
        limits: Limits {
            context: spec.context,
            max_input_tokens: spec.max_input_tokens.min(context.saturating_sub(1)),
            max_output_tokens: spec.max_output_tokens,
            default_max_tokens,
            max_request: Duration::try_from_secs_f64(spec.max_request_s)?,
        },
        greedy: false,
        topk: spec.toploc.k,
        preparing: Service::places(),
        backend,
    })
}

/// A bar on standard error, drawn by a template of [`indicatif`]; hidden where that is no terminal.
pub(super) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
