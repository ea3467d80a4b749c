//! One batch's proof: its modulus, its polynomial, and their wire form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::error::ProofError;
use super::field::Factor;
use super::heap::Candidate;
use super::polynomial::{evaluate_all, interpolate};

/// The field's prime and the largest modulus, from toploc 0.1.6.
///
/// The bits of every finite BF16 and of both infinities are below it, so no value a proof
/// may hold is changed by reduction.
pub const PRIME: u16 = 65497;

/// A commitment to the top k activations of one batch of rows.
///
/// The polynomial over the integers modulo [`PRIME`] takes, at each chosen activation's
/// flat index reduced by `modulus`, that activation's BF16 bits.
///
/// Wire form: the modulus, then k coefficients from the lowest power up, each a
/// big-endian `u16`: `2 + 2 * k` bytes. In base64 (standard alphabet, padded) a proof of
/// k = 128 has 344 characters. Source: toploc 0.1.6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    modulus: u16,
    coefficients: Vec<u16>,
}

impl Proof {
    /// The proof over a batch's chosen activations; `None` if no modulus keeps their
    /// indices apart.
    pub(super) fn through(chosen: &[Candidate]) -> Option<Self> {
        let indices: Vec<u32> = chosen.iter().map(|c| c.index()).collect();
        let modulus = injective_modulus(&indices)?;
        let xs: Vec<u16> = indices.iter().map(|&i| residue(i, modulus)).collect();
        let ys: Vec<u16> = chosen.iter().map(|c| c.bits()).collect();
        Some(Self { modulus, coefficients: interpolate(&xs, &ys) })
    }

    /// The number flat indices are reduced by: [`PRIME`], or less when chosen indices
    /// collide under it.
    #[must_use]
    pub fn modulus(&self) -> u16 {
        self.modulus
    }

    /// The polynomial's k coefficients, lowest power first, each below [`PRIME`].
    #[must_use]
    pub fn coefficients(&self) -> &[u16] {
        &self.coefficients
    }

    /// How many activations the proof speaks about.
    #[must_use]
    pub fn topk(&self) -> usize {
        self.coefficients.len()
    }

    /// The BF16 bits the proof claims at a flat index (`row * hidden + column`, counted
    /// from the batch's start). Meaningful only at the maker's top k.
    #[must_use]
    pub fn value_at(&self, index: u32) -> u16 {
        self.values_at(&[index]).first().copied().unwrap_or(0)
    }

    /// [`Proof::value_at`] for many indices at once.
    pub(super) fn values_at(&self, indices: &[u32]) -> Vec<u16> {
        let points: Vec<Factor> = indices.iter().map(|&index| Factor::new(residue(index, self.modulus))).collect();
        evaluate_all(&self.coefficients, &points)
    }

    /// The wire form: `2 + 2 * topk` bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        std::iter::once(self.modulus).chain(self.coefficients.iter().copied()).flat_map(u16::to_be_bytes).collect()
    }

    /// Reads the wire form of a proof with `topk` coefficients.
    ///
    /// # Errors
    ///
    /// [`ProofError::ProofLength`] unless there are exactly `2 + 2 * topk` bytes,
    /// [`ProofError::NullProof`] for modulus 0, [`ProofError::Modulus`] for one below
    /// `topk` or above [`PRIME`], [`ProofError::Coefficient`] for one not below
    /// [`PRIME`], [`ProofError::TopK`] if `topk` itself is out of range.
    pub fn from_bytes(bytes: &[u8], topk: usize) -> Result<Self, ProofError> {
        if topk == 0 || topk > usize::from(PRIME) {
            return Err(ProofError::TopK { topk });
        }
        let wrong_length = ProofError::ProofLength { got: bytes.len(), topk };
        let (pairs, rest) = bytes.as_chunks::<2>();
        let Some((modulus, coefficients)) = pairs.split_first() else {
            return Err(wrong_length);
        };
        if !rest.is_empty() || coefficients.len() != topk {
            return Err(wrong_length);
        }
        let modulus = u16::from_be_bytes(*modulus);
        if modulus == 0 {
            return Err(ProofError::NullProof);
        }
        if modulus > PRIME || usize::from(modulus) < topk {
            return Err(ProofError::Modulus { modulus, topk });
        }
        let coefficients: Vec<u16> = coefficients.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
        match coefficients.iter().position(|&c| c >= PRIME) {
            Some(position) => Err(ProofError::Coefficient { position, value: coefficients[position] }),
            None => Ok(Self { modulus, coefficients }),
        }
    }

    /// The wire form in padded standard base64.
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.to_bytes())
    }

    /// Reads a proof of `topk` coefficients from padded standard base64.
    ///
    /// # Errors
    ///
    /// [`ProofError::Base64`] for any other text, else as [`Proof::from_bytes`].
    pub fn from_base64(text: &str, topk: usize) -> Result<Self, ProofError> {
        let bytes = STANDARD.decode(text).map_err(|error| ProofError::Base64 { reason: error.to_string() })?;
        Self::from_bytes(&bytes, topk)
    }
}

/// `index % modulus`. Both building and checking must apply it: at hidden 2048 a full
/// batch has 65,536 positions, more than the prime.
fn residue(index: u32, modulus: u16) -> u16 {
    // A modulus of 0 is never stored; `max` only keeps the division total.
    (index % u32::from(modulus.max(1))) as u16
}

/// The largest `m <= PRIME` under which all indices stay distinct, if there is one.
fn injective_modulus(indices: &[u32]) -> Option<u16> {
    const WORDS: usize = (PRIME as usize).div_ceil(64);
    let mut taken = [0u64; WORDS];
    for modulus in (1..=PRIME).rev() {
        if usize::from(modulus) < indices.len() {
            return None;
        }
        let slot = |index: u32| {
            let residue = usize::from(residue(index, modulus));
            (residue / 64, 1u64 << (residue % 64))
        };
        let mut placed = 0;
        for &index in indices {
            let (word, bit) = slot(index);
            if taken[word] & bit != 0 {
                break;
            }
            taken[word] |= bit;
            placed += 1;
        }
        if placed == indices.len() {
            return Some(modulus);
        }
        for &index in &indices[..placed] {
            taken[slot(index).0] = 0;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proof through the points (indices, bits), and its base64.
    fn proof_of(indices: &[u32], bits: &[u16]) -> Option<Proof> {
        let chosen: Vec<Candidate> =
            indices.iter().zip(bits).map(|(&index, &bits)| Candidate::new(bits, index)).collect();
        Proof::through(&chosen)
    }

    // Values observed from toploc 0.1.6.

    #[test]
    fn values_are_reduced_by_the_prime_like_toploc() {
        let proof = proof_of(&[1, 2, 3, 4], &[65535, 65497, 65496, 32768]).unwrap();
        assert_eq!(proof.coefficients, [32877, 59917, 34, 38204]);
        assert_eq!(proof.values_at(&[1, 2, 3, 4]), [38, 0, 65496, 32768]);
    }

    #[test]
    fn modulus_search_finds_what_toploc_finds() {
        let found = |indices: &[u32]| {
            let bits: Vec<u16> = (1..).take(indices.len()).collect();
            let proof = proof_of(indices, &bits).unwrap();
            (proof.modulus, proof.to_base64())
        };
        assert_eq!(found(&[0, 65497]), (65496, "/9gAAQAB".to_owned()));
        assert_eq!(found(&[0, 1, 65497]), (65495, "/9cAAQABAAA=".to_owned()));
        assert_eq!(found(&[5, 65502, 65501]), (65495, "/9f/o3//f+s=".to_owned()));
    }

    #[test]
    fn indices_that_cannot_be_kept_apart_have_no_modulus() {
        assert_eq!(proof_of(&[7, 7], &[1, 2]), None);
    }

    #[test]
    fn the_whole_field_can_be_kept_apart() {
        let all: Vec<u32> = (0..u32::from(PRIME)).collect();
        assert_eq!(injective_modulus(&all), Some(PRIME));
        let one_more: Vec<u32> = (0..=u32::from(PRIME)).collect();
        assert_eq!(injective_modulus(&one_more), None);
    }

    #[test]
    fn bytes_round_trip_like_toploc() {
        let proof = |modulus, coefficients: &[u16]| Proof { modulus, coefficients: coefficients.to_vec() };
        for (proof, text) in [
            (proof(65497, &[0]), "/9kAAA=="),
            (proof(65496, &[1, 2]), "/9gAAQAC"),
            (proof(65497, &[65496, 0, 1]), "/9n/2AAAAAE="),
        ] {
            assert_eq!(proof.to_base64(), text);
            assert_eq!(Proof::from_base64(text, proof.topk()).unwrap(), proof);
        }
    }
}
