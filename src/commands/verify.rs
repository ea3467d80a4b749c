//! `engy-miner verify`: recompute an answer and judge its proof.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::load::{self, Served};
use crate::checkpoint::Checkpoint;
use crate::cli::{BackendKind, VerifyArgs};
use crate::spec::DEMO_MODEL;
use crate::telemetry::one_line;
use crate::verify::{ProofRecord, Report, VerifyError, verify};

/// The exit code of a proof that fails: not 1, which says that it could not be judged.
const FAILED: u8 = 3;

pub(super) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let record = read(&args.proof)?;
    let spec = load::spec(&args.model, record.model.as_deref().unwrap_or(DEMO_MODEL))?;
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let model_root = checkpoint.model_root()?;
    let backend = match args.backend {
        BackendKind::Candle => load::candle(&checkpoint, &args.engine, None).await?,
        BackendKind::Sglang => {
            // One text at a time.
            let served = Served::new(&checkpoint, &load::chat(&checkpoint, &spec)?, &args.serve, &spec, 1)?;
            load::sglang(served.recomputing()).await?
        }
    };
    let report = match verify(backend.as_ref(), &model_root, &record.commitment, spec.toploc).await {
        Ok(report) => report,
        // A claim that contradicts itself has failed; only a recompute that cannot be done leaves it open.
        Err(refusal @ (VerifyError::Commitment(_) | VerifyError::Proof(_))) => {
            writeln!(std::io::stdout(), "FAIL: {refusal}")?;
            return Ok(ExitCode::from(FAILED));
        }
        Err(error) => return Err(error.into()),
    };
    let mut out = std::io::stdout().lock();
    if !report.same_root && !args.any_root {
        let (claimed, ours) = (one_line(&record.commitment.model_root), model_root);
        writeln!(
            out,
            "FAIL: the commitment names the checkpoint {claimed}, this one is {ours} (--any-root judges all the same)"
        )?;
        return Ok(ExitCode::from(FAILED));
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", summary(&report))?;
    }
    Ok(exit_code(&report))
}

pub(super) fn exit_code(report: &Report) -> ExitCode {
    if report.verdict.is_pass() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// A report in a few lines.
pub(super) fn summary(report: &Report) -> String {
    let mut text = String::new();
    for (at, batch) in report.verification.batches.iter().enumerate() {
        let mantissa = match &batch.mantissa {
            Some(error) => format!("mantissa error mean {:.3}, median {}", error.mean, error.median),
            None => "no exponent agrees".to_owned(),
        };
        let (mismatches, compared) = (batch.exp_mismatches, batch.compared);
        text.push_str(&format!("batch {at}: {mismatches} of {compared} exponents differ, {mantissa}\n"));
    }
    if !report.same_root {
        text.push_str("note: the commitment names another checkpoint (model_root differs)\n");
    }
    text.push_str(&format!("{}\n", report.verdict));
    text
}

fn read(path: &Path) -> anyhow::Result<ProofRecord> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read the proof from standard input")?;
    } else {
        text = std::fs::read_to_string(path)
            .map_err(|e| anyhow::anyhow!("cannot read the proof {}: {e}", path.display()))?;
    }
    serde_json::from_str(&text).map_err(|e| {
        let path = path.display();
        anyhow::anyhow!("{path} is no proof ({e}); save what the gateway's /v1/proofs/ID gives")
    })
}
