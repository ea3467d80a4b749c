//! The report without plots, for places that show Markdown, which cannot fold what is long.

use super::answer::answer;
use super::view::View;
use super::{provenance, tables, text};

pub(super) fn markdown(view: &View<'_>) -> String {
    let mut page = "# What a proof costs\n\n".to_owned();
    for said in answer(view) {
        let sentence = text::markdown(&said.text);
        page += &if said.alarm { format!("**{sentence}**\n\n") } else { format!("{sentence}\n\n") };
    }
    page += "## Where this comes from\n\n";
    for (what, fact) in provenance::facts(view.run) {
        page += &format!("- {what}: {}\n", text::markdown(&fact));
    }
    page += &format!("\n{}\n", text::fenced(&view.run.command));
    page += "## Figures\n\n";
    for table in tables::of_cells(view) {
        page += &format!("{}\n", table.markdown());
    }
    if let Some(matrix) = view.matrix {
        page += "## Cross-verification\n\n";
        let (long, short): (Vec<_>, Vec<_>) = tables::of_matrix(matrix).into_iter().partition(|table| table.folded);
        for table in short {
            page += &format!("{}\n", table.markdown());
        }
        if !long.is_empty() {
            page += "All figures of each pair of maker and verifier are in `matrix.json`.\n";
        }
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}
