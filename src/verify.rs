//! Recomputing what an answer claims: the validator's side.
//!
//! In: a commitment and a backend with the checkpoint. Out: how far each batch of the proof is from the recompute, and
//! the verdict. A commitment is somebody's claim, so every part of it is checked before it is used.

use serde::{Deserialize, Serialize};

use crate::backend::{Backend, BackendError};
use crate::proof::{DEFAULT_BATCH, Policy, Proof, ProofError, ProofParams, Verdict, Verification, Verifier};
use crate::protocol::Commitment;
use crate::spec::ToplocSpec;

/// A kept proof, as a gateway's `/v1/proofs/{request_id}` gives it. Other keys are ignored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ProofRecord {
    /// The request it belongs to.
    #[serde(default)]
    pub request_id: Option<String>,
    /// The model that was asked for.
    #[serde(default)]
    pub model: Option<String>,
    /// The claim.
    pub commitment: Commitment,
}

/// What a recompute found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Tokens of the answer.
    pub tokens: usize,
    /// Batch by batch.
    pub verification: Verification,
    /// The policy's judgement.
    pub verdict: Verdict,
    /// Whether the commitment names the checkpoint that recomputed it. A difference does not decide by itself: roots
    /// name releases, hidden states show weights.
    pub same_root: bool,
}

/// Why a commitment cannot be judged, or is refused without a recompute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum VerifyError {
    /// The claim contradicts itself or the model's spec.
    #[error("the commitment is malformed: {0}")]
    Commitment(String),
    /// A proof does not parse, or there are too many or too few.
    #[error("the proof is malformed: {0}")]
    Proof(#[from] ProofError),
    /// The recompute failed.
    #[error("the recompute failed: {0}")]
    Backend(#[from] BackendError),
}

/// Recomputes a commitment's rows on `backend` and judges its proof.
///
/// # Errors
/// When the claim is malformed (which is the claimant's failure) or the backend cannot recompute it.
pub async fn verify(
    backend: &dyn Backend,
    model_root: &str,
    commitment: &Commitment,
    spec: ToplocSpec,
) -> Result<Report, VerifyError> {
    let claim = &commitment.toploc;
    let wrong = |reason: String| Err(VerifyError::Commitment(reason));
    if (claim.topk, claim.decode_batching_size) != (spec.k, DEFAULT_BATCH) {
        return wrong(format!(
            "it has {} points for {} tokens a proof, the model's spec says {} for {DEFAULT_BATCH}",
            claim.topk, claim.decode_batching_size, spec.k
        ));
    }
    if !claim.skip_prefill {
        return wrong("it says that the prompt's rows are proven, which this network does not do".into());
    }
    if claim.prompt_ids.is_empty() || commitment.output_token_ids.is_empty() {
        return wrong("it has no prompt or no answer".into());
    }
    let tokens = commitment.output_token_ids.len();
    if claim.n_tokens != tokens {
        return wrong(format!("it counts {} tokens and lists {tokens}", claim.n_tokens));
    }
    // The last token is not read, so no recompute would notice one that does not exist.
    let vocab = backend.info().vocab;
    if let Some(id) = claim.prompt_ids.iter().chain(&commitment.output_token_ids).find(|&&id| id as usize >= vocab) {
        return wrong(format!("token id {id} is outside the vocabulary of {vocab}"));
    }
    let proofs = claim.proofs.iter().map(|proof| Proof::from_base64(proof, spec.k)).collect::<Result<_, _>>()?;
    let params = ProofParams { topk: spec.k, batch: DEFAULT_BATCH };
    let mut verifier = Verifier::new(proofs, params, backend.info().hidden)?;
    // Row j is the state after the prompt and the first j tokens of the answer; the last token is never read.
    let mut sequence = claim.prompt_ids.clone();
    sequence.extend(&commitment.output_token_ids[..tokens - 1]);
    let rows = backend.hidden_states(sequence, claim.prompt_ids.len() - 1).await.map_err(|error| match error {
        // Ids outside the vocabulary, or more than the model can read: no honest answer has them.
        BackendError::Client(reason) => VerifyError::Commitment(reason),
        other => VerifyError::Backend(other),
    })?;
    for row in &rows {
        verifier.push(row)?;
    }
    let verification = verifier.finish()?;
    let policy = Policy { max_mismatches: spec.v, pass_ratio: spec.p };
    Ok(Report {
        tokens,
        verdict: policy.judge(&verification),
        verification,
        same_root: commitment.model_root == model_root,
    })
}
