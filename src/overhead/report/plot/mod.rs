//! The plots, drawn with `plotters` as SVG that stands in the page itself.
//!
//! `plotters` knows no fonts here and measures in whole pixels: text is given room by a cautious guess of its width, and everything
//! is drawn at twice its size, which pages show at half.

mod axis;
mod bytes;
mod canvas;
mod heat;
mod latency;
mod legend;
mod overhead;
mod palette;
mod panel;
mod time;

use super::ReportError;
use super::view::View;
use canvas::Drawn;

/// A plot with what a reader needs to understand it alone.
pub(super) struct Figure {
    /// Its anchor in the page.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What it shows.
    pub(super) caption: String,
    /// The SVG, or why there is none.
    pub(super) drawing: Result<String, &'static str>,
}

/// All of them, in the order of a page.
pub(super) fn figures(view: &View<'_>) -> Result<Vec<Figure>, ReportError> {
    Ok(vec![
        figure("time", time::TITLE, time::caption(view), time::draw(view))?,
        figure("bytes", bytes::TITLE, bytes::caption(view), bytes::draw(view))?,
        figure("latency", latency::TITLE, latency::caption(view), latency::draw(view))?,
        figure("overhead", overhead::TITLE, overhead::caption(view), overhead::draw(view))?,
        figure("matrix", heat::TITLE, heat::caption(view), heat::draw(view))?,
    ])
}

/// `None` of a drawing is what has nothing to draw.
fn figure(
    id: &'static str,
    title: &'static str,
    caption: String,
    drawing: Drawn<Option<String>>,
) -> Result<Figure, ReportError> {
    let drawing = drawing.map_err(|error| ReportError::Plot { figure: id, reason: error.to_string() })?;
    Ok(Figure { id, title, caption, drawing: drawing.ok_or("Nothing was measured that this figure could show.") })
}
