//! Random damage to real replies: nothing panics, cuts make no difference, and what is still JSON is read as a plain
//! reader reads it.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::{Cut, fixture, plain_row, plain_rows, read_by, read_from, stream_from};
use crate::backend::sglang::reply::{PromptRows, ReplyReader};

/// How often. More at will: `ENGY_ROUNDS=1000000`.
fn rounds() -> u64 {
    std::env::var("ENGY_ROUNDS").map_or(3000, |rounds| rounds.parse().unwrap())
}

/// A recorded body with rows of this many values instead of 576.
fn narrow(name: &str, hidden: usize) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(&fixture(name)).unwrap();
    for element in json["meta_info"]["hidden_states"].as_array_mut().unwrap() {
        let rows = match element[0].is_array() {
            true => element.as_array_mut().unwrap().iter_mut().collect(),
            false => vec![element],
        };
        rows.into_iter().for_each(|row| row.as_array_mut().unwrap().truncate(hidden));
    }
    serde_json::to_vec(&json).unwrap()
}

/// Replaces, removes, repeats or moves a few bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    const PIECES: [&[u8]; 22] = [
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b"\"",
        b"\\",
        b"null",
        b"NaN",
        b"-",
        b"1e999",
        b"0.00048828125",
        b"[]",
        b"[[]]",
        b"\xff",
        b" ",
        b"\r\n",
        b"\"hidden_states\":",
        b"\"meta_info\":{",
        b"data: ",
        b"12345678901234567890.5e-3",
    ];
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..bytes.len());
        let end = (at + random.random_range(0..12)).min(bytes.len());
        let replacement = match random.random_range(0..4) {
            0 => vec![random.random()],
            1 => Vec::new(),
            2 => {
                let from = random.random_range(0..bytes.len());
                bytes[from..(from + random.random_range(0..200)).min(bytes.len())].to_vec()
            }
            _ => PIECES.choose(random).unwrap().to_vec(),
        };
        bytes.splice(at..end, replacement);
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
    if random.random_ratio(1, 10) {
        bytes.truncate(random.random_range(1..=bytes.len()));
    }
}

#[test]
fn damaged_bodies_are_read_or_refused() {
    const HIDDEN: usize = 6;
    let bodies = ["generate_length.body", "generate_one_prompt_token.body"].map(|name| narrow(name, HIDDEN));
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..rounds() {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut body = bodies.choose(&mut random).unwrap().clone();
        damage(&mut body, &mut random);
        let skip = [0, 0, 1, 3][random.random_range(0..4)];
        let whole = read_from(&body, HIDDEN, skip, Cut::Whole);
        for cut in [Cut::Every(1), Cut::Every(64), Cut::Random(seed)] {
            assert_eq!(read_from(&body, HIDDEN, skip, cut), whole, "seed {seed}");
        }
        match whole {
            (_, Err(error)) => {
                refused += 1;
                assert!(error.to_string().len() < 1000, "{error}");
            }
            (rows, Ok(reply)) => {
                accepted += 1;
                let found = reply.rows.unwrap_or_default();
                match serde_json::from_slice::<Value>(&body) {
                    Ok(json) if skip == 0 && found.rows > 0 && !found.first_row_missing => {
                        assert_eq!(rows, plain_rows(&json), "seed {seed}");
                    }
                    Ok(_) => {}
                    // It is JSON still, at least where it was read: rows that were passed over may hold anything.
                    Err(_) if skip > 0 || found.prompt_rows > 0 => {}
                    Err(_) => assert!(serde_json::from_slice::<IgnoredAny>(&body).is_ok(), "seed {seed}"),
                }
            }
        }
    }
    assert!(accepted > rounds() / 10 && refused > rounds() / 10, "{accepted} {refused}");
}

/// Of a prompt all rows are given from the wanted one on, or there is an error.
#[test]
fn damaged_prompts_are_read_whole_or_refused() {
    const HIDDEN: usize = 6;
    let body = narrow("generate_length.body", HIDDEN);
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..rounds() {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut body = body.clone();
        damage(&mut body, &mut random);
        let wanted = PromptRows { tokens: 16, from: [0, 5, 15][random.random_range(0..3)], new_tokens: 4 };
        let read = |cut| read_by(ReplyReader::of_prompt(HIDDEN, wanted), &body, cut);
        let whole = read(Cut::Whole);
        for cut in [Cut::Every(1), Cut::Every(64), Cut::Random(seed)] {
            assert_eq!(read(cut), whole, "seed {seed}");
        }
        match whole {
            (_, Err(_)) => refused += 1,
            (rows, Ok(reply)) if reply.rows.is_some() => {
                accepted += 1;
                assert_eq!(rows.len(), 16 - wanted.from, "seed {seed}");
                if let Ok(json) = serde_json::from_slice::<Value>(&body) {
                    let elements = json["meta_info"]["hidden_states"].as_array().unwrap().iter();
                    let plain =
                        elements.filter(|element| element[0].is_array()).flat_map(|rows| rows.as_array().unwrap());
                    let plain: Vec<_> = plain.take(16).skip(wanted.from).map(plain_row).collect();
                    assert_eq!(rows, plain, "seed {seed}");
                }
            }
            (rows, Ok(_)) => assert!(rows.is_empty(), "seed {seed}"),
        }
    }
    assert!(accepted > rounds() / 10 && refused > rounds() / 10, "{accepted} {refused}");
}

#[test]
fn damaged_streams_are_read_or_refused() {
    const HIDDEN: usize = 6;
    let body = narrow("generate_length.body", HIDDEN);
    let good = [b"data: ", &body[..], b"\n\ndata: ", &body, b"\r\n\r\n: x\n\ndata: [DONE]\n\n"].concat();
    for seed in 0..rounds() {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut bytes = good.clone();
        damage(&mut bytes, &mut random);
        let whole = stream_from(&bytes, HIDDEN, Cut::Whole);
        for cut in [Cut::Every(1), Cut::Random(seed)] {
            assert_eq!(stream_from(&bytes, HIDDEN, cut), whole, "seed {seed}");
        }
    }
}
