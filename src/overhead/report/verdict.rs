//! What the matrix says: whether proofs hold for every honest maker and for no control, and what the policy sees of the edges.

use super::answer::Statement;
use super::edges;
use super::number::{count, extent, number};
use crate::overhead::{Matrix, MatrixCell, Role};

/// Alarms first: a control that was accepted is worse than all that went well is good.
pub(super) fn verdict(matrix: Option<&Matrix>) -> Vec<Statement> {
    let Some(matrix) = matrix.filter(|matrix| !matrix.cells.is_empty()) else {
        return vec![Statement::plain(
            "Whether proofs hold across backends was not measured: there is no matrix.".into(),
        )];
    };
    let alarms = [Role::Control, Role::Honest].into_iter().filter_map(|role| wrong(&matrix.cells, role));
    let mut said: Vec<Statement> = alarms.map(Statement::alarm).collect();
    let judged = |role| judged(&matrix.cells, role);
    let right = |role| judged(role).filter(|cell| cell.is_right());
    let most = judged(Role::Honest).map(|cell| cell.mismatches_max).max();
    let least = extent(judged(Role::Control).map(|cell| cell.mismatches_mean));
    let mut parts = Vec::new();
    if judged(Role::Honest).next().is_some() {
        let worst = most.map_or_else(String::new, |most| {
            format!(" (worst batch: {} mismatches, {} are allowed)", count(most), matrix.max_mismatches)
        });
        parts.push(format!(
            "{} honest pairs of maker and verifier pass{worst}",
            of(right(Role::Honest), judged(Role::Honest))
        ));
    }
    if judged(Role::Control).next().is_some() {
        let closest = least.map_or_else(String::new, |(least, _)| {
            format!(" (the closest has {} mismatches a batch on average)", number(least))
        });
        parts.push(format!(
            "{} pairs with a control are rejected{closest}",
            of(right(Role::Control), judged(Role::Control))
        ));
    } else {
        parts.push("no control was among the makers, so nothing shows that other weights are rejected".into());
    }
    said.push(Statement::plain(format!("Cross-verification: {}.", parts.join("; "))));
    said.extend(edges::sentence(&matrix.cells).map(Statement::plain));
    let empty = matrix.cells.iter().filter(|cell| cell.answers == 0).count();
    if empty > 0 {
        said.push(Statement::plain(format!("{empty} pairs of maker and verifier had no answer to judge.")));
    }
    said
}

/// Pairs with answers whose makers have this role. Of none, "all passed" would be true and say nothing.
fn judged(cells: &[MatrixCell], role: Role) -> impl Iterator<Item = &MatrixCell> {
    cells.iter().filter(move |cell| cell.role == role && cell.answers > 0)
}

/// `all 25`, or `24 of 25`.
fn of<'a>(right: impl Iterator<Item = &'a MatrixCell>, judged: impl Iterator<Item = &'a MatrixCell>) -> String {
    match (right.count(), judged.count()) {
        (right, all) if right == all => format!("all {all}"),
        (right, all) => format!("{right} of {all}"),
    }
}

/// The pairs that came out wrong, the worst of them by name.
fn wrong(cells: &[MatrixCell], role: Role) -> Option<String> {
    let control = role == Role::Control;
    let wrong: Vec<&MatrixCell> = judged(cells, role).filter(|cell| !cell.is_right()).collect();
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
