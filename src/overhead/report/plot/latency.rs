//! How latencies are spread: cumulative curves, a pair of plots for each number of requests at once.

use super::super::text::shortened;
use super::super::view::{Load, Mode, View, distinct};
use super::axis::{Axis, drawable};
use super::canvas::{self, Area, Drawn, Mark, WIDTH};
use super::legend::{self, Entry, Sign};
use super::palette;
use super::panel::{Frame, Panel};
use crate::overhead::{Cell, Distribution};
use plotters::style::RGBColor;

pub(super) const TITLE: &str = "Latencies";

const HIGH: f64 = 290.0;

/// How a mode looks in all plots.
struct Look {
    colour: RGBColor,
    dashed: bool,
    mark: Mark,
}

impl Look {
    fn of(view: &View<'_>, mode: Mode<'_>) -> Self {
        let place = view.backends().iter().position(|backend| *backend == mode.backend).unwrap_or_default();
        let colour = palette::backend(mode.backend, place);
        Self {
            colour: if mode.is_proven() { colour } else { palette::lighter(colour, 0.35) },
            dashed: !mode.is_proven(),
            mark: Mark::of(place * 2 + usize::from(mode.is_proven())),
        }
    }
}

/// For each number of requests at once the length that most modes share.
fn loads(view: &View<'_>) -> Vec<Load> {
    distinct(view.loads().iter().map(|load| load.concurrency))
        .into_iter()
        .filter_map(|concurrency| view.shared_load(|load| load.concurrency == concurrency))
        .filter(|&load| {
            let drawn = |cell: &Cell| !curve(&cell.ttft_ms).is_empty() || !curve(&cell.token_ms).is_empty();
            view.cells.iter().any(|cell| cell.load() == load && drawn(cell))
        })
        .collect()
}

/// Milliseconds and the percentage that is not above them.
fn curve(distribution: &Distribution) -> Vec<(f64, f64)> {
    let last = distribution.percentiles.len().saturating_sub(1).max(1) as f64;
    let points = distribution.percentiles.iter().enumerate();
    points.filter_map(|(place, &value)| Some((drawable(value)?, place as f64 / last * 100.0))).collect()
}

pub(super) fn caption(_: &View<'_>) -> String {
    "Cumulative shares: how many requests had their first token (left), and how many tokens followed the one before (right), \
     within so many milliseconds. Further left is faster; lines that coincide mean that proofs change nothing. One pair of \
     plots for each number of requests at once."
        .into()
}

pub(super) fn draw(view: &View<'_>) -> Drawn<Option<String>> {
    let loads = loads(view);
    if loads.is_empty() {
        return Ok(None);
    }
    let entry = |mode: Mode<'_>| {
        let Look { colour, dashed, mark } = Look::of(view, mode);
        Entry { name: shortened(&mode.name(), 40), sign: Sign::Line { colour, dashed, mark } }
    };
    let entries: Vec<Entry> = view.modes().into_iter().map(entry).collect();
    let top = legend::height(WIDTH, &entries) + 10.0;
    let svg = canvas::svg(top + loads.len() as f64 * HIGH, |area| {
        legend::legend(area, (0.0, 0.0), WIDTH, &entries)?;
        for (place, &load) in loads.iter().enumerate() {
            let top = top + place as f64 * HIGH;
            let half = WIDTH / 2.0;
            let first = ("First token", "time to first token, ms", "requests, %");
            let next = ("Next tokens", "time from a token to the next, ms", "tokens, %");
            curves(area, (0.0, top, half, HIGH - 16.0), view, load, first, |cell| &cell.ttft_ms)?;
            curves(area, (half, top, half, HIGH - 16.0), view, load, next, |cell| &cell.token_ms)?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

fn curves(
    area: &Area<'_>,
    frame: Frame,
    view: &View<'_>,
    load: Load,
    (title, across, up): (&str, &str, &str),
    of: impl Fn(&Cell) -> &Distribution,
) -> Drawn {
    let found = |mode: Mode<'_>| Some((Look::of(view, mode), curve(of(view.find(mode, load)?))));
    let curves: Vec<_> = view.modes().into_iter().filter_map(found).filter(|(_, curve)| !curve.is_empty()).collect();
    let title = format!("{title}: {}", load.name());
    let values = curves.iter().flat_map(|(_, curve)| curve.iter().map(|point| point.0));
    let Some(x) = Axis::fitting(across, values) else {
        let (left, top, ..) = frame;
        canvas::text(area, &title, (left, top + 12.0), canvas::Type::left(canvas::TEXT + 1.0).bold())?;
        let said = canvas::Type::left(canvas::SMALL).colour(palette::MUTED);
        return canvas::text(area, "No such latency was measured.", (left, top + 40.0), said);
    };
    let panel = Panel::new(area, frame, &title, x, Axis::linear(up, 0.0, 100.0))?;
    for (place, (look, curve)) in curves.iter().enumerate() {
        let point = |&(value, share): &(f64, f64)| panel.at(panel.x.place(value), panel.y.place(share));
        let points: Vec<_> = curve.iter().map(point).collect();
        canvas::line(area, &points, look.colour, 2.0, look.dashed)?;
        // Marks at different heights, so that lines which coincide can be counted.
        if let Some(&place) = points.get((points.len() - 1) * (20 + place % 4 * 20) / 100) {
            canvas::mark(area, place, look.mark, look.colour, false)?;
        }
    }
    Ok(())
}
