//! `engy-miner plan`: what a model takes and how many tokens fit, without loading it.

use std::io::Write;
use std::process::ExitCode;

use indicatif::HumanBytes;
use serde::Serialize;

use super::load;
use crate::backend::candle::{EngineOptions, KvDtype, MemoryPlan, MemoryPlanner, Room};
use crate::checkpoint::Checkpoint;
use crate::cli::PlanArgs;

/// What is printed as JSON: the plan, and what would make more contexts fit.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    plan: &'a MemoryPlan,
    contexts: Contexts,
}

/// Whole contexts at once, and the flags that they take.
#[derive(Serialize)]
struct Contexts {
    wanted: usize,
    /// Beside the flags that were given; absent where nothing helps.
    flags: Option<Vec<String>>,
}

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let mut options = load::options(&args.engine)?;
    let room = args.device_memory.map_or_else(Room::here, |size| Room::Devices(size.as_u64()));
    if matches!((room, options.kv_dtype), (Room::Devices(_), KvDtype::Auto)) {
        // A device's own: what is as it is on the processor would be wider than anything there.
        options.kv_dtype = KvDtype::Bf16;
    }
    let planner = MemoryPlanner::read(&checkpoint)?;
    let plan = planner.plan(&options, room)?;
    let found = planner.options_that_fit(&options, room, args.contexts);
    let contexts = Contexts { wanted: args.contexts, flags: found.map(|(found, _)| flags(&found, &options)) };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&Report { plan: &plan, contexts })?)?;
    } else {
        write!(out, "{}", table(&plan, &options, &contexts))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What differs from the options that were given, as flags.
fn flags(found: &EngineOptions, given: &EngineOptions) -> Vec<String> {
    let mut flags = Vec::new();
    let mut flag = |differs: bool, name: &str, value: String| {
        if differs {
            flags.push(format!("--{name} {value}"));
        }
    };
    let dtype = match found.kv_dtype {
        KvDtype::Auto => "auto",
        KvDtype::F32 => "f32",
        KvDtype::Bf16 => "bf16",
        KvDtype::Fp8E4m3 => "fp8_e4m3",
    };
    flag(found.ranks != given.ranks, "tp-size", found.ranks.to_string());
    flag(found.kv_dtype != given.kv_dtype, "kv-cache-dtype", dtype.into());
    flag(found.max_running != given.max_running, "max-running-requests", found.max_running.to_string());
    let bytes = found.state_cache_bytes;
    flag(bytes != given.state_cache_bytes, "state-cache-bytes", bytes.to_string());
    if let Some(tokens) = found.max_total_tokens {
        flag(given.max_total_tokens != Some(tokens), "max-total-tokens", tokens.to_string());
    }
    flags
}

fn table(plan: &MemoryPlan, options: &EngineOptions, contexts: &Contexts) -> String {
    let over = if plan.ranks.len() > 1 { ", over all ranks" } else { "" };
    let mut lines = vec![
        row("weights", plan.weights_bytes, &format!("{}{over}", plan.architecture)),
        row("keys and values", plan.kv_bytes_per_token, &format!("a token{over}")),
        row("state", plan.state_bytes_per_sequence, &format!("a sequence, whatever its length{over}")),
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
        row(
            "workspace",
            plan.workspace_bytes,
            &format!(
                "steps of {} rows{}",
                options.prefill_chunk.saturating_add(options.max_running),
                if plan.device_bytes.is_some() { ", and what a device's driver keeps" } else { "" }
            ),
        ),
        row("in all", plan.total_bytes, ""),
    ];
    if plan.ranks.len() > 1 {
        lines.push(String::new());
        for rank in &plan.ranks {
            let rest = format!(
                "weights; {} a token, {} a sequence",
                HumanBytes(rank.kv_bytes_per_token),
                HumanBytes(rank.state_bytes_per_sequence)
            );
            lines.push(row(&format!("rank {}", rank.rank), rank.weights_bytes, &rest));
        }
    }
    lines.push(String::new());
    let memory = match (plan.device_bytes, plan.free_bytes) {
        (Some(device), _) => Some(("each device", device)),
        (None, Some(free)) => Some(("free now", free)),
        (None, None) => None,
    };
    if let (Some((name, bytes)), Some(tokens)) = (memory, plan.tokens_that_fit) {
        let whole = tokens / plan.model_context.max(1) as u64;
        lines.push(row(name, bytes, &format!("{tokens} tokens would fit: {whole} whole contexts")));
    }
    if !plan.fits() {
        let lower = "lower --max-total-tokens, --max-running-requests or --state-cache-bytes";
        lines.push(format!("This does not fit: {lower}, narrow --kv-cache-dtype, or take more ranks or memory."));
    }
    let wanted = format!("{} x {} tokens", contexts.wanted, plan.model_context);
    lines.push(match &contexts.flags {
        Some(flags) if flags.is_empty() => format!("{wanted} fit with these flags."),
        Some(flags) => format!("{wanted} fit with {}", flags.join(" ")),
        None => format!("{wanted} do not fit, whatever the flags."),
    });
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn row(name: &str, bytes: u64, rest: &str) -> String {
    format!("{name:<16}{bytes:>18} B {:>12}  {rest}", format!("({})", HumanBytes(bytes)))
}
