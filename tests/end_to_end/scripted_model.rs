//! A backend that writes what a script says, token by token, by the true vocabulary. No model thinks here: what is tested
//! is all that stands between a model's tokens and an agent.

use std::sync::Arc;

use engy_miner::backend::{
    Backend, BackendError, BackendInfo, FinRows, Generation, GenerationEvent, GenerationRequest, Health, Load,
    StopReason, Timings,
};
use engy_miner::chat::ChatModel;
use futures::FutureExt;
use futures::future::BoxFuture;
use half::bf16;

pub(crate) const HIDDEN: usize = 32;

/// What to write behind a prompt.
pub(crate) type Script = fn(prompt: &str) -> String;

pub(crate) struct ScriptedModel {
    info: BackendInfo,
    chat: ChatModel,
    end_id: u32,
    script: Script,
}

impl ScriptedModel {
    pub(crate) fn new(chat: ChatModel, end_id: u32, script: Script) -> Arc<Self> {
        let info = BackendInfo {
            kind: "scripted",
            architecture: "none".into(),
            hidden: HIDDEN,
            vocab: 248_320,
            context: 8192,
            max_running: 8,
        };
        Arc::new(Self { info, chat, end_id, script })
    }
}

impl Backend for ScriptedModel {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn generate(&self, request: GenerationRequest) -> Generation {
        let tokenizer = self.chat.tokenizer();
        let mut ids = tokenizer.encode(&(self.script)(&tokenizer.decode(&request.prompt))).unwrap();
        ids.push(self.end_id);
        let whole = ids.len() <= request.max_tokens;
        ids.truncate(request.max_tokens);
        let (sender, generation) = Generation::channel();
        sender.send(Ok(GenerationEvent::Started { cached_tokens: 0 }));
        for (at, id) in ids.into_iter().enumerate() {
            let row = (0..HIDDEN).map(|value| bf16::from_f32(((at * 31 + value * 17) % 101) as f32 - 50.5)).collect();
            let fin = FinRows::new(HIDDEN, row).unwrap();
            sender.send(Ok(GenerationEvent::Tokens { ids: vec![id], fin, logprobs: vec![] }));
        }
        let reason = if whole { StopReason::StopId(self.end_id) } else { StopReason::Length };
        sender.send(Ok(GenerationEvent::Finished { reason, timings: Timings::default() }));
        generation
    }

    fn hidden_states(&self, _: Vec<u32>, _: usize) -> BoxFuture<'static, Result<FinRows, BackendError>> {
        async { Err(BackendError::Unavailable("a script has no states".into())) }.boxed()
    }

    fn health(&self) -> Health {
        Health::Ready
    }

    fn load(&self) -> Load {
        Load::default()
    }
}
