//! The answer alone, for a terminal.

use super::answer::answer;
use super::text;
use super::view::View;

/// Names come from files: none must steer the terminal.
pub(super) fn summary(view: &View<'_>) -> String {
    answer(view).iter().map(|said| text::clean(&said.text) + "\n").collect()
}
