//! The matrix as rows of makers and columns of verifiers, controls last.

use super::view::distinct;
use crate::overhead::{Matrix, MatrixCell};

/// Makers down, verifiers across.
pub(super) struct Grid<'a> {
    pub(super) honest: Vec<&'a str>,
    pub(super) controls: Vec<&'a str>,
    pub(super) verifiers: Vec<&'a str>,
    cells: &'a [MatrixCell],
}

impl<'a> Grid<'a> {
    /// `None` of no cells.
    pub(super) fn new(matrix: Option<&'a Matrix>) -> Option<Self> {
        let matrix = matrix.filter(|matrix| !matrix.cells.is_empty())?;
        // Variants give the order; cells decide who is there.
        let makers = |control| {
            let named = matrix.variants.iter().map(|variant| variant.name.as_str());
            let found = || matrix.cells.iter().filter(|cell| cell.control == control).map(|cell| cell.maker.as_str());
            distinct(named.filter(|name| found().any(|maker| maker == *name)).chain(found()))
        };
        let verifiers = || matrix.cells.iter().map(|cell| cell.verifier.as_str());
        let named = matrix.variants.iter().map(|variant| variant.name.as_str());
        Some(Self {
            honest: makers(false),
            controls: makers(true),
            verifiers: distinct(named.filter(|name| verifiers().any(|found| found == *name)).chain(verifiers())),
            cells: &matrix.cells,
        })
    }

    /// All makers, controls last.
    pub(super) fn makers(&self) -> impl Iterator<Item = (&'a str, bool)> {
        self.honest.iter().map(|&name| (name, false)).chain(self.controls.iter().map(|&name| (name, true)))
    }

    pub(super) fn cell(&self, maker: &str, verifier: &str, control: bool) -> Option<&'a MatrixCell> {
        self.cells.iter().find(|cell| cell.maker == maker && cell.verifier == verifier && cell.control == control)
    }
}

/// A cell's answers that passed, with a mark: `✓ 8/8`; `✗ 0/8` is what a control should have.
pub(super) fn passes(cell: &MatrixCell) -> String {
    let mark = match cell.passed {
        _ if cell.answers == 0 => "–",
        passed if passed >= cell.answers => "✓",
        0 => "✗",
        _ => "±",
    };
    format!("{mark} {}/{}", cell.passed, cell.answers)
}
