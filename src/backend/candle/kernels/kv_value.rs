//! How a key or a value is stored in the cache.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Result, bail};
use float8::F8E4M3;
use half::bf16;

use super::e4m3;
use super::lanes::{LANES, Lanes};

/// A number of the key/value cache.
pub(in crate::backend::candle) trait KvValue: Copy + Send + Sync {
    /// The nearest stored number; larger ones than there are become the largest there is.
    fn store(value: f32) -> Self;
    /// Exactly.
    fn load(self) -> f32;
    /// Sixteen of them.
    fn lanes<L: Lanes>(values: &[Self; LANES]) -> L;
    /// The same numbers as f32 where that is how they are stored.
    #[inline(always)]
    fn as_f32(values: &[[Self; LANES]]) -> Option<&[[f32; LANES]]> {
        let _ = values;
        None
    }
}

impl KvValue for f32 {
    fn store(value: f32) -> Self {
        value
    }

    fn load(self) -> f32 {
        self
    }

    #[inline(always)]
    fn lanes<L: Lanes>(values: &[Self; LANES]) -> L {
        L::load(values)
    }

    #[inline(always)]
    fn as_f32(values: &[[Self; LANES]]) -> Option<&[[f32; LANES]]> {
        Some(values)
    }
}

impl KvValue for bf16 {
    fn store(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn load(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn lanes<L: Lanes>(values: &[Self; LANES]) -> L {
        let mut bytes = [0; 2 * LANES];
        for (bytes, value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        L::from_bf16(&bytes)
    }
}

impl KvValue for F8E4M3 {
    fn store(value: f32) -> Self {
        Self::from_f32(value.clamp(-e4m3::MAX, e4m3::MAX))
    }

    fn load(self) -> f32 {
        e4m3::value(self.to_bits())
    }

    #[inline(always)]
    fn lanes<L: Lanes>(values: &[Self; LANES]) -> L {
        let mut bytes = [0; LANES];
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = value.to_bits();
        }
        L::e4m3_256ths(&bytes).multiply(L::splat(256.0))
    }
}

/// The numbers of a cache tensor, by their type.
pub(super) enum KvSlice<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    E4m3(&'a [F8E4M3]),
}

/// The whole of a cache tensor.
pub(super) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<KvSlice<'a>> {
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("the key/value cache must be contiguous") };
    Ok(match storage {
        CpuStorage::F32(values) => KvSlice::F32(&values[start..end]),
        CpuStorage::BF16(values) => KvSlice::Bf16(&values[start..end]),
        CpuStorage::F8E4M3(values) => KvSlice::E4m3(&values[start..end]),
        other => {
            bail!("the key/value cache cannot be {:?}", other.dtype())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::kernels::lanes::Portable;

    fn stored<T: KvValue>(value: f32) -> f32 {
        T::store(value).load()
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_saturate() {
        assert_eq!(stored::<f32>(0.1), 0.1);
        assert_eq!(stored::<bf16>(1.0 + 1.0 / 256.0), 1.0, "halfway, to even");
        assert_eq!(stored::<F8E4M3>(0.3), 0.3125);
        assert_eq!(stored::<F8E4M3>(17.0), 16.0, "halfway, to even");
        assert_eq!((stored::<F8E4M3>(1e9), stored::<F8E4M3>(-1e9)), (448.0, -448.0));
        assert_eq!(stored::<F8E4M3>(2_f32.powi(-9)), 2_f32.powi(-9), "the smallest subnormal");
    }

    #[test]
    fn lanes_are_the_single_values() {
        fn check<T: KvValue>() {
            let values: [T; LANES] = std::array::from_fn(|n| T::store(n as f32 * 1.7 - 9.0));
            let mut lanes = [0.0; LANES];
            T::lanes::<Portable>(&values).store(&mut lanes);
            assert_eq!(lanes, values.map(T::load));
        }
        check::<f32>();
        check::<bf16>();
        check::<F8E4M3>();
    }
}
