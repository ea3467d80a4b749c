//! The page: the answer first, then plots, then tables.

use super::answer::answer;
use super::plot::{Figure, figures};
use super::view::View;
use super::{ReportError, provenance, tables, text};

const STYLE: &str = include_str!("page.css");

pub(super) fn page(view: &View<'_>) -> Result<String, ReportError> {
    let sentence = |said: super::answer::Statement| {
        let (class, role) = if said.alarm { (" class=\"alarm\"", " role=\"alert\"") } else { ("", "") };
        format!("<p{class}{role}>{}</p>\n", text::prose(&said.text))
    };
    let answer: String = answer(view).into_iter().map(sentence).collect();
    let facts: String = provenance::facts(view.run)
        .into_iter()
        .map(|(what, fact)| format!("<dt>{what}</dt><dd>{}</dd>\n", text::html(&fact)))
        .collect();
    let plots: String =
        figures(view)?.iter().enumerate().map(|(place, shown)| figure(view, place + 1, shown)).collect();
    let mut all: String = tables::of_cells(view).iter().map(super::table::Table::html).collect();
    if let Some(matrix) = view.matrix {
        all.extend(tables::of_matrix(matrix).iter().map(super::table::Table::html));
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>What a proof costs: {model}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>What a proof costs</h1>\n<section class=\"answer\">\n{answer}</section>\n{plots}\
         <h2>All figures</h2>\n{all}<h2>Where this comes from</h2>\n<dl>\n{facts}<dt>command</dt><dd><code>{command}</code></dd>\n\
         </dl>\n</main>\n</body>\n</html>\n",
        model = text::html(&view.run.model),
        command = text::html(&view.run.command),
    ))
}

/// A plot, what it shows, and where it comes from.
fn figure(view: &View<'_>, place: usize, figure: &Figure) -> String {
    let title = text::html(figure.title);
    let drawn = match &figure.drawing {
        Ok(svg) => svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1),
        Err(why) => format!("<p class=\"nothing\">{}</p>\n", text::html(why)),
    };
    format!(
        "<figure id=\"{}\">\n<h2>{place}. {title}</h2>\n{drawn}<figcaption>\n<p>{}</p>\n<p class=\"source\">{}<br>\
         <code>{}</code></p>\n</figcaption>\n</figure>\n",
        figure.id,
        text::prose(&figure.caption),
        text::html(&provenance::line(view.run)),
        text::html(&view.run.command)
    )
}
