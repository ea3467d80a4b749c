//! The table that turns token ids into vectors, and back into logits where a model ties the two.

use candle_core::{Device, Result, Tensor, bail};

use super::Linear;
use crate::backend::candle::kernels::Matrix;

/// `[vocab, hidden]`, as stored.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct Embedding {
    table: Matrix,
}

impl Embedding {
    pub(in crate::backend::candle) fn new(table: Matrix) -> Self {
        Self { table }
    }

    /// Ids to vectors `[ids, hidden]`.
    pub(in crate::backend::candle) fn forward(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        let hidden = self.table.columns();
        let mut vectors = vec![0_f32; ids.len() * hidden];
        for (&id, vector) in ids.iter().zip(vectors.chunks_exact_mut(hidden)) {
            if id as usize >= self.table.rows() {
                bail!("token id {id} is outside the vocabulary of {}", self.table.rows());
            }
            self.table.decode_row(id as usize, vector);
        }
        Tensor::from_vec(vectors, (ids.len(), hidden), device)
    }

    /// The same table as the output projection of a model with tied embeddings. Shares the weights.
    pub(in crate::backend::candle) fn as_output(&self) -> Linear {
        Linear::new(self.table.clone(), false)
    }
}
