//! The report of a comparison: a page to show, and the same as Markdown.
//!
//! In: what was measured. Out: text. What must never happen: a sentence that the figures do not bear, a number where none was
//! measured, and text from a file that becomes markup.

mod answer;
mod date;
mod edges;
mod grid;
mod hop;
mod markdown;
mod number;
mod outcome;
mod page;
mod plot;
mod provenance;
mod summary;
mod table;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod verdict;
mod view;

use self::view::View;
use super::results::{Cell, Matrix, Run};

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A plot could not be drawn.
    #[error("the figure “{figure}” cannot be drawn: {reason}")]
    Plot {
        /// Which.
        figure: &'static str,
        /// What the drawing library objected to.
        reason: String,
    },
}

/// `report.html`: one file with the answer, the plots and all figures, which needs nothing from elsewhere.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(run: &Run, cells: &[Cell], matrix: Option<&Matrix>) -> Result<String, ReportError> {
    page::page(&View { run, cells, matrix })
}

/// `report.md`: the answer and the tables, without plots.
#[must_use]
pub fn markdown(run: &Run, cells: &[Cell], matrix: Option<&Matrix>) -> String {
    markdown::markdown(&View { run, cells, matrix })
}

/// The answer alone, for a terminal: plain text, a line for each of its statements.
#[must_use]
pub fn summary(run: &Run, cells: &[Cell], matrix: Option<&Matrix>) -> String {
    summary::summary(&View { run, cells, matrix })
}
