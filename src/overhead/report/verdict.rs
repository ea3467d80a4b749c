//! What the matrix says: whether proofs hold for every honest maker and for no other.

use super::answer::Statement;
use super::number::{count, extent, number};
use crate::overhead::{Matrix, MatrixCell};

/// Alarms first: a control that was accepted is worse than all that went well is good.
pub(super) fn verdict(matrix: Option<&Matrix>) -> Vec<Statement> {
    let Some(matrix) = matrix.filter(|matrix| !matrix.cells.is_empty()) else {
        return vec![Statement::plain(
            "Whether proofs hold across backends was not measured: there is no matrix.".into(),
        )];
    };
    let mut said: Vec<Statement> =
        [true, false].into_iter().filter_map(|control| wrong(&matrix.cells, control)).map(Statement::alarm).collect();
    let judged = |control| judged(&matrix.cells, control);
    let right = |control: bool| judged(control).filter(|cell| cell.is_right());
    let most = judged(false).map(|cell| cell.mismatches_max).max();
    let least = extent(judged(true).map(|cell| cell.mismatches_mean));
    let mut parts = Vec::new();
    if judged(false).next().is_some() {
        let worst = most.map_or_else(String::new, |most| {
            format!(" (worst batch: {} mismatches, {} are allowed)", count(most), matrix.max_mismatches)
        });
        parts.push(format!("{} honest pairs of maker and verifier pass{worst}", of(right(false), judged(false))));
    }
    if judged(true).next().is_some() {
        let closest = least.map_or_else(String::new, |(least, _)| {
            format!(" (the closest has {} mismatches a batch on average)", number(least))
        });
        parts.push(format!("{} pairs with a control are rejected{closest}", of(right(true), judged(true))));
    } else {
        parts.push("no control was among the makers, so nothing shows that other weights are rejected".into());
    }
    said.push(Statement::plain(format!("Cross-verification: {}.", parts.join("; "))));
    let empty = matrix.cells.iter().filter(|cell| cell.answers == 0).count();
    if empty > 0 {
        said.push(Statement::plain(format!("{empty} pairs of maker and verifier had no answer to judge.")));
    }
    said
}

/// Pairs with answers, honest ones or those of controls. Of none, "all passed" would be true and say nothing.
fn judged(cells: &[MatrixCell], control: bool) -> impl Iterator<Item = &MatrixCell> {
    cells.iter().filter(move |cell| cell.control == control && cell.answers > 0)
}

/// `all 25`, or `24 of 25`.
fn of<'a>(right: impl Iterator<Item = &'a MatrixCell>, judged: impl Iterator<Item = &'a MatrixCell>) -> String {
    match (right.count(), judged.count()) {
        (right, all) if right == all => format!("all {all}"),
        (right, all) => format!("{right} of {all}"),
    }
}

/// The pairs that came out wrong, the worst of them by name.
fn wrong(cells: &[MatrixCell], control: bool) -> Option<String> {
    let wrong: Vec<&MatrixCell> = judged(cells, control).filter(|cell| !cell.is_right()).collect();
    let mistakes = |cell: &MatrixCell| if control { cell.passed } else { cell.answers.saturating_sub(cell.passed) };
    let worst = wrong.iter().max_by_key(|cell| mistakes(cell))?;
    let what =
        format!("{} of {} answers of “{}” under “{}”", mistakes(worst), worst.answers, worst.maker, worst.verifier);
    let among = if wrong.len() == 1 { String::new() } else { format!(", the worst of {} such pairs", wrong.len()) };
    Some(if control {
        format!("CONTROL ACCEPTED: {what} passed{among}. Such proofs do not tell other weights from the checkpoint's.")
    } else {
        format!("HONEST ANSWERS REJECTED: {what} failed{among}. An honest miner would be refused.")
    })
}
