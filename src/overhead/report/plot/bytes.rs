//! What a token's hidden states and their proof weigh.

use super::super::answer::OVER_HTTP;
use super::super::number;
use super::super::view::View;
use super::axis::{Axis, drawable};
use super::canvas::{self, Drawn, WIDTH};
use super::palette::{MODEL, PROOF, ROWS};
use super::panel::Panel;
use plotters::style::RGBColor;

pub(super) const TITLE: &str = "Bytes a token";

/// A bar: its name, bytes and colour.
type Bar = (&'static str, f64, RGBColor);

/// What was measured, and what a row takes as the model has it.
fn bars(view: &View<'_>) -> Vec<Bar> {
    // Bytes hardly depend on the load: the middle of all loads stands for them.
    let middle = |values: Vec<f64>| {
        let mut values: Vec<f64> = values.into_iter().filter_map(drawable).filter(|&value| value > 0.0).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let json = middle(view.proven(OVER_HTTP).map(|cell| cell.fin_bytes_per_token).collect());
    let proven = view.cells.iter().filter(|cell| cell.mode().is_proven());
    let proof = middle(proven.map(|cell| cell.proof_bytes_per_token).collect());
    let plain = Some(view.run.hidden as f64 * 2.0).and_then(drawable).filter(|&value| value > 0.0);
    [
        ("hidden state as JSON over HTTP (sglang)", json, ROWS),
        ("hidden state as bf16 (2 bytes a value)", plain, MODEL),
        ("proof", proof, PROOF),
    ]
    .into_iter()
    .filter_map(|(name, value, colour)| Some((name, value?, colour)))
    .collect()
}

pub(super) fn caption(view: &View<'_>) -> String {
    let bars = bars(view);
    let of = |place: &str| bars.iter().find(|(name, ..)| name.starts_with(place)).map(|(_, value, _)| *value);
    let mut said = format!(
        "Bytes that one token's row of fin takes, and its share of a proof (a proof covers a batch of tokens), on a \
         logarithmic axis. A row has {} values.",
        number::count(view.run.hidden)
    );
    if let Some((json, proof)) = of("hidden state as JSON").zip(of("proof")) {
        said += &format!(" The JSON is {} times the proof.", number::number(json / proof));
    }
    said
}

pub(super) fn draw(view: &View<'_>) -> Drawn<Option<String>> {
    let bars = bars(view);
    // The size of a row is arithmetic: alone it is no measurement.
    if !bars.iter().any(|(name, ..)| !name.contains("bf16")) {
        return Ok(None);
    }
    let most = bars.iter().map(|(_, value, _)| *value).fold(0.0, f64::max);
    let Some(x) = Axis::log("bytes a token, logarithmic", bars.iter().map(|bar| bar.1).chain([most * 10.0])) else {
        return Ok(None);
    };
    let plain = view.run.hidden as f64 * 2.0;
    let high = bars.len() as f64 * 44.0 + 80.0;
    let svg = canvas::svg(high, |area| {
        let names = Axis::names("", bars.iter().rev().map(|(name, ..)| (*name).to_owned()).collect());
        let panel = Panel::new(area, (0.0, 0.0, WIDTH, high), "One token", x, names)?;
        for (place, (name, value, colour)) in bars.iter().enumerate() {
            let up = 1.0 - Axis::slot(place, bars.len());
            let to = panel.x.place(*value);
            panel.bar(0.0, to, up, 24.0, *colour)?;
            let times = value / plain;
            let said = match number::bytes(*value) {
                said if name.contains("JSON") && times.is_finite() => format!("{said} = {times:.1} × bf16"),
                said => said,
            };
            panel.note(to, up, &said)?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}
