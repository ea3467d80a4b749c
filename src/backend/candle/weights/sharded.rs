//! One rank's part of a model's weights.

use std::collections::HashMap;

use super::{LoadError, WeightSource};
use crate::backend::candle::kernels::{Matrix, SQUARE};
use crate::backend::candle::model::shards::{Shard, Split};
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

    /// A rank's part of a matrix.
    fn part(&self, name: &str, whole: Matrix, split: &Split) -> Result<Matrix, LoadError> {
        let unfit = |reason: String| LoadError::Start(format!("{name} does not split over ranks: {reason}"));
        let square = whole.is_eight_bit().then_some(SQUARE);
        let part = match split {
            Split::Replicated => Some(whole),
            Split::Rows(parts) => {
                let mut first = 0;
                let mut ranges = Vec::new();
                for part in parts {
                    let own = part.units.range(part.rows, self.shard, square).map_err(unfit)?;
                    ranges.push(first + own.start..first + own.end);
                    first += part.rows;
                }
                whole.rows_of(&ranges)
            }
            Split::Columns(units) => {
                let own = units.range(whole.columns(), self.shard, square).map_err(unfit)?;
                whole.columns_of(own)
            }
        };
        let part = part.ok_or_else(|| unfit("a part would cut through a block of its weights".into()))?;
        Ok(part.detached())
    }
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
        // All experts in one tensor: each is split as it would be in one of its own.
        if let Some(experts) = name.strip_suffix("gate_up_proj") {
            let spec = self.spec(&format!("{experts}0.gate_proj.weight"))?;
            let [output, input] = [spec.shape.first(), spec.shape.last()].map(|n| n.copied().unwrap_or_default());
            let Split::Rows(parts) = &spec.split else {
                return Err(LoadError::Config(format!("{name} is not split by rows")));
            };
            // Gate rows, then as many up rows.
            let both = Split::Rows(parts.iter().chain(parts).cloned().collect());
            let whole = self.weights.stack(name, count, 2 * output, input)?;
            return whole.into_iter().map(|matrix| self.part(name, matrix, &both)).collect();
        }
        if let Some(experts) = name.strip_suffix("down_proj") {
            let spec = self.spec(&format!("{experts}0.down_proj.weight"))?;
            let [output, input] = [spec.shape.first(), spec.shape.last()].map(|n| n.copied().unwrap_or_default());
            let whole = self.weights.stack(name, count, output, input)?;
            return whole.into_iter().map(|matrix| self.part(name, matrix, &spec.split)).collect();
        }
        // A filter a channel: the filters are the rows.
        let spec = self.spec(name)?;
        let &[filters, output, input] = spec.shape.as_slice() else {
            return Err(LoadError::Config(format!("{name} is no stack of matrices")));
        };
        let Split::Rows(parts) = &spec.split else {
            return Err(LoadError::Config(format!("{name} is not split by rows")));
        };
        let whole = self.weights.stack(name, filters, output, input)?;
        let mut first = 0;
        let mut own = Vec::new();
        for part in parts {
            let range = part.units.range(part.rows, self.shard, None);
            let range = range.map_err(|reason| LoadError::Start(format!("{name}: {reason}")))?;
            own.extend(whole.get(first + range.start..first + range.end).unwrap_or_default().iter().cloned());
            first += part.rows;
        }
        Ok(own)
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
