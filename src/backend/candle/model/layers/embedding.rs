//! The table that turns token ids into vectors, and back into logits where a model ties the two.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Result, Tensor};

use super::Linear;

/// `[vocab, hidden]`.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) enum Embedding {
    /// f32 rows.
    Dense(Tensor),
    /// Quantised rows, widened as they are looked up.
    Quantised(Arc<QTensor>),
}

impl Embedding {
    pub(in crate::backend::candle) fn dense(table: Tensor) -> Self {
        Self::Dense(table)
    }

    pub(in crate::backend::candle) fn quantised(table: QTensor) -> Result<Self> {
        if matches!(table.dtype(), GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16) {
            let device = table.device();
            return Ok(Self::Dense(table.dequantize(&device)?.to_dtype(DType::F32)?));
        }
        Ok(Self::Quantised(Arc::new(table)))
    }

    /// Ids `[rows]` (u32) to vectors `[rows, hidden]`.
    pub(in crate::backend::candle) fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(table) => table.index_select(ids, 0),
            Self::Quantised(table) => table.embedding(ids),
        }
    }

    /// The same table as the output projection of a model with tied embeddings. Shares the weights.
    pub(in crate::backend::candle) fn as_output(&self) -> Result<Linear> {
        Ok(match self {
            Self::Dense(table) => Linear::Dense(table.clone()),
            Self::Quantised(table) => Linear::Quantised(QMatMul::from_arc(Arc::clone(table))?),
        })
    }
}
