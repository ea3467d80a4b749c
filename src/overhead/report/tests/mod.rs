//! Facts of whole reports. How a page looks is `scripts/check-report`'s to judge, which has these tests write it samples.

mod headline;
mod hostile;
mod sample;

use std::path::Path;

use super::{html, markdown};
use crate::overhead::{Cell, Estimate, Matrix, Proofs, Run};

/// What a report is made from, by the name that its sample has.
fn samples() -> Vec<(&'static str, Run, Vec<Cell>, Option<Matrix>)> {
    let mut wrong = sample::matrix();
    for cell in &mut wrong.cells {
        cell.passed = match (cell.control, cell.verifier.as_str()) {
            (true, "sglang") => 3,
            (false, "candle kv=bf16") if cell.maker == "sglang" => 11,
            _ => cell.passed,
        };
    }
    let mut alone: Vec<Cell> = sample::cells().into_iter().filter(|cell| cell.backend == "candle").collect();
    for cell in &mut alone {
        if let Some(overhead) = &mut cell.overhead {
            overhead.pairs = 3;
            for estimate in [&mut overhead.time_pct, &mut overhead.ttft_pct, &mut overhead.cpu_us_per_token] {
                *estimate = Estimate { low: None, high: None, ..*estimate };
            }
        }
    }
    // Many loads, latencies that are far apart, and a serve that runs elsewhere.
    let loads =
        [1, 4, 16, 64].into_iter().flat_map(|concurrency| [32, 128, 512, 2048].map(|tokens| (concurrency, tokens)));
    let cells = loads.flat_map(sample::modes_at).map(|mut cell| {
        cell.cpu_us_per_token.serve = None;
        cell.ttft_ms = sample::distribution(cell.requests, cell.ttft_ms.p50, 0.9);
        cell
    });
    let many: Vec<Cell> = cells.collect();
    let off = sample::cell("sglang", Proofs::Off, (4, 32));
    vec![
        ("full", sample::run(), sample::cells(), Some(sample::matrix())),
        ("large", sample::run(), sample::cells(), Some(sample::large_matrix())),
        ("wrong", sample::run(), sample::cells(), Some(wrong)),
        ("many", sample::run(), many, Some(sample::large_matrix())),
        ("alone", Run { serve: None, ..sample::run() }, alone, None),
        ("bare", sample::run(), vec![off], None),
        ("empty", sample::run(), Vec::new(), Some(Matrix::default())),
    ]
}

/// `scripts/check-report --samples` names a folder; there is nothing to write otherwise.
#[test]
fn samples_are_written_where_they_are_asked_for() {
    let Some(folder) = std::env::var_os("ENGY_REPORT_SAMPLES") else { return };
    for (name, run, cells, matrix) in samples() {
        let folder = Path::new(&folder).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("report.html"), html(&run, &cells, matrix.as_ref()).unwrap()).unwrap();
        std::fs::write(folder.join("report.md"), markdown(&run, &cells, matrix.as_ref())).unwrap();
    }
}

#[test]
fn every_page_is_whole_and_needs_nothing_else() {
    for (name, run, cells, matrix) in samples() {
        let page = html(&run, &cells, matrix.as_ref()).unwrap();
        balanced(&page);
        for id in ["time", "bytes", "latency", "overhead", "matrix"] {
            assert!(page.contains(&format!("<figure id=\"{id}\">")), "{name}: {id}");
        }
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("url("), "{name}");
        assert_eq!(
            page.matches("http").count(),
            page.matches("http://127").count() + page.matches("http://www.w3.org/2000/svg").count()
        );
        assert_eq!(page.matches("<svg ").count() + page.matches("class=\"nothing\"").count(), 5, "{name}");
        assert_eq!(page.matches("2026-07-25 17:20 UTC").count(), 6, "each figure says when: {name}");
        no_nonsense(&page);
        no_nonsense(&markdown(&run, &cells, matrix.as_ref()));
    }
}

#[test]
fn a_plot_without_data_says_so() {
    let page = |name| {
        let (_, run, cells, matrix) = samples().into_iter().find(|sample| sample.0 == name).unwrap();
        html(&run, &cells, matrix.as_ref()).unwrap()
    };
    assert!(!page("full").contains("class=\"nothing\""));
    assert_eq!(page("empty").matches("class=\"nothing\"").count(), 5);
    assert_eq!(page("bare").matches("class=\"nothing\"").count(), 3, "bytes, cost and matrix");
    assert_eq!(page("alone").matches("class=\"nothing\"").count(), 1, "the matrix");
}

#[test]
fn figures_show_what_was_measured() {
    let page = html(&sample::run(), &sample::cells(), Some(&sample::matrix())).unwrap();
    for text in [
        "sglang, no proofs",
        "candle, proofs",
        "First token: 8 at once, 256 tokens",
        "31.4 kB = 6.1 × bf16",
        "v = 40 allowed",
        "controls: no verifier may accept them",
        "0.48 % (-0.02 to 1.03)",
        "30.0 % (27.6 to 32.6)",
        "✗ 0/16",
        "2.1 %",
        "The JSON is 2,921 times the proof.",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("WRONG"));
}

#[test]
fn what_came_out_wrong_is_framed() {
    let (_, run, cells, matrix) = samples().into_iter().find(|sample| sample.0 == "wrong").unwrap();
    let page = html(&run, &cells, matrix.as_ref()).unwrap();
    let frames = page.matches("stroke=\"#D55E00\" stroke-width=\"8\"").count();
    assert_eq!(frames, 3);
    assert!(markdown(&run, &cells, matrix.as_ref()).contains("± 3/16 WRONG"));
}

#[test]
fn texts_of_files_stay_text() {
    let evil = "<script>alert('&')</script>|`x`\u{0}";
    let mut run = Run { command: evil.into(), model: evil.into(), serve: Some(evil.into()), ..sample::run() };
    run.machine.processor = evil.into();
    let mut cells = sample::cells();
    for cell in &mut cells {
        cell.backend = format!("{}{evil}", cell.backend);
    }
    let matrix = sample::matrix_of(&[evil, "candle"], &["</svg><b>"]);
    let page = html(&run, &cells, Some(&matrix)).unwrap();
    balanced(&page);
    assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains('\u{0}'));
    let text = markdown(&run, &cells, Some(&matrix));
    let outside = text.replace(&super::text::fenced(evil), "");
    assert!(!outside.replace("\\<", "").contains('<'), "{outside}");
}

#[test]
fn both_reports_have_the_same_tables() {
    let (page, text) = (
        html(&sample::run(), &sample::cells(), Some(&sample::matrix())).unwrap(),
        markdown(&sample::run(), &sample::cells(), Some(&sample::matrix())),
    );
    assert_eq!(page.matches("<table>").count(), 8);
    assert_eq!(text.matches("\n### ").count(), 8);
    assert_eq!(page.matches("<tr>").count(), text.lines().filter(|line| line.starts_with("| ")).count() - 8);
}

/// Tags close in order, attributes are quoted and no stray mark is left: what XML asks of each SVG, and more than HTML asks.
fn balanced(page: &str) {
    const EMPTY: [&str; 4] = ["meta", "link", "br", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    for piece in page.split('<').skip(1) {
        let (tag, rest) = piece.split_once('>').unwrap_or_else(|| panic!("an open tag: {piece}"));
        assert!(!rest.contains('>') || open.last() == Some(&"style"), "a stray mark: {rest}");
        for entity in rest.split('&').skip(1) {
            assert!(entity.split_once(';').is_some_and(|(name, _)| name.len() < 6), "an entity: {entity}");
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') && !EMPTY.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// No word of a float that is no number.
fn no_nonsense(text: &str) {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let found: Vec<&str> =
        words.filter(|word| matches!(*word, "NaN" | "nan" | "inf" | "None" | "Some" | "null")).collect();
    assert!(found.is_empty(), "{found:?}");
}
