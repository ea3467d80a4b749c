//! The answer in a few sentences: what proofs cost each backend, what crossing HTTP costs, what the matrix says.

use super::number::{
    bytes, extent, interval, micros, micros_in_words, percent_in_words, percent_range, percent_value, range,
};
use super::verdict;
use super::view::View;
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
    for backend in backends {
        said.push(Statement::plain(cost(view, backend)));
        if backend == OVER_HTTP {
            said.extend(hop(view).map(Statement::plain));
        }
    }
    said.extend(verdict);
    said
}

/// Where a backend computes, to begin a sentence.
fn place(backend: &str) -> String {
    match backend {
        IN_PROCESS => format!("In process ({backend})"),
        OVER_HTTP => format!("Over HTTP ({backend})"),
        other => format!("With {other}"),
    }
}

/// What proofs add to a token's time with one backend.
fn cost(view: &View<'_>, backend: &str) -> String {
    let place = place(backend);
    let costs = view.costs(backend);
    let Some(&(cell, most)) = costs.iter().max_by(|a, b| a.1.time_pct.value.total_cmp(&b.1.time_pct.value)) else {
        let why = if view.proven(backend).next().is_some() {
            "no turns with proofs were paired with turns without"
        } else {
            "no turn with proofs was measured"
        };
        return format!("{place}, what proofs cost is not known: {why}.");
    };
    let values = || costs.iter().map(|(_, overhead)| overhead.time_pct.value);
    let (verb, rest) = if values().all(|value| value >= 0.0) {
        ("add", " to the time of a token after the first")
    } else {
        ("change the time of a token after the first by", "")
    };
    let (estimate, load) = (percent_in_words(&most.time_pct), cell.load().spelt());
    let judged = judgement(&costs);
    if costs.len() == 1 {
        return format!("{place}, proofs {verb} {estimate}{rest}, with {load}. {judged}");
    }
    let range = percent_range(values(), &most.time_pct);
    let reach = intervals(&costs).map(|(_, high)| high).fold(f64::NEG_INFINITY, f64::max);
    let reach = match interval(&most.time_pct) {
        Some((_, high)) if reach > high => format!("; the interval of another load reaches {}", percent_value(reach)),
        _ => String::new(),
    };
    format!(
        "{place}, proofs {verb} {range}{rest} over {} loads. The most is {estimate}, with {load}{reach}. {judged}",
        costs.len()
    )
}

fn intervals<'a>(costs: &'a [(&Cell, &Overhead)]) -> impl Iterator<Item = (f64, f64)> + 'a {
    costs.iter().filter_map(|(_, overhead)| interval(&overhead.time_pct))
}

/// What the intervals allow to say of the costs.
fn judgement(costs: &[(&Cell, &Overhead)]) -> String {
    let all = costs.len();
    let few = costs.iter().filter(|(_, overhead)| overhead.pairs < 6 && interval(&overhead.time_pct).is_none()).count();
    if few > 0 {
        return match all {
            all if all > 1 && few == all => {
                format!("All {all} lack an interval, which takes six pairs of turns: they are indications and no more.")
            }
            1 => "It has no interval, which takes six pairs of turns: it is an indication and no more.".into(),
            _ => format!(
                "{few} of the {all} have no interval, which takes six pairs of turns: they are indications and no more."
            ),
        };
    }
    if intervals(costs).count() < all {
        return "Not every estimate has its interval.".into();
    }
    let above = intervals(costs).filter(|(low, _)| *low > 0.0).count();
    let below = intervals(costs).filter(|(_, high)| *high < 0.0).count();
    match (all, above, below) {
        (1, 0, 0) => "That cannot be told from nothing.".into(),
        (1, 1, 0) => "That is more than chance explains.".into(),
        (1, _, _) => "That is less than without proofs, by more than chance explains.".into(),
        (_, 0, 0) => "At no load can it be told from nothing.".into(),
        (_, above, 0) if above == all => "At every load that is more than chance explains.".into(),
        (_, above, 0) => format!("At {above} of the {all} loads that is more than chance explains."),
        (_, above, below) => {
            format!(
                "Chance does not explain it at {above} of the {all} loads where it is more, and at {below} where it is less."
            )
        }
    }
}

/// What it takes to carry hidden states over HTTP: bytes, and processor time. `None` where that was not measured.
fn hop(view: &View<'_>) -> Option<String> {
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
    let said = format!("Hidden states cross HTTP as {} of JSON a token{times}{proof}.", range(sizes(), bytes));
    Some(said + &hop_time(&cells).unwrap_or_default())
}

/// The processor time of the hop.
fn hop_time(cells: &[&Cell]) -> Option<String> {
    let estimate = |cell: &&Cell| Some((cell.cpu_us_per_token.serve, cell.overhead.as_ref()?.cpu_us_per_token));
    let known: Vec<_> = cells.iter().filter_map(estimate).filter(|(_, estimate)| estimate.value.is_finite()).collect();
    let most = known.iter().map(|(_, estimate)| estimate).max_by(|a, b| a.value.total_cmp(&b.value))?;
    let values = || known.iter().map(|(_, estimate)| estimate.value);
    let verb = if values().all(|value| value >= 0.0) { "grows" } else { "changes" };
    let whose =
        if known.iter().all(|(serve, _)| serve.is_some()) { "miner and serve together" } else { "the miner alone" };
    let range = range(values(), micros);
    let spread = if range.contains(" to ") { format!("{range}, at most ") } else { String::new() };
    let mut said =
        format!(" With proofs, the processor time of {whose} {verb} by {spread}{} a token", micros_in_words(most));
    if known.iter().any(|(serve, _)| serve.is_none()) {
        said += "; what it costs the serve is not known";
    }
    Some(said + ".")
}

fn times(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { super::number::number(value) }
}
