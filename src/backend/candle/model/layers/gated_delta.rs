//! A linear recurrence with a gated delta rule (Gated DeltaNet).

/// Tokens that the causal convolution in front of the recurrence sees, the present one included.
pub(in crate::backend::candle) const CONV_WIDTH: usize = 4;

/// Sizes of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct DeltaShape {
    pub(in crate::backend::candle) hidden: usize,
    pub(in crate::backend::candle) key_heads: usize,
    /// A multiple of `key_heads`: neighbouring value heads share a key head.
    pub(in crate::backend::candle) value_heads: usize,
    pub(in crate::backend::candle) key_dim: usize,
    pub(in crate::backend::candle) value_dim: usize,
}

impl DeltaShape {
    /// Values of all key heads.
    pub(in crate::backend::candle) fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of all value heads.
    pub(in crate::backend::candle) fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub(in crate::backend::candle) fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Bytes that one sequence takes: a matrix for each value head and the convolution's last inputs, all in f32.
    pub(in crate::backend::candle) fn state_bytes(self) -> usize {
        size_of::<f32>() * (self.values() * self.key_dim + (CONV_WIDTH - 1) * self.channels())
    }
}
