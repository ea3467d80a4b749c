//! What a proof costs a token, on one core.
//!
//! `cargo bench --bench proof` prints a table; with `-- --json`, the one figure to keep.

// A benchmark prints its figures, and a failure in it is a failure to measure.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod noise;

use std::hint::black_box;
use std::time::Instant;

use engy_miner::proof::{DEFAULT_BATCH, DEFAULT_TOPK, ProofBuilder, ProofParams};
use half::bf16;
use noise::Noise;

const HIDDEN: usize = 2048;
/// Rows a run covers: 64 batches, 8 MB, so the rows come from beyond the L2 cache as
/// they would from a model.
const ROWS: usize = 64 * DEFAULT_BATCH;
/// Runs per figure; the fastest counts, as the rest only measure other work on the core.
const RUNS: usize = 15;

fn main() {
    let gaussian = rows(|noise| noise.gaussian() * 3.0);
    // A Student t of 3 degrees: outliers as final hidden states have them.
    let heavy = rows(|noise| {
        let spread: f64 = (0..3).map(|_| noise.gaussian().powi(2)).sum();
        noise.gaussian() * 3.0 / (spread / 3.0).sqrt()
    });
    let total = fastest(|| prove(&gaussian, DEFAULT_TOPK, DEFAULT_BATCH));
    if std::env::args().any(|arg| arg == "--json") {
        println!("{{\"hidden\":{HIDDEN},\"topk\":{DEFAULT_TOPK},\"us_per_token\":{total:.3}}}");
        return;
    }
    println!("us per token, hidden {HIDDEN}, top-k {DEFAULT_TOPK}, batch {DEFAULT_BATCH}");
    for (name, rows, total) in
        [("gaussian", &gaussian, total), ("heavy tail", &heavy, fastest(|| prove(&heavy, DEFAULT_TOPK, DEFAULT_BATCH)))]
    {
        // A batch left open is never interpolated, so its cost is the scan's.
        let scan = fastest(|| scan_only(rows));
        println!("{name:<11} total {total:.3}  scan {scan:.3}  interpolate {:.3}", total - scan);
    }
    println!("floor       {:.3}  (sum of the same rows)", fastest(|| sum(&gaussian)));
}

/// Microseconds a row of the fastest run.
fn fastest(mut run: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best * 1e6 / ROWS as f64
}

fn prove(rows: &[bf16], topk: usize, batch: usize) {
    let mut builder = ProofBuilder::new(ProofParams { topk, batch }, HIDDEN).unwrap();
    for row in rows.chunks_exact(HIDDEN) {
        black_box(builder.push(black_box(row)).unwrap());
    }
    black_box(builder.finish().unwrap());
}

/// Scans batches of the usual length without closing them.
fn scan_only(rows: &[bf16]) {
    let params = ProofParams { topk: DEFAULT_TOPK, batch: DEFAULT_BATCH + 1 };
    for batch in rows.chunks_exact(DEFAULT_BATCH * HIDDEN) {
        let mut builder = ProofBuilder::new(params, HIDDEN).unwrap();
        for row in batch.chunks_exact(HIDDEN) {
            black_box(builder.push(black_box(row)).unwrap());
        }
        black_box(builder);
    }
}

fn sum(rows: &[bf16]) {
    for row in rows.chunks_exact(HIDDEN) {
        let row = black_box(row);
        black_box(row.iter().fold(0u16, |sum, x| sum.wrapping_add(x.to_bits())));
    }
}

/// Rows of one distribution, the same every time.
fn rows(mut draw: impl FnMut(&mut Noise) -> f64) -> Vec<bf16> {
    let mut noise = Noise::new(7);
    (0..ROWS * HIDDEN).map(|_| bf16::from_f64(draw(&mut noise))).collect()
}
