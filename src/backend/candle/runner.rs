//! Runs steps on one device: the model and its memory behind [`StepRunner`].

use candle_core::{DType, Device, Result, Tensor};

use super::cache::kv::LayerCache;
use super::cache::state::LayerState;
use super::candidates::{self, LogitsWanted, RowLogits};
use super::kernels::narrow_rows;
use super::model::config::{DecoderConfig, MixerKind};
use super::model::decoder::{Decoder, LayerMemory};
use super::parallel::Communicator;
use super::plan::{StepError, StepOutput, StepPlan, StepRunner};
use crate::machine::thread_cpu_time;

/// A loaded model with its layers' memory: a fixed number of key/value blocks and of states.
pub(super) struct ModelRunner<C> {
    model: Decoder,
    memories: Vec<LayerMemory>,
    comm: C,
}

/// How much a runner's layers can remember.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemorySize {
    /// Key/value blocks.
    pub(super) blocks: usize,
    /// How keys and values are stored.
    pub(super) kv_dtype: DType,
    /// State slots, where the model has linear layers.
    pub(super) states: usize,
}

impl<C: Communicator> ModelRunner<C> {
    /// A rank's runner: its part of the model, as `config` describes it, and its way to the other ranks.
    pub(super) fn new(
        model: Decoder,
        config: &DecoderConfig,
        size: MemorySize,
        comm: C,
        device: &Device,
    ) -> Result<Self> {
        let memory = |layer| {
            Ok(match config.mixer(layer) {
                MixerKind::Attention(_) => {
                    let shape = config.kv(size.kv_dtype);
                    LayerMemory::KeysAndValues(LayerCache::allocate(shape, size.blocks, device)?)
                }
                MixerKind::GatedDelta(shape) => LayerMemory::State(LayerState::allocate(shape, size.states, device)?),
            })
        };
        Ok(Self { model, memories: (0..config.layers).map(memory).collect::<Result<_>>()?, comm })
    }

    /// What the layers remember.
    #[cfg(test)]
    pub(super) fn memories(&self) -> &[LayerMemory] {
        &self.memories
    }

    /// What each layer gives for every row of a step.
    #[cfg(test)]
    pub(super) fn layer_outputs(&self, plan: &StepPlan) -> Result<Vec<Tensor>> {
        self.model.layer_outputs(plan, &self.memories, &self.comm)
    }

    /// A step's fin in f32, `[outputs, hidden]`; `None` where another rank gives it.
    fn fin(&self, plan: &StepPlan) -> Result<Option<Tensor>> {
        for memory in &self.memories {
            if let LayerMemory::State(state) = memory {
                state.copy(&plan.restores)?;
            }
        }
        let fin = self.model.forward(plan, &self.memories, &self.comm)?;
        // Nothing of a step is read before all ranks have computed it: on a device, reading waits for ranks that may be gone.
        self.comm.barrier()?;
        Ok(fin)
    }

    /// What is wanted of the logits that come of a step's fin.
    fn logits(&self, plan: &StepPlan, fin: &Tensor) -> Result<Vec<RowLogits>> {
        let (rows, wanted): (Vec<u32>, Vec<LogitsWanted>) = (0_u32..)
            .zip(&plan.outputs)
            .filter(|(_, output)| output.logits != LogitsWanted::Nothing)
            .map(|(at, output)| (at, output.logits))
            .unzip();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let own = self.model.logits(&fin.index_select(&Tensor::new(rows, fin.device())?, 0)?)?;
        candidates::gather(&own, &wanted, &self.comm)
    }

    /// A step's fin in f32, and what is wanted of its logits.
    #[cfg(test)]
    pub(super) fn forward(&self, plan: &StepPlan) -> Result<Option<(Tensor, Vec<RowLogits>)>> {
        let fin = self.fin(plan)?;
        fin.map(|fin| Ok((fin.clone(), self.logits(plan, &fin)?))).transpose()
    }
}

impl<C: Communicator> StepRunner for ModelRunner<C>
where
    Self: Sync,
{
    fn run(&mut self, plan: &StepPlan) -> std::result::Result<StepOutput, StepError> {
        let step = || {
            let Some(fin) = self.fin(plan)? else {
                return Ok(StepOutput::default());
            };
            let getting = thread_cpu_time();
            let wanted = plan.outputs.iter().enumerate().filter(|(_, output)| output.fin).map(|(at, _)| at);
            // Before the logits, whose table sweeps it out of the processor's caches.
            let rows = narrow_rows(&fin, wanted)?;
            let fin_time = thread_cpu_time().saturating_sub(getting);
            Ok(StepOutput { fin: rows, fin_time, logits: self.logits(plan, &fin)? })
        };
        // On a thread of the pool that computes: a product then starts with the threads that it shares the work with, where
        // a caller from outside would hand over and be woken again for each of some hundred products.
        rayon::scope(|_| step()).map_err(|e: candle_core::Error| StepError::step(e.to_string()))
    }
}
