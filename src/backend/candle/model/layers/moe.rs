//! A sparse mixture of experts: each token goes through a few feed-forward blocks that a router picks for it.

use candle_core::{Result, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::{Linear, Mlp};
use crate::backend::candle::kernels::{Segment, Shares, add_gated, grouped_matmul, swiglu, weighted_sums};
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
    shared: Option<SharedExpert>,
    shape: MoeShape,
}

/// An expert that every token goes through, as far as a gate lets it.
#[derive(Debug, Clone)]
struct SharedExpert {
    mlp: Mlp,
    gate: Linear,
}

impl SparseMoe {
    pub(in crate::backend::candle) fn load(
        weights: &dyn WeightSource,
        prefix: &str,
        hidden: usize,
        shape: MoeShape,
    ) -> std::result::Result<Self, LoadError> {
        let (count, intermediate) = (shape.experts, shape.intermediate);
        let (gate_up, down) = (format!("{prefix}.experts.gate_up_proj"), format!("{prefix}.experts.down_proj"));
        // Released either as one tensor of all experts or as tensors of their own.
        let experts: Vec<Mlp> = if weights.contains(&gate_up) {
            let inputs = weights.stack(&gate_up, count, 2 * intermediate, hidden)?;
            let outputs = weights.stack(&down, count, hidden, intermediate)?;
            let both = inputs.into_iter().zip(outputs);
            let expert =
                |(input, output)| Ok(Mlp::new(weights.linear_of(&gate_up, input)?, weights.linear_of(&down, output)?));
            both.map(expert).collect::<std::result::Result<_, LoadError>>()?
        } else {
            let expert = |e| Mlp::load(weights, &format!("{prefix}.experts.{e}"), hidden, intermediate);
            (0..count).map(expert).collect::<std::result::Result<_, _>>()?
        };
        // Their activations are rounded for all of them alike.
        let storage = |expert: &Mlp| (expert.inputs.is_eight_bit(), expert.down.is_eight_bit());
        if experts.windows(2).any(|pair| storage(&pair[0]) != storage(&pair[1])) {
            return Err(LoadError::Unsupported(format!("experts of different storage under {prefix}.experts")));
        }
        let shared = match shape.shared {
            Some(intermediate) => Some(SharedExpert {
                mlp: Mlp::load(weights, &format!("{prefix}.shared_expert"), hidden, intermediate)?,
                gate: weights.linear(&format!("{prefix}.shared_expert_gate.weight"), 1, hidden)?,
            }),
            None => None,
        };
        let router = weights.linear(&format!("{prefix}.gate.weight"), shape.experts, hidden)?;
        Ok(Self { router, experts, shared, shape })
    }

    /// `[rows, hidden]` to the same. A row's experts are added in the order of their numbers, so that its sum does not depend on
    /// the company.
    pub(in crate::backend::candle) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let probabilities = softmax_last_dim(&self.router.forward(x)?)?.to_vec2::<f32>()?;
        let Gathered { rows, loads, shares } = gather(&probabilities, self.shape);
        let mut start = 0;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (expert, load) in self.experts.iter().zip(loads).filter(|(_, load)| *load > 0) {
            let rows = start..start + load;
            start = rows.end;
            inputs.push(Segment { rows: rows.clone(), matrices: expert.inputs.matrices() });
            outputs.push(Segment { rows, matrices: expert.down.matrices() });
        }
        // Experts are stored alike, so what holds for the first holds for all.
        let rounded =
            |x: &Tensor, of: fn(&Mlp) -> &Linear| self.experts.first().map_or(Ok(x.clone()), |e| of(e).rounded(x));
        let gathered = rounded(x, |expert| &expert.inputs)?.index_select(&Tensor::new(rows, x.device())?, 0)?;
        let gated = rounded(&swiglu(&grouped_matmul(&gathered, inputs.into())?)?, |expert| &expert.down)?;
        let sums = weighted_sums(&grouped_matmul(&gated, outputs.into())?, shares)?;
        match &self.shared {
            None => Ok(sums),
            Some(SharedExpert { mlp, gate }) => {
                add_gated(&sums, &mlp.forward(x)?, gate.forward(x)?.flatten_all()?.to_vec1()?)
            }
        }
    }
}

/// A step's tokens, gathered by expert.
struct Gathered {
    /// Which token stands in each gathered row.
    rows: Vec<u32>,
    /// Rows of each expert, in the order of the experts.
    loads: Vec<usize>,
    /// For each token, its gathered rows and their weights.
    shares: Shares,
}

fn gather(probabilities: &[Vec<f32>], shape: MoeShape) -> Gathered {
    let mut chosen: Vec<Vec<(u32, f32)>> = vec![Vec::new(); shape.experts];
    for (token, probabilities) in (0_u32..).zip(probabilities) {
        for (expert, weight) in route(probabilities, shape) {
            chosen[expert].push((token, weight));
        }
    }
    let mut shares: Shares = vec![Vec::with_capacity(shape.per_token); probabilities.len()];
    let mut rows = Vec::with_capacity(probabilities.len() * shape.per_token);
    for &(token, weight) in chosen.iter().flatten() {
        shares[token as usize].push((rows.len(), weight));
        rows.push(token);
    }
    Gathered { rows, loads: chosen.iter().map(Vec::len).collect(), shares }
}

/// The experts of one token with their weights: the most probable ones, the lower index of equals first.
fn route(probabilities: &[f32], shape: MoeShape) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
    let by_probability = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if shape.per_token < order.len() {
        order.select_nth_unstable_by(shape.per_token, by_probability);
        order.truncate(shape.per_token);
    }
    order.sort_unstable_by(by_probability);
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

    /// A model's worth of probabilities that pick the given experts for each token.
    fn picking(experts: &[&[usize]], shape: MoeShape) -> Vec<Vec<f32>> {
        let row = |picked: &&[usize]| (0..shape.experts).map(|e| if picked.contains(&e) { 0.5 } else { 0.0 }).collect();
        experts.iter().map(row).collect()
    }

    #[test]
    fn tokens_are_gathered_by_expert_whatever_the_skew() {
        let shape = MoeShape { experts: 4, per_token: 2, intermediate: 1, normalise: true, shared: None };
        let Gathered { rows, loads, shares } = gather(&picking(&[&[2, 3], &[0, 2], &[2, 3]], shape), shape);
        assert_eq!((rows, loads), (vec![1, 0, 1, 2, 0, 2], vec![1, 0, 3, 2]));
        assert_eq!(shares, [[(1, 0.5), (4, 0.5)], [(0, 0.5), (2, 0.5)], [(3, 0.5), (5, 0.5)]]);
        let all = gather(&picking(&[&[1, 2][..]; 100], shape), shape);
        assert_eq!((all.loads, all.rows.len()), (vec![0, 100, 100, 0], 200));
        assert!(gather(&[], shape).rows.is_empty());
    }
}
