//! `engy-miner bench proof`: what a token's row costs the prover, on one core.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{anyhow, bail};
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cli::BenchProofArgs;
use crate::proof::{Proof, ProofBuilder, ProofError, ProofParams};

/// Batches of a run, unless a number of rows was asked for.
const BATCHES: usize = 64;
/// Rows take at most this, bytes: far more than any cache, and nothing that a machine would miss.
const MOST_BYTES: usize = 1 << 30;

/// What is printed as JSON; of random rows, `times` is for the bell-shaped ones.
#[derive(Serialize)]
struct Report {
    hidden: usize,
    topk: usize,
    #[serde(flatten)]
    times: Times,
    batch: usize,
    rows: usize,
    runs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    heavy_tailed: Option<Times>,
}

/// Microseconds a row.
#[derive(Serialize)]
struct Times {
    us_per_token: f64,
    us_scan: f64,
    us_interpolate: f64,
    us_floor: f64,
    gb_per_s: f64,
    proofs_sha256: String,
}

pub(super) fn run(args: &BenchProofArgs) -> anyhow::Result<ExitCode> {
    let prover = Prover { hidden: args.hidden, params: ProofParams { topk: args.topk, batch: args.batch } };
    // It names what it cannot work with.
    ProofBuilder::new(prover.params, prover.hidden)?;
    if args.runs == 0 {
        bail!("--runs 0 measures nothing: give at least 1");
    }
    let (name, first) = match &args.input {
        Some(path) => ("input", read(path, args.hidden)?),
        None => {
            let rows = args.rows.unwrap_or(args.batch.saturating_mul(BATCHES));
            ("gaussian", random(rows, args.hidden, gaussian)?)
        }
    };
    let rows = first.len() / args.hidden;
    prover.check(rows)?;
    if let Some(path) = &args.write {
        write_rows(path, &first).map_err(|error| anyhow!("cannot write the rows to {}: {error}", path.display()))?;
    }
    let times = prover.measure(&first, args.runs)?;
    // One kind at a time: both would take twice the memory.
    drop(first);
    let heavy_tailed = match args.input {
        Some(_) => None,
        None => Some(prover.measure(&random(rows, args.hidden, heavy_tailed)?, args.runs)?),
    };
    let report =
        Report { hidden: args.hidden, topk: args.topk, times, batch: args.batch, rows, runs: args.runs, heavy_tailed };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        print(&mut out, name, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, name: &str, report: &Report) -> std::io::Result<()> {
    let Report { hidden, topk, batch, rows, runs, .. } = report;
    writeln!(
        out,
        "us a token on one core: hidden {hidden}, top-k {topk}, batch {batch}; {rows} rows, fastest of {runs}"
    )?;
    writeln!(
        out,
        "{:<12} {:>8} {:>8} {:>11} {:>8} {:>12}",
        "rows", "total", "scan", "interpolate", "floor", "GB/s of rows"
    )?;
    for (name, times) in [(name, Some(&report.times)), ("heavy-tailed", report.heavy_tailed.as_ref())] {
        if let Some(times) = times {
            let Times { us_per_token, us_scan, us_interpolate, us_floor, gb_per_s, .. } = times;
            writeln!(
                out,
                "{name:<12} {us_per_token:>8.3} {us_scan:>8.3} {us_interpolate:>11.3} {us_floor:>8.3} {gb_per_s:>12.2}"
            )?;
        }
    }
    Ok(())
}

/// What rows are proven as.
struct Prover {
    hidden: usize,
    params: ProofParams,
}

impl Prover {
    /// Refuses a number of rows that leaves a batch without enough elements.
    fn check(&self, rows: usize) -> anyhow::Result<()> {
        let ProofParams { topk, batch } = self.params;
        let smallest = match rows % batch {
            0 => batch.min(rows),
            short => short,
        };
        if topk > smallest * self.hidden {
            bail!(
                "--topk {topk} is more than the {} elements of the smallest batch ({smallest} rows of {}): \
                 lower it, or give whole batches of more elements",
                smallest * self.hidden,
                self.hidden
            );
        }
        Ok(())
    }

    fn measure(&self, rows: &[bf16], runs: usize) -> Result<Times, ProofError> {
        let mut hash = Sha256::new();
        self.prove(rows, |proof| hash.update(proof.to_base64() + "\n"))?;
        let fastest = |run: &dyn Fn() -> Result<(), ProofError>| {
            let mut best = f64::INFINITY;
            for _ in 0..runs {
                let start = Instant::now();
                run()?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            Ok(best * 1e6 / (rows.len() / self.hidden) as f64)
        };
        let total = fastest(&|| self.prove(rows, |proof| drop(black_box(proof))))?;
        let scan = fastest(&|| self.scan(rows))?;
        let floor = fastest(&|| {
            self.sum(rows);
            Ok(())
        })?;
        let row_bytes = (self.hidden * size_of::<bf16>()) as f64;
        Ok(Times {
            us_per_token: rounded(total),
            us_scan: rounded(scan),
            us_interpolate: rounded(total - scan),
            us_floor: rounded(floor),
            gb_per_s: rounded(row_bytes / total / 1e3),
            proofs_sha256: format!("{:x}", hash.finalize()),
        })
    }

    fn prove(&self, rows: &[bf16], mut made: impl FnMut(Proof)) -> Result<(), ProofError> {
        let mut builder = ProofBuilder::new(self.params, self.hidden)?;
        for row in rows.chunks_exact(self.hidden) {
            if let Some(proof) = builder.push(black_box(row))? {
                made(proof);
            }
        }
        if let Some(proof) = builder.finish()? {
            made(proof);
        }
        Ok(())
    }

    /// The same without interpolation: a batch that stays open is never closed.
    fn scan(&self, rows: &[bf16]) -> Result<(), ProofError> {
        let batch = self.params.batch.min(rows.len() / self.hidden);
        let params = ProofParams { batch: batch + 1, ..self.params };
        for batch in rows.chunks(batch * self.hidden) {
            let mut builder = ProofBuilder::new(params, self.hidden)?;
            for row in batch.chunks_exact(self.hidden) {
                black_box(builder.push(black_box(row))?);
            }
            black_box(builder);
        }
        Ok(())
    }

    /// Reads every row and does next to nothing with it.
    fn sum(&self, rows: &[bf16]) {
        for row in rows.chunks_exact(self.hidden) {
            let row = black_box(row);
            black_box(row.iter().fold(0u16, |sum, value| sum.wrapping_add(value.to_bits())));
        }
    }
}

/// To three decimals: a clock tells no more.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Rows of one distribution, the same every time.
fn random(rows: usize, hidden: usize, draw: fn(&mut ChaCha8Rng) -> f64) -> anyhow::Result<Vec<bf16>> {
    if rows == 0 {
        bail!("--rows 0 measures nothing: give at least one batch");
    }
    let values = rows.checked_mul(hidden).filter(|values| *values <= MOST_BYTES / size_of::<bf16>());
    let Some(values) = values else {
        bail!("{rows} rows of {hidden} values are more than {MOST_BYTES} bytes: lower --rows, --batch or --hidden");
    };
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    Ok((0..values).map(|_| bf16::from_f64(draw(&mut rng) * 3.0)).collect())
}

/// Standard normal, by Box and Muller.
fn gaussian(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// A Student t of 3 degrees: outliers as final hidden states have them.
fn heavy_tailed(rng: &mut ChaCha8Rng) -> f64 {
    let spread: f64 = (0..3).map(|_| gaussian(rng).powi(2)).sum();
    gaussian(rng) / (spread / 3.0).sqrt()
}

/// A file's rows, every value finite.
fn read(path: &Path, hidden: usize) -> anyhow::Result<Vec<bf16>> {
    let file = path.display();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|opened| opened.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| anyhow!("cannot read rows from {file}: {error}"))?;
    if bytes.len() > MOST_BYTES {
        bail!("{file} has more than {MOST_BYTES} bytes: give a file of fewer rows");
    }
    let (pairs, rest) = bytes.as_chunks::<2>();
    if bytes.is_empty() || !rest.is_empty() || !pairs.len().is_multiple_of(hidden) {
        bail!(
            "{file} has {} bytes, no whole number of rows of {hidden} bf16 values: give --hidden its row's width",
            bytes.len()
        );
    }
    let rows: Vec<bf16> = pairs.iter().map(|pair| bf16::from_le_bytes(*pair)).collect();
    match rows.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(anyhow!(
            "{file} holds {} at row {}, column {}: only finite values can be proven, so look at what wrote it",
            rows[at],
            at / hidden,
            at % hidden
        )),
        None => Ok(rows),
    }
}

fn write_rows(path: &Path, rows: &[bf16]) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for value in rows {
        file.write_all(&value.to_le_bytes())?;
    }
    file.flush()
}
