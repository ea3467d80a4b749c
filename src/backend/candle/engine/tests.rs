//! What becomes of open requests when a step fails.

use super::*;
use crate::backend::SamplingParams;
use crate::backend::candle::plan::{StepOutput, StepPlan};

const HIDDEN: usize = 2;
const VOCAB: usize = 8;

/// Chooses id 3 again and again, until a step at which it fails. Its first step waits until the test has sent all requests.
struct Scripted {
    all_sent: mpsc::Receiver<()>,
    steps: usize,
    fails_at: usize,
    fault: Fault,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Step,
    Fatal,
    Panic,
    WrongRows,
}

impl StepRunner for Scripted {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.steps += 1;
        if self.steps == 1 {
            let _ = self.all_sent.recv();
        }
        let mut rows = plan.outputs.len();
        if self.steps == self.fails_at {
            match self.fault {
                Fault::Step => return Err(StepError::step("a number overflowed".into())),
                Fault::Fatal => return Err(StepError::fatal("rank 2: it is gone".into())),
                Fault::Panic => std::panic::resume_unwind(Box::new("a fault")),
                Fault::WrongRows => rows += 1,
            }
        }
        let logits = RowLogits::All((0..VOCAB).map(|id| if id == 3 { 1.0 } else { 0.0 }).collect());
        let chosen = plan.outputs.iter().filter(|output| output.logits != LogitsWanted::Nothing).count();
        Ok(StepOutput { fin: vec![bf16::ONE; rows * HIDDEN], logits: vec![logits; chosen] })
    }
}

/// The engine, and what lets its first step go on when it is dropped.
fn engine(fails_at: usize, fault: Fault) -> (EngineHandle, mpsc::Sender<()>) {
    let (gate, all_sent) = mpsc::channel();
    let scheduler = SchedulerConfig { max_running: 2, prefill_chunk: 8, blocks: 16, prefix_blocks: 0, snapshots: None };
    let config = EngineConfig { scheduler, hidden: HIDDEN, vocab: VOCAB, context: 256 };
    (start(Box::new(Scripted { all_sent, steps: 0, fails_at, fault }), config).unwrap(), gate)
}

fn request(max_tokens: usize) -> GenerationRequest {
    let sampling = SamplingParams::default();
    GenerationRequest { prompt: vec![1, 2], max_tokens, stop_ids: vec![], sampling, logprobs: None }
}

/// Reads to the end: how many ids came, and the error, if one did.
async fn read(mut generation: Generation) -> (usize, Option<BackendError>) {
    let mut count = 0;
    loop {
        match generation.next().await {
            Some(Ok(GenerationEvent::Tokens { ids, .. })) => count += ids.len(),
            Some(Ok(GenerationEvent::Finished { .. })) => return (count, None),
            Some(Ok(GenerationEvent::Started { .. })) => {}
            Some(Err(error)) => return (count, Some(error)),
            None => return (count, Some(BackendError::Broken("the stream ended".into()))),
        }
    }
}

#[tokio::test]
async fn a_failed_step_ends_its_requests_and_no_others() {
    for (fault, named) in [(Fault::Step, "a number overflowed"), (Fault::WrongRows, "values of fin")] {
        let (engine, gate) = engine(5, fault);
        let open: Vec<_> = (0..3).map(|_| engine.generate(request(50))).collect();
        drop(gate);
        // Two run, one waits.
        let mut ends = Vec::new();
        for generation in open {
            ends.push(read(generation).await);
        }
        for (_, error) in &ends[..2] {
            let Some(BackendError::Broken(reason)) = error else { panic!("{fault:?}: {error:?}") };
            assert!(reason.contains(named), "{fault:?}: {reason}");
        }
        assert_eq!(ends[2], (50, None), "{fault:?}: the one that waited is served");
        assert_eq!(read(engine.generate(request(5))).await, (5, None), "{fault:?}: the next one is served");
        assert_eq!(engine.ended(), None);
    }
}

#[tokio::test]
async fn a_runner_that_is_lost_ends_the_engine_and_every_request() {
    for (fault, named) in [(Fault::Fatal, "rank 2: it is gone"), (Fault::Panic, "a fault")] {
        let (engine, gate) = engine(5, fault);
        let open: Vec<_> = (0..3).map(|_| engine.generate(request(50))).collect();
        drop(gate);
        for generation in open {
            let (_, error) = read(generation).await;
            let Some(BackendError::Broken(reason)) = error else { panic!("{fault:?}: {error:?}") };
            assert!(matches!(fault, Fault::Panic) || reason.contains(named), "{fault:?}: {reason}");
        }
        // The thread says why it ended after its readers have heard.
        while engine.ended().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(engine.ended().unwrap().contains(named), "{fault:?}: {:?}", engine.ended());
        let (_, error) = read(engine.generate(request(5))).await;
        let Some(BackendError::Broken(reason)) = error else { panic!("{fault:?}: {error:?}") };
        assert!(reason.contains("the engine has ended") && reason.contains(named), "{fault:?}: {reason}");
    }
}
