//! One plot with its title and axes, drawn by `plotters`, and where values stand in it.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::{Cartesian2d, ChartBuilder, ChartContext, RGBColor, SVGBackend};
use plotters::style::ShapeStyle;

use super::axis::Axis;
use super::canvas::{self, Area, Drawn, FINE, Point, SMALL, TEXT, Type, fine};
use super::palette::{GRID, INK, MUTED};

/// From 0 to 1, with ticks that are given.
struct Unit(Vec<f64>);

impl Ranged for Unit {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * value).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.0.clone() }
    }

    fn range(&self) -> Range<f64> {
        0.0..1.0
    }
}

/// A rectangle of a figure: left, top, width, height.
pub(super) type Frame = (f64, f64, f64, f64);

/// A plot that has its axes.
pub(super) struct Panel<'a, 'b> {
    pub(super) area: &'b Area<'a>,
    pub(super) x: Axis,
    pub(super) y: Axis,
    chart: ChartContext<'b, SVGBackend<'a>, Cartesian2d<Unit, Unit>>,
}

impl<'a, 'b> Panel<'a, 'b> {
    /// Draws title and axes.
    pub(super) fn new(area: &'b Area<'a>, frame: Frame, title: &str, x: Axis, y: Axis) -> Drawn<Self> {
        let (left, top, width, height) = frame;
        canvas::text(area, title, (left, top + 12.0), Type::left(TEXT + 1.0).bold())?;
        let inner = area.clone().shrink((fine(left), fine(top + 24.0)), (fine(width), fine(height - 24.0)));
        let widest = y.ticks.iter().map(|(_, text)| canvas::width(text, SMALL)).fold(0.0, f64::max);
        let beside = widest + 14.0 + if y.title.is_empty() { 0.0 } else { 20.0 };
        let below = 24.0 + if x.title.is_empty() { 0.0 } else { 20.0 };
        // A tick at the end stands half beyond it.
        let last = x.ticks.iter().filter(|(place, _)| *place > 0.97).map(|(_, text)| canvas::width(text, SMALL) / 2.0);
        let after = last.fold(18.0, f64::max);
        let unit = |axis: &Axis| Unit(axis.ticks.iter().map(|(place, _)| *place).collect());
        let mut chart = ChartBuilder::on(&inner)
            .margin_left(fine(3.0))
            .margin_right(fine(after))
            .margin_top(fine(6.0))
            .x_label_area_size(fine(below))
            .y_label_area_size(fine(beside))
            .build_cartesian_2d(unit(&x), unit(&y))?;
        let label = |axis: &Axis, place: f64| {
            let found = axis.ticks.iter().find(|(tick, _)| (tick - place).abs() < 1e-9);
            found.map_or_else(String::new, |(_, text)| super::super::text::clean(text))
        };
        let (of_x, of_y) = (|place: &f64| label(&x, *place), |place: &f64| label(&y, *place));
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(GRID)
            .bold_line_style(stroke(GRID, 1.0))
            .axis_style(stroke(MUTED, 1.0))
            .label_style(Type::left(SMALL).style())
            .axis_desc_style(Type::left(SMALL).colour(MUTED).style())
            .x_label_formatter(&of_x)
            .y_label_formatter(&of_y)
            .set_all_tick_mark_size(fine(3.0));
        if !x.title.is_empty() {
            mesh.x_desc(x.title.as_str());
        }
        if !y.title.is_empty() {
            mesh.y_desc(y.title.as_str());
        }
        if !x.lines {
            mesh.disable_x_mesh();
        }
        if !y.lines {
            mesh.disable_y_mesh();
        }
        mesh.draw()?;
        Ok(Self { area, x, y, chart })
    }

    /// The pixel of two places between 0 and 1.
    pub(super) fn at(&self, across: f64, up: f64) -> Point {
        let (x, y) = self.chart.backend_coord(&(across, up));
        (f64::from(x) / FINE, f64::from(y) / FINE)
    }

    /// A bar from left to right between two places, `thick` pixels high around a height.
    pub(super) fn bar(&self, from: f64, to: f64, up: f64, thick: f64, colour: RGBColor) -> Drawn {
        let ((left, y), (right, _)) = (self.at(from, up), self.at(to, up));
        canvas::filled(self.area, (left, y - thick / 2.0), (right, y + thick / 2.0), colour)
    }

    /// Text right of a place.
    pub(super) fn note(&self, across: f64, up: f64, text: &str) -> Drawn {
        let (x, y) = self.at(across, up);
        canvas::text(self.area, text, (x + 5.0, y), Type::left(SMALL).colour(INK))
    }
}

fn stroke(colour: RGBColor, thick: f64) -> ShapeStyle {
    ShapeStyle { stroke_width: fine(thick) as u32, ..ShapeStyle::from(&colour) }
}
