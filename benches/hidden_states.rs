//! How fast hidden states are read from an sglang serve's reply, on one core.
//!
//! `cargo bench --bench hidden_states` prints a table; with `-- --json`, the figures to keep; with `-- --write FILE`, it
//! measures nothing and writes the reply, for others to read. Outside `cargo bench` (`cargo test --benches`) it reads a
//! small reply once.

// A benchmark prints its figures, and a failure in it is a failure to measure.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod noise;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use engy_miner::backend::sglang::reply::{ReplyReader, StreamReader};
use half::bf16;
use noise::Noise;

const HIDDEN: usize = 2048;
/// The tokens of one call, by default.
const ROWS: usize = 4096;
/// As much as a read of a socket gives.
const CHUNK: usize = 64 << 10;
/// Runs per figure, of which the median counts.
const RUNS: usize = 11;

#[global_allocator]
static MEMORY: Counting = Counting { now: AtomicUsize::new(0), peak: AtomicUsize::new(0) };

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = |name| arguments.iter().position(|argument| argument == name);
    let quick = given("--bench").is_none();
    let (rows, runs) = if quick { (8, 1) } else { (ROWS, RUNS) };
    let answer = reply(1, rows);
    if let Some(at) = given("--write") {
        std::fs::write(&arguments[at + 1], answer).unwrap();
        return;
    }
    let read = Measured::of(runs, &answer, |body| read(body, 0, rows));
    if given("--json").is_some() {
        println!(
            "{{\"hidden\":{HIDDEN},\"rows\":{rows},\"bytes\":{},\"mb_per_s\":{:.1},\"us_per_row\":{:.3},\
             \"peak_extra_bytes\":{},\"sum_of_bits\":{}}}",
            answer.len(),
            read.megabytes_a_second(),
            read.seconds * 1e6 / rows as f64,
            read.peak,
            sum_of_bits(&answer)
        );
        return;
    }
    println!("hidden {HIDDEN}, {rows} rows, {:.1} MB in chunks of {CHUNK} bytes", answer.len() as f64 / 1e6);
    read.print("rows of an answer", rows);
    Measured::of(runs, &answer, |body| read_stream(body, rows)).print("an event of a stream", rows);
    Measured::of(runs, &answer, |body| self::read(body, rows, 0)).print("the same rows, skipped", rows);
    Measured::of(runs, &reply(rows - 1, 2), |body| self::read(body, 0, 2)).print("rows of a prompt", rows);
    Measured::of(runs, &answer, sum).print("floor: a sum of the bytes", rows);
}

/// What a run took.
struct Measured {
    bytes: usize,
    seconds: f64,
    /// Most memory beyond the body's, bytes.
    peak: usize,
}

impl Measured {
    fn of(runs: usize, body: &[u8], mut run: impl FnMut(&[u8])) -> Self {
        let before = MEMORY.reset_peak();
        let mut seconds: Vec<f64> = (0..runs)
            .map(|_| {
                let start = Instant::now();
                run(black_box(body));
                start.elapsed().as_secs_f64()
            })
            .collect();
        let peak = MEMORY.peak.load(Ordering::Relaxed) - before;
        seconds.sort_by(f64::total_cmp);
        Self { bytes: body.len(), seconds: seconds[runs / 2], peak }
    }

    fn megabytes_a_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    fn print(&self, name: &str, rows: usize) {
        let (speed, row) = (self.megabytes_a_second(), self.seconds * 1e6 / rows as f64);
        println!("{name:<26} {speed:>8.0} MB/s  {row:>7.2} us a row  {:>6.1} kB peak", self.peak as f64 / 1e3);
    }
}

/// Reads a reply, of which `given` rows must come after `skipped` were passed over.
fn read(body: &[u8], skipped: usize, given: usize) {
    let (mut reader, mut rows) = (ReplyReader::skipping(HIDDEN, skipped), 0);
    for chunk in body.chunks(CHUNK) {
        let sink = &mut |row: &[bf16]| {
            black_box(row);
            rows += 1;
        };
        reader.push(chunk, sink).unwrap();
    }
    let reply = black_box(reader.finish().unwrap());
    assert_eq!((rows, reply.rows.unwrap().rows), (given, skipped + given));
}

/// The same as an event of a stream.
fn read_stream(body: &[u8], given: usize) {
    let (mut reader, mut rows) = (StreamReader::new(HIDDEN), 0);
    let mut push = |mut chunk: &[u8]| {
        let sink = &mut |row: &[bf16]| {
            black_box(row);
            rows += 1;
        };
        black_box(reader.next(&mut chunk, sink).unwrap())
    };
    push(b"data: ");
    body.chunks(CHUNK).for_each(|chunk| assert!(push(chunk).is_none()));
    assert!(push(b"\n\n").is_some());
    assert_eq!(rows, given);
}

/// Shows that another reader reads the same values.
fn sum_of_bits(body: &[u8]) -> u64 {
    let (mut reader, mut sum) = (ReplyReader::new(HIDDEN), 0);
    reader.push(body, &mut |row| sum += row.iter().map(|x| u64::from(x.to_bits())).sum::<u64>()).unwrap();
    sum
}

fn sum(body: &[u8]) {
    black_box(body.iter().fold(0u64, |sum, &byte| sum + u64::from(byte)));
}

/// A serve's reply: `prompt` rows in a block, then vectors up to `rows` rows of an answer. Gaussian values of deviation
/// 3, written as Python's JSON writers do: the fewest digits that give back the f64.
fn reply(prompt: usize, rows: usize) -> Vec<u8> {
    let mut noise = Noise::new(7);
    let mut row = || {
        let mut text = String::from("[");
        for _ in 0..HIDDEN {
            write!(text, "{:?},", bf16::from_f64(noise.gaussian() * 3.0).to_f64()).unwrap();
        }
        text.pop();
        text + "]"
    };
    let block: Vec<String> = (0..prompt).map(|_| row()).collect();
    let mut body = format!(r#"{{"text":"{}","output_ids":["#, " token".repeat(rows));
    body += &vec!["9707"; rows].join(",");
    body += r#"],"meta_info":{"id":"0","finish_reason":{"type":"length","length":1},"output_token_logprobs":["#;
    body += &vec!["[-0.5688644051551819,9707,null]"; rows].join(",");
    write!(body, r#"],"completion_tokens":{rows},"hidden_states":[[{}]"#, block.join(",")).unwrap();
    for _ in 1..rows {
        body = body + "," + &row();
    }
    (body + r#"],"e2e_latency":0.5}}"#).into_bytes()
}

/// The system's allocator, with a count of what it holds.
struct Counting {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Forgets the peak so far: what is held now, bytes.
    fn reset_peak(&self) -> usize {
        let now = self.now.load(Ordering::Relaxed);
        self.peak.store(now, Ordering::Relaxed);
        now
    }
}

// SAFETY: each call is passed on to the system's allocator as it is; counting changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = self.now.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        self.peak.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.now.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the memory came from `alloc` above, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}
