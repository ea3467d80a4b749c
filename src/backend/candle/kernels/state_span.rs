//! Which rows of a step carry on which sequence, for layers whose past is a state of fixed size.

use std::ops::Range;

use candle_core::{CpuStorage, Layout, Result, bail};

/// One sequence's rows of a step, and the place of its state.
///
/// The spans of a step follow one another without gaps, and no two have the same slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend::candle) struct StateSpan {
    /// Its rows, in the order of its tokens.
    pub(in crate::backend::candle) rows: Range<usize>,
    /// Where its state stands.
    pub(in crate::backend::candle) slot: u32,
    /// Whether the sequence begins here: its state is then zeros, whatever the slot holds.
    pub(in crate::backend::candle) fresh: bool,
}

/// Fails unless the spans are those of a step of `rows` rows.
pub(super) fn check(spans: &[StateSpan], rows: usize) -> Result<()> {
    let mut next = 0;
    for span in spans {
        if span.rows.start != next || span.rows.end < next {
            bail!("rows {:?} of a sequence do not follow row {next}", span.rows);
        }
        next = span.rows.end;
    }
    if next != rows {
        bail!("the sequences' {next} rows are not the step's {rows}");
    }
    Ok(())
}

/// The whole of a tensor of states.
pub(super) fn all_states<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("states are f32") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&mut values[start..end]),
        None => bail!("states must be contiguous"),
    }
}

/// Each span's state out of all of them, `size` values a slot; zeros where the sequence is fresh.
pub(super) fn states_of<'a>(spans: &[StateSpan], all: &'a mut [f32], size: usize) -> Result<Vec<&'a mut [f32]>> {
    let mut slots: Vec<Option<&mut [f32]>> = all.chunks_exact_mut(size.max(1)).map(Some).collect();
    let count = slots.len();
    spans
        .iter()
        .map(|span| match slots.get_mut(span.slot as usize).and_then(Option::take) {
            Some(state) => {
                if span.fresh {
                    state.fill(0.0);
                }
                Ok(state)
            }
            None => bail!("slot {} is not one of {count}, or has two sequences", span.slot),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(rows: Range<usize>, slot: u32) -> StateSpan {
        StateSpan { rows, slot, fresh: false }
    }

    #[test]
    fn spans_cover_the_rows_in_order() {
        assert!(check(&[span(0..2, 5), span(2..3, 1)], 3).is_ok());
        assert!(check(&[], 0).is_ok());
        for (spans, rows) in [
            (vec![span(0..2, 5), span(3..4, 1)], 4),
            (vec![span(0..2, 5), span(1..4, 1)], 4),
            (vec![span(0..2, 5)], 3),
            (vec![span(0..2, 5)], 1),
        ] {
            assert!(check(&spans, rows).is_err(), "{spans:?} in {rows} rows");
        }
    }

    #[test]
    fn each_span_has_its_own_state() {
        let mut all: Vec<f32> = (0..6_u8).map(f32::from).collect();
        let fresh = StateSpan { fresh: true, ..span(1..2, 0) };
        let states = states_of(&[span(0..1, 2), fresh], &mut all, 2).unwrap();
        assert_eq!(states, [&[4.0, 5.0], &[0.0, 0.0]]);
        assert!(states_of(&[span(0..1, 3)], &mut all, 2).is_err());
        assert!(states_of(&[span(0..1, 1), span(1..2, 1)], &mut all, 2).is_err());
    }
}
