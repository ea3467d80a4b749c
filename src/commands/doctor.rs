//! `engy-miner doctor`: are these serves fit for mining?

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;

use super::load::{self, Served};
use crate::backend::sglang::{Finding, Severity, examine};
use crate::checkpoint::Checkpoint;
use crate::cli::DoctorArgs;

pub(super) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.model.model.is_none() && args.model.spec.is_none() {
        bail!("which model does the serve hold? Give --model (MODEL) its name, or --spec a file");
    }
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    let spec = load::spec(&args.model, "")?;
    let served = Served::new(&checkpoint, &load::chat(&checkpoint, &spec)?, &args.serve, &spec, args.max_inflight)?;
    let report = examine(&served.options, served.expected).await?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let serves = report.iter().map(|(serve, findings)| json!({"serve": serve, "findings": findings}));
        writeln!(out, "{}", json!({"serves": serves.collect::<Vec<_>>()}))?;
    } else {
        for (serve, findings) in &report {
            writeln!(out, "{serve}")?;
            for finding in findings {
                write!(out, "{}", line(finding))?;
            }
        }
    }
    let fit = report.iter().flat_map(|(_, findings)| findings).all(|finding| finding.severity != Severity::Fault);
    Ok(if fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Note => "ok",
        Severity::Warning => "warning",
        Severity::Fault => "FAULT",
    };
    let mut line = format!("  {severity:<8}{:<22}{}\n", finding.topic, finding.what);
    if !finding.advice.is_empty() {
        line.push_str(&format!("{:32}-> {}\n", "", finding.advice));
    }
    line
}
