//! Which ids may come next.

use llguidance::toktrie::SimpleVob;

/// A set of ids.
#[derive(Debug, Clone)]
pub struct Mask(SimpleVob);

impl Mask {
    pub(super) fn new(ids: SimpleVob) -> Self {
        Self(ids)
    }

    /// Whether an id is in it.
    #[must_use]
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }

    /// How many ids are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.num_set()
    }

    /// Whether no id is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_zero()
    }

    /// Makes all others impossible; `logits` are by id.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut words = self.0.as_slice().iter();
        for logits in logits.chunks_mut(u32::BITS as usize) {
            let word = words.next().copied().unwrap_or(0);
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    let forbidden = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                    forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}
