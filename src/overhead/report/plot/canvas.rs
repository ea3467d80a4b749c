//! Lines, boxes, marks and text at pixels of the page.

use std::io;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::element::DashedPathElement;
use plotters::prelude::{
    Circle, Color, DrawingArea, FontDesc, FontFamily, FontStyle, FontTransform, IntoDrawingArea, PathElement, Polygon,
    RGBColor, Rectangle, SVGBackend, ShapeStyle, TextStyle, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::palette::INK;

/// What drawing comes to.
pub(super) type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<io::Error>>;
/// A rectangle of pixels.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A place, in pixels of the page.
pub(super) type Point = (f64, f64);

/// Pixels drawn for each pixel shown.
pub(super) const FINE: f64 = 2.0;
/// Width of a figure.
pub(super) const WIDTH: f64 = 1080.0;
/// Usual size of text.
pub(super) const TEXT: f64 = 14.0;
/// Size of text beside data.
pub(super) const SMALL: f64 = 12.5;
/// Size of text in tight places.
pub(super) const TIGHT: f64 = 11.5;

/// An SVG of this height, drawn by `draw`.
pub(super) fn svg(height: f64, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Drawn<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (fine(WIDTH) as u32, fine(height) as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

/// Drawn pixels of shown ones.
pub(super) fn fine(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

fn at((x, y): Point) -> (i32, i32) {
    (fine(x), fine(y))
}

/// Room that a text may take. No font is known here; few have wider letters than this.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

/// How a text looks and which of its points is put in place.
#[derive(Clone, Copy)]
pub(super) struct Type {
    pub(super) size: f64,
    pub(super) colour: RGBColor,
    pub(super) bold: bool,
    pub(super) across: HPos,
    pub(super) down: VPos,
    /// From below upwards.
    pub(super) upright: bool,
}

impl Type {
    /// Dark text that begins at its point.
    pub(super) const fn left(size: f64) -> Self {
        Self { size, colour: INK, bold: false, across: HPos::Left, down: VPos::Center, upright: false }
    }

    pub(super) const fn right(size: f64) -> Self {
        Self { across: HPos::Right, ..Self::left(size) }
    }

    pub(super) const fn centred(size: f64) -> Self {
        Self { across: HPos::Center, ..Self::left(size) }
    }

    pub(super) const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub(super) const fn colour(self, colour: RGBColor) -> Self {
        Self { colour, ..self }
    }

    /// For `plotters`, which divides sizes by 1.24.
    pub(super) fn style(self) -> TextStyle<'static> {
        let weight = if self.bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = FontDesc::new(FontFamily::SansSerif, self.size * FINE * 1.24, weight);
        let font = if self.upright { font.transform(FontTransform::Rotate270) } else { font };
        font.color(&self.colour).pos(Pos::new(self.across, self.down))
    }
}

pub(super) fn text(area: &Area<'_>, text: &str, place: Point, look: Type) -> Drawn {
    area.draw_text(&super::super::text::clean(text), &look.style(), at(place))
}

pub(super) fn filled(area: &Area<'_>, from: Point, to: Point, colour: RGBColor) -> Drawn {
    area.draw(&Rectangle::new([at(from), at(to)], colour.filled()))
}

/// A line through points.
pub(super) fn line(area: &Area<'_>, points: &[Point], colour: RGBColor, thick: f64, dashed: bool) -> Drawn {
    let style = ShapeStyle { color: colour.to_rgba(), filled: false, stroke_width: fine(thick) as u32 };
    let points: Vec<(i32, i32)> = points.iter().map(|&point| at(point)).collect();
    if dashed {
        area.draw(&DashedPathElement::new(points, fine(6.0), fine(4.0), style))
    } else {
        area.draw(&PathElement::new(points, style))
    }
}

/// A box's outline. `plotters` gives rectangles no width of line.
pub(super) fn framed(area: &Area<'_>, from: Point, to: Point, colour: RGBColor, thick: f64) -> Drawn {
    line(area, &[from, (to.0, from.1), to, (from.0, to.1), from, (to.0, from.1)], colour, thick, false)
}

/// Shapes that tell series apart where colours do not.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Mark {
    pub(super) fn of(place: usize) -> Self {
        [Self::Circle, Self::Square, Self::Triangle, Self::Diamond][place % 4]
    }
}

/// A mark, full or hollow.
pub(super) fn mark(area: &Area<'_>, place: Point, mark: Mark, colour: RGBColor, hollow: bool) -> Drawn {
    shape(area, place, mark, 5.0, colour)?;
    if hollow { shape(area, place, mark, 3.0, WHITE) } else { Ok(()) }
}

fn shape(area: &Area<'_>, (x, y): Point, mark: Mark, size: f64, colour: RGBColor) -> Drawn {
    let corners: &[Point] = match mark {
        Mark::Circle => return area.draw(&Circle::new(at((x, y)), fine(size), colour.filled())),
        Mark::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        Mark::Triangle => &[(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        Mark::Diamond => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    };
    let corners: Vec<(i32, i32)> = corners.iter().map(|(dx, dy)| at((x + dx * size, y + dy * size))).collect();
    area.draw(&Polygon::new(corners, colour.filled()))
}
