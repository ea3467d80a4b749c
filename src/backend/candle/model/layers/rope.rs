//! Rotary position embedding, in the form that turns the two halves of a head.

use crate::backend::candle::kernels::Turns;

/// Rotation speeds of a model: `inverse_frequencies[i]` radians a position for the pair `(i, i + d/2)`.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::backend::candle) struct RopeTable {
    inverse_frequencies: Vec<f32>,
}

impl RopeTable {
    /// Speeds `theta^(-2i/dim)` for `dim / 2` pairs.
    pub(in crate::backend::candle) fn new(dim: usize, theta: f32) -> Self {
        let speed = |i| theta.powf(-((2 * i) as f32) / dim as f32);
        Self { inverse_frequencies: (0..dim / 2).map(speed).collect() }
    }

    /// Whether every speed is a positive number.
    pub(in crate::backend::candle) fn is_sound(&self) -> bool {
        self.inverse_frequencies.iter().all(|speed| speed.is_finite() && *speed > 0.0)
    }

    /// How many values of a head are turned.
    pub(in crate::backend::candle) fn dim(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// Divides each speed by its factor. Fewer or more factors than pairs: `None`.
    pub(in crate::backend::candle) fn divided_by(mut self, factors: &[f32]) -> Option<Self> {
        if factors.len() != self.inverse_frequencies.len() {
            return None;
        }
        for (speed, factor) in self.inverse_frequencies.iter_mut().zip(factors) {
            *speed /= factor;
        }
        Some(self)
    }

    /// Llama 3's scaling: slow rotations are slowed by `factor`, fast ones kept, those between blended.
    pub(in crate::backend::candle) fn llama3(mut self, factor: f32, low: f32, high: f32, original: f32) -> Self {
        for speed in &mut self.inverse_frequencies {
            let wavelength = 2.0 * std::f32::consts::PI / *speed;
            if wavelength > original / low {
                *speed /= factor;
            } else if wavelength >= original / high {
                let smooth = (original / wavelength - low) / (high - low);
                *speed = (1.0 - smooth) * *speed / factor + smooth * *speed;
            }
        }
        self
    }

    /// The turns of rows at these positions, for all layers of a step. Angles are products in f32, as the reference
    /// implementations have them.
    pub(in crate::backend::candle) fn at(&self, positions: &[u32]) -> Turns {
        let angles = positions
            .iter()
            .flat_map(|&position| self.inverse_frequencies.iter().map(move |speed| position as f32 * speed));
        Turns { cos: angles.clone().map(f32::cos).collect(), sin: angles.map(f32::sin).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_fall_and_factors_divide_them() {
        let table = RopeTable::new(4, 100.0);
        assert_eq!(table.inverse_frequencies, [1.0, 0.1]);
        assert_eq!(table.clone().divided_by(&[1.0, 4.0]).unwrap().inverse_frequencies, [1.0, 0.025]);
        assert_eq!(table.divided_by(&[1.0]), None);
    }

    #[test]
    fn turns_are_by_position() {
        let turns = RopeTable::new(4, 100.0).at(&[0, 3]);
        assert_eq!(turns.cos, [1.0, 1.0, 3_f32.cos(), (3.0 * 0.1_f32).cos()]);
        assert_eq!(turns.sin[..2], [0.0, 0.0]);
    }
}
