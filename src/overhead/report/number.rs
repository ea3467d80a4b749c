//! Numbers as people read them: digits that say something, and a dash for what was not measured.

use crate::overhead::Estimate;

/// What stands where a number is missing.
pub(super) const MISSING: &str = "–";

/// Three digits that matter, thousands apart.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        MISSING.into()
    } else if size == 0.0 {
        "0".into()
    } else if !(1e-4..1e9).contains(&size) {
        format!("{value:.1e}")
    } else if size >= 99.95 {
        thousands(value)
    } else {
        fixed(value, decimals_for(size))
    }
}

/// The same without zeros at the end, as axes have them.
pub(super) fn tick(value: f64) -> String {
    let text = number(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

/// A count.
pub(super) fn count(value: usize) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in a unit that keeps the number short.
pub(super) fn bytes(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")];
    if !value.is_finite() {
        return MISSING.into();
    }
    let (size, unit) = UNITS.into_iter().find(|(size, _)| value.abs() >= *size).unwrap_or((1.0, "B"));
    format!("{} {unit}", number(value / size))
}

/// A share of 0 to 1 as percent.
pub(super) fn share(value: f64) -> String {
    if value.is_finite() { format!("{} %", tick(value * 100.0)) } else { MISSING.into() }
}

/// From the least to the greatest, or the one value that both read as; a dash for none.
pub(super) fn range(values: impl IntoIterator<Item = f64>, write: impl Fn(f64) -> String) -> String {
    let Some((low, high)) = extent(values) else { return MISSING.into() };
    let (low, high) = (write(low), write(high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// The least and the greatest of the values that are numbers.
pub(super) fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |found, value| match found {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// Both ends of an interval, where it has them and they are numbers.
pub(super) fn interval(estimate: &Estimate) -> Option<(f64, f64)> {
    estimate.low.zip(estimate.high).filter(|(low, high)| low.is_finite() && high.is_finite())
}

/// `0.3 % (-0.2 to 0.8)`, all three with as many decimals.
pub(super) fn percent(estimate: &Estimate) -> String {
    spelt(estimate, " %", "")
}

/// The same for who has not read how intervals are written: `0.3 % (95 % interval -0.2 to 0.8)`.
pub(super) fn percent_in_words(estimate: &Estimate) -> String {
    spelt(estimate, " %", "95 % interval ")
}

/// `1,440 µs (95 % interval 1,360 to 1,528)`.
pub(super) fn micros_in_words(estimate: &Estimate) -> String {
    spelt(estimate, " µs", "95 % interval ")
}

/// An estimate in microseconds: `12.3 (11.8 to 13.0)`.
pub(super) fn micros_estimate(estimate: &Estimate) -> String {
    spelt(estimate, "", "")
}

/// A percentage alone.
pub(super) fn percent_value(value: f64) -> String {
    percent(&Estimate { value, low: None, high: None })
}

fn spelt(estimate: &Estimate, unit: &str, word: &str) -> String {
    if !estimate.value.is_finite() {
        return MISSING.into();
    }
    let decimals = decimals_of(&parts(estimate));
    let value = shown(estimate.value, decimals);
    match interval(estimate) {
        Some((low, high)) => format!("{value}{unit} ({word}{} to {})", shown(low, decimals), shown(high, decimals)),
        None => format!("{value}{unit}"),
    }
}

fn parts(estimate: &Estimate) -> Vec<f64> {
    let ends = interval(estimate).map_or_else(Vec::new, |(low, high)| vec![low, high]);
    [vec![estimate.value], ends].concat()
}

/// An end of 0.04 must not read as 0.0: whether an interval holds zero is what readers look for.
fn decimals_of(values: &[f64]) -> usize {
    match extent(values.iter().map(|value| value.abs()).filter(|&size| size > 0.0)) {
        None => 0,
        Some((least, _)) if least >= 99.95 => 0,
        Some((least, _)) if least >= 0.05 => 1,
        Some((least, _)) if least >= 0.005 => 2,
        Some(_) => 3,
    }
}

fn shown(value: f64, decimals: usize) -> String {
    if value.abs() >= 1e9 { number(value) } else { fixed(value, decimals) }
}

fn decimals_for(size: f64) -> usize {
    match size {
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.09995 => 3,
        size if size >= 0.00995 => 4,
        _ => 5,
    }
}

fn fixed(value: f64, decimals: usize) -> String {
    if decimals == 0 && value.abs() >= 999.5 {
        return thousands(value);
    }
    let text = format!("{value:.decimals$}");
    // Rounded to nothing, a negative number would keep its sign.
    if text.chars().any(|c| c.is_ascii_digit() && c != '0') { text } else { text.trim_start_matches('-').into() }
}

fn thousands(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(value.abs().round() as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_matter() {
        let said = [0.0, 0.001_234, 0.5, 1.0, 12.34, 99.99, 1234.5, -61_300.0, 3e12, 1e-9, f64::NAN].map(number);
        assert_eq!(said, ["0", "0.00123", "0.500", "1.00", "12.3", "100", "1,235", "-61,300", "3.0e12", "1.0e-9", "–"]);
        assert_eq!([0.5, 1.0, 250.0, 0.0].map(tick), ["0.5", "1", "250", "0"]);
    }

    #[test]
    fn units_keep_numbers_short() {
        assert_eq!([8.06, 10_240.0, 2.5e6, f64::INFINITY].map(bytes), ["8.06 B", "10.2 kB", "2.50 MB", "–"]);
        assert_eq!(share(0.031), "3.1 %");
    }

    #[test]
    fn an_estimate_has_its_interval_in_brackets() {
        let said = |value, low, high| percent(&Estimate { value, low, high });
        assert_eq!(said(0.3, Some(-0.2), Some(0.8)), "0.3 % (-0.2 to 0.8)");
        assert_eq!(said(0.3, None, None), "0.3 %");
        assert_eq!(said(0.3, Some(f64::NAN), Some(0.8)), "0.3 %");
        assert_eq!(said(0.3, Some(0.012), Some(0.8)), "0.30 % (0.01 to 0.80)");
        assert_eq!(said(-0.000_01, Some(-0.1), Some(0.1)), "0.000 % (-0.100 to 0.100)");
        assert_eq!(said(0.0, Some(0.0), Some(0.0)), "0 % (0 to 0)");
        assert_eq!(said(f64::NAN, Some(0.0), Some(0.0)), "–");
    }

    #[test]
    fn a_range_of_equals_is_one_value() {
        assert_eq!(range([8.06, 8.061, f64::NAN], bytes), "8.06 B");
        assert_eq!(range([2.0, 1.0], bytes), "1.00 B to 2.00 B");
        assert_eq!(range([], bytes), "–");
    }
}
