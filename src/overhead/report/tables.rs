//! All figures as tables.

use super::answer::NO_INTERVAL;
use super::grid::{Grid, kind, passes};
use super::number::{MISSING, bytes, count, micros_estimate, number, percent};
use super::outcome::Outcome;
use super::table::Table;
use super::view::View;
use crate::overhead::{Cell, Distribution, Matrix, Overhead, Role};

/// What was measured of each mode at each load.
pub(super) fn of_cells(view: &View<'_>) -> Vec<Table> {
    vec![costs(view), speed(view), latency(view), processor(view), sizes(view)]
}

/// What the matrix has.
pub(super) fn of_matrix(matrix: &Matrix) -> Vec<Table> {
    Grid::new(Some(matrix)).map_or_else(Vec::new, |grid| vec![judged(&grid, matrix), variants(matrix), pairs(matrix)])
}

fn costs(view: &View<'_>) -> Table {
    let row = |backend: &str, load: String, overhead: &Overhead| {
        vec![
            backend.to_owned(),
            load,
            count(overhead.pairs),
            percent(&overhead.time_pct),
            percent(&overhead.ttft_pct),
            micros_estimate(&overhead.fin_cpu_us_per_token),
            micros_estimate(&overhead.cpu_us_per_token),
        ]
    };
    let all = view.backends().into_iter().filter_map(|backend| Some((backend, view.pooled(backend)?)));
    let all = all.map(|(backend, overhead)| row(backend, "all loads".into(), overhead));
    let each = sorted(view).into_iter();
    let each = each.filter_map(|cell| Some(row(&cell.backend, cell.load().name(), cell.overhead.as_ref()?)));
    let mut note = "Turns with proofs against turns without that followed one another: estimate (95 % interval). Processor \
                    time in microseconds a token: that of hidden states on their way to the proof (threads other than the \
                    model's, and copying rows out, without folding), and that of all threads, in which the model's own work \
                    varies by more."
        .to_owned();
    if view.lacks_intervals() {
        note = format!("{note} {NO_INTERVAL}");
    }
    Table {
        title: "What proofs cost",
        note,
        head: head(&[
            "backend",
            "load",
            "pairs",
            "time a token",
            "time to first token",
            "hidden states, µs",
            "all threads, µs",
        ]),
        names: 2,
        rows: all.chain(each).collect(),
        folded: false,
    }
}

fn speed(view: &View<'_>) -> Table {
    per_cell(
        view,
        "Speed",
        "Tokens a second over all requests at once: with the time to first tokens, and without it (decode).",
        &["turns", "answers", "answer tokens", "prompt tokens", "tokens/s", "decode tokens/s"],
        |cell| {
            vec![
                count(cell.turns),
                count(cell.requests),
                count(cell.tokens),
                number(cell.prompt_tokens),
                number(cell.tok_s),
                number(cell.decode_tok_s),
            ]
        },
    )
}

fn latency(view: &View<'_>) -> Table {
    let three = |distribution: &Distribution| {
        let Distribution { count, mean, p50, p99, .. } = distribution;
        [mean, p50, p99].map(|&value| if *count == 0 { MISSING.into() } else { number(value) })
    };
    per_cell(
        view,
        "Latency",
        "Milliseconds, mean, median and 99th percentile: to the first token, from a token to the next, and from the last \
         token to the response with ids and proofs.",
        &["first mean", "p50", "p99", "token mean", "p50", "p99", "response mean", "p50", "p99"],
        |cell| [&cell.ttft_ms, &cell.token_ms, &cell.last_token_to_response_ms].into_iter().flat_map(three).collect(),
    )
}

fn processor(view: &View<'_>) -> Table {
    per_cell(
        view,
        "Processor time and memory",
        "Processor time in microseconds a token, prompts included; other: of it, what threads took that are not the \
         model's; rows: getting hidden states, proof: folding them, both measured where it is done. Memory: the most that \
         was held.",
        &[
            "miner µs",
            "miner other µs",
            "serve µs",
            "serve other µs",
            "rows µs",
            "proof µs",
            "miner memory",
            "serve memory",
        ],
        |cell| {
            let known = |value: Option<f64>| value.map_or_else(|| MISSING.into(), number);
            vec![
                number(cell.cpu_us_per_token.miner),
                number(cell.other_cpu_us_per_token.miner),
                known(cell.cpu_us_per_token.serve),
                known(cell.other_cpu_us_per_token.serve),
                number(cell.rows_us_per_token),
                number(cell.proof_us_per_token),
                bytes(cell.peak_rss_bytes.miner as f64),
                cell.peak_rss_bytes.serve.map_or_else(|| MISSING.into(), |held| bytes(held as f64)),
            ]
        },
    )
}

fn sizes(view: &View<'_>) -> Table {
    per_cell(
        view,
        "Bytes a token",
        "What a serve replied, what of it (or in process) is hidden states, and the proof.",
        &["received", "hidden states", "proof"],
        |cell| {
            [cell.received_bytes_per_token, cell.fin_bytes_per_token, cell.proof_bytes_per_token].map(number).to_vec()
        },
    )
}

/// One row a cell, its mode and load before its figures.
fn per_cell(
    view: &View<'_>,
    title: &'static str,
    note: &str,
    columns: &[&str],
    figures: impl Fn(&Cell) -> Vec<String>,
) -> Table {
    let row = |cell: &Cell| [vec![cell.mode().name(), cell.load().name()], figures(cell)].concat();
    Table {
        title,
        note: note.into(),
        head: head(&[&["mode", "load"], columns].concat()),
        names: 2,
        rows: sorted(view).into_iter().map(row).collect(),
        folded: false,
    }
}

/// By load, then by mode, so that what is compared stands together.
fn sorted<'a>(view: &View<'a>) -> Vec<&'a Cell> {
    let modes = view.modes();
    let mut cells: Vec<&Cell> = view.cells.iter().collect();
    cells.sort_by_key(|cell| (cell.load(), modes.iter().position(|mode| *mode == cell.mode())));
    cells
}

fn judged(grid: &Grid<'_>, matrix: &Matrix) -> Table {
    let row = |(maker, role): (&str, Role)| {
        let name = if role == Role::Honest { maker.to_owned() } else { format!("{maker} ({})", kind(role)) };
        let cell = |verifier: &&str| {
            grid.cell(maker, verifier, role).map_or_else(
                || MISSING.into(),
                |cell| {
                    let wrong = if cell.is_right() { "" } else { " WRONG" };
                    format!("{} / {}, {}{wrong}", number(cell.mismatches_mean), cell.mismatches_max, passes(cell))
                },
            )
        };
        std::iter::once(name).chain(grid.verifiers.iter().map(cell)).collect()
    };
    Table {
        title: "Who accepts whose proofs",
        note: format!(
            "Makers down, verifiers across: mismatches a batch, mean / most, and answers that passed. A batch may have {}, \
             and {} of an answer's batches must keep to that. Every answer of a control must fail; the weights of a maker at \
             the edge are a little off, and what becomes of its answers is what there is to find out.",
            matrix.max_mismatches,
            super::number::share(matrix.pass_ratio)
        ),
        head: std::iter::once("maker").chain(grid.verifiers.iter().copied()).map(str::to_owned).collect(),
        names: 1,
        rows: grid.makers().map(row).collect(),
        folded: false,
    }
}

fn variants(matrix: &Matrix) -> Table {
    let row = |variant: &crate::overhead::Variant| {
        vec![variant.name.clone(), kind(variant.role).into(), variant.flags.clone()]
    };
    Table {
        title: "Variants",
        note: "A control's weights are not the checkpoint's; those at the edge are a little off.".into(),
        head: head(&["variant", "kind", "flags"]),
        names: 3,
        rows: matrix.variants.iter().map(row).collect(),
        folded: false,
    }
}

fn pairs(matrix: &Matrix) -> Table {
    let row = |cell: &crate::overhead::MatrixCell| {
        let known = |value: Option<f64>| value.map_or_else(|| MISSING.into(), number);
        let outcome = match cell.role {
            Role::Edge => Outcome::of(std::iter::once(cell)).name(),
            Role::Honest | Role::Control if cell.is_right() => "right",
            Role::Honest | Role::Control => "WRONG",
        };
        vec![
            cell.maker.clone(),
            cell.verifier.clone(),
            outcome.into(),
            count(cell.answers),
            count(cell.passed),
            count(cell.batches),
            number(cell.mismatches_mean),
            number(cell.mismatches_p99),
            count(cell.mismatches_max),
            known(cell.mantissa_mean),
            known(cell.mantissa_max),
        ]
    };
    Table {
        title: "Each pair of maker and verifier",
        note:
            "Mismatches: exponents of a batch that differ. Mantissas: their mean difference (0 to 127) where exponents \
               agree, and the largest mean of a batch."
                .into(),
        head: head(&[
            "maker",
            "verifier",
            "outcome",
            "answers",
            "passed",
            "batches",
            "mean",
            "p99",
            "most",
            "mantissa mean",
            "mantissa most",
        ]),
        names: 3,
        rows: matrix.cells.iter().map(row).collect(),
        folded: true,
    }
}

fn head(columns: &[&str]) -> Vec<String> {
    columns.iter().map(|&column| column.to_owned()).collect()
}
