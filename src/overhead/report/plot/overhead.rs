//! What proofs cost against the load, with intervals.

use super::super::answer::NO_INTERVAL;
use super::super::number::{interval, percent_value};
use super::super::text::shortened;
use super::super::view::{View, distinct};
use super::axis::{Axis, drawable};
use super::canvas::{self, Area, Drawn, Mark, SMALL, Type, WIDTH};
use super::legend::{self, Entry, Sign};
use super::palette::{self, INK};
use super::panel::{Frame, Panel};
use crate::overhead::{Cell, Estimate};
use plotters::style::RGBColor;

pub(super) const TITLE: &str = "What proofs cost at each load";

const HIGH: f64 = 300.0;
/// Series of a plot that can still be told apart.
const SERIES: usize = 4;

/// What a plot goes along, and what its series differ by.
struct Against<'a> {
    title: String,
    along: (&'static str, fn(&Cell) -> String),
    series: fn(&Cell) -> String,
    costs: &'a [(&'a Cell, Estimate)],
    colour: RGBColor,
}

/// The estimates of a backend that can be drawn, the lightest load first.
fn costs<'a>(view: &View<'a>, backend: &str) -> Vec<(&'a Cell, Estimate)> {
    let drawn = |estimate: &Estimate| drawable(estimate.value).is_some();
    let found = view.costs(backend).into_iter().map(|(cell, overhead)| (cell, overhead.time_pct));
    let mut costs: Vec<_> = found.filter(|(_, estimate)| drawn(estimate)).collect();
    costs.sort_by_key(|(cell, _)| cell.load());
    costs
}

pub(super) fn caption(view: &View<'_>) -> String {
    let mut said = "How much more time a token after the first takes with proofs, in percent of the time without: estimates with \
                    their 95 % intervals, against requests at once (left) and tokens of an answer (right). The dark line is no \
                    cost. Each backend has a scale of its own."
        .to_owned();
    if view.backends().iter().any(|backend| costs(view, backend).iter().any(|(_, cost)| interval(cost).is_none())) {
        said = format!("{said} Hollow marks have no interval. {NO_INTERVAL}");
    }
    said
}

pub(super) fn draw(view: &View<'_>) -> Drawn<Option<String>> {
    let backends = view.backends();
    let found = backends.iter().enumerate().map(|(place, backend)| (place, *backend, costs(view, backend)));
    let found: Vec<_> = found.filter(|(_, _, costs)| !costs.is_empty()).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let svg = canvas::svg(found.len() as f64 * HIGH, |area| {
        for (row, (place, backend, costs)) in found.iter().enumerate() {
            let top = row as f64 * HIGH;
            let colour = palette::backend(backend, *place);
            let backend = shortened(backend, 30);
            let concurrency = Against {
                title: format!("{backend}: against requests at once"),
                along: ("requests at once", |cell| cell.concurrency.to_string()),
                series: |cell| cell.load().answers(),
                costs,
                colour,
            };
            let length = Against {
                title: format!("{backend}: against the length of answers"),
                along: ("tokens of an answer", |cell| cell.new_tokens.to_string()),
                series: |cell| {
                    let how = if cell.streamed { "" } else { ", not streamed" };
                    format!("{} at once{how}", cell.concurrency)
                },
                costs,
                colour,
            };
            let half = WIDTH / 2.0;
            concurrency.draw(area, (0.0, top, half, HIGH - 16.0))?;
            length.draw(area, (half, top, half, HIGH - 16.0))?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

impl Against<'_> {
    fn draw(&self, area: &Area<'_>, (left, top, width, high): Frame) -> Drawn {
        let mut along: Vec<(usize, String)> = Vec::new();
        for (cell, _) in self.costs {
            let name = (self.along.1)(cell);
            if !along.iter().any(|(_, found)| *found == name) {
                along.push((name.parse().unwrap_or_default(), name));
            }
        }
        along.sort();
        let names: Vec<String> = along.into_iter().map(|(_, name)| name).collect();
        let series = spread(distinct(self.costs.iter().map(|(cell, _)| (self.series)(cell))));
        let shade =
            |place: usize| palette::lighter(self.colour, 0.45 * (1.0 - (place + 1) as f64 / series.len() as f64));
        let entry = |(place, name): (usize, &String)| Entry {
            name: name.clone(),
            sign: Sign::Mark(shade(place), Mark::of(place)),
        };
        let entries: Vec<Entry> = series.iter().enumerate().map(entry).collect();
        let (width, under) = (width - 10.0, legend::height(width - 10.0, &entries));
        legend::legend(area, (left + 60.0, top + high - under), width - 60.0, &entries)?;

        let ends = self.costs.iter().flat_map(|(_, cost)| {
            let (low, high) = interval(cost).unwrap_or((cost.value, cost.value));
            [low, cost.value, high]
        });
        let Some(y) = Axis::from_zero("more time a token, %", ends) else { return Ok(()) };
        let x = Axis::names(self.along.0, names.clone());
        let panel = Panel::new(area, (left, top, width, high - under - 4.0), &self.title, x, y)?;
        let zero = panel.y.place(0.0);
        canvas::line(area, &[panel.at(0.0, zero), panel.at(1.0, zero)], INK, 1.5, false)?;
        let slot = (panel.at(1.0, 0.0).0 - panel.at(0.0, 0.0).0) / (names.len() * series.len()) as f64;
        for (cell, cost) in self.costs {
            let Some(name) = names.iter().position(|name| *name == (self.along.1)(cell)) else { continue };
            let Some(place) = series.iter().position(|name| *name == (self.series)(cell)) else { continue };
            let beside = (Axis::slot(place, series.len()) - 0.5) * 0.8 / names.len() as f64;
            let across = Axis::slot(name, names.len()) + beside;
            let at = |value| panel.at(across, panel.y.place(value));
            let ends = interval(cost);
            if let Some((low, high)) = ends {
                let ((x, low), (_, high)) = (at(low), at(high));
                for stroke in
                    [[(x, low), (x, high)], [(x - 5.0, low), (x + 5.0, low)], [(x - 5.0, high), (x + 5.0, high)]]
                {
                    canvas::line(area, &stroke, shade(place), 2.0, false)?;
                }
            }
            let (x, y) = at(cost.value);
            canvas::mark(area, (x, y), Mark::of(place), shade(place), ends.is_none())?;
            let said = percent_value(cost.value);
            if slot * 0.8 > canvas::width(&said, SMALL) + 16.0 {
                // Beside the zero line and not on it.
                let y = if (y - at(0.0).1).abs() < 8.0 { at(0.0).1 - 9.0 } else { y };
                canvas::text(area, &said, (x + 9.0, y), Type::left(SMALL))?;
            }
        }
        Ok(())
    }
}

/// At most [`SERIES`] of them, from the first to the last.
fn spread(names: Vec<String>) -> Vec<String> {
    if names.len() <= SERIES {
        return names;
    }
    let last = names.len() - 1;
    (0..SERIES).map(|place| names[place * last / (SERIES - 1)].clone()).collect()
}
