//! Axes: where a value stands between 0 and 1, and which values are written beside the axis.
//!
//! `plotters` gets ranges of 0 to 1 alone, so that no number from a file, however large, reaches its own search for ticks.

use super::super::number::{count, extent, tick};

/// Beyond this no measured number is believed, and none is drawn.
const BELIEVED: f64 = 1e15;

/// A number that can be drawn.
pub(super) fn drawable(value: f64) -> Option<f64> {
    (value.is_finite() && value.abs() <= BELIEVED).then_some(value)
}

/// An axis.
pub(super) struct Axis {
    pub(super) title: String,
    /// Places between 0 and 1, and what is written there.
    pub(super) ticks: Vec<(f64, String)>,
    /// Whether lines go through the plot at ticks.
    pub(super) lines: bool,
    scale: Scale,
}

enum Scale {
    Linear {
        low: f64,
        high: f64,
    },
    /// Ends as logarithms.
    Log {
        low: f64,
        high: f64,
    },
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            // What is not above 0 stands at the lower end, which stands for nothing.
            Self::Log { low, high } => (value.max(f64::MIN_POSITIVE).log10() - low) / (high - low),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }
}

impl Axis {
    /// From 0, or from the least value where it is below, to the greatest.
    pub(super) fn from_zero(title: &str, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = extent(values.into_iter().filter_map(drawable))?;
        Some(Self::linear(title, low.min(0.0), high.max(0.0)))
    }

    /// Wide enough for both, linear, ending at ticks.
    pub(super) fn linear(title: &str, low: f64, high: f64) -> Self {
        // Values that are one have room around them all the same.
        let room = if high - low > low.abs().max(high.abs()) * 1e-6 { 0.0 } else { low.abs().max(1.0) / 2.0 };
        let (low, high) = (low - if low < 0.0 || high > 0.0 && low > 0.0 { room } else { 0.0 }, high + room);
        let step = round_step((high - low) / 5.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let scale = Scale::Linear { low: first * step, high: last * step };
        let steps = (last - first).clamp(1.0, 12.0) as usize;
        let ticks = (0..=steps).map(|place| (first + place as f64) * step);
        let ticks = ticks.map(|value| (scale.place(value), stepped(value, step))).collect();
        Self { title: title.into(), ticks, lines: true, scale }
    }

    /// For values above 0 on a logarithmic axis; the least has a bar that can be seen.
    pub(super) fn log(title: &str, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = extent(values.into_iter().filter_map(drawable).filter(|&value| value > 1e-15))?;
        let (low, high) = ((low.log10() - 0.3).floor(), high.log10().ceil());
        let scale = Scale::Log { low, high: high.max(low + 1.0) };
        let every = ((high - low) / 8.0).ceil().max(1.0) as usize;
        let ticks = (low as i32..=high.max(low + 1.0) as i32).step_by(every);
        let ticks = ticks.map(|exponent| 10f64.powi(exponent)).map(|value| (scale.place(value), tick(value))).collect();
        Some(Self { title: title.into(), ticks, lines: true, scale })
    }

    /// Linear, or logarithmic where values are far from one another.
    pub(super) fn fitting(title: &str, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (low, high) = extent(values.into_iter().filter_map(drawable))?;
        if low > 0.0 && high / low > 30.0 {
            let (low, high) = (one_two_five(low.log10(), false), one_two_five(high.log10(), true));
            let scale = Scale::Log { low, high };
            let mut values = Vec::new();
            for exponent in low.floor() as i32..=high.ceil() as i32 {
                let digits: &[f64] = if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                values.extend(digits.iter().map(|digit| digit * 10f64.powi(exponent)));
            }
            values.retain(|value| (low - 1e-9..=high + 1e-9).contains(&value.log10()));
            let every = values.len().div_ceil(9);
            let ticks =
                values.into_iter().step_by(every.max(1)).map(|value| (scale.place(value), tick(value))).collect();
            let title = format!("{title}, logarithmic");
            return Some(Self { title, ticks, lines: true, scale });
        }
        Some(Self::linear(title, low, high))
    }

    /// Names at equal distances, without lines.
    pub(super) fn names(title: &str, names: Vec<String>) -> Self {
        let all = names.len();
        let ticks = names.into_iter().enumerate().map(|(place, name)| (Self::slot(place, all), name)).collect();
        Self { title: title.into(), ticks, lines: false, scale: Scale::Linear { low: 0.0, high: 1.0 } }
    }

    /// The middle of a name's share of an axis.
    pub(super) fn slot(place: usize, all: usize) -> f64 {
        (place as f64 + 0.5) / all.max(1) as f64
    }

    /// Where a value stands, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        self.scale.place(value)
    }
}

/// A step of 1, 2 or 5 at its first digit, at least as large.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9)).unwrap_or(10.0);
    digit * power
}

/// The next number below (or above) whose digit is 1, 2 or 5; both as logarithms.
fn one_two_five(log: f64, up: bool) -> f64 {
    let digits = [0.0, 2f64.log10(), 5f64.log10(), 1.0].map(|digit| digit + log.floor());
    let found = if up {
        digits.into_iter().find(|&digit| digit >= log - 1e-9)
    } else {
        digits.into_iter().rfind(|&digit| digit <= log + 1e-9)
    };
    found.unwrap_or(log)
}

/// A tick with as many decimals as its step has.
fn stepped(value: f64, step: f64) -> String {
    if !(1e-6..1e9).contains(&step) {
        return tick(value);
    }
    if step >= 1.0 {
        let sign = if value <= -0.5 { "-" } else { "" };
        return format!("{sign}{}", count(value.abs().round() as usize));
    }
    let decimals = (-step.log10()).ceil().max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    if value.abs() < step / 2.0 { text.trim_start_matches('-').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        assert_eq!(ticks(&Axis::from_zero("", [3.0, 41.0]).unwrap()), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(ticks(&Axis::linear("", -0.2, 0.8)), ["-0.2", "0.0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(ticks(&Axis::log("", [8.0, 61_000.0]).unwrap()), ["1", "10", "100", "1,000", "10,000", "100,000"]);
        assert_eq!(ticks(&Axis::fitting("", [3.0, 190.0]).unwrap()), ["2", "5", "10", "20", "50", "100", "200"]);
    }

    #[test]
    fn values_that_are_one_have_room() {
        for value in [0.0, 20.0, 1e-12, -7.0, 1e15] {
            let axis = Axis::linear("", value, value);
            assert!(axis.ticks.len() > 1, "{value}: {:?}", axis.ticks);
            assert!(axis.ticks.iter().all(|(place, _)| (0.0..=1.0).contains(place)));
        }
    }

    #[test]
    fn nothing_to_show_makes_no_axis() {
        assert!(Axis::from_zero("", [f64::NAN, f64::INFINITY, 1e300]).is_none());
        assert!(Axis::log("", [0.0, -1.0]).is_none());
    }
}
