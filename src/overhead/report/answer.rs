//! The answer in a few sentences: what proofs cost each backend, what hidden states take by themselves, what the matrix says.

use super::number::{count, interval, percent_in_words};
use super::view::View;
use super::{hop, verdict};
use crate::overhead::{Cell, Overhead};

/// The backend in this process.
pub(super) const IN_PROCESS: &str = "candle";
/// The backend whose hidden states cross HTTP.
pub(super) const OVER_HTTP: &str = "sglang";

/// Why an estimate may stand alone.
pub(super) const NO_INTERVAL: &str = "An estimate without an interval comes from fewer than six pairs of turns: \
    of fewer, Wilcoxon's signed ranks give no interval of 95 %.";

/// A sentence of the answer.
#[derive(Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) text: String,
    /// Whether it says that proofs fail at what they are for.
    pub(super) alarm: bool,
}

impl Statement {
    pub(super) fn plain(text: String) -> Self {
        Self { text, alarm: false }
    }

    pub(super) fn alarm(text: String) -> Self {
        Self { text, alarm: true }
    }
}

/// What a reader takes home.
pub(super) fn answer(view: &View<'_>) -> Vec<Statement> {
    let (alarms, verdict): (Vec<_>, Vec<_>) = verdict::verdict(view.matrix).into_iter().partition(|said| said.alarm);
    // A proof that proves nothing is dear at any price.
    let mut said = alarms;
    let mut backends = view.backends();
    backends.sort_by_key(|&backend| backend != IN_PROCESS);
    if backends.is_empty() {
        said.push(Statement::plain("What proofs cost is not known: no turn was measured.".into()));
    }
    said.extend(backends.iter().map(|backend| Statement::plain(cost(view, backend))));
    said.extend(hop::processor_time(view, &backends).map(Statement::plain));
    said.extend(hop::size(view).map(Statement::plain));
    said.extend(verdict);
    said
}

/// Where a backend computes.
pub(super) fn place(backend: &str) -> String {
    match backend {
        IN_PROCESS => format!("in process ({backend})"),
        OVER_HTTP => format!("over HTTP ({backend})"),
        other => format!("with {other}"),
    }
}

/// What proofs add to a token's time with one backend: over all loads, and at the worst of them.
fn cost(view: &View<'_>, backend: &str) -> String {
    let place = begun(&place(backend));
    let costs = view.costs(backend);
    let known = view.pooled(backend).filter(|overhead| overhead.time_pct.value.is_finite());
    let Some(overhead) = known else {
        return format!("{place}, what proofs cost {}.", unknown(view, backend, &costs));
    };
    let estimate = percent_in_words(&overhead.time_pct);
    let more = if overhead.time_pct.value >= 0.0 {
        format!("add {estimate} to the time of a token after the first")
    } else {
        format!("change the time of a token after the first by {estimate}")
    };
    let pairs = match overhead.pairs {
        1 => "one pair of turns".to_owned(),
        many => format!("{} pairs of turns", count(many)),
    };
    let (load, worst) = match costs.as_slice() {
        [(cell, _)] => (format!(" with {}", cell.load().spelt()), String::new()),
        several => (String::new(), worst(several).map_or_else(String::new, |worst| format!("; {worst}"))),
    };
    format!("{place}, proofs {more} over {pairs}{load}: {}{worst}.", judgement(overhead))
}

/// Why there is no figure over all loads.
fn unknown(view: &View<'_>, backend: &str, costs: &[(&Cell, &Overhead)]) -> String {
    if let Some(worst) = worst(costs) {
        return format!("over all loads is not known; {worst}");
    }
    let paired = |cell: &Cell| cell.overhead.is_some();
    let why = if view.proven(backend).next().is_none() {
        "no turn with proofs was measured"
    } else if view.pooled(backend).is_some() || view.proven(backend).any(paired) {
        "no time after first tokens was measured"
    } else {
        "no turns with proofs were paired with turns without"
    };
    format!("is not known: {why}")
}

/// The load with the greatest estimate.
fn worst(costs: &[(&Cell, &Overhead)]) -> Option<String> {
    let (cell, most) = costs.iter().max_by(|a, b| a.1.time_pct.value.total_cmp(&b.1.time_pct.value))?;
    let among = if costs.len() == 1 { "the one load".into() } else { format!("the worst of {} loads", costs.len()) };
    Some(format!("{among} has {}, with {}", percent_in_words(&most.time_pct), cell.load().spelt()))
}

/// What the interval allows to say of an estimate.
fn judgement(overhead: &Overhead) -> &'static str {
    match interval(&overhead.time_pct) {
        None => "with no interval, which takes six pairs, that is an indication and no more",
        Some((low, _)) if low > 0.0 => "that is more than chance explains",
        Some((_, high)) if high < 0.0 => "that is less than without proofs, by more than chance explains",
        Some(_) => "that cannot be told from nothing",
    }
}

/// As a sentence begins.
fn begun(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}", first.to_ascii_uppercase(), letters.as_str()))
}
