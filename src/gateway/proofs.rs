//! What miners committed to, kept for whoever wants to check it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::openai::Usage;
use crate::protocol::Commitment;

/// Proofs kept, the newest. Enough for a test run; a long prompt with a long answer weighs some 2 MB, the usual one a
/// few kB.
pub(super) const MAX_PROOFS: usize = 1024;

/// One answer's commitment and where it came from.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProofRecord {
    pub(super) request_id: String,
    pub(super) model: String,
    pub(super) worker_name: String,
    pub(super) worker_id: String,
    pub(super) commitment: Commitment,
    pub(super) usage: Usage,
    /// Seconds since the Unix epoch.
    pub(super) created: u64,
}

/// The last [`MAX_PROOFS`] proofs.
#[derive(Debug, Default)]
pub(super) struct ProofStore {
    records: Mutex<VecDeque<Arc<ProofRecord>>>,
}

impl ProofStore {
    /// Keeps `record`, in place of an older one of the same request.
    pub(super) fn keep(&self, record: ProofRecord) {
        let mut records = self.lock();
        records.retain(|kept| kept.request_id != record.request_id);
        if records.len() >= MAX_PROOFS {
            records.pop_front();
        }
        records.push_back(Arc::new(record));
    }

    /// The proof of a request, if it is still kept.
    pub(super) fn find(&self, request_id: &str) -> Option<Arc<ProofRecord>> {
        self.lock().iter().rev().find(|kept| kept.request_id == request_id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<ProofRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ToplocCommitment;

    fn record(id: usize, tokens: usize) -> ProofRecord {
        ProofRecord {
            request_id: format!("r-{id}"),
            model: "m".into(),
            worker_name: "w".into(),
            worker_id: "w".into(),
            commitment: Commitment {
                model_root: String::new(),
                output_token_ids: vec![],
                toploc: ToplocCommitment {
                    proofs: vec![],
                    topk: 128,
                    decode_batching_size: 32,
                    skip_prefill: true,
                    n_tokens: tokens,
                    prompt_ids: vec![],
                },
            },
            usage: Usage::default(),
            created: 0,
        }
    }

    #[test]
    fn the_oldest_make_room_and_the_newest_of_one_id_stays() {
        let store = ProofStore::default();
        for id in 0..=MAX_PROOFS {
            store.keep(record(id, id));
        }
        assert!(store.find("r-0").is_none());
        assert!(store.find("r-1").is_some());
        store.keep(record(1, 77));
        assert_eq!(store.find("r-1").unwrap().commitment.toploc.n_tokens, 77);
        store.keep(record(MAX_PROOFS + 1, 0));
        assert!(store.find("r-2").is_none() && store.find("r-1").is_some());
        assert_eq!(store.lock().len(), MAX_PROOFS);
    }
}
