//! Keys and values on the device, in blocks of [`BLOCK_TOKENS`] tokens, allocated once.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, bail};

use half::bf16;
use half::vec::HalfBitsVecExt;

use crate::backend::candle::kernels::KvValue;
use crate::backend::candle::plan::BLOCK_TOKENS;

/// One layer's keys `[blocks, kv_heads, head_dim, BLOCK_TOKENS]` and values `[blocks, kv_heads, BLOCK_TOKENS, head_dim]`.
///
/// A head's part of a block is contiguous, so attention reads it in one stride. Keys stand across: sixteen tokens side by side
/// are a vector whose lanes become sixteen scores, with no sum over lanes, whatever the size of a head.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct LayerCache {
    pub(in crate::backend::candle) keys: Tensor,
    pub(in crate::backend::candle) values: Tensor,
}

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct KvShape {
    pub(in crate::backend::candle) layers: usize,
    pub(in crate::backend::candle) kv_heads: usize,
    pub(in crate::backend::candle) head_dim: usize,
    /// F32, BF16 or F8E4M3.
    pub(in crate::backend::candle) dtype: DType,
}

impl KvShape {
    /// Bytes that one token's keys and values take over all layers.
    pub(in crate::backend::candle) fn bytes_per_token(self) -> usize {
        self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.size_in_bytes()
    }
}

impl LayerCache {
    /// Zeros for one layer.
    pub(in crate::backend::candle) fn allocate(shape: KvShape, blocks: usize, device: &Device) -> Result<Self> {
        let zeros = |dims: (usize, usize, usize, usize)| match (shape.dtype, device) {
            // The system gives zeroed pages when they are first touched, if it is asked for zeros; the tensor library writes
            // bf16 zeros one by one and so takes the whole cache at once.
            (DType::BF16, Device::Cpu) => {
                let bits = vec![0_u16; blocks * shape.kv_heads * BLOCK_TOKENS * shape.head_dim];
                Tensor::from_vec(bits.reinterpret_into::<bf16>(), dims, device)
            }
            _ => Tensor::zeros(dims, shape.dtype, device),
        };
        let KvShape { kv_heads, head_dim, .. } = shape;
        let keys = zeros((blocks, kv_heads, head_dim, BLOCK_TOKENS))?;
        Ok(Self { keys, values: zeros((blocks, kv_heads, BLOCK_TOKENS, head_dim))? })
    }

    /// Writes the keys and values of `[rows, queries | keys | values]` to their slots.
    pub(in crate::backend::candle) fn write(
        &self,
        slots: &[u32],
        inputs: &Tensor,
        heads: usize,
        kv_heads: usize,
    ) -> Result<()> {
        let inputs = inputs.contiguous()?;
        self.keys.inplace_op2(&inputs, &WriteRows { slots, first_head: heads, across: true })?;
        self.values.inplace_op2(&inputs, &WriteRows { slots, first_head: heads + kv_heads, across: false })
    }
}

struct WriteRows<'a> {
    slots: &'a [u32],
    /// The head of a row at which what is written begins.
    first_head: usize,
    /// Whether a token's values stand across its block, as those of keys do.
    across: bool,
}

impl InplaceOp2 for WriteRows<'_> {
    fn name(&self) -> &'static str {
        "write-kv-rows"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, to: &Layout, rows: &CpuStorage, from: &Layout) -> Result<()> {
        let (_, heads, outer, inner) = to.shape().dims4()?;
        let dim = if self.across { outer } else { inner };
        let (count, width) = from.shape().dims2()?;
        let CpuStorage::F32(rows) = rows else { bail!("keys and values are computed in f32 on CPU") };
        let Some((start, end)) = from.contiguous_offsets() else {
            bail!("rows for the key/value cache must be contiguous")
        };
        let first = self.first_head * dim;
        if count != self.slots.len() || first + heads * dim > width {
            bail!("{count} rows of {width} values do not fit {} slots of {heads} heads", self.slots.len());
        }
        let rows = &rows[start..end];
        let to = Place { first, width, heads, dim };
        match cache {
            CpuStorage::F32(cache) => self.write(cache, rows, to),
            CpuStorage::BF16(cache) => self.write(cache, rows, to),
            CpuStorage::F8E4M3(cache) => self.write(cache, rows, to),
            _ => bail!("the key/value cache holds f32, bf16 or e4m3"),
        }
        Ok(())
    }
}

/// Where in a row the written heads stand, and their sizes.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    width: usize,
    heads: usize,
    dim: usize,
}

impl WriteRows<'_> {
    fn write<T: KvValue>(&self, cache: &mut [T], rows: &[f32], Place { first, width, heads, dim }: Place) {
        let (token_step, value_step) = if self.across { (1, BLOCK_TOKENS) } else { (dim, 1) };
        for (row, &slot) in rows.chunks_exact(width).zip(self.slots) {
            let (block, offset) = (slot as usize / BLOCK_TOKENS, slot as usize % BLOCK_TOKENS);
            for (head, values) in row[first..first + heads * dim].chunks_exact(dim).enumerate() {
                let at = (block * heads + head) * BLOCK_TOKENS * dim + offset * token_step;
                for (stored, value) in cache[at..].iter_mut().step_by(value_step).zip(values) {
                    *stored = T::store(*value);
                }
            }
        }
    }
}
