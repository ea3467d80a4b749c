//! Walks through masks: what a model that knows nothing writes under them, and what one that knows the form does.

mod bombs;
mod calls;
mod json;
mod qwen;
mod schema;

use std::sync::mpsc;

use rand::Rng;
use rand::seq::IteratorRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use super::*;
use crate::chat::Tokenizer;
use crate::checkpoint::Checkpoint;

/// A model's tokenizer, and guides over it.
pub(super) struct Site {
    pub(super) tokenizer: Tokenizer,
    pub(super) end_ids: Vec<u32>,
    pub(super) guides: Guides,
}

impl Site {
    pub(super) fn open(folder: &std::path::Path, size: usize) -> Self {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let end_ids = checkpoint.end_ids();
        let vocabulary = Tokenizer::open(&checkpoint).unwrap().vocabulary(end_ids.clone());
        let guides = Guides::new(size, Box::new(move || Ok(vocabulary.clone())));
        Self { tokenizer: Tokenizer::open(&checkpoint).unwrap(), end_ids, guides }
    }

    /// The fixtures' vocabulary: the bytes, some merges, marks; the model's table has ids beyond it.
    pub(super) fn tiny() -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/tiny-llama");
        Self::open(folder.as_ref(), 400)
    }

    pub(super) fn guide(&self, constraint: Constraint) -> Result<Guide, GuideError> {
        let (tell, told) = mpsc::channel();
        self.guides.prepare(constraint, || false, move |guide| drop(tell.send(guide)));
        told.recv().unwrap()
    }

    pub(super) fn bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.bytes(id).unwrap_or_default()
    }

    /// How many of a text's ids are accepted, of how many, and whether a turn may end behind them.
    pub(super) fn accepts(&self, guide: &mut Guide, text: &str) -> (usize, usize, bool) {
        let ids = self.tokenizer.encode(text).unwrap();
        for (at, id) in ids.iter().enumerate() {
            if !guide.mask().unwrap().allows(*id) {
                return (at, ids.len(), false);
            }
            guide.accept(*id);
        }
        let mask = guide.mask().unwrap();
        (ids.len(), ids.len(), self.end_ids.iter().any(|id| mask.allows(*id)))
    }

    pub(super) fn takes(&self, constraint: &Constraint, text: &str) -> bool {
        let (taken, all, ends) = self.accepts(&mut self.guide(constraint.clone()).unwrap(), text);
        taken == all && ends
    }

    /// Chooses any allowed id, with a liking for what closes something, until the turn ends; gives the ids before that.
    /// `None` if it does not end.
    pub(super) fn walk(&self, guide: &mut Guide, rng: &mut ChaCha8Rng, most: usize) -> Option<Vec<u32>> {
        let mut ids = Vec::new();
        while ids.len() < most {
            let mask = guide.mask().unwrap();
            assert!(!mask.is_empty());
            let allowed: Vec<u32> = (0..400).filter(|id| mask.allows(*id)).collect();
            assert_eq!(allowed.len(), mask.len());
            let closes = |id: &u32| self.end_ids.contains(id) || self.bytes(*id).iter().any(|b| b"\"]}".contains(b));
            let liked = allowed.iter().copied().filter(closes).choose(rng).filter(|_| rng.random_bool(0.4));
            let id = liked.or_else(|| allowed.iter().copied().choose(rng)).unwrap();
            if self.end_ids.contains(&id) {
                return Some(ids);
            }
            ids.push(id);
            guide.accept(id);
        }
        None
    }
}

/// Content under a schema, nothing before it.
pub(super) fn json_under(schema: Value) -> Constraint {
    Constraint { thought: Thought::None, json: Some(schema), calls: None }
}

#[test]
fn a_mask_makes_all_else_impossible() {
    let site = Site::tiny();
    let mut guide = site.guide(json_under(serde_json::json!({"enum": ["a", "b"]}))).unwrap();
    let mask = guide.mask().unwrap();
    // Also where the row is longer than the vocabulary, or shorter.
    for length in [0, 1, 31, 32, 33, 400, 1000] {
        let mut logits = vec![1.0_f32; length];
        mask.apply(&mut logits);
        for (id, logit) in logits.iter().enumerate() {
            assert_eq!(*logit, if mask.allows(id as u32) { 1.0 } else { f32::NEG_INFINITY }, "{id} of {length}");
        }
    }
    assert!(
        mask.allows(u32::from(b'"')) && !mask.allows(u32::from(b'a')) && !mask.allows(399) && !mask.allows(u32::MAX)
    );
    // A token that the mask does not have ends the guide, and nothing else.
    guide.accept(u32::from(b'x'));
    assert!(matches!(guide.mask(), Err(GuideError::Failed(_))), "{:?}", guide.mask());
    guide.accept(u32::from(b'x'));
    assert!(guide.mask().is_err());
}

#[test]
fn a_vocabulary_that_is_not_there_is_an_error() {
    let guides = Guides::new(10, Box::new(|| Err("no tokenizer".into())));
    let (tell, told) = mpsc::channel();
    guides.prepare(json_under(Value::Bool(true)), || false, move |guide| drop(tell.send(guide.unwrap_err())));
    assert_eq!(told.recv(), Ok(GuideError::Failed("no tokenizer".into())));
    // Nobody waits any more: nothing is made.
    let (tell, told) = mpsc::channel::<()>();
    guides.prepare(json_under(Value::Bool(true)), || true, move |_| tell.send(()).unwrap());
    assert_eq!(told.recv(), Err(mpsc::RecvError));
}
