//! Random numbers, the same every time.

/// SplitMix64.
pub(crate) struct Noise(u64);

impl Noise {
    /// Numbers of their own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in `(0, 1)`.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    /// Standard normal, by Box and Muller.
    pub(crate) fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
