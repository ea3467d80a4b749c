//! `engy-miner demo`: the whole way of one question, on this machine.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{load, verify as verify_command};
use crate::checkpoint::Checkpoint;
use crate::cli::DemoArgs;
use crate::gateway::{Gateway, GatewayConfig};
use crate::protocol::MinerKey;
use crate::session::{self, Identity, Worker, WorkerConfig};
use crate::spec::DEMO_MODEL;
use crate::verify::{ProofRecord, verify};

/// Two show that a worker has several; eight would only be noise here.
const LEGS: usize = 2;
/// The legs are on this machine: longer than this, and something is wrong.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const DEMO_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

pub(super) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let path = match args.checkpoint {
        Some(path) => path,
        None => demo_checkpoint()?,
    };
    let spec = load::spec(&args.model, DEMO_MODEL)?;
    let checkpoint = Checkpoint::open(&path)?;
    let loading = Instant::now();
    let chat = load::chat(&checkpoint, &spec)?;
    let backend = load::candle(&checkpoint, &args.engine, Some(&chat)).await?;
    let service = load::service(backend, chat, &checkpoint, &spec, args.max_tokens)?;
    say(&format!("model     {} from {} in {:.1?}\n", spec.name, path.display(), loading.elapsed()))?;

    let mut config = GatewayConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.legs = LEGS;
    let key = MinerKey::new("demo");
    config.miner_key = Some(key.clone());
    let gateway = Gateway::bind(config).await?;
    let (ws_url, http_url, legs) = (gateway.ws_url(), gateway.http_url(), gateway.handle());
    let (stop_gateway, gateway_stopped) = oneshot::channel::<()>();
    let running_gateway = tokio::spawn(gateway.run(async { drop(gateway_stopped.await) }));
    let worker = WorkerConfig {
        gateway: ws_url.clone(),
        key,
        identity: Identity::ephemeral("demo"),
        legs: session::ask_for_legs(&ws_url).await,
        max_inflight: LEGS,
        shutdown_grace: Duration::from_secs(5),
    };
    let (stop_worker, worker_stopped) = oneshot::channel::<()>();
    let worker = Worker::new(worker, service.clone());
    let running_worker = tokio::spawn(worker.run(async { drop(worker_stopped.await) }));
    let admitted = tokio::time::timeout(START_TIMEOUT, legs.wait_for_legs(LEGS)).await;
    admitted.map_err(|_| anyhow!("the miner's legs did not come up within {} s", START_TIMEOUT.as_secs()))?;
    say(&format!("gateway   {ws_url}, {LEGS} legs admitted\nquestion  {}\nanswer    ", args.question))?;

    let buyer = Buyer {
        // The gateway is on this machine: no proxy knows it.
        http: reqwest::Client::builder().no_proxy().build()?,
        base: http_url,
    };
    let answer = buyer.ask(&spec.name, &args.question, args.max_tokens).await?;
    let record = buyer.proof(&answer.request_id).await?;
    let claim = &record.commitment.toploc;
    let proof_bytes: usize = claim.proofs.iter().map(|proof| proof.len() / 4 * 3).sum();
    let hidden_bytes = claim.n_tokens * service.backend.info().hidden * 2;
    say(&format!(
        "\ntimings   first token after {:.0?}, then {:.1} tokens/s over {} tokens\n\
         proof     {} for {} tokens: {proof_bytes} bytes stand for {hidden_bytes} bytes of hidden states\n",
        answer.first_token,
        claim.n_tokens.saturating_sub(1) as f64 / answer.rest.as_secs_f64().max(f64::EPSILON),
        claim.n_tokens,
        plural(claim.proofs.len(), "batch", "batches"),
        claim.n_tokens,
    ))?;

    let recomputing = Instant::now();
    let report = verify(service.backend.as_ref(), &service.model_root, &record.commitment, spec.toploc).await?;
    say(&format!("recompute of all {} rows in {:.1?}\n", report.tokens, recomputing.elapsed()))?;
    say(&verify_command::summary(&report))?;

    // Either may have ended already; then there is nobody left to tell.
    let _ = stop_worker.send(());
    running_worker.await??;
    let _ = stop_gateway.send(());
    running_gateway.await??;
    Ok(verify_command::exit_code(&report))
}

/// Where `scripts/fetch-demo-model` puts the demo's model.
fn demo_checkpoint() -> anyhow::Result<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = given("ENGY_CACHE_DIR")
        .or_else(|| given("XDG_CACHE_HOME").map(|cache| cache.join("engy-miner")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache/engy-miner")))
        .context("there is no home folder: give --checkpoint a model")?;
    let path = cache.join(DEMO_FILE);
    if !path.exists() {
        bail!(
            "the demo's model is not at {}: run scripts/fetch-demo-model, or give --checkpoint a model",
            path.display()
        );
    }
    Ok(path)
}

/// A buyer of the OpenAI-compatible API.
struct Buyer {
    http: reqwest::Client,
    base: String,
}

/// An answer as it reached the buyer.
struct BuyersAnswer {
    request_id: String,
    first_token: Duration,
    /// From the first token to the last.
    rest: Duration,
}

impl Buyer {
    /// Asks one question and prints the answer as it comes.
    async fn ask(&self, model: &str, question: &str, max_tokens: usize) -> anyhow::Result<BuyersAnswer> {
        let body = json!({"model": model, "stream": true, "temperature": 0, "max_tokens": max_tokens,
                          "messages": [{"role": "user", "content": question}]});
        let asked = Instant::now();
        let response = self.http.post(format!("{}/v1/chat/completions", self.base)).json(&body).send().await?;
        if !response.status().is_success() {
            bail!("the gateway answered {}: {}", response.status(), response.text().await?);
        }
        let request_id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let request_id = request_id.context("the gateway named no request")?;
        let mut first = None;
        let mut last = asked;
        let mut unread: Vec<u8> = Vec::new();
        let mut body = response.bytes_stream();
        while let Some(bytes) = body.next().await {
            unread.extend_from_slice(&bytes?);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                let event = line.strip_prefix(b"data: ").unwrap_or_default();
                let value: Value = serde_json::from_slice(event).unwrap_or_default();
                if let Some(error) = value.get("error") {
                    bail!("the answer broke off: {error}");
                }
                if let Some(text) = value["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty()) {
                    last = Instant::now();
                    first.get_or_insert(last);
                    say(text)?;
                }
            }
        }
        let first = first.unwrap_or(last);
        Ok(BuyersAnswer { request_id, first_token: first - asked, rest: last - first })
    }

    /// The kept proof of a request.
    async fn proof(&self, request_id: &str) -> anyhow::Result<ProofRecord> {
        let response = self.http.get(format!("{}/v1/proofs/{request_id}", self.base)).send().await?;
        Ok(response.error_for_status()?.json().await?)
    }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
