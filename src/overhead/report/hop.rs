//! What hidden states take on their way to the proof, in process and over HTTP: processor time, and bytes.

use super::answer::{IN_PROCESS, OVER_HTTP, place};
use super::number::{bytes, extent, interval, micros_in_words, number, range};
use super::view::View;
use crate::overhead::{Cell, Estimate};

/// Processor time of each backend over all loads, side by side. `None` where none is known.
pub(super) fn processor_time(view: &View<'_>, backends: &[&str]) -> Option<String> {
    let known = backends.iter().filter_map(|&backend| Some((backend, view.pooled(backend)?.fin_cpu_us_per_token)));
    let known = known.filter(|(_, estimate)| estimate.value.is_finite());
    let known: Vec<(&str, Estimate)> = known.collect();
    let (verb, mut unit) = if known.iter().all(|(_, estimate)| estimate.value >= 0.0) {
        ("take", " of processor time a token")
    } else {
        ("change the processor time of a token by", "")
    };
    let mut parts = Vec::new();
    for (backend, estimate) in &known {
        parts.push(format!("{}{} {}", micros_in_words(estimate), std::mem::take(&mut unit), place(backend)));
    }
    if parts.is_empty() {
        return None;
    }
    let of = |backend| known.iter().find(|(name, _)| *name == backend).map(|(_, estimate)| estimate);
    let (here, there) = (of(IN_PROCESS), of(OVER_HTTP));
    // Of a serve that runs elsewhere nothing is known, and its backend's figure is without it.
    let serve_unknown =
        there.is_some() && view.proven(OVER_HTTP).any(|cell| cell.other_cpu_us_per_token.serve.is_none());
    let compared = here.zip(there).and_then(|(here, there)| ratio(here, there, serve_unknown));
    let compared = compared.map_or_else(String::new, |compared| format!(": {compared}"));
    let unknown = if serve_unknown { "; what it costs the serve is not known, and not in it" } else { "" };
    let folding = extent(view.cells.iter().filter(|cell| cell.mode().is_proven()).map(|cell| cell.proof_us_per_token));
    let folding = folding.map_or_else(String::new, |(low, high)| {
        format!(" Folding them into proofs takes {} more.", range([low, high], |value| format!("{} µs", number(value))))
    });
    Some(format!(
        "On their way to the proof, hidden states {verb} {}{compared}{unknown}.{folding}",
        parts.join(", and ")
    ))
}

/// How many times less one is than the other, where both are above 0. Of the other, there may be more than is known.
fn ratio(here: &Estimate, there: &Estimate, or_more: bool) -> Option<String> {
    let (less, more) = (there.value / here.value, here.value / there.value);
    if here.value <= 0.0 || there.value <= 0.0 || !less.is_finite() || !more.is_finite() {
        return None;
    }
    let said = match less {
        less if less >= 1.05 => {
            let least = if or_more { "at least " } else { "" };
            format!("in process it is {least}{} times less", times(less))
        }
        _ if or_more => return None,
        less if less > 0.95 => "in process it is about as much".into(),
        _ => format!("in process it is {} times more", times(more)),
    };
    let reaches_nothing = |estimate: &Estimate| interval(estimate).is_some_and(|(low, _)| low <= 0.0);
    let doubt = if reaches_nothing(here) || reaches_nothing(there) { ", though not beyond chance" } else { "" };
    Some(said + doubt)
}

/// Bytes of hidden states that cross HTTP. `None` where that was not measured.
pub(super) fn size(view: &View<'_>) -> Option<String> {
    let cells: Vec<&Cell> = view.proven(OVER_HTTP).collect();
    let sizes = || cells.iter().map(|cell| cell.fin_bytes_per_token).filter(|&bytes| bytes > 0.0);
    let (low, high) = extent(sizes())?;
    let plain = view.run.hidden as f64 * 2.0;
    let times = if plain > 0.0 {
        format!(", {} times the {} of bf16", range([low / plain, high / plain], times), bytes(plain))
    } else {
        String::new()
    };
    let proof = extent(cells.iter().map(|cell| cell.proof_bytes_per_token))
        .map_or_else(String::new, |(low, high)| format!("; the proof takes {}", range([low, high], bytes)));
    Some(format!("Hidden states cross HTTP as {} of JSON a token{times}{proof}.", range(sizes(), bytes)))
}

fn times(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { number(value) }
}
