//! Weights that are wrong on purpose: what verifiers make of a miner with other weights than the checkpoint's can be tried out.

use std::fmt;
use std::str::FromStr;

/// How a model's weights differ from its checkpoint's. Embeddings, output table, norms and convolutions stay what they are.
///
/// Any number of ranks gets the same weights. Changed projections stand in memory as f32, whatever they are stored as, which no
/// memory plan counts, and meet activations as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightsChange {
    /// `int4`: every 32 values of a projection's row are rounded to the steps of so many bits (2 to 8), which reach to their
    /// largest magnitude on both sides of zero: fifteen steps of four bits.
    Rounded {
        /// Bits of a value.
        bits: u32,
    },
    /// `bf16`: each value of a projection is rounded to bf16, as a serve holds it that computes in bf16. Honest, for a checkpoint that
    /// is stored in less.
    Bf16,
    /// `seed:N`: projections are drawn anew, each row as large as it was: another model of the same shape.
    Redrawn {
        /// Another seed is another model.
        seed: u64,
    },
    /// `noise:X`: each value of a projection is multiplied by 1 plus X times a number from a bell curve of width 1, as after a
    /// little training.
    Noise {
        /// Width of the noise, as a share of each value.
        share: f32,
    },
    /// `without-layer:N`: a layer adds nothing to what passes through, as if it were skipped to save work.
    WithoutLayer {
        /// Which, from 0.
        layer: usize,
    },
    /// `reversed-expert:LAYER:EXPERT`: the output rows of one expert stand in reverse order: the smallest damage of all.
    ReversedExpert {
        /// Its layer, from 0.
        layer: usize,
        /// Its number in the layer, from 0.
        expert: usize,
    },
}

impl WeightsChange {
    /// Whether its numbers are in range, whatever the model.
    pub(super) fn check(self) -> Result<(), String> {
        match self {
            Self::Rounded { bits } if !(2..=8).contains(&bits) => {
                Err(format!("{bits} bits are none that weights are rounded to; take 2 to 8"))
            }
            Self::Noise { share } if !share.is_finite() || share <= 0.0 => {
                Err(format!("noise of {share} changes nothing that can be computed; take a number above 0"))
            }
            _ => Ok(()),
        }
    }

    /// The layer that it is about, if it is about one.
    pub(super) fn layer(self) -> Option<usize> {
        match self {
            Self::WithoutLayer { layer } | Self::ReversedExpert { layer, .. } => Some(layer),
            Self::Rounded { .. } | Self::Bf16 | Self::Redrawn { .. } | Self::Noise { .. } => None,
        }
    }
}

impl fmt::Display for WeightsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rounded { bits } => write!(f, "int{bits}"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Redrawn { seed } => write!(f, "seed:{seed}"),
            Self::Noise { share } => write!(f, "noise:{share}"),
            Self::WithoutLayer { layer } => write!(f, "without-layer:{layer}"),
            Self::ReversedExpert { layer, expert } => write!(f, "reversed-expert:{layer}:{expert}"),
        }
    }
}

impl FromStr for WeightsChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let change = parse(text).ok_or_else(|| {
            format!(
                "{text:?} is not int2 to int8, bf16, seed:N, noise:X, without-layer:N or reversed-expert:LAYER:EXPERT"
            )
        })?;
        change.check()?;
        Ok(change)
    }
}

fn parse(text: &str) -> Option<WeightsChange> {
    Some(match text.split(':').collect::<Vec<_>>().as_slice() {
        ["bf16"] => WeightsChange::Bf16,
        [rounded] => WeightsChange::Rounded { bits: rounded.strip_prefix("int")?.parse().ok()? },
        ["seed", seed] => WeightsChange::Redrawn { seed: seed.parse().ok()? },
        ["noise", share] => WeightsChange::Noise { share: share.parse().ok()? },
        ["without-layer", layer] => WeightsChange::WithoutLayer { layer: layer.parse().ok()? },
        ["reversed-expert", layer, expert] => {
            WeightsChange::ReversedExpert { layer: layer.parse().ok()?, expert: expert.parse().ok()? }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_are_written() {
        for (text, change) in [
            ("int4", WeightsChange::Rounded { bits: 4 }),
            ("bf16", WeightsChange::Bf16),
            ("seed:7", WeightsChange::Redrawn { seed: 7 }),
            ("noise:0.03", WeightsChange::Noise { share: 0.03 }),
            ("without-layer:12", WeightsChange::WithoutLayer { layer: 12 }),
            ("reversed-expert:3:31", WeightsChange::ReversedExpert { layer: 3, expert: 31 }),
        ] {
            assert_eq!(text.parse(), Ok(change));
            assert_eq!(change.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_change_is_refused_with_what_there_is() {
        for wrong in ["", "int", "4", "int4:1", "seed", "seed:-1", "noise:x", "without-layer:", "reversed-expert:1"] {
            assert!(wrong.parse::<WeightsChange>().unwrap_err().contains("int2 to int8, bf16, seed:N"), "{wrong}");
        }
        for (wrong, said) in [
            ("int1", "take 2 to 8"),
            ("int16", "take 2 to 8"),
            ("noise:0", "above 0"),
            ("noise:-1", "above 0"),
            ("noise:NaN", "above 0"),
            ("noise:inf", "above 0"),
        ] {
            assert!(wrong.parse::<WeightsChange>().unwrap_err().contains(said), "{wrong}");
        }
    }
}
