//! Proofs of each maker, judged by each verifier's recompute.

use futures::{StreamExt, TryStreamExt, stream};

use super::answer::{Answer, AnswerError};
use super::results::{Distribution, MatrixCell, Variant};
use crate::backend::{Backend, GenerationRequest};
use crate::protocol::Commitment;
use crate::spec::ToplocSpec;
use crate::verify::{Report, VerifyError, verify};

/// A variant's proven answers.
#[derive(Debug, Clone)]
pub struct Made {
    /// Who made them.
    pub variant: Variant,
    /// What they claim.
    pub commitments: Vec<Commitment>,
}

/// Answers each prompt with `new_tokens` tokens and proves it, `at_once` at a time.
///
/// # Errors
/// When one of the answers cannot be had.
pub async fn make(
    backend: &dyn Backend,
    variant: Variant,
    prompts: &[Vec<u32>],
    new_tokens: usize,
    at_once: usize,
    topk: usize,
) -> Result<Made, AnswerError> {
    let answers = prompts.iter().map(async |prompt| {
        let request = GenerationRequest::greedy(prompt.clone(), new_tokens);
        Answer::read(backend, request, topk).await.map(|answer| answer.commitment)
    });
    let commitments = stream::iter(answers).buffered(at_once.max(1)).try_collect().await?;
    Ok(Made { variant, commitments })
}

/// Recomputes a maker's answers and judges them.
///
/// # Errors
/// When an answer cannot be judged. One that contradicts itself cannot come from [`make`].
pub async fn judge(
    backend: &dyn Backend,
    verifier: &str,
    made: &Made,
    spec: ToplocSpec,
) -> Result<MatrixCell, VerifyError> {
    let mut reports: Vec<Report> = Vec::with_capacity(made.commitments.len());
    for commitment in &made.commitments {
        reports.push(verify(backend, "", commitment, spec).await?);
    }
    let batches = || reports.iter().flat_map(|report| &report.verification.batches);
    let mismatches = Distribution::of(batches().map(|batch| batch.exp_mismatches as f64).collect());
    let mantissas = Distribution::of(batches().filter_map(|batch| Some(batch.mantissa?.mean)).collect());
    Ok(MatrixCell {
        maker: made.variant.name.clone(),
        verifier: verifier.to_owned(),
        role: made.variant.role,
        answers: reports.len(),
        passed: reports.iter().filter(|report| report.verdict.is_pass()).count(),
        batches: mismatches.count,
        mismatches_mean: mismatches.mean,
        mismatches_p99: mismatches.p99,
        mismatches_max: batches().map(|batch| batch.exp_mismatches).max().unwrap_or_default(),
        mantissa_mean: (mantissas.count > 0).then_some(mantissas.mean),
        mantissa_max: mantissas.percentiles.last().copied(),
    })
}
