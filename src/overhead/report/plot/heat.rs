//! Who accepts whose proofs, as a heat map: makers down, verifiers across; honest makers, those at the edge and controls apart.

use plotters::style::text_anchor::{HPos, VPos};

use super::super::grid::{Grid, passes};
use super::super::number::{number, share};
use super::super::text::shortened;
use super::super::view::View;
use super::canvas::{self, Area, Drawn, Point, SMALL, TEXT, TIGHT, Type, WIDTH};
use super::palette::{self, GRID, INK, MUTED, WRONG};
use crate::overhead::{MatrixCell, Role};

pub(super) const TITLE: &str = "Who accepts whose proofs";

/// Room for makers' names.
const NAMES: f64 = 250.0;
const ROW: f64 = 54.0;
/// Above each group of makers, where its title stands.
const APART: f64 = 34.0;
const LEGEND: f64 = 64.0;

/// Where things stand.
struct Layout {
    /// Width of a cell.
    cell: f64,
    /// Verifiers' names in lines, or upright where words are wider than a cell.
    names: Vec<Vec<String>>,
    upright: bool,
    /// Top of the first row.
    top: f64,
}

impl Layout {
    fn new(verifiers: &[&str]) -> Self {
        let cell = ((WIDTH - NAMES) / verifiers.len().max(1) as f64).min(132.0);
        let words = |name: &&str| shortened(name, 48).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let names: Vec<Vec<String>> = verifiers.iter().map(words).collect();
        let fits =
            |words: &Vec<String>| words.len() <= 4 && words.iter().all(|word| canvas::width(word, TIGHT) < cell - 4.0);
        if names.iter().all(fits) {
            let lines = names.iter().map(Vec::len).max().unwrap_or_default();
            return Self { cell, names, upright: false, top: 44.0 + lines as f64 * 15.0 };
        }
        let names: Vec<Vec<String>> = verifiers.iter().map(|name| vec![shortened(name, 32)]).collect();
        let longest = names.iter().flatten().map(|name| canvas::width(name, TIGHT)).fold(0.0, f64::max);
        Self { cell, names, upright: true, top: 44.0 + longest }
    }

    fn left(&self, column: usize) -> f64 {
        NAMES + column as f64 * self.cell
    }
}

pub(super) fn caption(view: &View<'_>) -> String {
    let Some(matrix) = view.matrix else { return "Proofs of each maker, judged by each verifier.".into() };
    format!(
        "Each row's answers were proven by one variant and judged by every column's recompute: mismatches a batch of {} points \
         (mean / most), and answers that passed. A batch may have {} mismatches, {} of an answer's batches must keep to that. \
         Controls compute with other weights and must fail everywhere. Makers at the edge have weights that are a little off: no \
         verdict on them is wrong. What came out wrong of the others has an orange frame.",
        view.run.topk,
        matrix.max_mismatches,
        share(matrix.pass_ratio)
    )
}

pub(super) fn draw(view: &View<'_>) -> Drawn<Option<String>> {
    let Some((matrix, grid)) = view.matrix.zip(Grid::new(view.matrix)) else { return Ok(None) };
    let layout = Layout::new(&grid.verifiers);
    let (mut titles, mut rows, mut top) = (Vec::new(), Vec::new(), layout.top);
    for (role, makers) in &grid.groups {
        titles.push((top + APART / 2.0, title(*role)));
        rows.extend(makers.iter().enumerate().map(|(row, maker)| (top + APART + row as f64 * ROW, *maker, *role)));
        top += APART + makers.len() as f64 * ROW;
    }
    let svg = canvas::svg(top + LEGEND, |area| {
        heads(area, &layout)?;
        for (middle, title) in titles {
            canvas::text(area, title, (0.0, middle), Type::left(TIGHT).bold().colour(MUTED))?;
        }
        for &(top, maker, role) in &rows {
            canvas::text(area, &shortened(maker, 34), (NAMES - 10.0, top + ROW / 2.0), Type::right(TIGHT))?;
            for (column, verifier) in grid.verifiers.iter().enumerate() {
                let place = (layout.left(column), top);
                pair(area, place, layout.cell, grid.cell(maker, verifier, role), view.run.topk)?;
            }
        }
        // Frames last: neighbours must not cover them.
        for &(top, maker, role) in &rows {
            for (column, verifier) in grid.verifiers.iter().enumerate() {
                if grid.cell(maker, verifier, role).is_some_and(|cell| !cell.is_right()) {
                    let (left, right) = (layout.left(column) + 2.0, layout.left(column) + layout.cell - 2.0);
                    canvas::framed(area, (left, top + 2.0), (right, top + ROW - 2.0), WRONG, 4.0)?;
                }
            }
        }
        scale(area, (NAMES, top + 26.0), view.run.topk, matrix.max_mismatches)
    })?;
    Ok(Some(svg))
}

/// What there is to see of a group.
fn title(role: Role) -> &'static str {
    match role {
        Role::Honest => "honest: every verifier must accept them",
        Role::Edge => "edges, weights a little off: what does the policy see?",
        Role::Control => "controls: no verifier may accept them",
    }
}

fn heads(area: &Area<'_>, layout: &Layout) -> Drawn {
    canvas::text(area, "verifier", (NAMES, 12.0), Type::left(TEXT).bold())?;
    canvas::text(area, "maker", (NAMES - 10.0, layout.top - 12.0), Type::right(TEXT).bold())?;
    for (column, lines) in layout.names.iter().enumerate() {
        let middle = layout.left(column) + layout.cell / 2.0;
        if layout.upright {
            let look = Type { upright: true, across: HPos::Left, down: VPos::Center, ..Type::left(TIGHT) };
            canvas::text(area, &lines.concat(), (middle, layout.top - 8.0), look)?;
            continue;
        }
        for (line, word) in lines.iter().enumerate() {
            let up = (lines.len() - line) as f64 * 15.0;
            canvas::text(area, word, (middle, layout.top - up), Type::centred(TIGHT))?;
        }
    }
    Ok(())
}

/// One cell with its figures.
fn pair(area: &Area<'_>, (left, top): Point, width: f64, cell: Option<&MatrixCell>, topk: usize) -> Drawn {
    let (from, to) = ((left + 1.0, top + 1.0), (left + width - 1.0, top + ROW - 1.0));
    let middle = left + width / 2.0;
    let Some(cell) = cell else {
        canvas::filled(area, from, to, GRID)?;
        return canvas::text(area, "not judged", (middle, top + ROW / 2.0), Type::centred(9.5).colour(MUTED));
    };
    let share = heat(cell.mismatches_mean, topk);
    let colour = palette::heat(share);
    canvas::filled(area, from, to, colour)?;
    let size = match width {
        wide if wide > 100.0 => SMALL,
        wide if wide > 74.0 => TIGHT,
        _ => 10.0,
    };
    let look = Type::centred(size).colour(palette::text_on(colour));
    let figures = format!("{} / {}", short(cell.mismatches_mean), cell.mismatches_max);
    let lines: &[f64] = if cell.is_right() { &[18.5, 36.0] } else { &[13.0, 27.5, 42.0] };
    let said = [(figures, look), (passes(cell), look.bold()), ("WRONG".into(), Type { size: 10.5, ..look.bold() })];
    for (down, (said, look)) in lines.iter().zip(said) {
        canvas::text(area, &said, (middle, top + down), look)?;
    }
    Ok(())
}

/// A mean without decimals that no reader compares.
fn short(mean: f64) -> String {
    if (0.05..99.95).contains(&mean.abs()) { format!("{mean:.1}") } else { number(mean) }
}

/// The share of points that differ.
fn heat(mismatches: f64, topk: usize) -> f64 {
    let share = mismatches / topk.max(1) as f64;
    if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
}

/// The colours and what they mean, with the line that a batch may reach.
fn scale(area: &Area<'_>, (left, top): Point, topk: usize, allowed: usize) -> Drawn {
    const STEPS: usize = 64;
    let width = 420.0;
    let at = |share: f64| left + share * width;
    for step in 0..STEPS {
        // Each to the end, over the last: side by side, seams would show.
        let from = step as f64 / STEPS as f64;
        canvas::filled(area, (at(from), top), (at(1.0), top + 14.0), palette::heat(from))?;
    }
    let v = at(heat(allowed as f64, topk));
    canvas::line(area, &[(v, top - 5.0), (v, top + 19.0)], INK, 2.0, false)?;
    canvas::text(area, &format!("v = {allowed} allowed"), (v, top - 13.0), Type::centred(TIGHT).bold())?;
    canvas::text(area, "0", (left, top + 24.0), Type::centred(TIGHT))?;
    canvas::text(area, &topk.to_string(), (at(1.0), top + 24.0), Type::centred(TIGHT))?;
    let said = Type::left(TIGHT).colour(MUTED);
    canvas::text(area, "mean mismatches of a batch", (at(1.0) + 28.0, top + 7.0), said)
}
