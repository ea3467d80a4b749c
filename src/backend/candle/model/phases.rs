//! A step cut where a snapshot is to be taken between two of its rows.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::candle::kernels::StateSpan;
use crate::backend::candle::plan::{Span, StateCopy};

/// Rows of a step that linear layers compute in one go, and the snapshots to take behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::candle) struct Phase {
    pub(super) rows: Range<usize>,
    /// The sequences' parts of these rows, counted from the first of them.
    pub(super) spans: Arc<[StateSpan]>,
    pub(super) saves: Vec<StateCopy>,
}

/// The phases of a step. Nearly always one: a snapshot at the end of a sequence's rows needs no cut, and one within them comes
/// once a prompt.
pub(super) fn phases(spans: &[Span]) -> Vec<Phase> {
    let mut phases = Vec::new();
    let mut open = Open::default();
    for span in spans {
        let mut start = span.rows.start;
        for save in &span.saves {
            let end = span.rows.start + save.after;
            let copy = StateCopy { from: span.state, to: save.to };
            if end > start {
                open.add(span, start..end);
                start = end;
            }
            open.saves.push(copy);
            if end < span.rows.end {
                phases.push(std::mem::replace(&mut open, Open { start: end, ..Open::default() }).close());
            }
        }
        if start < span.rows.end {
            open.add(span, start..span.rows.end);
        }
    }
    if !open.spans.is_empty() {
        phases.push(open.close());
    }
    phases
}

#[derive(Default)]
struct Open {
    start: usize,
    spans: Vec<StateSpan>,
    saves: Vec<StateCopy>,
}

impl Open {
    fn add(&mut self, span: &Span, rows: Range<usize>) {
        self.spans.push(StateSpan {
            slot: span.state,
            fresh: span.context == 0 && rows.start == span.rows.start,
            rows: rows.start - self.start..rows.end - self.start,
        });
    }

    fn close(self) -> Phase {
        let end = self.spans.last().map_or(0, |span| span.rows.end);
        Phase { rows: self.start..self.start + end, spans: self.spans.into(), saves: self.saves }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::candle::plan::StateSave;

    fn span(rows: Range<usize>, context: usize, state: u32, saves: &[(usize, u32)]) -> Span {
        let saves = saves.iter().map(|&(after, to)| StateSave { after, to }).collect();
        Span { rows, context, blocks: Vec::new(), state, saves }
    }

    fn part(rows: Range<usize>, slot: u32, fresh: bool) -> StateSpan {
        StateSpan { rows, slot, fresh }
    }

    #[test]
    fn snapshots_at_the_end_of_rows_need_no_cut() {
        let phases = phases(&[span(0..1, 31, 4, &[(1, 9)]), span(1..5, 0, 2, &[]), span(5..6, 15, 3, &[(1, 8)])]);
        let spans = Arc::new([part(0..1, 4, false), part(1..5, 2, true), part(5..6, 3, false)]);
        let saves = vec![StateCopy { from: 4, to: 9 }, StateCopy { from: 3, to: 8 }];
        assert_eq!(phases, [Phase { rows: 0..6, spans, saves }]);
    }

    #[test]
    fn a_snapshot_between_rows_cuts_the_step_there() {
        let phases = phases(&[span(0..2, 7, 1, &[]), span(2..40, 0, 2, &[(16, 7), (32, 8)]), span(40..41, 3, 3, &[])]);
        let want = [
            Phase {
                rows: 0..18,
                spans: Arc::new([part(0..2, 1, false), part(2..18, 2, true)]),
                saves: vec![StateCopy { from: 2, to: 7 }],
            },
            Phase { rows: 18..34, spans: Arc::new([part(0..16, 2, false)]), saves: vec![StateCopy { from: 2, to: 8 }] },
            Phase { rows: 34..41, spans: Arc::new([part(0..6, 2, false), part(6..7, 3, false)]), saves: vec![] },
        ];
        assert_eq!(phases, want);
        assert!(super::phases(&[]).is_empty());
    }
}
