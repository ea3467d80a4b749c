//! The table that turns token ids into vectors, and back into logits where a model ties the two.

use candle_core::{Result, Tensor};

use super::Linear;

/// `[vocab, hidden]`, f32.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Embedding {
    table: Tensor,
}

impl Embedding {
    pub(in crate::backend::candle) fn new(table: Tensor) -> Self {
        Self { table }
    }

    /// Ids `[rows]` (u32) to vectors `[rows, hidden]`.
    pub(in crate::backend::candle) fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.table.index_select(ids, 0)
    }

    /// The same table as the output projection of a model with tied embeddings. Shares the weights.
    pub(in crate::backend::candle) fn as_output(&self) -> Linear {
        Linear::new(self.table.clone())
    }
}
