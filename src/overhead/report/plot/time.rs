//! Where a token's processor time goes, mode by mode: all of it, and the costs of hidden states alone.

use super::super::number::number;
use super::super::text::shortened;
use super::super::view::{Mode, View};
use super::axis::{Axis, drawable};
use super::canvas::{self, Area, Drawn, Point, SMALL, Type, WIDTH};
use super::legend::{self, Entry, Sign};
use super::palette::{MODEL, MUTED, PROOF, ROWS, SERVE};
use super::panel::Panel;
use crate::overhead::{Cell, Proofs};

pub(super) const TITLE: &str = "Where a token's processor time goes";

/// One bar, in microseconds a token.
struct Bar {
    mode: String,
    /// What is not rows or proof in this process, the model with candle.
    rest: f64,
    rows: f64,
    proof: f64,
    serve: f64,
    /// What the serve's threads other than the model's take more than without proofs, where both are known.
    serve_more: Option<f64>,
    /// What stands beside it.
    said: String,
}

impl Bar {
    fn new(mode: Mode<'_>, cell: &Cell) -> Option<Self> {
        let miner = drawable(cell.cpu_us_per_token.miner)?.max(0.0);
        let part = |value| drawable(value).unwrap_or_default().max(0.0);
        let (rows, proof) = (part(cell.rows_us_per_token), part(cell.proof_us_per_token));
        let serve = cell.cpu_us_per_token.serve.and_then(drawable).map(|value| value.max(0.0));
        let total = number(miner + serve.unwrap_or_default());
        // In process there is no serve whose time could be missing.
        let unknown = serve.is_none() && cell.received_bytes_per_token > 0.0;
        Some(Self {
            mode: shortened(&mode.name(), 26),
            rest: (miner - rows - proof).max(0.0),
            rows,
            proof,
            serve: serve.unwrap_or_default(),
            serve_more: None,
            said: if unknown { format!("{total} + serve, unknown") } else { total },
        })
    }

    fn total(&self) -> f64 {
        self.rest + self.rows + self.proof + self.serve
    }
}

fn bars(view: &View<'_>) -> Vec<Bar> {
    let Some(load) = view.shared_load(|_| true) else { return Vec::new() };
    // Of all threads, the difference would drown in what the model's own work varies by.
    let serve = |mode: Mode<'_>| view.find(mode, load)?.other_cpu_us_per_token.serve.and_then(drawable);
    let bar = |mode: Mode<'_>| {
        let without = serve(Mode { proofs: Proofs::Off, ..mode });
        let more = serve(mode).zip(without).filter(|_| mode.is_proven()).map(|(with, without)| with - without);
        Some(Bar { serve_more: more, ..Bar::new(mode, view.find(mode, load)?)? })
    };
    view.modes().into_iter().filter_map(bar).collect()
}

pub(super) fn caption(view: &View<'_>) -> String {
    let load = view.shared_load(|_| true).map_or_else(String::new, |load| format!("{}; ", load.name()));
    format!(
        "Left: processor time a token ({load}prompts included). With candle the model runs in the miner's process, with \
         sglang in the serve's. Right, on a scale of its own, what hidden states and proofs take: getting rows (copied out of \
         the model, or read from a serve's replies, ids included), folding them into proofs, and what the serve's threads \
         other than the model's take more than without proofs, where that is known."
    )
}

pub(super) fn draw(view: &View<'_>) -> Drawn<Option<String>> {
    let bars = bars(view);
    let names = || Axis::names("", bars.iter().rev().map(|bar| bar.mode.clone()).collect());
    let most = bars.iter().map(Bar::total).fold(0.0, f64::max);
    let room = if bars.iter().any(|bar| bar.said.contains("unknown")) { 1.7 } else { 1.2 };
    let Some(all) = Axis::from_zero("processor time, µs a token", [most * room]).filter(|_| most > 0.0) else {
        return Ok(None);
    };
    let with_serve = bars.iter().any(|bar| bar.serve > 0.0);
    let entries: Vec<Entry> = [
        ("model and all else of the miner", MODEL),
        ("serve (right: its other threads, more than without proofs)", SERVE),
        ("getting rows", ROWS),
        ("folding proofs", PROOF),
    ]
    .into_iter()
    .filter(|(_, colour)| with_serve || *colour != SERVE)
    .map(|(name, colour)| Entry { name: name.into(), sign: Sign::Box(colour) })
    .collect();
    let top = legend::height(WIDTH, &entries) + 10.0;
    let high = bars.len() as f64 * 56.0 + 90.0;
    let svg = canvas::svg(top + high, |area| {
        legend::legend(area, (0.0, 0.0), WIDTH, &entries)?;
        let left = Panel::new(area, (0.0, top, WIDTH * 0.52, high), "All of it", all, names())?;
        for (place, bar) in bars.iter().enumerate() {
            let up = 1.0 - Axis::slot(place, bars.len());
            let mut from = 0.0;
            for (part, colour) in [(bar.rest, MODEL), (bar.serve, SERVE), (bar.rows, ROWS), (bar.proof, PROOF)] {
                let to = from + part;
                left.bar(left.x.place(from), left.x.place(to), up, 26.0, colour)?;
                from = to;
            }
            left.note(left.x.place(from), up, &bar.said)?;
        }
        costs(area, (WIDTH * 0.52, top, WIDTH * 0.48, high), &bars, names())
    })?;
    Ok(Some(svg))
}

/// Rows and proofs alone, side by side on a logarithmic scale, where a bar of nothing is a 0.
fn costs(area: &Area<'_>, frame: super::panel::Frame, bars: &[Bar], names: Axis) -> Drawn {
    const TITLE: &str = "Hidden states and proofs alone";
    let values = || bars.iter().flat_map(|bar| [bar.rows, bar.proof, bar.serve_more.unwrap_or_default()]);
    let most = values().fold(0.0, f64::max);
    let Some(x) = Axis::log("µs a token, logarithmic", values().chain([most * 4.0])) else {
        let (left, top, ..) = frame;
        canvas::text(area, TITLE, (left, top + 12.0), Type::left(canvas::TEXT + 1.0).bold())?;
        let place: Point = (left, top + 40.0);
        return canvas::text(area, "No such cost was measured.", place, Type::left(SMALL).colour(MUTED));
    };
    let panel = Panel::new(area, frame, TITLE, x, names)?;
    for (place, bar) in bars.iter().enumerate() {
        let up = 1.0 - Axis::slot(place, bars.len());
        let parts = [(Some(bar.rows), ROWS), (Some(bar.proof), PROOF), (bar.serve_more, SERVE)];
        let parts: Vec<_> = parts.into_iter().filter_map(|(value, colour)| Some((value?, colour))).collect();
        for (part, (value, colour)) in parts.iter().enumerate() {
            let beside = (0.5 - Axis::slot(part, parts.len())) * 0.28 * parts.len() as f64 / bars.len() as f64;
            let to = panel.x.place(*value);
            panel.bar(0.0, to, up + beside, 13.0, *colour)?;
            panel.note(to, up + beside, &number(*value))?;
        }
    }
    Ok(())
}
