//! What the policy sees of makers whose weights are a little off.

use super::number::count;
use super::outcome::Outcome;
use super::view::distinct;
use crate::overhead::{MatrixCell, Role};

/// Which makers all verifiers accept, which none does, and on which they are split. `None` where no answer was judged.
pub(super) fn sentence(cells: &[MatrixCell]) -> Option<String> {
    let judged = || cells.iter().filter(|cell| cell.role == Role::Edge && cell.answers > 0);
    let makers: Vec<(&str, Outcome)> = distinct(judged().map(|cell| cell.maker.as_str()))
        .into_iter()
        .map(|maker| (maker, Outcome::of(judged().filter(|cell| cell.maker == maker))))
        .collect();
    let shares = |maker: &str| {
        let sum = |of: fn(&MatrixCell) -> usize| {
            judged().filter(|cell| cell.maker == maker).map(of).fold(0, usize::saturating_add)
        };
        format!(" ({} of {} judgements accept)", count(sum(|cell| cell.passed)), count(sum(|cell| cell.answers)))
    };
    let verbs = [(Outcome::Accepted, "accepts"), (Outcome::Rejected, "rejects"), (Outcome::Split, "is split on")];
    let part = |(wanted, verb)| {
        let such = makers.iter().filter(|(_, outcome)| *outcome == wanted);
        let names = such.map(|(maker, outcome)| {
            let shares = if *outcome == Outcome::Split { shares(maker) } else { String::new() };
            // A name such as “no layer 8” would read as part of the sentence.
            format!("“{maker}”{shares}")
        });
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then(|| format!("{verb} {}", listed(&names, " and ")))
    };
    let parts: Vec<String> = verbs.into_iter().filter_map(part).collect();
    let who = match makers.len() {
        0 => return None,
        1 => "At the edge (weights a little off)".to_owned(),
        many => format!("Of {many} makers at the edge (weights a little off)"),
    };
    Some(format!("{who}, the policy {}.", listed(&parts, if parts.len() > 2 { ", and " } else { " and " })))
}

/// `a, b and c`.
fn listed(items: &[String], last: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., end] => format!("{}{last}{end}", first.join(", ")),
    }
}
