//! Rotary position embedding, in the form that turns the two halves of a head.

use candle_core::{Device, Result, Tensor};
use candle_nn::rotary_emb::rope_thd;

/// Rotation speeds of a model: `inverse_frequencies[i]` radians a position for the pair `(i, i + d/2)`.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::backend::candle) struct RopeTable {
    inverse_frequencies: Vec<f32>,
}

/// The rotation of each row of one step, shared by all layers.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl RopeTable {
    /// Speeds `theta^(-2i/dim)` for `dim / 2` pairs.
    pub(in crate::backend::candle) fn new(dim: usize, theta: f32) -> Self {
        let speed = |i| theta.powf(-((2 * i) as f32) / dim as f32);
        Self { inverse_frequencies: (0..dim / 2).map(speed).collect() }
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

    /// The rotation for rows at these positions. Angles are products in f32, as the reference implementations have it.
    pub(in crate::backend::candle) fn at(&self, positions: &[u32], device: &Device) -> Result<Rotation> {
        let angles: Vec<f32> = positions
            .iter()
            .flat_map(|&position| self.inverse_frequencies.iter().map(move |speed| position as f32 * speed))
            .collect();
        let shape = (positions.len(), self.inverse_frequencies.len());
        Ok(Rotation {
            cos: Tensor::from_vec(angles.iter().map(|a| a.cos()).collect(), shape, device)?,
            sin: Tensor::from_vec(angles.iter().map(|a| a.sin()).collect(), shape, device)?,
        })
    }
}

impl Rotation {
    /// Turns `[rows, heads, dim]`.
    pub(in crate::backend::candle) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        rope_thd(&x.unsqueeze(0)?.contiguous()?, &self.cos, &self.sin)?.squeeze(0)
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
    fn turns_halves() {
        let rotation = RopeTable::new(2, 1.0).at(&[0, 1], &Device::Cpu).unwrap();
        let x = Tensor::from_vec(vec![1_f32, 0.0, 1.0, 0.0], (2, 1, 2), &Device::Cpu).unwrap();
        let turned = rotation.apply(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(turned[..2], [1.0, 0.0]);
        assert!((turned[2] - 1_f32.cos()).abs() < 1e-6 && (turned[3] - 1_f32.sin()).abs() < 1e-6);
    }
}
