//! Which rows stand where in `hidden_states`.

use std::sync::Arc;

use super::config::{FakeServeConfig, Layout, PromptBlock};
use super::fault::Fault;
use super::row::{Damage, Row};
use super::run::Answer;

/// The value of `hidden_states`.
#[derive(Debug, Clone)]
pub(super) enum HiddenStates {
    /// A list of elements.
    List(Vec<Element>),
    /// The list is one row.
    Flat(Row),
}

/// An element of the list.
#[derive(Debug, Clone)]
pub(super) enum Element {
    Empty,
    Vector(Row),
    Matrix(Arc<[Row]>),
}

/// Lays an answer's rows out. `None` where none are told.
pub(super) fn lay_out(config: &FakeServeConfig, answer: &Answer, fault: Option<&Fault>) -> Option<HiddenStates> {
    if !answer.request.hidden_states || fault == Some(&Fault::NoHiddenStates) {
        return None;
    }
    if config.prompt_block == PromptBlock::LastRow && answer.finish.is_none() {
        return Some(HiddenStates::List(Vec::new()));
    }
    let mut rows = answer.rows.clone();
    damage_rows(&mut rows, fault);
    if fault == Some(&Fault::LastOnly) {
        return rows.pop().map(HiddenStates::Flat);
    }
    let mut rows = rows.into_iter();
    let mut elements = prompt_elements(config, answer, rows.next());
    let decode_row = |row| match config.layout {
        Layout::Vectors => Element::Vector(row),
        Layout::OneRowMatrices => Element::Matrix(Arc::new([row])),
    };
    elements.extend(rows.map(decode_row));
    if config.dialect.cuts_elements() {
        elements.truncate(answer.ids.len());
    }
    damage_elements(&mut elements, fault);
    Some(HiddenStates::List(elements))
}

/// The prompt's matrices; `row` is row 0 of the answer.
fn prompt_elements(config: &FakeServeConfig, answer: &Answer, row: Option<Row>) -> Vec<Element> {
    let Some(row) = row else { return Vec::new() };
    let before = &answer.prompt_rows[..];
    let matrix = |rows: &[Row]| Element::Matrix(rows.into());
    match config.prompt_block {
        PromptBlock::Missing => vec![Element::Empty],
        PromptBlock::LastRow => vec![matrix(&[row])],
        PromptBlock::Full | PromptBlock::OfAnother => {
            let row = if config.prompt_block == PromptBlock::Full { row } else { row.damaged(Damage::Another) };
            let rows = [before, &[row]].concat();
            let parts = rows.chunks(config.chunked_prefill_size.unwrap_or(usize::MAX).max(1));
            if config.dialect.keeps_prompt_parts() {
                parts.map(matrix).collect()
            } else {
                parts.last().map(matrix).into_iter().collect()
            }
        }
    }
}

/// Faults of single rows.
fn damage_rows(rows: &mut Vec<Row>, fault: Option<&Fault>) {
    let Some(fault) = fault else { return };
    let mut damage = |row: usize, damage| {
        if let Some(row) = rows.get_mut(row) {
            *row = row.damaged(damage);
        }
    };
    match *fault {
        Fault::NullValue { row, column } => damage(row, Damage::Null { column }),
        Fault::NanValue { row, column } => damage(row, Damage::Nan { column }),
        Fault::Width { values } => rows.iter_mut().for_each(|row| *row = row.damaged(Damage::Width { values })),
        Fault::OtherRow { row } => damage(row, Damage::Another),
        Fault::MissingRow { row } if row > 0 && row < rows.len() => drop(rows.remove(row)),
        Fault::FewerRows { by } => rows.truncate(rows.len().saturating_sub(by)),
        Fault::ExtraRow => rows.extend(rows.last().cloned()),
        _ => {}
    }
}

/// Faults of whole elements.
fn damage_elements(elements: &mut [Element], fault: Option<&Fault>) {
    match fault {
        Some(Fault::MissingRow { row: 0 }) => {
            elements.first_mut().into_iter().for_each(|first| *first = Element::Empty);
        }
        Some(Fault::EmptyElements) => elements.fill(Element::Empty),
        _ => {}
    }
}
