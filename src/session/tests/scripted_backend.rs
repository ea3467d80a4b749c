//! A backend whose tokens come when the test says so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::site::within;
use crate::backend::{
    Backend, BackendError, BackendInfo, FinRows, Generation, GenerationEvent, GenerationRequest, GenerationSender,
    Health, Load, StopReason, Timings, TokenLogprobs,
};

pub(super) const HIDDEN: usize = 16;
/// The fixture's `<|im_end|>`.
pub(super) const END: u32 = 382;
/// How often a test looks whether a generation was dropped.
const LOOK: Duration = Duration::from_millis(1);

pub(super) struct ScriptedBackend {
    info: BackendInfo,
    runs: mpsc::UnboundedSender<Run>,
    calls: AtomicUsize,
    health: Mutex<Health>,
    load: Mutex<Load>,
}

/// The generations of a backend, in the order of their starts.
pub(super) struct Runs(mpsc::UnboundedReceiver<Run>);

/// A generation under way. Dropped before its end, it goes away without a reason.
pub(super) struct Run {
    pub(super) request: GenerationRequest,
    /// Ids given so far.
    pub(super) ids: Vec<u32>,
    /// Their rows, flattened.
    pub(super) rows: Vec<bf16>,
    sender: GenerationSender,
    random: ChaCha8Rng,
}

impl ScriptedBackend {
    pub(super) fn new() -> (Arc<Self>, Runs) {
        let (runs, started) = mpsc::unbounded_channel();
        let backend = Self {
            info: BackendInfo {
                kind: "scripted",
                architecture: "LlamaForCausalLM".into(),
                hidden: HIDDEN,
                vocab: 384,
                context: 4096,
                max_running: 8,
            },
            runs,
            calls: AtomicUsize::new(0),
            health: Mutex::new(Health::Ready),
            load: Mutex::new(Load::default()),
        };
        (Arc::new(backend), Runs(started))
    }

    /// Generations that were asked for.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(super) fn die(&self, reason: &str) {
        *self.health.lock().unwrap() = Health::Dead(reason.into());
    }

    pub(super) fn set_load(&self, load: Load) {
        *self.load.lock().unwrap() = load;
    }
}

impl Backend for ScriptedBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn generate(&self, request: GenerationRequest) -> Generation {
        let seed = self.calls.fetch_add(1, Ordering::SeqCst);
        let (sender, generation) = Generation::channel();
        // Fails when the test is over.
        let _ = self.runs.send(Run {
            request,
            ids: Vec::new(),
            rows: Vec::new(),
            sender,
            random: ChaCha8Rng::seed_from_u64(seed as u64),
        });
        generation
    }

    fn hidden_states(&self, _: Vec<u32>, _: usize) -> BoxFuture<'static, Result<FinRows, BackendError>> {
        async { Err(BackendError::Unavailable("a session recomputes nothing".into())) }.boxed()
    }

    fn health(&self) -> Health {
        self.health.lock().unwrap().clone()
    }

    fn load(&self) -> Load {
        *self.load.lock().unwrap()
    }
}

impl Runs {
    /// The next generation, its prompt read.
    pub(super) async fn next(&mut self) -> Run {
        let run = within(self.0.recv()).await.unwrap();
        run.tell(Ok(GenerationEvent::Started { cached_tokens: 0 }));
        run
    }
}

impl Run {
    /// Says anything, right or wrong.
    pub(super) fn tell(&self, event: Result<GenerationEvent, BackendError>) {
        self.sender.send(event);
    }

    /// Gives ids with their rows, as one event; with log-probabilities where they are wanted.
    pub(super) fn give(&mut self, ids: &[u32]) {
        let rows = self.random_rows(ids.len());
        let before = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.rows.extend_from_slice(&rows);
        let logprobs = (before..self.ids.len()).filter_map(|place| self.logprobs(place)).collect();
        let fin = FinRows::new(HIDDEN, rows).unwrap();
        self.tell(Ok(GenerationEvent::Tokens { ids: ids.to_vec(), fin, logprobs }));
    }

    /// What is said of the id at this place of the answer: its place in eighths, and as many zero bytes as are wanted.
    fn logprobs(&self, place: usize) -> Option<TokenLogprobs> {
        let logprob = place as f32 / -8.0;
        self.request.logprobs.map(|k| TokenLogprobs { logprob, top: vec![(0, -0.5); k] })
    }

    /// Gives a text, one id a byte (so has the fixture's vocabulary it).
    pub(super) fn say(&mut self, text: &str) {
        self.give(&text.bytes().map(u32::from).collect::<Vec<_>>());
    }

    /// Rows for this many ids, which the answer does not count as given.
    pub(super) fn random_rows(&mut self, count: usize) -> Vec<bf16> {
        let value = || bf16::from_f32(self.random.random_range(-8.0..8.0));
        std::iter::repeat_with(value).take(count * HIDDEN).collect()
    }

    /// Ends the answer with the model's own end id; gives all ids and rows.
    pub(super) fn finish(mut self) -> (Vec<u32>, Vec<bf16>) {
        self.give(&[END]);
        self.end(StopReason::StopId(END))
    }

    /// Ends the answer with no more ids.
    pub(super) fn end(self, reason: StopReason) -> (Vec<u32>, Vec<bf16>) {
        let timings = Timings::default();
        self.tell(Ok(GenerationEvent::Finished { reason, timings }));
        (self.ids, self.rows)
    }

    /// Resolves once nobody waits for this answer any more.
    pub(super) async fn dropped(&self) {
        within(async {
            while !self.is_dropped() {
                sleep(LOOK).await;
            }
        })
        .await;
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.sender.is_cancelled()
    }
}

/// An event of these ids and rows, whether they fit or not.
pub(super) fn tokens(ids: &[u32], rows: Vec<bf16>) -> Result<GenerationEvent, BackendError> {
    Ok(GenerationEvent::Tokens { ids: ids.to_vec(), fin: FinRows::new(HIDDEN, rows).unwrap(), logprobs: vec![] })
}
