//! Which vector instructions this processor has.

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
