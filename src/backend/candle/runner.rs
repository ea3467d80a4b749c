//! Runs steps on one device: the model and its caches behind [`StepRunner`].

use candle_core::{DType, Device, Result, Tensor};

use super::cache::kv::{self, KvShape, LayerCache};
use super::model::decoder::Decoder;
use super::plan::{StepOutput, StepPlan, StepRunner};

/// A loaded model with key/value caches for a fixed number of blocks.
pub(super) struct ModelRunner {
    model: Decoder,
    caches: Vec<LayerCache>,
}

impl ModelRunner {
    pub(super) fn new(model: Decoder, shape: KvShape, blocks: usize, device: &Device) -> Result<Self> {
        Ok(Self { model, caches: kv::allocate(shape, blocks, device)? })
    }

    /// A step's fin in f32, `[outputs, hidden]`, and its logits.
    pub(super) fn forward(&self, plan: &StepPlan) -> Result<Option<(Tensor, Vec<Vec<f32>>)>> {
        let Some(fin) = self.model.forward(plan, &self.caches)? else {
            return Ok(None);
        };
        let wanted: Vec<u32> = (0_u32..).zip(&plan.outputs).filter(|(_, o)| o.logits).map(|(at, _)| at).collect();
        let logits = if wanted.is_empty() {
            Vec::new()
        } else {
            let rows = fin.index_select(&Tensor::new(wanted, fin.device())?, 0)?;
            self.model.logits(&rows)?.to_vec2()?
        };
        Ok(Some((fin, logits)))
    }
}

impl StepRunner for ModelRunner {
    fn run(&mut self, plan: &StepPlan) -> std::result::Result<StepOutput, String> {
        let step = || {
            let Some((fin, logits)) = self.forward(plan)? else {
                return Ok(StepOutput::default());
            };
            let fin = fin.to_dtype(DType::BF16)?.flatten_all()?.to_vec1()?;
            Ok(StepOutput { fin, logits })
        };
        // On a thread of the pool that computes: a product then starts with the threads that it shares the work with, where
        // a caller from outside would hand over and be woken again for each of some hundred products.
        rayon::scope(|_| step()).map_err(|e: candle_core::Error| e.to_string())
    }
}
