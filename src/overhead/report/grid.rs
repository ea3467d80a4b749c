//! The matrix as rows of makers and columns of verifiers: honest makers, those at the edge, controls.

use super::outcome::Outcome;
use super::view::distinct;
use crate::overhead::{Matrix, MatrixCell, Role};

/// Makers down, verifiers across.
pub(super) struct Grid<'a> {
    /// Makers by role. No group is empty.
    pub(super) groups: Vec<(Role, Vec<&'a str>)>,
    pub(super) verifiers: Vec<&'a str>,
    cells: &'a [MatrixCell],
}

impl<'a> Grid<'a> {
    /// `None` of no cells.
    pub(super) fn new(matrix: Option<&'a Matrix>) -> Option<Self> {
        let matrix = matrix.filter(|matrix| !matrix.cells.is_empty())?;
        // Variants give the order; cells decide who is there.
        let makers = |role| {
            let named = matrix.variants.iter().map(|variant| variant.name.as_str());
            let found = || matrix.cells.iter().filter(|cell| cell.role == role).map(|cell| cell.maker.as_str());
            distinct(named.filter(|name| found().any(|maker| maker == *name)).chain(found()))
        };
        let groups = [Role::Honest, Role::Edge, Role::Control].map(|role| (role, makers(role)));
        let verifiers = || matrix.cells.iter().map(|cell| cell.verifier.as_str());
        let named = matrix.variants.iter().map(|variant| variant.name.as_str());
        Some(Self {
            groups: groups.into_iter().filter(|(_, makers)| !makers.is_empty()).collect(),
            verifiers: distinct(named.filter(|name| verifiers().any(|found| found == *name)).chain(verifiers())),
            cells: &matrix.cells,
        })
    }

    /// All makers, group by group.
    pub(super) fn makers(&self) -> impl Iterator<Item = (&'a str, Role)> {
        self.groups.iter().flat_map(|(role, makers)| makers.iter().map(|&name| (name, *role)))
    }

    pub(super) fn cell(&self, maker: &str, verifier: &str, role: Role) -> Option<&'a MatrixCell> {
        self.cells.iter().find(|cell| cell.maker == maker && cell.verifier == verifier && cell.role == role)
    }
}

/// A cell's answers that passed, with a mark: `✓ 8/8`; `✗ 0/8` is what a control should have.
pub(super) fn passes(cell: &MatrixCell) -> String {
    format!("{} {}/{}", Outcome::of(std::iter::once(cell)).mark(), cell.passed, cell.answers)
}

/// What a maker is, in a word.
pub(super) fn kind(role: Role) -> &'static str {
    match role {
        Role::Honest => "honest",
        Role::Edge => "edge",
        Role::Control => "control",
    }
}
