//! One rank's part of a model's weights.

use std::collections::HashMap;
use std::ops::Range;

use super::{LoadError, WeightSource};
use crate::backend::candle::kernels::{Matrix, SQUARE};
use crate::backend::candle::model::shards::{Part, Shard, Split};
use crate::backend::candle::model::tensors::TensorSpec;

/// Another source's tensors, of each the part that a rank holds. Parts are views: what other ranks hold is not read.
pub(in crate::backend::candle) struct ShardedWeights<'a> {
    weights: &'a dyn WeightSource,
    shard: Shard,
    tensors: HashMap<&'a str, &'a TensorSpec>,
}

impl<'a> ShardedWeights<'a> {
    /// `tensors` are the whole model's.
    pub(in crate::backend::candle) fn new(
        weights: &'a dyn WeightSource,
        shard: Shard,
        tensors: &'a [TensorSpec],
    ) -> Self {
        let tensors = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        Self { weights, shard, tensors }
    }

    fn spec(&self, name: &str) -> Result<&TensorSpec, LoadError> {
        self.tensors.get(name).copied().ok_or_else(|| LoadError::Missing { name: name.into() })
    }

    /// The rows of a tensor that the rank holds, part by part.
    fn rows(&self, name: &str, parts: &[Part], square: Option<usize>) -> Result<Vec<Range<usize>>, LoadError> {
        let mut first = 0;
        let own = parts.iter().map(|part| {
            let own = part.units.range(part.rows, self.shard, square).map_err(|reason| unfit(name, &reason))?;
            let range = first + own.start..first + own.end;
            first += part.rows;
            Ok(range)
        });
        own.collect()
    }

    /// A rank's part of a matrix.
    fn part(&self, name: &str, whole: Matrix, split: &Split) -> Result<Matrix, LoadError> {
        let square = whole.is_eight_bit().then_some(SQUARE);
        let part = match split {
            Split::Replicated => Some(whole),
            Split::Rows(parts) => whole.rows_of(&self.rows(name, parts, square)?),
            Split::Columns(units) => {
                let own = units.range(whole.columns(), self.shard, square).map_err(|reason| unfit(name, &reason))?;
                whole.columns_of(own)
            }
        };
        let part = part.ok_or_else(|| unfit(name, "a part would cut through a block of its weights"))?;
        Ok(part.detached())
    }
}

fn unfit(name: &str, reason: &str) -> LoadError {
    LoadError::Start(format!("{name} does not split over ranks: {reason}"))
}

impl WeightSource for ShardedWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        self.weights.read(name, matrix)
    }

    fn rounds_activations(&self) -> bool {
        self.weights.rounds_activations()
    }

    fn matrix(&self, name: &str, _: usize, _: usize) -> Result<Matrix, LoadError> {
        let spec = self.spec(name)?;
        let &[output, input] = spec.shape.as_slice() else {
            return Err(LoadError::Config(format!("{name} is no matrix")));
        };
        self.part(name, self.weights.matrix(name, output, input)?, &spec.split)
    }

    fn stack(&self, name: &str, count: usize, _: usize, _: usize) -> Result<Vec<Matrix>, LoadError> {
        // All experts in one tensor: each is split as it would be in one of its own. Gate rows, then as many up rows.
        for (fused, one, times) in [("gate_up_proj", "gate_proj", 2), ("down_proj", "down_proj", 1)] {
            let Some(experts) = name.strip_suffix(fused) else { continue };
            let spec = self.spec(&format!("{experts}0.{one}.weight"))?;
            let &[output, input] = spec.shape.as_slice() else {
                return Err(LoadError::Config(format!("{name} is no stack of matrices")));
            };
            let split = match &spec.split {
                Split::Rows(parts) => Split::Rows(parts.repeat(times)),
                other => other.clone(),
            };
            let whole = self.weights.stack(name, count, times * output, input)?;
            return whole.into_iter().map(|matrix| self.part(name, matrix, &split)).collect();
        }
        // A filter a channel: the filters are the rows.
        let spec = self.spec(name)?;
        let (&[filters, output, input], Split::Rows(parts)) = (spec.shape.as_slice(), &spec.split) else {
            return Err(LoadError::Config(format!("{name} is no stack of matrices that is split by rows")));
        };
        let whole = self.weights.stack(name, filters, output, input)?;
        let own = self.rows(name, parts, None)?.into_iter().flat_map(|range| whole.get(range).unwrap_or_default());
        Ok(own.cloned().collect())
    }

    fn vector(&self, name: &str, _: usize) -> Result<Matrix, LoadError> {
        let spec = self.spec(name)?;
        let len = spec.shape.first().copied().unwrap_or_default();
        let whole = self.weights.vector(name, len)?;
        match &spec.split {
            Split::Replicated => Ok(whole),
            // A vector is one row: its values are that row's columns.
            Split::Rows(parts) => match parts.as_slice() {
                [part] => self.part(name, whole, &Split::Columns(part.units)),
                _ => Err(LoadError::Config(format!("{name} is a vector of several parts"))),
            },
            Split::Columns(_) => Err(LoadError::Config(format!("{name} is a vector and has no columns"))),
        }
    }
}
