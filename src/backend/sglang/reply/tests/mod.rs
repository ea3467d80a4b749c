//! The reader against other readings of the same bytes, and against bytes that no serve should send.

mod bodies;
mod errors;
mod fields;
mod fuzz;
mod layouts;
mod numbers;
mod prompts;
mod streams;

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::{Reply, ReplyError, ReplyReader, StreamEvent, StreamReader};

/// Rows as bits.
type Rows = Vec<Vec<u16>>;

/// How bytes are cut into pieces.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Whole,
    Every(usize),
    /// Pieces of 0 to 40 bytes, mostly, and now and then thousands.
    Random(u64),
}

impl Cut {
    const ALL: [Self; 7] = [
        Self::Whole,
        Self::Every(1),
        Self::Every(2),
        Self::Every(7),
        Self::Every(4096),
        Self::Random(1),
        Self::Random(2),
    ];

    fn pieces(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Whole => vec![bytes],
            Self::Every(length) => bytes.chunks(length).collect(),
            Self::Random(seed) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let (mut pieces, mut rest) = (Vec::new(), bytes);
                while !rest.is_empty() {
                    let longest = if random.random_ratio(1, 8) { 5000 } else { 40 };
                    let (piece, after) = rest.split_at(random.random_range(0..=longest.min(rest.len())));
                    pieces.push(piece);
                    rest = after;
                }
                pieces
            }
        }
    }
}

fn bits(row: &[bf16]) -> Vec<u16> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Reads a body: the rows that were given, and the reply or what was wrong.
fn read_from(body: &[u8], hidden: usize, skip: usize, cut: Cut) -> (Rows, Result<Reply, ReplyError>) {
    read_by(ReplyReader::skipping(hidden, skip), body, cut)
}

/// Reads a body with a reader.
fn read_by(mut reader: ReplyReader, body: &[u8], cut: Cut) -> (Rows, Result<Reply, ReplyError>) {
    let mut rows = Rows::new();
    for piece in cut.pieces(body) {
        if let Err(error) = reader.push(piece, &mut |row| rows.push(bits(row))) {
            assert_eq!(reader.push(b" ", &mut |_| panic!("a row after an error")), Err(error.clone()));
            return (rows, Err(error));
        }
    }
    (rows, reader.finish())
}

/// Reads a body in all ways of cutting it, which must make no difference.
fn read(body: &[u8], hidden: usize, skip: usize) -> (Rows, Result<Reply, ReplyError>) {
    let whole = read_from(body, hidden, skip, Cut::Whole);
    for cut in Cut::ALL {
        assert_eq!(read_from(body, hidden, skip, cut), whole, "{cut:?}");
    }
    whole
}

/// Reads a stream: the rows that were given, the events and what was wrong, if anything.
fn stream_from(bytes: &[u8], hidden: usize, cut: Cut) -> (Rows, Vec<StreamEvent>, Option<ReplyError>) {
    let (mut rows, mut events, mut reader) = (Rows::new(), Vec::new(), StreamReader::new(hidden));
    for mut piece in cut.pieces(bytes) {
        loop {
            match reader.next(&mut piece, &mut |row| rows.push(bits(row))) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (rows, events, Some(error)),
            }
        }
    }
    let error = match reader.finish() {
        Ok(event) => {
            events.extend(event);
            None
        }
        Err(error) => Some(error),
    };
    (rows, events, error)
}

/// Reads a stream in all ways of cutting it, which must make no difference.
fn stream(bytes: &[u8], hidden: usize) -> (Rows, Vec<StreamEvent>, Option<ReplyError>) {
    let whole = stream_from(bytes, hidden, Cut::Whole);
    for cut in Cut::ALL {
        assert_eq!(stream_from(bytes, hidden, cut), whole, "{cut:?}");
    }
    whole
}

/// A recorded reply.
fn fixture(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sglang/");
    std::fs::read(format!("{path}{name}")).unwrap()
}

/// The rows of an answer by a plain reading of its JSON: a block's last row, and vectors.
fn plain_rows(reply: &Value) -> Rows {
    let elements = reply["meta_info"]["hidden_states"].as_array().unwrap();
    elements
        .iter()
        .map(|element| {
            plain_row(if element[0].is_array() { element.as_array().unwrap().last().unwrap() } else { element })
        })
        .collect()
}

/// One row by a plain reading.
fn plain_row(row: &Value) -> Vec<u16> {
    row.as_array().unwrap().iter().map(|value| nearest(value.as_f64().unwrap()).unwrap()).collect()
}

/// The bits of the bf16 nearest to a value, the even one of two: found by looking for its neighbours. `None` from the
/// middle between the largest and what would come after it.
fn nearest(value: f64) -> Option<u16> {
    let exact = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
    let (magnitude, sign) = (value.abs(), u16::from(value.is_sign_negative()) << 15);
    // Bits of positive values have the order of the values.
    let (mut below, mut beyond) = (0u16, 0x7F80u16);
    while beyond - below > 1 {
        let middle = below + (beyond - below) / 2;
        if exact(middle) <= magnitude { below = middle } else { beyond = middle }
    }
    let next = if beyond == 0x7F80 { 2f64.powi(128) } else { exact(beyond) };
    let (down, up) = (magnitude - exact(below), next - magnitude);
    let rounded = if down < up || (down == up && below.is_multiple_of(2)) { below } else { beyond };
    (rounded < 0x7F80).then_some(rounded | sign)
}
