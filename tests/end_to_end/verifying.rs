//! What a verifier accepts, and what it does not.

use std::path::Path;

use engy_miner::proof::Outcome;
use engy_miner::verify::{ProofRecord, VerifyError, verify};
use safetensors::SafeTensors;

use crate::site::{Site, fixture, load, question, tiny_spec};

/// Copies a fixture and turns one layer's feed-forward output upside down.
fn perturbed(model: &str, to: &Path) {
    for entry in std::fs::read_dir(fixture(model)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    let path = to.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let (start, end) = metadata.info("model.layers.1.mlp.down_proj.weight").unwrap().data_offsets;
    for value in bytes[8 + header..][start..end].as_chunks_mut::<4>().0 {
        *value = (-f32::from_le_bytes(*value)).to_le_bytes();
    }
    std::fs::write(&path, bytes).unwrap();
}

async fn honest() -> (Site, ProofRecord) {
    let site = Site::start().await;
    let (_, record) = site.ask(&question("prove this", 70)).await;
    (site, record)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_from_other_weights_is_rejected() {
    let (site, record) = honest().await;
    let folder = tempfile::tempdir().unwrap();
    perturbed("models/tiny-llama", folder.path());
    let (checkpoint, other) = load(folder.path());
    let root = checkpoint.model_root().unwrap();
    assert_eq!(root, site.model_root, "names and sizes are the same: only hidden states can tell");
    let report = verify(other.as_ref(), &root, &record.commitment, tiny_spec().toploc).await.unwrap();
    assert_eq!(report.verdict.outcome, Outcome::Fail, "{report:?}");
    assert_eq!(report.verdict.passed, 0, "no batch passes: {report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shuffled_answer_is_rejected() {
    let (site, mut record) = honest().await;
    record.commitment.output_token_ids.reverse();
    let report = verify(site.backend.as_ref(), &site.model_root, &record.commitment, tiny_spec().toploc).await.unwrap();
    assert_eq!(report.verdict.outcome, Outcome::Fail, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_contradicts_itself_is_refused_without_a_recompute() {
    let (site, record) = honest().await;
    let refusal = async |change: &dyn Fn(&mut ProofRecord)| {
        let mut record = record.clone();
        change(&mut record);
        verify(site.backend.as_ref(), &site.model_root, &record.commitment, tiny_spec().toploc).await.unwrap_err()
    };
    let malformed = |error: VerifyError| matches!(error, VerifyError::Commitment(_) | VerifyError::Proof(_));
    assert!(malformed(refusal(&|r| r.commitment.output_token_ids.truncate(69)).await));
    assert!(malformed(refusal(&|r| r.commitment.output_token_ids.clear()).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.prompt_ids.clear()).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.topk = 128).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.decode_batching_size = 1 << 40).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.skip_prefill = false).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.proofs.truncate(2)).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.proofs.push("AAAA".into())).await));
    assert!(malformed(refusal(&|r| r.commitment.toploc.proofs[0] = "!".into()).await));
    for forged in [
        refusal(&|r| r.commitment.toploc.prompt_ids[0] = u32::MAX).await,
        // The last token is never read: only a look at it can tell.
        refusal(&|r| *r.commitment.output_token_ids.last_mut().unwrap() = 384).await,
    ] {
        assert!(forged.to_string().contains("outside the vocabulary"), "{forged}");
    }
}
