//! Numbers, by the definition: what the standard library reads as f64, rounded by looking for the nearest bf16.

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Cut, bits, nearest};
use crate::backend::sglang::reply::number::{parse, to_bf16};
use crate::backend::sglang::reply::row::{RowError, RowParser};

/// How many random numbers are tried of each kind. More at will: `ENGY_ROUNDS=10000000`.
fn rounds() -> usize {
    std::env::var("ENGY_ROUNDS").map_or(20_000, |rounds| rounds.parse().unwrap())
}

/// Reads a row's text, without its opening bracket.
fn row(text: &str, width: usize, cut: Cut) -> Result<Vec<u16>, RowError> {
    let mut parser = RowParser::new(width);
    parser.begin();
    let mut read = 0;
    for piece in cut.pieces(text.as_bytes()) {
        if let Some(end) = parser.push(piece)? {
            assert_eq!(read + end, text.len());
            return Ok(bits(parser.row().unwrap()));
        }
        read += piece.len();
    }
    panic!("no end in {text}");
}

/// Checks that all these numbers are read as the definition says.
fn check(texts: &[String], seed: u64) {
    for texts in texts.chunks(300) {
        let expected: Vec<u16> = texts.iter().map(|text| nearest(text.parse().unwrap()).unwrap()).collect();
        for text in [texts.join(",") + "]", texts.join(" , ") + " ]"] {
            for cut in [Cut::Whole, Cut::Random(seed)] {
                let read = row(&text, texts.len(), cut).unwrap();
                let wrong = read.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(wrong.is_none(), "{}: {:?}, not {:?}", texts[wrong.unwrap()], read, expected);
            }
        }
    }
}

/// The ways in which programs write a value.
fn forms(value: f64) -> [String; 6] {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let short = format!("{:?}", value.abs());
    // As Python: at least two digits of exponent.
    let python = match short.split_once("e-") {
        Some((digits, exponent)) if exponent.len() == 1 => format!("{sign}{digits}e-0{exponent}"),
        _ => format!("{sign}{short}"),
    };
    let upper = format!("{value:E}").replace('E', "E+").replace("+-", "-");
    [format!("{value:?}"), format!("{value}"), format!("{value:e}"), format!("{value:.17e}"), upper, python]
}

#[test]
fn all_finite_values_come_back_from_what_f64_and_f32_print() {
    let all = (0..=u16::MAX).map(bf16::from_bits).filter(|value| value.is_finite());
    let mut texts = Vec::new();
    for value in all {
        let single = value.to_f32();
        let mut written = forms(value.to_f64()).to_vec();
        written.extend([format!("{single:?}"), format!("{single}"), format!("{single:e}")]);
        for text in &written {
            assert_eq!(nearest(text.parse().unwrap()), Some(value.to_bits()), "{text}");
        }
        texts.append(&mut written);
    }
    assert_eq!(texts.len(), 65_280 * 9);
    check(&texts, 1);
}

#[test]
fn middles_between_values_go_to_the_even_one_and_their_neighbours_to_the_nearer() {
    let mut texts = Vec::new();
    for bits in (0..0x7F7F).step_by(7) {
        let (value, next) = (bf16::from_bits(bits).to_f64(), bf16::from_bits(bits + 1).to_f64());
        let middle = f64::midpoint(value, next);
        assert!(value < middle && middle < next);
        for near in [middle.next_down(), middle, middle.next_up(), middle * (1.0 + 1e-9), middle * (1.0 - 1e-9)] {
            texts.extend(forms(near));
            texts.extend(forms(-near));
        }
        // In full, and with digits after it that are too small for f64 to see.
        texts.push(format!("{middle:.140}"));
        texts.push(format!("{middle:.180}1"));
        texts.push(format!("{middle:.60e}").replace('e', "0000001e"));
    }
    check(&texts, 2);
}

#[test]
fn random_numbers_are_read_as_the_definition_says() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for round in 0..rounds().div_ceil(300) {
        let mut texts = Vec::new();
        while texts.len() < 300 {
            // Any exponent of f64 that bf16 has room for, then one near to 1, then digits without a thought.
            let value = f64::from_bits(random.random());
            texts.extend(forms(value).into_iter().filter(|_| value.is_finite() && nearest(value).is_some()));
            texts.extend(forms(random.random_range(-20.0..20.0)));
            let mut digits = |longest| -> String {
                let count = random.random_range(1..=longest);
                (0..count).map(|_| char::from(random.random_range(b'0'..=b'9'))).collect()
            };
            let (whole, fraction, exponent) = (digits(24), digits(40), digits(1));
            let whole = format!("{}{}", ["", "-"][usize::from(fraction < whole)], whole.trim_start_matches('0'));
            let whole = if whole.ends_with(|last: char| last.is_ascii_digit()) { whole } else { whole + "0" };
            let small = &whole[..whole.len().min(4)];
            texts.extend([
                format!("{small}.{fraction}"),
                format!("{small}.{}", &fraction[..fraction.len().min(9)]),
                format!("{small}.{}", &fraction[..fraction.len().min(15)]),
                format!("{whole}.{fraction}"),
                format!("{whole}e-{fraction}").chars().take(whole.len() + 4).collect(),
                format!("{whole}.{fraction}e{exponent}"),
                format!("{whole}E+{exponent}"),
                whole.clone(),
            ]);
        }
        texts.iter_mut().filter(|text| text.ends_with('-')).for_each(|text| text.push('0'));
        check(&texts, round as u64);
    }
}

#[test]
fn rounding_agrees_with_the_definition_for_any_f64() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for _ in 0..rounds() {
        let any = f64::from_bits(random.random());
        // Exponents of bf16 alone, the low half of the mantissa often empty.
        let exponent = random.random_range(1023 - 140..1023 + 130u64);
        let mantissa = random.random::<u64>() >> 12
            & [u64::MAX, 0xF_FFFF_0000_0000, 0xF_E000_0000_0001][random.random_range(0..3)];
        for value in [any, f64::from_bits(exponent << 52 | mantissa)] {
            if !value.is_nan() {
                let rounded = Some(to_bf16(value)).filter(|rounded| rounded.is_finite());
                assert_eq!(rounded.map(bf16::to_bits), nearest(value), "{value:e}");
            }
        }
    }
}

#[test]
fn what_json_does_not_allow_is_no_number() {
    for text in [
        "", "-", "+1", "01", "-01", "00", "00.5", "-00.25", "1.", "-1.", ".5", "-.5", "1.e5", "1e", "1e+", "1e-", "1E",
        "1ee5", "1e5.0", "1.2.3", "--1", "1-", "1+", "0x10", "1_000", "infinity", "inf", "nan", "Null", "nul", "true",
        "1a", "1.5a", "1.5-", "e5",
    ] {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
        for text in [format!("0.5,{text},1.25,0.5,0.5,0.5]"), format!("{text},0.5]"), format!("1,{text}]")] {
            for cut in [Cut::Whole, Cut::Every(1)] {
                let read = row(&text, 6, cut);
                assert!(matches!(read, Err(RowError::Malformed { .. })), "{text} {read:?}");
            }
        }
    }
}

#[test]
fn what_bf16_cannot_hold_names_its_column() {
    let largest = bf16::MAX.to_f64();
    let middle = format!("{:?}", largest + largest * 2f64.powi(-9));
    for text in [
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e39",
        "-1e39",
        "1e999",
        "3.4028235e38",
        "999999999999999999999999999999999999999.0",
    ] {
        for cut in [Cut::Whole, Cut::Every(1)] {
            let error = row(&format!("1.5,2,{text},0.25]"), 4, cut).unwrap_err();
            assert_eq!(error, RowError::NonFinite { column: 2, found: text[..text.len().min(32)].to_owned() });
        }
    }
    assert!(nearest(middle.parse().unwrap()).is_some() && row(&format!("{middle}]"), 1, Cut::Whole).is_ok());
}

#[test]
fn an_endless_number_is_refused() {
    let text = "1".repeat(2000);
    for cut in [Cut::Whole, Cut::Every(1), Cut::Every(1000)] {
        assert!(matches!(row(&format!("{text}]"), 1, cut), Err(RowError::Malformed { .. })));
    }
    let long = format!("0.{}5]", "0".repeat(1000));
    assert_eq!(row(&long, 1, Cut::Every(3)), Ok(vec![0]));
}
