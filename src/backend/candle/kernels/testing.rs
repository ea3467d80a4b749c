//! Operands for tests.

use candle_core::{Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `[rows, columns]` of roughly normal values with deviation 1, the same for the same seed.
pub(super) fn normal(seed: u64, rows: usize, columns: usize) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The sum of twelve uniform numbers has variance 1.
    let mut value = || (0..12).map(|_| rng.random::<f32>() - 0.5).sum::<f32>();
    let values: Vec<f32> = (0..rows * columns).map(|_| value()).collect();
    Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
}

/// Fails unless all values differ by less than `tolerance` times their size, or `tolerance` where they are below 1.
pub(super) fn assert_close(got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims());
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (got, want) in flat(got).into_iter().zip(flat(want)) {
        assert!((got - want).abs() < tolerance * want.abs().max(1.0), "{got} for {want}");
    }
}
