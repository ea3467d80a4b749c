//! What was found, as files in a folder.

use std::path::Path;

use anyhow::anyhow;
use serde::Serialize;

use crate::overhead::{Cell, Matrix, Run, TurnRecord, report};

/// The page for people.
pub(super) const PAGE: &str = "report.html";

/// Writes all files of a measurement.
pub(super) fn write(
    folder: &Path,
    run: &Run,
    cells: &[Cell],
    records: &[TurnRecord],
    matrix: Option<&Matrix>,
) -> anyhow::Result<()> {
    let file = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| anyhow!("cannot write {}: {e}", path.display()))
    };
    // What programs read comes first: a page can be made again from it.
    file("run.json", serde_json::to_string_pretty(run)? + "\n")?;
    file("results.jsonl", lines(cells)?)?;
    file("turns.jsonl", lines(records)?)?;
    if let Some(matrix) = matrix {
        file("matrix.json", serde_json::to_string_pretty(matrix)? + "\n")?;
    }
    file("report.md", report::markdown(run, cells, matrix))?;
    file(PAGE, report::html(run, cells, matrix)?)
}

/// One object a line.
fn lines<T: Serialize>(objects: &[T]) -> anyhow::Result<String> {
    objects.iter().map(|object| Ok(serde_json::to_string(object)? + "\n")).collect()
}
