//! What becomes of open requests when a step fails.

use half::bf16;

use super::*;
use crate::backend::candle::candidates::LogitsWanted;
use crate::backend::{Generation, GenerationEvent, StopReason};
use crate::guide::{Constraint, Guides, Thought, Token, Vocabulary};

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
    /// The only logit that is a number is id 3's.
    NoNumbers,
}

impl StepRunner for Scripted {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.steps += 1;
        if self.steps == 1 {
            let _ = self.all_sent.recv();
        }
        let (mut rows, mut other) = (plan.outputs.len(), 0.0);
        if self.steps == self.fails_at {
            match self.fault {
                Fault::Step => return Err(StepError::step("a number overflowed".into())),
                Fault::Fatal => return Err(StepError::fatal("rank 2: it is gone".into())),
                Fault::Panic => std::panic::resume_unwind(Box::new("a fault")),
                Fault::WrongRows => rows += 1,
                Fault::NoNumbers => other = f32::NAN,
            }
        }
        let logits = RowLogits::All((0..VOCAB).map(|id| if id == 3 { 1.0 } else { other }).collect());
        let chosen = plan.outputs.iter().filter(|output| output.logits != LogitsWanted::Nothing).count();
        Ok(StepOutput {
            fin: vec![vec![bf16::ONE; HIDDEN]; rows],
            logits: vec![logits; chosen],
            ..StepOutput::default()
        })
    }
}

/// The engine, and what lets its first step go on when it is dropped.
fn engine(fails_at: usize, fault: Fault) -> (EngineHandle, mpsc::Sender<()>) {
    let (gate, all_sent) = mpsc::channel();
    let scheduler = SchedulerConfig { max_running: 2, prefill_chunk: 8, blocks: 16, prefix_blocks: 0, snapshots: None };
    let config = EngineConfig { scheduler, hidden: HIDDEN, vocab: VOCAB, context: 256 };
    (start(Box::new(Scripted { all_sent, steps: 0, fails_at, fault }), config).unwrap(), gate)
}

fn generate(engine: &EngineHandle, request: GenerationRequest) -> Generation {
    let (sender, generation) = Generation::channel();
    engine.generate(request, sender, None);
    generation
}

/// A generation that is held to the numbers 1 and 11: id 5 is the digit, id 0 ends the turn, id 3 is another digit.
fn generate_held(engine: &EngineHandle, request: GenerationRequest) -> Generation {
    let text = |text: &str| Token::Text(text.into());
    let texts = ["b", "{", "9", "}", "1"].map(text);
    let vocabulary = Vocabulary { tokens: [&[Token::Control("<end>".into())][..], &texts].concat(), end_ids: vec![0] };
    let guides = Guides::new(VOCAB, Box::new(move || Ok(vocabulary.clone())));
    let schema = serde_json::json!({"enum": [1, 11]});
    let constraint = Constraint { thought: Thought::None, json: Some(schema), calls: None };
    let (sender, generation) = Generation::channel();
    let engine = engine.clone();
    guides.prepare(constraint, || false, move |guide| engine.generate(request, sender, Some(guide.unwrap())));
    generation
}

#[tokio::test]
async fn no_id_is_chosen_that_breaks_the_form() {
    let (engine, gate) = engine(0, Fault::Step);
    drop(gate);
    let ending = GenerationRequest { stop_ids: vec![0], ..request(50) };
    let mut generation = generate_held(&engine, ending.clone());
    let mut ids = Vec::new();
    let end = loop {
        match generation.next().await.unwrap().unwrap() {
            GenerationEvent::Tokens { ids: new, .. } => ids.extend(new),
            GenerationEvent::Finished { reason, .. } => break reason,
            _ => {}
        }
    };
    // Of equals the lowest id is chosen: the end, as soon as there may be one.
    assert_eq!((ids, end), (vec![5, 0], StopReason::StopId(0)));
    assert_eq!(read(generate_held(&engine, request(1))).await, (1, None), "its budget ends it before its form does");
    assert_eq!(read(generate_held(&engine, request(9))).await, (9, None), "without a stop id the budget does");
}

#[tokio::test]
async fn a_model_that_cannot_follow_is_an_error() {
    let (engine, gate) = engine(2, Fault::NoNumbers);
    drop(gate);
    let (count, error) = read(generate_held(&engine, request(50))).await;
    let Some(BackendError::Broken(reason)) = error else { panic!("{error:?}") };
    assert!(count == 1 && reason.contains("no finite logit"), "{count}: {reason}");
    assert_eq!(read(generate(&engine, request(5))).await, (5, None), "the next one is served");
}

fn request(max_tokens: usize) -> GenerationRequest {
    GenerationRequest::greedy(vec![1, 2], max_tokens)
}

/// Reads to the end: how many ids came, and the error, if one did.
async fn read(mut generation: Generation) -> (usize, Option<BackendError>) {
    let mut count = 0;
    loop {
        match generation.next().await {
            Some(Ok(GenerationEvent::Tokens { ids, .. })) => count += ids.len(),
            Some(Ok(GenerationEvent::Finished { .. })) => return (count, None),
            Some(Ok(GenerationEvent::Started { .. } | GenerationEvent::FirstRowMissing)) => {}
            Some(Err(error)) => return (count, Some(error)),
            None => return (count, Some(BackendError::Broken("the stream ended".into()))),
        }
    }
}

#[tokio::test]
async fn a_failed_step_ends_its_requests_and_no_others() {
    for (fault, named) in [(Fault::Step, "a number overflowed"), (Fault::WrongRows, "rows of fin")] {
        let (engine, gate) = engine(5, fault);
        let open: Vec<_> = (0..3).map(|_| generate(&engine, request(50))).collect();
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
        assert_eq!(read(generate(&engine, request(5))).await, (5, None), "{fault:?}: the next one is served");
        assert_eq!(engine.ended(), None);
    }
}

#[tokio::test]
async fn a_runner_that_is_lost_ends_the_engine_and_every_request() {
    for (fault, named) in [(Fault::Fatal, "rank 2: it is gone"), (Fault::Panic, "a fault")] {
        let (engine, gate) = engine(5, fault);
        let open: Vec<_> = (0..3).map(|_| generate(&engine, request(50))).collect();
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
        let (_, error) = read(generate(&engine, request(5))).await;
        let Some(BackendError::Broken(reason)) = error else { panic!("{fault:?}: {error:?}") };
        assert!(reason.contains("the engine has ended") && reason.contains(named), "{fault:?}: {reason}");
    }
}
