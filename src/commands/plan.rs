//! `engy-miner plan`: what a model takes and how many tokens fit, without loading it.

use std::io::Write;
use std::process::ExitCode;

use super::load;
use crate::backend::candle::{EngineOptions, MemoryPlan};
use crate::checkpoint::Checkpoint;
use crate::cli::PlanArgs;

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let options = load::options(&args.engine)?;
    let plan = MemoryPlan::of(&checkpoint, &options)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&plan)?)?;
    } else {
        write!(out, "{}", table(&plan, &options))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(plan: &MemoryPlan, options: &EngineOptions) -> String {
    let mut lines = vec![
        row("weights", plan.weights_bytes, &plan.architecture),
        row("keys and values", plan.kv_bytes_per_token, "a token"),
        row("state", plan.state_bytes_per_sequence, "a sequence, whatever its length"),
        String::new(),
        row(
            "cache",
            plan.cache_bytes,
            &format!("{} tokens; the model's context is {}", plan.cache_tokens, plan.model_context),
        ),
        row(
            "states",
            plan.state_bytes,
            &format!("{} requests at once, {} snapshots", options.max_running, plan.snapshots.unwrap_or_default()),
        ),
        row("in all", plan.total_bytes, ""),
    ];
    if let (Some(free), Some(tokens)) = (plan.free_bytes, plan.tokens_that_fit) {
        lines.push(row("free now", free, &format!("{tokens} tokens would fit")));
        if plan.total_bytes > free {
            lines.push("This does not fit: lower --max-total-tokens, --max-running-requests or --state-cache-bytes, or free memory.".into());
        }
    }
    if plan.ranks.len() > 1 {
        lines.push(String::new());
        for rank in &plan.ranks {
            let rest = format!(
                "weights; {} a token, {} a sequence",
                indicatif::HumanBytes(rank.kv_bytes_per_token),
                indicatif::HumanBytes(rank.state_bytes_per_sequence)
            );
            lines.push(row(&format!("rank {}", rank.rank), rank.weights_bytes, &rest));
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn row(name: &str, bytes: u64, rest: &str) -> String {
    format!("{name:<16}{bytes:>18} B {:>12}  {rest}", format!("({})", indicatif::HumanBytes(bytes)))
}
