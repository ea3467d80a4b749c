//! An engine without a model: tokens and rows are numbers drawn from the whole prefix.
//!
//! Greedy tokens and all rows are pure functions of the token ids before them, so an answer that is asked for in parts is
//! the same as one asked for at once, and a row can be made anew whenever it is written.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::engine::TextOf;
use crate::backend::{SamplingParams, TokenLogprobs};

/// Spread of the values of a row, about that of real final hidden states: it decides how long their text is.
const SIGMA: f32 = 3.0;
/// Bits that choose a value.
const VALUE_BITS: u32 = 12;
/// As many values from one 64-bit number.
const VALUES_A_DRAW: usize = 5;

/// The largest of a made-up model's sizes.
const LARGEST: usize = 1 << 24;

/// A made-up model.
#[derive(Clone)]
pub struct Seeded {
    /// Values of a row.
    pub hidden: usize,
    /// Ids are below this.
    pub vocab: usize,
    /// Another seed is another model.
    pub seed: u64,
    /// Longest sequence, tokens.
    pub context: usize,
    /// The id that ends an answer, and how many tokens it has on average. `None`: an answer has as many as are asked for.
    pub ending: Option<(u32, usize)>,
    /// The text of ids. `None` writes `w` and the id for each.
    pub text: Option<TextOf>,
}

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hidden, vocab, seed, context, ending, text: _ } = self;
        f.debug_struct("Seeded")
            .field("hidden", hidden)
            .field("vocab", vocab)
            .field("seed", seed)
            .field("context", context)
            .field("ending", ending)
            .finish_non_exhaustive()
    }
}

impl Seeded {
    /// Of a context of 32,768 tokens, whose answers do not end by themselves. At least one value and two ids.
    #[must_use]
    pub fn new(hidden: usize, vocab: usize, seed: u64) -> Self {
        Self { hidden: hidden.max(1), vocab: vocab.max(2), seed, context: 32_768, ending: None, text: None }
    }

    /// The same, whose answers end with this id after so many tokens on average.
    #[must_use]
    pub fn ending(self, id: u32, mean: usize) -> Self {
        Self { ending: Some((id, mean)), ..self }
    }

    /// The answer that this model gives to a greedy request of `tokens` tokens that nothing ends.
    #[must_use]
    pub fn greedy(&self, prompt: &[u32], tokens: usize) -> Vec<u32> {
        let mut state = self.state(prompt);
        (0..tokens)
            .map(|_| {
                let id = self.choose(state, None, &[]);
                state = step(state, id);
                id
            })
            .collect()
    }

    /// The row after reading `tokens`: the one that chooses the token after them.
    #[must_use]
    pub fn row(&self, tokens: &[u32]) -> Vec<bf16> {
        let mut values = Vec::with_capacity(self.hidden);
        row(self.state(tokens), self.hidden, |value| values.push(value));
        values
    }

    /// What is known of a prefix.
    pub(super) fn state(&self, tokens: &[u32]) -> u64 {
        tokens.iter().fold(scramble(self.seed), |state, &id| step(state, id))
    }

    /// The next id, if it is not one of `forbidden`, else one near it. `draw` is the randomness of a sampled one.
    pub(super) fn choose(&self, state: u64, draw: Option<u64>, forbidden: &[u32]) -> u32 {
        let chosen = scramble(state ^ draw.map_or(1, scramble));
        let end = self.ending.map(|(end, _)| end);
        if let Some((end, mean)) = self.ending
            && !forbidden.contains(&end)
            && scramble(chosen).is_multiple_of(mean.max(1) as u64)
        {
            return end;
        }
        let vocab = self.vocab as u64;
        let ids = (0..vocab).map(|next| ((chosen + next) % vocab) as u32);
        ids.into_iter().find(|id| !forbidden.contains(id) && Some(*id) != end).unwrap_or_default()
    }

    /// How the random number of a sampled token comes about: `None` for greedy ones.
    pub(super) fn draw(sampling: &SamplingParams, position: usize) -> Option<u64> {
        let greedy = sampling.temperature <= 0.0 || sampling.top_k == Some(1);
        let seed = (!greedy).then(|| sampling.seed.unwrap_or_else(|| rand::rng().random()))?;
        // By position, so that the rest of an answer can be asked for with the same seed.
        Some(scramble(seed ^ scramble(position as u64)))
    }

    /// A log-probability that is as made up as the rest, and those of as many ids beside it.
    pub(super) fn logprobs(&self, state: u64, id: u32, top: usize) -> TokenLogprobs {
        let logprob = -((scramble(state ^ 2) >> 40) as f32) / (1u64 << 24) as f32;
        let beside = (1..top as u32).map(|rank| {
            let other = (u64::from(id) + u64::from(rank)) % self.vocab as u64;
            (other as u32, logprob - rank as f32)
        });
        TokenLogprobs { logprob, top: std::iter::once((id, logprob)).chain(beside).take(top).collect() }
    }

    /// The function from ids to text.
    pub(super) fn text_of(&self) -> TextOf {
        let end = self.ending.map(|(end, _)| end);
        self.text.clone().unwrap_or_else(|| {
            Arc::new(move |ids| ids.iter().filter(|id| Some(**id) != end).map(|id| format!(" w{id}")).collect())
        })
    }
}

/// `hidden=2048,vocab=1000`, and if wanted `seed`, `context`, and `end` with `mean`.
impl FromStr for Seeded {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut model = Self::new(2048, 1000, 0);
        let (mut end, mut mean) = (None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not of the form key=value"))?;
            let number: u32 = value.parse().map_err(|_| format!("{value:?} is no whole number"))?;
            let size = usize::try_from(number).unwrap_or(usize::MAX).clamp(1, LARGEST);
            match key {
                "hidden" => model.hidden = size,
                "vocab" => model.vocab = size.max(2),
                "seed" => model.seed = number.into(),
                "context" => model.context = size,
                "end" => end = Some(number),
                "mean" => mean = Some(size),
                _ => return Err(format!("{key:?} is none of hidden, vocab, seed, context, end and mean")),
            }
        }
        match (end, mean) {
            (Some(end), mean) => Ok(model.ending(end, mean.unwrap_or(256))),
            (None, Some(_)) => Err("mean needs end, the id that ends an answer".into()),
            (None, None) => Ok(model),
        }
    }
}

/// What is known of a prefix and one more token.
pub(super) fn step(state: u64, id: u32) -> u64 {
    scramble(state ^ u64::from(id).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// Gives the values of a prefix's row to `sink`.
pub(super) fn row(state: u64, hidden: usize, mut sink: impl FnMut(bf16)) {
    static VALUES: OnceLock<Vec<bf16>> = OnceLock::new();
    let values = VALUES.get_or_init(normal_values);
    let mut draw = 0;
    for index in 0..hidden {
        draw = match index % VALUES_A_DRAW {
            0 => scramble(state.wrapping_add(index as u64 + 3)),
            _ => draw >> VALUE_BITS,
        };
        sink(values[(draw & ((1 << VALUE_BITS) - 1)) as usize]);
    }
}

/// Values of a normal distribution.
fn normal_values() -> Vec<bf16> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut normal = || {
        // Box and Muller's way.
        let (radius, angle): (f32, f32) = (random.random(), random.random());
        (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f32::consts::TAU * angle).cos()
    };
    (0..1 << VALUE_BITS).map(|_| bf16::from_f32(SIGMA * normal())).collect()
}

/// A bijection that leaves no trace of order (the finaliser of splitmix64).
fn scramble(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_an_answer_is_the_same_when_asked_for_alone() {
        let model = Seeded::new(8, 1000, 7);
        let whole = model.greedy(&[1, 2, 3], 12);
        let begun = [&[1, 2, 3][..], &whole[..5]].concat();
        assert_eq!(model.greedy(&begun, 7), whole[5..]);
        assert_ne!(model.greedy(&[1, 2, 4], 12), whole);
        assert_ne!(Seeded::new(8, 1000, 8).greedy(&[1, 2, 3], 12), whole);
        assert!(whole.iter().all(|&id| id < 1000));
    }

    #[test]
    fn rows_are_finite_wide_and_of_their_prefix() {
        let model = Seeded::new(2048, 1000, 7);
        let row = model.row(&[1, 2]);
        assert_eq!(row.len(), 2048);
        assert!(row.iter().all(|value| value.is_finite()));
        assert_ne!(row, model.row(&[2, 1]));
        let square: f32 = row.iter().map(|value| value.to_f32().powi(2)).sum::<f32>() / 2048.0;
        assert!((2.0..4.0).contains(&square.sqrt()), "{square}");
    }

    #[test]
    fn an_answer_ends_by_itself_where_that_is_wanted() {
        let model = Seeded::new(8, 50, 1).ending(0, 10);
        let lengths: Vec<usize> = (0..200u32)
            .map(|first| model.greedy(&[first], 1000).iter().position(|&id| id == 0).unwrap_or(1000))
            .collect();
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!((5..20).contains(&mean), "{mean}");
        // Forbidden ids are not chosen.
        let state = model.state(&[3]);
        let id = model.choose(state, None, &[]);
        assert_ne!(model.choose(state, None, &[id]), id);
    }

    #[test]
    fn a_model_is_written_as_keys_and_numbers() {
        let model: Seeded = "hidden=64,vocab=500,seed=3,context=900,end=2,mean=40".parse().unwrap();
        assert_eq!((model.hidden, model.vocab, model.seed, model.context), (64, 500, 3, 900));
        assert_eq!(model.ending, Some((2, 40)));
        assert_eq!("hidden=0".parse::<Seeded>().unwrap().hidden, 1);
        for wrong in ["", "hidden", "hidden=x", "width=3", "mean=4"] {
            assert!(wrong.parse::<Seeded>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sampled_tokens_depend_on_seed_and_position_alone() {
        let sampling = |seed| SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
        assert_eq!(Seeded::draw(&SamplingParams::default(), 3), None);
        assert_eq!(Seeded::draw(&sampling(Some(1)), 3), Seeded::draw(&sampling(Some(1)), 3));
        assert_ne!(Seeded::draw(&sampling(Some(1)), 3), Seeded::draw(&sampling(Some(1)), 4));
        assert_ne!(Seeded::draw(&sampling(Some(1)), 3), Seeded::draw(&sampling(Some(2)), 3));
        assert_ne!(Seeded::draw(&sampling(None), 3), Seeded::draw(&sampling(None), 3));
    }
}
