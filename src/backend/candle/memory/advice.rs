//! Which options make a number of whole contexts fit.

use super::{MemoryPlan, MemoryPlanner, Room, WORLDS};
use crate::backend::candle::{EngineOptions, KvDtype};

impl MemoryPlanner {
    /// The options under which `contexts` whole contexts fit, those that give up least first: narrower keys and values, then no
    /// snapshots of states, then more ranks. `None` where nothing helps.
    #[must_use]
    pub fn options_that_fit(
        &self,
        options: &EngineOptions,
        room: Room,
        contexts: usize,
    ) -> Option<(EngineOptions, MemoryPlan)> {
        let narrower =
            [KvDtype::Bf16, KvDtype::Fp8E4m3].into_iter().filter(|dtype| dtype.bytes() < options.kv_dtype.bytes());
        let dtypes: Vec<KvDtype> = std::iter::once(options.kv_dtype).chain(narrower).collect();
        let more = WORLDS.into_iter().filter(|world| *world > options.ranks && self.splits(*world));
        let worlds = std::iter::once(options.ranks).chain(more);
        // More ranks are more memory only where each has a device of its own.
        let worlds = worlds.take(if matches!(room, Room::Devices(_)) { WORLDS.len() } else { 1 });
        for ranks in worlds {
            for state_cache_bytes in [options.state_cache_bytes, 0] {
                for &kv_dtype in &dtypes {
                    let tried = EngineOptions {
                        max_running: contexts,
                        max_total_tokens: Some(self.config.context.saturating_mul(contexts)),
                        mem_fraction: None,
                        kv_dtype,
                        state_cache_bytes,
                        ranks,
                        ..options.clone()
                    };
                    if let Some(plan) = self.plan(&tried, room).ok().filter(MemoryPlan::fits) {
                        return Some((tried, plan));
                    }
                }
            }
        }
        None
    }
}
