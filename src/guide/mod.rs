//! What holds an answer to a form: JSON under a schema, or calls of given tools.
//!
//! In: a [`Constraint`], plain data, and a model's vocabulary. Out: a [`Guide`], which says before each token which ids
//! the form allows, and is told which one was chosen. Grammars are compiled and masks computed on threads of this room's
//! own, so that an engine only waits for a mask that is not ready. Knows nothing of chat, backends or tensors. Two
//! things must never happen here: an id allowed that breaks the form, and a form that takes the process with it.

mod constraint;
mod grammar;
mod guides;
mod mask;
mod vocabulary;

pub use self::constraint::{CallForm, Callable, Calls, Constraint, Parameter, Takes, Thought};
pub use self::guides::{Guide, GuideError, Guides, ReadVocabulary};
pub use self::mask::Mask;
pub use self::vocabulary::{Token, Vocabulary};

#[cfg(test)]
mod tests;
