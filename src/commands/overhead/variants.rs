//! The matrix's makers and verifiers: ways to compute the same model, and models that are not the same.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::{Interrupted, Measurement, sides};
use crate::backend::Backend;
use crate::backend::candle::{CandleBackend, EngineOptions, Fp8Activations, KvDtype, LoadError, WeightsChange};
use crate::checkpoint::Checkpoint;
use crate::commands::bench::SPARE_TOKENS;
use crate::commands::load;
use crate::overhead::{Made, Matrix, Role, Variant, judge, make};

/// Tokens of each answer: two batches, a whole one and one of half the rows.
const ANSWER_TOKENS: usize = 48;
/// Tokens that a prompt is cut to: the matrix is about sums, not about texts.
const PROMPT_TOKENS: usize = 64;
/// The longest text of the matrix, with what a serve keeps back of its context.
pub(super) const LONGEST_TOKENS: usize = PROMPT_TOKENS + ANSWER_TOKENS + 16;
/// Tokens a step of the variant that reads prompts in small pieces: a prompt has several.
const SMALL_CHUNK: usize = 16;
/// Ranks of the variant that shares the model; the first that its shape allows.
const RANKS: [usize; 3] = [2, 3, 4];

/// A variant, and how it computes.
struct Way {
    variant: Variant,
    how: How,
    /// Whether there are models that cannot be computed so.
    optional: bool,
}

enum How {
    Candle {
        options: Box<EngineOptions>,
        /// Answers that are computed together.
        at_once: usize,
    },
    Sglang,
}

impl Way {
    fn candle(name: &str, flags: &str, at_once: usize, options: EngineOptions) -> Self {
        let variant =
            Variant { name: format!("candle {name}").trim().to_owned(), flags: flags.to_owned(), role: Role::Honest };
        Self { variant, how: How::Candle { options: Box::new(options), at_once }, optional: false }
    }

    /// A maker with other weights.
    fn changed(role: Role, name: &str, change: WeightsChange, options: &EngineOptions) -> Self {
        let options = EngineOptions { weights_change: Some(change), ..options.clone() };
        let variant = Variant { name: name.to_owned(), flags: format!("weights changed: {change}"), role };
        Self { variant, how: How::Candle { options: Box::new(options), at_once: 1 }, optional: role == Role::Edge }
    }
}

impl Measurement {
    /// Has every variant prove answers and every honest one judge them. `None` if somebody interrupts.
    pub(super) async fn matrix(
        &self,
        prompts: &[Vec<u32>],
        answers: usize,
        context: usize,
        interrupted: &Interrupted,
    ) -> anyhow::Result<Option<Matrix>> {
        let room = context.saturating_sub(ANSWER_TOKENS + 1).max(1);
        let prompts = prompts.iter().cycle().take(answers);
        let prompts: Vec<Vec<u32>> =
            prompts.map(|prompt| prompt.iter().take(PROMPT_TOKENS.min(room)).copied().collect()).collect();
        let mut ways = self.ways(answers)?;
        let spec = self.spec.toploc;
        let bar = load::bar((2 * ways.len()) as u64, "[{bar:30}] {pos} of {len}  {msg}");
        let mut made: Vec<Made> = Vec::new();
        let mut without = Vec::new();
        for (at, way) in ways.iter().enumerate() {
            if interrupted.is_set() {
                return Ok(None);
            }
            bar.set_message(format!("proofs of {}", way.variant.name));
            let (how, at_once) = (&way.how, if let How::Candle { at_once, .. } = way.how { at_once } else { 1 });
            let backend = match self.open(how, false).await {
                // A model that cannot be shared by so many, or a layer that it does not have.
                Err(error) if way.optional && is_unsuitable(&error) => {
                    tracing::debug!(variant = way.variant.name, reason = %error, "left out of the matrix");
                    without.push(at);
                    continue;
                }
                backend => backend?,
            };
            let answers = make(backend.as_ref(), way.variant.clone(), &prompts, ANSWER_TOKENS, at_once, spec.k).await;
            made.push(answers.map_err(|e| anyhow!("{} gave no proofs: {e}", way.variant.name))?);
            bar.inc(1);
        }
        for at in without.into_iter().rev() {
            ways.remove(at);
        }
        bar.set_length((2 * ways.len()) as u64);
        let mut cells = Vec::new();
        for way in &ways {
            if interrupted.is_set() {
                return Ok(None);
            }
            if way.variant.role != Role::Honest {
                continue;
            }
            bar.set_message(format!("{} judges", way.variant.name));
            let backend = match self.open(&way.how, true).await {
                Err(error) if matches!(way.how, How::Sglang) && !self.args.fake_serve => {
                    tracing::warn!(reason = %error, "the serve cannot recompute, so it judges nobody");
                    continue;
                }
                backend => backend?,
            };
            for made in &made {
                let cell = judge(backend.as_ref(), &way.variant.name, made, spec).await;
                cells.push(cell.map_err(|e| anyhow!("{} cannot judge {}: {e}", way.variant.name, made.variant.name))?);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let place = |name: &str| ways.iter().position(|way| way.variant.name == name);
        cells.sort_by_key(|cell| (place(&cell.maker), place(&cell.verifier)));
        Ok(Some(Matrix {
            variants: ways.into_iter().map(|way| way.variant).collect(),
            cells,
            max_mismatches: spec.v,
            pass_ratio: spec.p,
        }))
    }

    /// All variants that this model may have.
    fn ways(&self, answers: usize) -> anyhow::Result<Vec<Way>> {
        let args = &self.args;
        let tokens = answers.saturating_mul(PROMPT_TOKENS + ANSWER_TOKENS + SPARE_TOKENS);
        let base = EngineOptions {
            max_running: answers,
            max_total_tokens: Some(tokens),
            mem_fraction: None,
            ..load::options(&args.engine)?
        };
        let with = |change: &dyn Fn(&mut EngineOptions)| {
            let mut options = base.clone();
            change(&mut options);
            options
        };
        let mut ways = vec![Way::candle("", "", 1, base.clone())];
        let batch = format!("batch={answers}");
        ways.extend((answers > 1).then(|| Way::candle(&batch, "answers computed together", answers, base.clone())));
        ways.push(Way::candle(
            &format!("chunk={SMALL_CHUNK}"),
            &format!("--chunked-prefill-size {SMALL_CHUNK}"),
            1,
            with(&|options| options.prefill_chunk = SMALL_CHUNK),
        ));
        for (name, kv_dtype) in [("bf16", KvDtype::Bf16), ("fp8_e4m3", KvDtype::Fp8E4m3)] {
            let options = with(&|options| options.kv_dtype = kv_dtype);
            ways.push(Way::candle(&format!("kv={name}"), &format!("--kv-cache-dtype {name}"), 1, options));
        }
        if base.ranks == 1 {
            ways.extend(RANKS.map(|ranks| {
                let options = with(&|options| options.ranks = ranks);
                let way = Way::candle(&format!("tp={ranks}"), &format!("--tp-size {ranks}"), 1, options);
                Way { optional: true, ..way }
            }));
        }
        if self.has_eight_bit_weights() {
            let options = with(&|options| options.fp8_activations = Fp8Activations::Dynamic);
            // Honest, and near the line where the verifier does not do the same: see docs/verification.md.
            let way = Way::candle("activations=e4m3", "--fp8-activations dynamic", 1, options);
            ways.push(Way { variant: Variant { role: Role::Edge, ..way.variant }, ..way });
        }
        let options = with(&|options| options.weights_change = Some(WeightsChange::Bf16));
        ways.push(Way::candle("weights=bf16", "weights rounded to bf16, as a serve in bf16 holds them", 1, options));
        if let Some(described) = &self.sides.described {
            let variant = Variant { name: "sglang".into(), flags: described.clone(), role: Role::Honest };
            ways.push(Way { variant, how: How::Sglang, optional: false });
        }
        // Four bits are what many a GGUF file has: rounding them again does not make them another model's.
        let four_bits = if matches!(self.checkpoint, Some(Checkpoint::Gguf(_))) { Role::Edge } else { Role::Control };
        let changes = [
            (Role::Control, "another seed", WeightsChange::Redrawn { seed: 1 }),
            (Role::Control, "int2 weights", WeightsChange::Rounded { bits: 2 }),
            (four_bits, "int4 weights", WeightsChange::Rounded { bits: 4 }),
            (Role::Control, "no first layer", WeightsChange::WithoutLayer { layer: 0 }),
            (Role::Edge, "no layer 8", WeightsChange::WithoutLayer { layer: 8 }),
            (Role::Edge, "noise of 3 %", WeightsChange::Noise { share: 0.03 }),
        ];
        ways.extend(changes.map(|(role, name, change)| Way::changed(role, name, change, &base)));
        Ok(ways)
    }

    /// Whether activations can be rounded where they meet the weights.
    fn has_eight_bit_weights(&self) -> bool {
        match &self.checkpoint {
            Some(Checkpoint::Folder(folder)) => folder.config().get("quantization_config").is_some(),
            Some(Checkpoint::Gguf(_)) => false,
            None => true,
        }
    }

    /// Opens a variant, as a maker or as a verifier.
    async fn open(&self, how: &How, recomputes: bool) -> anyhow::Result<Arc<dyn Backend>> {
        match how {
            How::Sglang => {
                let mut served = self.sides.served.clone().context("there is no serve any more")?;
                served.expected.recomputes = recomputes;
                // What there is to say of it was said when it was measured.
                sides::client(&self.args, served).with_subscriber(NoSubscriber::default()).await
            }
            How::Candle { options, .. } => {
                let (options, checkpoint) = (options.clone(), self.checkpoint.clone());
                let synthetic = self.args.synthetic.clone();
                let open = move || match (&checkpoint, &synthetic) {
                    (Some(checkpoint), _) => Ok(CandleBackend::open(checkpoint, &options, &|_, _| {})?),
                    (None, Some(model)) => Ok(CandleBackend::synthetic(model, &options, &|_, _| {})?),
                    (None, None) => Err(anyhow!("there is no model")),
                };
                // Its warning of changed weights is for those who did not ask for them.
                let silent = || tracing::subscriber::with_default(NoSubscriber::default(), open);
                let opened = tokio::task::spawn_blocking(silent);
                Ok(Arc::new(opened.await??))
            }
        }
    }
}

/// Whether a model was refused for what was asked of it: a split, or a layer, that it does not have.
fn is_unsuitable(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<LoadError>(), Some(LoadError::Start(_)))
}
