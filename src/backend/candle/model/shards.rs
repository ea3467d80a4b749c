//! How each tensor is split over ranks: the rule for one, and what a rank then holds.

use std::ops::Range;

/// One rank of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct Shard {
    /// From 0.
    pub(in crate::backend::candle) rank: usize,
    pub(in crate::backend::candle) world: usize,
}

impl Shard {
    /// The only rank.
    pub(in crate::backend::candle) const WHOLE: Self = Self { rank: 0, world: 1 };
}

/// How a tensor is split.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::candle) enum Split {
    /// Every rank holds all of it.
    Replicated,
    /// By output rows. A joined projection (queries, keys and values in one) has several parts, each of which is split by itself:
    /// a plain cut would give one rank all queries and another all values.
    Rows(Vec<Part>),
    /// By input columns, as the rows of the projection in front are: each rank's product is then a part of the sum.
    Columns(Units),
}

/// Some rows of a tensor that are split alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::candle) struct Part {
    pub(in crate::backend::candle) rows: usize,
    pub(in crate::backend::candle) units: Units,
}

/// What must stay whole in a split: heads, or single rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::candle) struct Units {
    pub(in crate::backend::candle) count: usize,
    /// In words, for a message: "key heads".
    pub(in crate::backend::candle) what: &'static str,
    /// Whether several ranks hold the same unit where there are fewer of them than ranks.
    pub(in crate::backend::candle) shared: bool,
}

impl Units {
    /// Units of which each rank has its own.
    pub(in crate::backend::candle) fn own(count: usize, what: &'static str) -> Self {
        Self { count, what, shared: false }
    }

    /// Units that may be held more than once.
    pub(in crate::backend::candle) fn shared(count: usize, what: &'static str) -> Self {
        Self { count, what, shared: true }
    }

    /// How many a rank of `world` holds.
    pub(in crate::backend::candle) fn a_rank(self, world: usize) -> Result<usize, String> {
        let Self { count, what, shared } = self;
        match () {
            () if count.is_multiple_of(world) => Ok(count / world),
            () if shared && count > 0 && world.is_multiple_of(count) => Ok(1),
            () => Err(format!("{count} {what} do not divide over {world} ranks")),
        }
    }

    /// How many of `size` rows or columns a rank holds. `square` is the width of the squares of weights that share a scale, where
    /// there are such: an edge of a part must be one of theirs.
    fn of(self, size: usize, world: usize, square: Option<usize>) -> Result<usize, String> {
        let own = size / self.count.max(1) * self.a_rank(world)?;
        match square {
            Some(square) if world > 1 && !own.is_multiple_of(square) => {
                let what = self.what;
                Err(format!(
                    "{own} of the {what} a rank, of {world}, split a square of {square} weights with one scale"
                ))
            }
            _ => Ok(own),
        }
    }

    /// Which of `size` rows or columns a rank holds; `square` as above.
    ///
    /// # Errors
    /// When it does not come out even, with the reason.
    pub(in crate::backend::candle) fn range(
        self,
        size: usize,
        Shard { rank, world }: Shard,
        square: Option<usize>,
    ) -> Result<Range<usize>, String> {
        let own = self.of(size, world, square)?;
        // Where there are fewer units than ranks, neighbours hold the same one: the ranks of its query heads.
        let at = if self.count >= world { rank } else { rank * self.count / world };
        Ok(at * own..(at + 1) * own)
    }
}

impl Split {
    /// By rows of one part.
    pub(in crate::backend::candle) fn rows(rows: usize, units: Units) -> Self {
        Self::Rows(vec![Part { rows, units }])
    }

    /// The shape of a rank's part of a tensor; `square` as for [`Units::range`].
    ///
    /// # Errors
    /// When it does not come out even, with the reason.
    pub(in crate::backend::candle) fn shape(
        &self,
        whole: &[usize],
        world: usize,
        square: Option<usize>,
    ) -> Result<Vec<usize>, String> {
        let mut shape = whole.to_vec();
        match self {
            Self::Replicated => {}
            Self::Rows(parts) => {
                let sizes = parts.iter().map(|part| part.units.of(part.rows, world, square));
                if let Some(rows) = shape.first_mut() {
                    *rows = sizes.sum::<Result<usize, String>>()?;
                }
            }
            Self::Columns(units) => {
                if let Some(columns) = shape.last_mut() {
                    *columns = units.of(*columns, world, square)?;
                }
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_split_each_by_itself() {
        // Qwen3.6's joined projection: sixteen key heads twice, thirty-two value heads.
        let part = |rows, count| Part { rows, units: Units::own(count, "heads") };
        let split = Split::Rows(vec![part(2048, 16), part(2048, 16), part(4096, 32)]);
        assert_eq!(split.shape(&[8192, 2048], 4, Some(128)), Ok(vec![512 + 512 + 1024, 2048]));
        assert!(split.shape(&[8192, 2048], 3, None).unwrap_err().contains("16 heads do not divide over 3"));
        assert!(split.shape(&[8192, 2048], 32, None).is_err(), "sixteen key heads are not shared");
    }

    #[test]
    fn few_key_heads_are_held_more_than_once() {
        let split = Split::rows(512, Units::shared(2, "key heads"));
        assert_eq!(split.shape(&[512, 2048], 2, Some(128)), Ok(vec![256, 2048]));
        assert_eq!(split.shape(&[512, 2048], 4, Some(128)), Ok(vec![256, 2048]));
        assert!(split.shape(&[512, 2048], 3, None).is_err());
    }

    #[test]
    fn no_square_of_weights_is_split() {
        let (up, down) = (Split::rows(512, Units::own(512, "rows")), Split::Columns(Units::own(512, "columns")));
        assert_eq!(up.shape(&[512, 2048], 4, Some(128)), Ok(vec![128, 2048]));
        assert_eq!(down.shape(&[2048, 512], 4, Some(128)), Ok(vec![2048, 128]));
        for split in [up, down] {
            let refusal = split.shape(&[512, 512], 8, Some(128)).unwrap_err();
            assert!(refusal.contains("64 of the") && refusal.contains("square of 128"), "{refusal}");
            assert!(split.shape(&[512, 512], 8, None).is_ok());
        }
        // One rank takes what is there, whole squares or not.
        assert_eq!(Split::rows(160, Units::own(160, "rows")).shape(&[160, 96], 1, Some(128)), Ok(vec![160, 96]));
        assert_eq!(Split::Replicated.shape(&[7], 4, Some(128)), Ok(vec![7]));
    }

    #[test]
    fn ranks_hold_neighbouring_parts() {
        let ranges = |units: Units, size, world| -> Vec<_> {
            (0..world).map(|rank| units.range(size, Shard { rank, world }, None).unwrap()).collect()
        };
        assert_eq!(ranges(Units::own(4, "heads"), 32, 2), [0..16, 16..32]);
        assert_eq!(ranges(Units::shared(2, "key heads"), 16, 4), [0..8, 0..8, 8..16, 8..16]);
        assert_eq!(Units::own(6, "heads").range(6, Shard::WHOLE, None), Ok(0..6));
    }
}
