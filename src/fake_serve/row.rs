//! Rows of hidden states and their text.
//!
//! A serve turns bf16 into Python floats and these into the shortest decimal text that reads back as the same f64. Of a backend's rows each
//! number is formatted; for made-up rows, of which tests write many, the texts of all 65,536 values are made once.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::bf16;

use super::seeded;
use crate::backend::FinRows;

/// One row, made when it is written.
#[derive(Debug, Clone)]
pub(super) enum Row {
    /// Of a [`Seeded`](super::Seeded) engine: what it knows of the prefix, and the row's width.
    Seeded { state: u64, hidden: usize },
    /// Of a backend.
    Held { rows: Arc<FinRows>, index: usize },
    /// With something wrong.
    Damaged { row: Box<Row>, damage: Damage },
}

/// What is wrong with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// This value is `null`, as NaN and infinity are written.
    Null { column: usize },
    /// This value is `NaN`, which is no JSON.
    Nan { column: usize },
    /// As many values, by leaving some out or repeating the first.
    Width { values: usize },
    /// The values of another row: these in reverse.
    Another,
}

impl Row {
    /// The values, undamaged.
    pub(super) fn values(&self) -> Vec<bf16> {
        match self {
            Self::Seeded { state, hidden } => {
                let mut values = Vec::with_capacity(*hidden);
                seeded::row(*state, *hidden, |value| values.push(value));
                values
            }
            Self::Held { rows, index } => rows.iter().nth(*index).unwrap_or_default().to_vec(),
            Self::Damaged { row, .. } => row.values(),
        }
    }

    /// Appends the row as a JSON list.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        let start = out.len();
        match self {
            Self::Seeded { state, hidden } => seeded::row(*state, *hidden, |value| text(value, out)),
            // One by one, as a serve's JSON library does it: what that takes is measured.
            Self::Held { rows, index } => {
                rows.iter().nth(*index).unwrap_or_default().iter().for_each(|value| format(*value, out));
            }
            Self::Damaged { row, damage } => damage.write(&row.values(), out),
        }
        // The comma after the last value.
        if out.len() > start {
            out.pop();
        }
        out.push(b']');
    }

    /// The row with something wrong.
    pub(super) fn damaged(&self, damage: Damage) -> Self {
        Self::Damaged { row: Box::new(self.clone()), damage }
    }
}

impl Damage {
    fn write(self, values: &[bf16], out: &mut Vec<u8>) {
        let width = match self {
            Self::Width { values } => values,
            Self::Null { .. } | Self::Nan { .. } => values.len(),
            Self::Another => return values.iter().rev().for_each(|&value| text(value, out)),
        };
        for (index, &value) in values.iter().cycle().take(width).enumerate() {
            match self {
                Self::Null { column } if column == index => out.extend_from_slice(b"null,"),
                Self::Nan { column } if column == index => out.extend_from_slice(b"NaN,"),
                _ => text(value, out),
            }
        }
    }
}

/// Texts of all values, each with a comma after it.
struct Texts {
    bytes: Vec<u8>,
    places: Vec<Range<u32>>,
}

/// Formats a value and appends it, and a comma.
fn format(value: bf16, out: &mut Vec<u8>) {
    // Not finite: null, here as in orjson. Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut *out, &value.to_f64());
    out.push(b',');
}

/// Appends a value's text and a comma, as [`format`] does, from memory.
fn text(value: bf16, out: &mut Vec<u8>) {
    static TEXTS: OnceLock<Texts> = OnceLock::new();
    let texts = TEXTS.get_or_init(Texts::new);
    if let Some(place) = texts.places.get(usize::from(value.to_bits())) {
        out.extend_from_slice(&texts.bytes[place.start as usize..place.end as usize]);
    }
}

impl Texts {
    fn new() -> Self {
        let (mut bytes, mut places) = (Vec::new(), Vec::with_capacity(1 << 16));
        for bits in 0..=u16::MAX {
            let start = bytes.len() as u32;
            format(bf16::from_bits(bits), &mut bytes);
            places.push(start..bytes.len() as u32);
        }
        Self { bytes, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(row: &Row) -> String {
        let mut out = Vec::new();
        row.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn held(values: &[f32]) -> Row {
        let values: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        Row::Held { rows: Arc::new(FinRows::new(values.len(), values).unwrap()), index: 0 }
    }

    #[test]
    fn numbers_are_written_as_a_real_serve_writes_them() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sglang/");
        let mut numbers = 0;
        for name in ["generate_length.body", "generate_one_prompt_token.body", "generate_aborted.body"] {
            let body = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
            let states = body.split_once("\"hidden_states\":[").unwrap().1.split_once("]],").unwrap().0;
            for number in states.split([',', '[', ']']).filter(|number| !number.is_empty()) {
                let value = bf16::from_f64(number.parse().unwrap());
                assert_eq!(written(&held(&[value.to_f32()])), format!("[{number}]"));
                numbers += 1;
            }
        }
        assert!(numbers > 10_000, "{numbers}");
    }

    #[test]
    fn damage_is_where_it_is_asked_for() {
        let row = held(&[1.0, -0.5, 3.0]);
        assert_eq!(written(&row), "[1.0,-0.5,3.0]");
        assert_eq!(written(&row.damaged(Damage::Null { column: 1 })), "[1.0,null,3.0]");
        assert_eq!(written(&row.damaged(Damage::Nan { column: 2 })), "[1.0,-0.5,NaN]");
        assert_eq!(written(&row.damaged(Damage::Width { values: 2 })), "[1.0,-0.5]");
        assert_eq!(written(&row.damaged(Damage::Width { values: 4 })), "[1.0,-0.5,3.0,1.0]");
        assert_eq!(written(&row.damaged(Damage::Width { values: 0 })), "[]");
        assert_eq!(written(&row.damaged(Damage::Another)), "[3.0,-0.5,1.0]");
        assert_eq!(written(&held(&[f32::NAN])), "[null]");
    }
}
