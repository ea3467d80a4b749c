//! Where figures come from, so that a figure that travels alone can still be traced.

use super::date::utc;
use super::number::{MISSING, bytes, number, share};
use crate::overhead::Run;

/// One line: program, model, machine, time, and who else used it.
pub(super) fn line(run: &Run) -> String {
    facts(run)
        .into_iter()
        .filter(|(what, _)| !matches!(*what, "proof"))
        .map(|(what, fact)| format!("{what}: {fact}"))
        .collect::<Vec<_>>()
        .join(" · ")
}

/// The same one by one, each with what it is.
pub(super) fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let machine = &run.machine;
    let mut facts = vec![
        ("program", format!("engy-miner {}", run.version)),
        ("model", format!("{}, {} values a row", run.model, run.hidden)),
        ("proof", format!("{} points a batch", run.topk)),
        (
            "machine",
            format!(
                "{}, {} cores, {}, {}",
                machine.processor,
                machine.cores,
                bytes(machine.memory_bytes as f64),
                machine.system
            ),
        ),
        ("began", utc(run.began).unwrap_or_else(|| MISSING.into())),
        ("took", format!("{} s{}", number(run.seconds), if run.complete { "" } else { ", cut short" })),
        ("share of the machine used by others", share(run.others)),
    ];
    if let Some(serve) = &run.serve {
        facts.insert(2, ("serve", serve.clone()));
    }
    facts
}
