//! A sparse mixture of experts: each token goes through a few feed-forward blocks that a router picks for it.

use candle_core::{Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::{Linear, Mlp};
use crate::backend::candle::weights::{LoadError, WeightSource};

/// Sizes of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::candle) struct MoeShape {
    /// Experts in all.
    pub(in crate::backend::candle) experts: usize,
    /// Experts a token.
    pub(in crate::backend::candle) per_token: usize,
    /// Width of an expert.
    pub(in crate::backend::candle) intermediate: usize,
    /// Whether the chosen experts' weights are scaled to sum to 1.
    pub(in crate::backend::candle) normalise: bool,
    /// Width of an expert that every token goes through, where there is one.
    pub(in crate::backend::candle) shared: Option<usize>,
}

/// A router and its experts.
#[derive(Debug, Clone)]
pub(in crate::backend::candle) struct SparseMoe {
    router: Linear,
    experts: Vec<Mlp>,
    shape: MoeShape,
}

impl SparseMoe {
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        hidden: usize,
        shape: MoeShape,
    ) -> std::result::Result<Self, LoadError> {
        let expert = |e| Mlp::load(weights, &format!("{prefix}.experts.{e}"), hidden, shape.intermediate);
        Ok(Self {
            router: weights.linear(&format!("{prefix}.gate.weight"), shape.experts, hidden)?,
            experts: (0..shape.experts).map(expert).collect::<std::result::Result<_, _>>()?,
            shape,
        })
    }

    /// `[rows, hidden]` to the same: tokens are gathered by expert, so that an expert runs once for all its tokens and
    /// an expert that nobody chose does not run.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let probabilities = softmax_last_dim(&self.router.forward(x)?)?.to_vec2::<f32>()?;
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); self.experts.len()];
        let mut weights_of: Vec<Vec<f32>> = vec![Vec::new(); self.experts.len()];
        for (row, probabilities) in (0_u32..).zip(&probabilities) {
            for (expert, weight) in route(probabilities, self.shape) {
                rows_of[expert].push(row);
                weights_of[expert].push(weight);
            }
        }
        let mut out = x.zeros_like()?;
        for ((expert, rows), weights) in self.experts.iter().zip(rows_of).zip(weights_of) {
            if rows.is_empty() {
                continue;
            }
            let count = rows.len();
            let rows = Tensor::new(rows, x.device())?;
            let weights = Tensor::from_vec(weights, (count, 1), x.device())?;
            let y = expert.forward(&x.index_select(&rows, 0)?)?.broadcast_mul(&weights)?;
            out = out.index_add(&rows, &y, 0)?;
        }
        Ok(out)
    }
}

/// The experts of one token with their weights: the most probable ones, the lower index of equals first.
fn route(probabilities: &[f32], shape: MoeShape) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(shape.per_token);
    if shape.normalise {
        let sum: f32 = order.iter().map(|(_, p)| p).sum();
        for (_, p) in &mut order {
            *p /= sum;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_to_the_most_probable_and_the_lower_index_of_equals() {
        let shape = MoeShape { experts: 4, per_token: 2, intermediate: 1, normalise: true, shared: None };
        assert_eq!(route(&[0.25, 0.25, 0.125, 0.375], shape), [(3, 0.6), (0, 0.4)]);
        let raw = MoeShape { normalise: false, ..shape };
        assert_eq!(route(&[0.25, 0.25, 0.25, 0.25], raw), [(0, 0.25), (1, 0.25)]);
    }
}
