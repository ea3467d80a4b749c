//! Guides of one model: made, asked and moved along on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};

use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::constraint::Constraint;
use super::grammar;
use super::mask::Mask;
use super::vocabulary::{Marks, Vocabulary};

/// Largest form, bytes of its schemas and names. What takes longest to compile, an object of thousands of keys that may all be
/// missing, then takes some seconds, on a thread of its own.
const MAX_FORM_BYTES: usize = 256 << 10;

/// Work that reading a grammar may take, in the library's unit: 50 a microsecond, it says. Its default.
const COMPILE_FUEL: u64 = 1_000_000;

/// Symbols of a grammar's rules: a fifth of the library's default.
const MAX_GRAMMAR_SYMBOLS: usize = 100_000;

/// Work that one mask may take: about 15 and 2.5 milliseconds. Its defaults.
const MASK_LEXER_FUEL: u64 = 200_000;
const MASK_ITEMS: usize = 50_000;

/// States of a grammar's lexer, 1 to 2 kB each: a tenth of the library's default, so that sixteen requests cannot take
/// gigabytes together.
const MAX_LEXER_STATES: usize = 25_000;

/// What the library says where no token may come next.
const DEAD_END: &str = "NoExtensionBias";

/// Longest part of the library's own words in an error, characters.
const MAX_REASON: usize = 400;

/// Stack of a thread: schemas may be nested 128 deep, and each level takes some kilobytes.
const STACK_BYTES: usize = 8 << 20;

/// The way to guides for one model. Cheap to clone. Costs nothing before the first form is asked for; the trie of its
/// vocabulary is then made once.
#[derive(Clone)]
pub struct Guides(Arc<Shared>);

struct Shared {
    size: usize,
    read: Box<ReadVocabulary>,
    made: OnceLock<Result<Made, GuideError>>,
    workers: OnceLock<Result<Workers, GuideError>>,
}

/// Gives a model's vocabulary, or says why there is none.
pub type ReadVocabulary = dyn Fn() -> Result<Vocabulary, String> + Send + Sync;

struct Made {
    factory: ParserFactory,
    marks: Marks,
}

/// Two pools: a form that takes long to compile holds up no mask.
struct Workers {
    compile: ThreadPool,
    masks: Arc<ThreadPool>,
}

/// Why an answer cannot be held to its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuideError {
    /// The form cannot be held, or takes too much: the buyer's fault.
    #[error("an answer cannot be held to the form that is asked for: {0}")]
    Form(String),
    /// This room failed.
    #[error("holding an answer to its form failed: {0}")]
    Failed(String),
}

impl Guides {
    /// Guides for a model with a table of `size` ids. `read` gives its vocabulary, at the first use.
    #[must_use]
    pub fn new(size: usize, read: Box<ReadVocabulary>) -> Self {
        Self(Arc::new(Shared { size, read, made: OnceLock::new(), workers: OnceLock::new() }))
    }

    /// Makes a guide in the background and hands it to `then`, with its first mask computed. Not begun any more once
    /// `gone` says so; `then` is dropped then.
    pub fn prepare(
        &self,
        constraint: Constraint,
        gone: impl Fn() -> bool + Send + 'static,
        then: impl FnOnce(Result<Guide, GuideError>) + Send + 'static,
    ) {
        let workers = match self.0.workers.get_or_init(Workers::new) {
            Ok(workers) => workers,
            Err(error) => return then(Err(error.clone())),
        };
        let (shared, masks) = (Arc::clone(&self.0), Arc::clone(&workers.masks));
        workers.compile.spawn(move || {
            // Nobody catches what escapes on a pool's thread.
            let _ = catch_unwind(AssertUnwindSafe(move || {
                if !gone() {
                    let first = guarded(|| shared.first(&constraint));
                    then(first.map(|(matcher, mask)| Guide { masks, turn: Turn::Ready(matcher, mask) }));
                }
            }));
        });
    }
}

impl std::fmt::Debug for Guides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guides").field("size", &self.0.size).finish_non_exhaustive()
    }
}

impl Workers {
    fn new() -> Result<Self, GuideError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = |name: &'static str, threads: usize| {
            let builder = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES);
            let pool = builder.thread_name(move |at| format!("{name}-{at}")).build();
            pool.map_err(|error| GuideError::Failed(error.to_string()))
        };
        // Masks of one step are computed side by side while the model computes the step.
        Ok(Self { compile: pool("form", 2)?, masks: Arc::new(pool("mask", (cores / 2).clamp(1, 8))?) })
    }
}

impl Shared {
    fn made(&self) -> Result<&Made, GuideError> {
        let made = self.made.get_or_init(|| {
            guarded(|| {
                let began = std::time::Instant::now();
                let vocabulary = (self.read)().map_err(GuideError::Failed)?;
                let marks = vocabulary.marks();
                let caps = InferenceCapabilities::default();
                let slices = SlicedBiasComputer::general_slices();
                let made = ParserFactory::new(&vocabulary.into_trie(self.size), caps, &slices);
                let mut factory = made.map_err(|error| GuideError::Failed(short(&error.to_string())))?;
                factory.quiet();
                let limits = factory.limits_mut();
                limits.initial_lexer_fuel = COMPILE_FUEL;
                limits.max_grammar_size = MAX_GRAMMAR_SYMBOLS;
                limits.step_lexer_fuel = MASK_LEXER_FUEL;
                limits.step_max_items = MASK_ITEMS;
                limits.max_lexer_states = MAX_LEXER_STATES;
                // Errors go to buyers: not a grammar that they have not written.
                limits.verbose_errors = false;
                tracing::info!(ids = self.size, took = ?began.elapsed(), "answers can be held to forms");
                Ok(Made { factory, marks })
            })
        });
        made.as_ref().map_err(Clone::clone)
    }

    fn first(&self, constraint: &Constraint) -> Outcome {
        let size = grammar::size(constraint);
        if size > MAX_FORM_BYTES {
            return Err(GuideError::Form(format!("its schemas have {size} bytes; at most {MAX_FORM_BYTES} are taken")));
        }
        let made = self.made()?;
        let parser = made.factory.create_parser(grammar::grammar(constraint, &made.marks));
        let parser = parser.map_err(|error| GuideError::Form(short(&format!("{error:#}"))))?;
        let mut matcher = Box::new(Matcher::new(Ok(parser)));
        // What a form allows at its start it says of itself: whatever goes wrong here is its fault.
        match matcher.compute_mask() {
            Ok(mask) => Ok((matcher, Mask::new(mask))),
            Err(error) if error.to_string().contains(DEAD_END) => {
                Err(GuideError::Form("nothing can be written under its schema".into()))
            }
            Err(error) => Err(GuideError::Form(short(&error.to_string()))),
        }
    }
}

type Outcome = Result<(Box<Matcher>, Mask), GuideError>;

/// Holds one answer to its form.
pub struct Guide {
    masks: Arc<ThreadPool>,
    turn: Turn,
}

enum Turn {
    Ready(Box<Matcher>, Mask),
    Coming(mpsc::Receiver<Outcome>),
    Over(GuideError),
}

impl Guide {
    /// The ids that may come next: never none. Waits where they are still being computed. At the end of the form, the ids
    /// that end a turn.
    ///
    /// # Errors
    /// When the form has become too much work, or this room failed; all later calls give the same.
    pub fn mask(&mut self) -> Result<&Mask, GuideError> {
        if let Turn::Coming(coming) = &self.turn {
            self.turn = match coming.recv() {
                Ok(Ok((matcher, mask))) => Turn::Ready(matcher, mask),
                Ok(Err(error)) => Turn::Over(error),
                Err(mpsc::RecvError) => Turn::Over(lost()),
            };
        }
        match &self.turn {
            Turn::Ready(_, mask) => Ok(mask),
            Turn::Over(error) => Err(error.clone()),
            Turn::Coming(_) => Err(lost()),
        }
    }

    /// Says which id came, one that the mask allows, and begins to compute what may come behind it. Returns at once.
    pub fn accept(&mut self, id: u32) {
        let (tell, coming) = mpsc::channel();
        match std::mem::replace(&mut self.turn, Turn::Coming(coming)) {
            Turn::Ready(matcher, _) => self.masks.spawn(move || {
                // Nobody may be there any more.
                let _ = tell.send(guarded(|| next(matcher, id)));
            }),
            Turn::Coming(_) => self.turn = Turn::Over(GuideError::Failed("a token came before its mask".into())),
            over @ Turn::Over(_) => self.turn = over,
        }
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").finish_non_exhaustive()
    }
}

fn next(mut matcher: Box<Matcher>, id: u32) -> Outcome {
    // Behind its end a form takes nothing more, and what ends a turn goes on to be all that may come.
    if !matcher.is_stopped() {
        matcher.consume_token(id).map_err(|error| GuideError::Failed(short(&error.to_string())))?;
    }
    match matcher.compute_mask_or_eos() {
        Ok(mask) if mask.is_zero() => Err(GuideError::Failed("the model has no id that ends a turn".into())),
        Ok(mask) => Ok((matcher, Mask::new(mask))),
        Err(error) if error.to_string().starts_with("panic") => Err(GuideError::Failed(short(&error.to_string()))),
        // Too much work, or a way that leads nowhere.
        Err(error) => Err(GuideError::Form(short(&error.to_string()))),
    }
}

fn lost() -> GuideError {
    GuideError::Failed("its thread is gone".into())
}

/// The library catches its own panics; this is for what it does not.
fn guarded<T>(work: impl FnOnce() -> Result<T, GuideError>) -> Result<T, GuideError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(GuideError::Failed("a panic".into())))
}

/// The library's words on one line, without what it appends for its own developers.
fn short(reason: &str) -> String {
    let reason = reason.split("<backtrace>").next().unwrap_or_default().replace("<non-verbose/>", "");
    let words: Vec<&str> = reason.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= MAX_REASON { line } else { line.chars().take(MAX_REASON).chain("...".chars()).collect() }
}
