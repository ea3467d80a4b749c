//! What was found, as files in a folder.

use std::path::Path;

use anyhow::anyhow;
use serde::Serialize;

use crate::overhead::{Cell, Matrix, Run, TurnRecord, report};

/// Makers and verifiers.
const MATRIX: &str = "matrix.json";

/// The page for people.
pub(super) const PAGE: &str = "report.html";

/// Whether files can be written there, before anything is measured for them.
pub(super) fn check(folder: &Path) -> anyhow::Result<()> {
    let probe = folder.join(".writable");
    let written = std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe));
    written.map_err(|e| anyhow!("cannot write to the folder {}: {e}", folder.display()))
}

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
    match matrix {
        Some(matrix) => file(MATRIX, serde_json::to_string_pretty(matrix)? + "\n")?,
        // An older one is of another measurement.
        None => drop(std::fs::remove_file(folder.join(MATRIX))),
    }
    file("report.md", report::markdown(run, cells, matrix))?;
    file(PAGE, report::html(run, cells, matrix)?)
}

/// One object a line.
fn lines<T: Serialize>(objects: &[T]) -> anyhow::Result<String> {
    objects.iter().map(|object| Ok(serde_json::to_string(object)? + "\n")).collect()
}
