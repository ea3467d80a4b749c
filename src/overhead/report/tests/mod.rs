//! Facts of whole reports. How a page looks is `scripts/check-report`'s to judge, which has these tests write it samples.

mod headline;
mod hostile;
mod sample;

use std::path::Path;

use super::{html, markdown, summary};
use crate::overhead::{BackendOverhead, Cell, Estimate, Matrix, Overhead, Proofs, Role, Run};

/// What a report is made from, by the name that its sample has.
fn samples() -> Vec<(&'static str, Run, Vec<Cell>, Option<Matrix>)> {
    let mut wrong = sample::matrix();
    for cell in &mut wrong.cells {
        cell.passed = match (cell.role, cell.verifier.as_str()) {
            (Role::Control, "sglang") => 3,
            (Role::Honest, "candle kv=bf16") if cell.maker == "sglang" => 11,
            _ => cell.passed,
        };
    }
    let mut alone: Vec<Cell> = sample::cells().into_iter().filter(|cell| cell.backend == "candle").collect();
    for overhead in alone.iter_mut().filter_map(|cell| cell.overhead.as_mut()) {
        *overhead = bare(overhead);
    }
    let of_candle = &sample::run().overhead[0];
    let of_candle = BackendOverhead { overhead: bare(&of_candle.overhead), ..of_candle.clone() };
    let nothing = Run { overhead: Vec::new(), ..sample::run() };
    // Many loads, latencies that are far apart, and a serve that runs elsewhere.
    let loads =
        [1, 4, 16, 64].into_iter().flat_map(|concurrency| [32, 128, 512, 2048].map(|tokens| (concurrency, tokens)));
    let cells = loads.flat_map(sample::modes_at).map(|mut cell| {
        (cell.cpu_us_per_token.serve, cell.other_cpu_us_per_token.serve) = (None, None);
        cell.ttft_ms = sample::distribution(cell.requests, cell.ttft_ms.p50, 0.9);
        cell
    });
    let many: Vec<Cell> = cells.collect();
    let off = sample::cell("sglang", Proofs::Off, (4, 32));
    vec![
        ("full", sample::run(), sample::cells(), Some(sample::matrix())),
        ("large", sample::run(), sample::cells(), Some(sample::large_matrix())),
        ("wrong", sample::run(), sample::cells(), Some(wrong)),
        ("many", sample::run(), many, Some(sample::wide_matrix())),
        ("alone", Run { serve: None, overhead: vec![of_candle], ..sample::run() }, alone, None),
        ("bare", nothing.clone(), vec![off], None),
        ("empty", nothing, Vec::new(), Some(Matrix::default())),
    ]
}

/// Of too few pairs for intervals.
fn bare(overhead: &Overhead) -> Overhead {
    let bare = |estimate: Estimate| Estimate { low: None, high: None, ..estimate };
    Overhead {
        pairs: 3,
        time_pct: bare(overhead.time_pct),
        ttft_pct: bare(overhead.ttft_pct),
        cpu_us_per_token: bare(overhead.cpu_us_per_token),
        fin_cpu_us_per_token: bare(overhead.fin_cpu_us_per_token),
    }
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
        "honest: every verifier must accept them",
        "edges, weights a little off: what does the policy see?",
        "controls: no verifier may accept them",
        "± 8/16",
        // What the serve takes more, without the model's threads.
        ">\n893\n<",
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
    let matrix = sample::matrix_of(&[evil, "candle"], &["<i>"], &["</svg><b>"]);
    let page = html(&run, &cells, Some(&matrix)).unwrap();
    balanced(&page);
    assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("<i>") && !page.contains('\u{0}'));
    let text = markdown(&run, &cells, Some(&matrix));
    let outside = text.replace(&super::text::fenced(evil), "");
    assert!(!outside.replace("\\<", "").contains('<'), "{outside}");
}

#[test]
fn both_reports_have_the_same_tables_but_for_the_long_one() {
    let (run, cells, matrix) = (sample::run(), sample::cells(), sample::large_matrix());
    let (page, text) = (html(&run, &cells, Some(&matrix)).unwrap(), markdown(&run, &cells, Some(&matrix)));
    assert_eq!(page.matches("<table>").count(), 8);
    assert_eq!(text.matches("\n### ").count(), 7);
    assert!(page.contains("<details><summary>Each pair of maker and verifier (112 rows)</summary>"));
    assert!(text.ends_with("\nAll figures of each pair of maker and verifier are in `matrix.json`.\n"));
    let rows = page.split("<details>").next().unwrap().matches("<tr>").count();
    assert_eq!(rows, text.lines().filter(|line| line.starts_with("| ")).count() - 7);
}

#[test]
fn what_proofs_cost_over_all_loads_comes_first_in_its_table() {
    let text = markdown(&sample::run(), &sample::cells(), None);
    let (_, table) = text.split_once("### What proofs cost\n").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(2).take(3).collect();
    assert_eq!(
        rows,
        [
            "| sglang | all loads | 48 | 26.4 % (25.1 to 27.8) | 2.0 % (-0.5 to 4.8) | 1,460 (1,430 to 1,493) | 1,440 (1,260 to 1,638) |",
            "| candle | all loads | 48 | 0.4 % (0.2 to 0.7) | 0.1 % (-0.8 to 1.1) | 23.0 (21.5 to 24.6) | 24.0 (-66.0 to 123.0) |",
            "| sglang | 1 at once, 64 tokens | 12 | 30.0 % (27.6 to 32.6) | 2.0 % (-0.5 to 4.8) | 1,460 (1,430 to 1,493) | 1,440 (1,260 to 1,638) |",
        ]
    );
}

#[test]
fn a_terminal_is_told_the_answer_alone() {
    let mut run = sample::run();
    let mut cells = sample::cells();
    for backend in
        run.overhead.iter_mut().map(|of| &mut of.backend).chain(cells.iter_mut().map(|cell| &mut cell.backend))
    {
        if backend == "sglang" {
            *backend = "odd\u{1b}[2J\n".into();
        }
    }
    let said = summary(&run, &cells, Some(&sample::matrix()));
    assert!(said.starts_with("In process (candle), proofs add 0.4 % (95 % interval 0.2 to 0.7)"), "{said}");
    assert!(said.lines().nth(1).unwrap().starts_with("With odd [2J , proofs add 26.4 %"), "{said}");
    assert_eq!(said.lines().count(), 5, "{said}");
    assert!(said.ends_with(".\n") && !said.contains(['|', '\u{1b}']), "{said}");
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
