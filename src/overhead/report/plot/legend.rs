//! What colours and shapes mean.

use plotters::style::RGBColor;

use super::canvas::{self, Area, Drawn, Mark, Point, SMALL, Type};

/// One meaning.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) sign: Sign,
}

/// What stands before a name.
pub(super) enum Sign {
    Box(RGBColor),
    Line { colour: RGBColor, dashed: bool, mark: Mark },
    Mark(RGBColor, Mark),
}

impl Sign {
    fn width(&self) -> f64 {
        match self {
            Self::Line { .. } => 40.0,
            Self::Box(_) | Self::Mark(..) => 20.0,
        }
    }
}

/// Height of a line of entries.
const LINE: f64 = 22.0;

/// Height of a legend that is `width` wide.
pub(super) fn height(width: f64, entries: &[Entry]) -> f64 {
    places(width, entries).last().map_or(0.0, |(_, y)| y + LINE / 2.0)
}

/// Draws entries from left to right, in as many lines as they need within `width`.
pub(super) fn legend(area: &Area<'_>, (left, top): Point, width: f64, entries: &[Entry]) -> Drawn {
    for (entry, (x, y)) in entries.iter().zip(places(width, entries)) {
        let (x, y) = (left + x, top + y);
        match entry.sign {
            Sign::Box(colour) => canvas::filled(area, (x, y - 6.0), (x + 13.0, y + 6.0), colour)?,
            Sign::Mark(colour, mark) => canvas::mark(area, (x + 7.0, y), mark, colour, false)?,
            Sign::Line { colour, dashed, mark } => {
                canvas::line(area, &[(x, y), (x + 32.0, y)], colour, 2.0, dashed)?;
                canvas::mark(area, (x + 16.0, y), mark, colour, false)?;
            }
        }
        canvas::text(area, &entry.name, (x + entry.sign.width(), y), Type::left(SMALL))?;
    }
    Ok(())
}

/// Where each entry begins, within the legend.
fn places(width: f64, entries: &[Entry]) -> Vec<Point> {
    let (mut x, mut y) = (0.0, LINE / 2.0);
    let place = |entry: &Entry| {
        let room = entry.sign.width() + canvas::width(&entry.name, SMALL) + 18.0;
        if x > 0.0 && x + room > width {
            (x, y) = (0.0, y + LINE);
        }
        x += room;
        (x - room, y)
    };
    entries.iter().map(place).collect()
}
