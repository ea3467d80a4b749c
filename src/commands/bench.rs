//! `engy-miner bench`: measure this machine.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::load;
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::cli::{BenchEngineArgs, EngineArgs, Switch};
use crate::machine;
use crate::overhead::{Ask, Proofs, median, take};
use crate::proof::DEFAULT_TOPK;

/// Tokens of blocks that a request holds beyond its own at most: the rest of its last one, and one more.
pub(super) const SPARE_TOKENS: usize = 32;

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
    let longest = args.prompt_tokens + args.new_tokens;
    make_room(&mut engine, args.batch.iter().copied().max().unwrap_or(1), longest);
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
    let mut peak = 0;
    run(&backend, 1, 16, 8, false, 0, &mut peak).await?;
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
                lines.push(run(&backend, batch, args.prompt_tokens, args.new_tokens, proofs, seed, &mut peak).await?);
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

/// Lets so many requests run together: one that waits for another's blocks would be measured as slow.
pub(super) fn make_room(engine: &mut EngineArgs, at_once: usize, longest: usize) {
    engine.max_running_requests = at_once;
    if engine.max_total_tokens.is_none() && engine.mem_fraction.is_none() {
        engine.max_total_tokens = Some(at_once.saturating_mul(longest.saturating_add(SPARE_TOKENS)));
    }
}

async fn run(
    backend: &Arc<dyn Backend>,
    batch: usize,
    prompt_tokens: usize,
    new_tokens: usize,
    proofs: bool,
    seed: u64,
    peak: &mut u64,
) -> anyhow::Result<Line> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let vocab = u32::try_from(backend.info().vocab)?;
    let prompts = (0..batch).map(|_| (0..prompt_tokens).map(|_| rng.random_range(0..vocab)).collect());
    let ask = Ask {
        prompts: prompts.collect(),
        new_tokens,
        proofs: if proofs { Proofs::Host } else { Proofs::Off },
        streamed: true,
        topk: DEFAULT_TOPK,
    };
    // A turn forgets the peak before it.
    *peak = (*peak).max(machine::peak_memory().unwrap_or_default());
    let turn = take(backend, ask).await?;
    *peak = (*peak).max(turn.peak_rss_bytes);
    let per_second = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(f64::EPSILON);
    Ok(Line {
        batch,
        proofs,
        prompt_tokens,
        new_tokens,
        prefill_tok_s: per_second(turn.prompt_tokens, turn.seconds - turn.decode_seconds),
        decode_tok_s: per_second(turn.decode_tokens, turn.decode_seconds),
        last_token_to_response_ms: median(turn.last_token_to_response_ms),
        peak_rss_bytes: *peak,
    })
}

fn median_line(lines: &[Line]) -> Option<Line> {
    let of = |value: fn(&Line) -> f64| median(lines.iter().map(value).collect());
    Some(Line {
        prefill_tok_s: of(|line| line.prefill_tok_s),
        decode_tok_s: of(|line| line.decode_tok_s),
        last_token_to_response_ms: of(|line| line.last_token_to_response_ms),
        peak_rss_bytes: lines.iter().map(|line| line.peak_rss_bytes).max()?,
        ..*lines.first()?
    })
}
