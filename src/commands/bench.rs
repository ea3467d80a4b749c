//! `engy-miner bench`: measure this machine.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::load;
use crate::backend::{Backend, GenerationEvent, GenerationRequest};
use crate::checkpoint::Checkpoint;
use crate::cli::{BenchEngineArgs, Switch};
use crate::machine;
use crate::proof::{Proof, ProofBuilder, ProofParams};
use crate::protocol::{Commitment, ToplocCommitment};

/// One line of the result.
#[derive(Debug, Clone, Copy, Serialize)]
struct Line {
    batch: usize,
    proofs: bool,
    prompt_tokens: usize,
    new_tokens: usize,
    /// Prompt tokens of all requests over the time until the last of them had its first token.
    prefill_tok_s: f64,
    /// Answer tokens of all requests, without their first ones, over the time from then on.
    decode_tok_s: f64,
    /// From a request's last row to what is proven of it, as JSON: ids, and proofs where they are on.
    last_token_to_response_ms: f64,
    /// The process's peak so far; it only grows.
    peak_rss_bytes: u64,
}

pub(super) async fn engine(args: BenchEngineArgs) -> anyhow::Result<ExitCode> {
    if args.new_tokens < 2 {
        bail!("--new-tokens must be at least 2: the first token is part of the prompt's time");
    }
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    }
    let mut engine = args.engine;
    engine.max_running_requests = args.batch.iter().copied().max().unwrap_or(1);
    let longest = args.prompt_tokens + args.new_tokens;
    if engine.max_total_tokens.is_none() && engine.mem_fraction.is_none() {
        // Room for all at once: a request that waits for another's blocks would be measured as slow.
        engine.max_total_tokens = Some(engine.max_running_requests.saturating_mul(longest.next_multiple_of(16) + 16));
    }
    let backend = match (args.synthetic, &args.checkpoint) {
        (Some(model), _) => load::synthetic(model, &engine).await?,
        (None, Some(checkpoint)) => load::candle(&Checkpoint::open(checkpoint)?, &engine, None).await?,
        (None, None) => bail!("what is to be measured? Give --checkpoint or --synthetic"),
    };
    let info = backend.info();
    if longest > info.context {
        bail!("{longest} tokens do not fit the context of {}; lower --prompt-tokens or --new-tokens", info.context);
    }
    // Pages in the weights and lets the processor reach its speed.
    run(&backend, 1, 16, 8, false, 0).await?;
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "{:>5} {:>6} {:>15} {:>15} {:>16} {:>9}",
            "batch", "proofs", "prefill tok/s", "decode tok/s", "last to reply ms", "peak MB"
        )?;
    }
    let mut seed = 1;
    for &batch in &args.batch {
        let mut runs: Vec<Vec<Line>> = vec![Vec::new(); args.proofs.len()];
        for _ in 0..args.repeats {
            for (switch, lines) in args.proofs.iter().zip(&mut runs) {
                let proofs = *switch == Switch::On;
                lines.push(run(&backend, batch, args.prompt_tokens, args.new_tokens, proofs, seed).await?);
                seed += 1;
            }
        }
        for lines in &runs {
            let line = median_line(lines).context("nothing was measured")?;
            if args.json {
                writeln!(out, "{}", serde_json::to_string(&line)?)?;
            } else {
                let proofs = if line.proofs { "on" } else { "off" };
                let megabytes = line.peak_rss_bytes as f64 / 1e6;
                writeln!(
                    out,
                    "{:>5} {:>6} {:>15.1} {:>15.1} {:>16.3} {:>9.0}",
                    line.batch,
                    proofs,
                    line.prefill_tok_s,
                    line.decode_tok_s,
                    line.last_token_to_response_ms,
                    megabytes
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// When a request's tokens came.
struct Times {
    first: Instant,
    last: Instant,
    /// From the last row to the JSON of what is proven.
    finish: Duration,
}

async fn run(
    backend: &Arc<dyn Backend>,
    batch: usize,
    prompt_tokens: usize,
    new_tokens: usize,
    proofs: bool,
    seed: u64,
) -> anyhow::Result<Line> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let vocab = u32::try_from(backend.info().vocab)?;
    let started = Instant::now();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..batch {
        let prompt = (0..prompt_tokens).map(|_| rng.random_range(0..vocab)).collect();
        let request = GenerationRequest::greedy(prompt, new_tokens);
        requests.spawn(read(Arc::clone(backend), request, proofs));
    }
    let mut times = Vec::with_capacity(batch);
    while let Some(outcome) = requests.join_next().await {
        times.push(outcome??);
    }
    let all_first = times.iter().map(|t| t.first).max().context("no requests")?;
    let all_last = times.iter().map(|t| t.last).max().context("no requests")?;
    let mut finishes: Vec<f64> = times.iter().map(|t| t.finish.as_secs_f64() * 1e3).collect();
    let per_second = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(f64::EPSILON);
    Ok(Line {
        batch,
        proofs,
        prompt_tokens,
        new_tokens,
        prefill_tok_s: per_second(batch * prompt_tokens, all_first - started),
        decode_tok_s: per_second(batch * (new_tokens - 1), all_last.saturating_duration_since(all_first)),
        last_token_to_response_ms: median(&mut finishes),
        peak_rss_bytes: machine::peak_memory().unwrap_or_default(),
    })
}

/// Reads a generation as a job does: each row folded as it comes.
async fn read(backend: Arc<dyn Backend>, request: GenerationRequest, proofs: bool) -> anyhow::Result<Times> {
    let params = ProofParams::default();
    let mut builder = ProofBuilder::new(params, backend.info().hidden)?;
    let mut made: Vec<Proof> = Vec::new();
    let mut output_token_ids = Vec::with_capacity(request.max_tokens);
    let prompt_ids = request.prompt.clone();
    let mut generation = backend.generate(request);
    let (mut first, mut last) = (None, Instant::now());
    while let Some(event) = generation.next().await {
        match event? {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::FirstRowMissing => bail!("the engine lost a row"),
            GenerationEvent::Tokens { ids, fin, .. } => {
                last = Instant::now();
                output_token_ids.extend(ids);
                first.get_or_insert(last);
                if proofs {
                    for row in &fin {
                        made.extend(builder.push(row)?);
                    }
                }
            }
            GenerationEvent::Finished { .. } => {
                if proofs {
                    made.extend(builder.finish()?);
                }
                let commitment = Commitment {
                    model_root: String::new(),
                    toploc: ToplocCommitment {
                        proofs: made.iter().map(Proof::to_base64).collect(),
                        topk: params.topk,
                        decode_batching_size: params.batch,
                        skip_prefill: true,
                        n_tokens: output_token_ids.len(),
                        prompt_ids,
                    },
                    output_token_ids,
                };
                std::hint::black_box(serde_json::to_string(&commitment)?);
                return Ok(Times { first: first.context("no token came")?, last, finish: last.elapsed() });
            }
        }
    }
    bail!("the backend ended without a reason")
}

fn median_line(lines: &[Line]) -> Option<Line> {
    let of = |value: fn(&Line) -> f64| median(&mut lines.iter().map(value).collect::<Vec<_>>());
    Some(Line {
        prefill_tok_s: of(|line| line.prefill_tok_s),
        decode_tok_s: of(|line| line.decode_tok_s),
        last_token_to_response_ms: of(|line| line.last_token_to_response_ms),
        peak_rss_bytes: lines.iter().map(|line| line.peak_rss_bytes).max()?,
        ..*lines.first()?
    })
}

/// The middle value, the upper one of two; 0 of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
