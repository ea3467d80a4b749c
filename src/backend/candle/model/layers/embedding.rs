//! The table that turns token ids into vectors, and back into logits where a model ties the two.

use candle_core::{Device, Result, Tensor, bail};

use super::Linear;
use crate::backend::candle::kernels::Matrix;
use crate::backend::candle::model::shards::Shard;

/// `[vocab, hidden]`, as stored; or one rank's part of its rows.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Embedding {
    table: Matrix,
    /// The id of the first row.
    first: usize,
    /// Ids of the whole table.
    vocab: usize,
}

impl Embedding {
    /// The rows of a table that `shard` holds.
    pub(in crate::backend::candle) fn new(table: Matrix, shard: Shard) -> Self {
        Self { first: shard.rank * table.rows(), vocab: shard.world * table.rows(), table }
    }

    /// Ids to vectors `[ids, hidden]`; zeros for those whose rows another rank holds.
    pub(in crate::backend::candle) fn forward(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        let hidden = self.table.columns();
        let mut vectors = vec![0_f32; ids.len() * hidden];
        for (&id, vector) in ids.iter().zip(vectors.chunks_exact_mut(hidden)) {
            let id = id as usize;
            if id >= self.vocab {
                bail!("token id {id} is outside the vocabulary of {}", self.vocab);
            }
            if let Some(row) = id.checked_sub(self.first).filter(|row| *row < self.table.rows()) {
                self.table.decode_row(row, vector);
            }
        }
        Tensor::from_vec(vectors, (ids.len(), hidden), device)
    }

    /// The same table as the output projection of a model with tied embeddings. Shares the weights.
    pub(in crate::backend::candle) fn as_output(&self) -> Linear {
        Linear::new(self.table.clone(), false)
    }
}
