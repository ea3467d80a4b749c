//! Which vector instructions this processor has, and running kernels with them.

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};

/// What a kernel may use. Each level is a superset of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// What the build was made for: SSE2 on x86-64, NEON on 64-bit Arm.
    Baseline,
    /// AVX2 with fused multiply-add and half-precision conversion.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with bytes, words and short vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The highest level of this processor. Cheap: the standard library remembers what it found.
pub(super) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512) {
            (true, true) => return Level::Avx512,
            (true, false) => return Level::Avx2,
            _ => {}
        }
    }
    Level::Baseline
}

/// Work that is written once over [`Lanes`].
pub(super) trait Kernel {
    /// Does the work. Must be `#[inline(always)]`, and must not put instructions into closures: only what ends up inside the
    /// functions below is compiled with their features.
    fn run<L: Lanes>(self);
}

/// Runs a kernel with the given instructions.
pub(super) fn run_at<K: Kernel>(level: Level, kernel: K) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a level above the baseline is made by `level` alone, which found its features on this processor. The
        // tests of the kernels run each level that the machine has.
        Level::Avx512 => unsafe { avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { avx2(kernel) },
        Level::Baseline => kernel.run::<Portable>(),
    }
}

/// Runs a kernel with the best instructions there are.
pub(super) fn run<K: Kernel>(kernel: K) {
    run_at(level(), kernel);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn avx512<K: Kernel>(kernel: K) {
    kernel.run::<Avx512>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<K: Kernel>(kernel: K) {
    kernel.run::<Avx2>();
}

/// Every level that this processor has, for tests.
#[cfg(test)]
pub(super) fn levels() -> Vec<Level> {
    let best = level();
    let mut all = vec![Level::Baseline];
    #[cfg(target_arch = "x86_64")]
    all.extend([Level::Avx2, Level::Avx512]);
    all.retain(|level| *level <= best);
    all
}
