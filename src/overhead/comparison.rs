//! The order of turns.
//!
//! A block is one turn of each mode, of the same prompts; the next block goes through the modes backwards, so that whatever drifts on
//! the machine hits each mode as often before the others as after. Overhead is only ever taken between turns of one block.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::results::Proofs;
use super::turn::{Ask, Turn};

/// Tokens of the answer with which a mode warms up.
const WARM_UP_TOKENS: usize = 8;

/// A way to get answers that is compared with others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    /// `candle` or `sglang`.
    pub backend: String,
    /// Whether answers are proven.
    pub proofs: Proofs,
}

/// How much is asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests at once.
    pub concurrency: usize,
    /// Tokens of each answer.
    pub new_tokens: usize,
}

/// One object of `turns.jsonl`: a turn, and what the serve took for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Counts blocks of a load from 0. Turns of one block and load belong together.
    pub block: usize,
    /// Whose turn.
    #[serde(flatten)]
    pub mode: Mode,
    /// What was asked for.
    #[serde(flatten)]
    pub load: Load,
    /// Processor time of the serve's process, microseconds, and the most memory that it held, bytes; `None` where that is not known.
    pub serve: Option<Account>,
    /// What it took.
    #[serde(flatten)]
    pub turn: Turn,
}

/// What a process used since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Processor time, microseconds.
    pub cpu_us: f64,
    /// Of this, what threads other than the model's took.
    pub other_cpu_us: f64,
    /// The most memory that it held, bytes.
    pub peak_rss_bytes: u64,
}

/// What is to be compared.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The modes, those of one backend side by side.
    pub modes: Vec<Mode>,
    /// The loads, which are measured one after the other, block by block.
    pub loads: Vec<Load>,
    /// At least one prompt. Requests take them in turns.
    pub prompts: Vec<Vec<u32>>,
    /// Whether answers are asked for token by token.
    pub streamed: bool,
    /// Points of a proof.
    pub topk: usize,
    /// No block of all loads is begun that would end later, but for the first.
    pub bound: Duration,
}

impl Comparison {
    /// Takes turns until the time is over. `turn` takes one; `told` hears of each that was taken. Comes back with all that were taken,
    /// and what ended them early, if something did: a turn that failed.
    pub async fn run<E>(
        &self,
        mut turn: impl AsyncFnMut(&Mode, Ask) -> Result<(Turn, Option<Account>), E>,
        mut told: impl FnMut(&TurnRecord),
    ) -> (Vec<TurnRecord>, Option<E>) {
        let began = Instant::now();
        let mut records = Vec::new();
        let mut longest = vec![Duration::ZERO; self.loads.len()];
        for block in 0.. {
            // All loads or none: each then has as many pairs as the others.
            if block > 0 && began.elapsed() + longest.iter().sum::<Duration>() > self.bound {
                break;
            }
            for (load, longest) in self.loads.iter().zip(&mut longest) {
                let block_began = Instant::now();
                for mode in self.order(block) {
                    let (turn, serve) = match turn(mode, self.ask(block, *load, mode.proofs)).await {
                        Ok(taken) => taken,
                        Err(error) => return (records, Some(error)),
                    };
                    let record = TurnRecord { block, mode: mode.clone(), load: *load, serve, turn };
                    told(&record);
                    records.push(record);
                }
                *longest = (*longest).max(block_began.elapsed());
            }
        }
        (records, None)
    }

    /// What a mode does once before it is measured: weights are paged in, and connections made.
    #[must_use]
    pub fn warm_up(&self, mode: &Mode) -> Ask {
        self.ask(0, Load { concurrency: 1, new_tokens: WARM_UP_TOKENS }, mode.proofs)
    }

    /// The modes in a block's order.
    fn order(&self, block: usize) -> Vec<&Mode> {
        let modes = self.modes.iter();
        if block.is_multiple_of(2) { modes.collect() } else { modes.rev().collect() }
    }

    /// What is asked for: the same of every mode of a block.
    fn ask(&self, block: usize, load: Load, proofs: Proofs) -> Ask {
        let prompts = self.prompts.iter().cycle().skip(block * load.concurrency % self.prompts.len().max(1));
        Ask {
            prompts: prompts.take(load.concurrency).cloned().collect(),
            new_tokens: load.new_tokens,
            proofs,
            streamed: self.streamed,
            topk: self.topk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::{Estimate, Overhead};

    fn mode(backend: &str, proofs: Proofs) -> Mode {
        Mode { backend: backend.into(), proofs }
    }

    fn comparison(bound: Duration) -> Comparison {
        let backends = ["candle", "sglang"];
        let modes = backends.into_iter().flat_map(|name| [Proofs::Off, Proofs::Host].map(|proofs| mode(name, proofs)));
        Comparison {
            modes: modes.collect(),
            loads: [(1, 4), (3, 4)].map(|(concurrency, new_tokens)| Load { concurrency, new_tokens }).into(),
            prompts: (0..5).map(|at| vec![at; 10]).collect(),
            streamed: true,
            topk: 128,
            bound,
        }
    }

    /// A turn of a machine that takes 1 ms a token, a hundredth more with proofs in process, and half as much again over HTTP; every
    /// eleventh turn is disturbed and takes twice as long.
    fn turn(mode: &Mode, ask: &Ask, count: usize) -> (Turn, Option<Account>) {
        let (requests, proven) = (ask.prompts.len(), ask.proofs != Proofs::Off);
        let tokens = requests * ask.new_tokens;
        let hop = mode.backend == "sglang";
        let cost = match (proven, hop) {
            (false, _) => 1.0,
            (true, false) => 1.01,
            (true, true) => 1.5,
        };
        let disturbed = if count % 11 == 3 { 2.0 } else { 1.0 };
        let each = |value: f64| value * tokens as f64;
        let turn = Turn {
            tokens,
            prompt_tokens: requests * 10,
            seconds: each(2e-3 * cost * disturbed),
            decode_seconds: each(0.75e-3 * cost * disturbed),
            decode_tokens: tokens - requests,
            ttft_ms: vec![20.0 * cost; requests],
            token_ms: vec![cost; tokens - requests],
            last_token_to_response_ms: vec![0.5; requests],
            cpu_us: each(if hop { 100.0 } else { 2000.0 } * cost),
            other_cpu_us: each(if proven { 9.0 } else { 5.0 }),
            peak_rss_bytes: 1000 + count as u64,
            received_bytes: if hop { tokens as u64 * if proven { 5000 } else { 150 } } else { 0 },
            proof_bytes: if proven { tokens * 9 } else { 0 },
            rows_us: each(if proven { 2.0 } else { 0.0 }),
            proof_us: each(if proven { 1.0 } else { 0.0 }),
        };
        (
            turn,
            hop.then(|| Account {
                cpu_us: each(2000.0),
                other_cpu_us: each(if proven { 40.0 } else { 30.0 }),
                peak_rss_bytes: 7,
            }),
        )
    }

    async fn run(comparison: &Comparison, blocks: usize) -> Vec<TurnRecord> {
        let most = blocks * comparison.modes.len() * comparison.loads.len();
        let (mut count, mut told) = (0, 0);
        let take = async |mode: &Mode, ask: Ask| {
            count += 1;
            if count > most { Err("the serve has died") } else { Ok(turn(mode, &ask, count)) }
        };
        let (records, ended) = comparison.run(take, |_| told += 1).await;
        // What was taken before a failure is not lost with it.
        assert_eq!((told, ended.is_some()), (records.len(), comparison.bound > Duration::ZERO));
        records
    }

    #[tokio::test]
    async fn modes_take_turns_forwards_and_backwards_with_the_same_prompts() {
        let comparison = comparison(Duration::from_secs(3600));
        let records = run(&comparison, 2).await;
        let order: Vec<_> =
            records.iter().map(|record| (record.block, record.load.concurrency, &record.mode)).collect();
        let forwards: Vec<&Mode> = comparison.modes.iter().collect();
        let backwards: Vec<&Mode> = comparison.modes.iter().rev().collect();
        let mut expected = Vec::new();
        for (block, modes) in [(0, &forwards), (1, &backwards)] {
            for concurrency in [1, 3] {
                expected.extend(modes.iter().map(|mode| (block, concurrency, *mode)));
            }
        }
        assert_eq!(order, expected);
        let load = comparison.loads[1];
        let prompts = |block| comparison.ask(block, load, Proofs::Off).prompts.iter().map(|p| p[0]).collect::<Vec<_>>();
        assert_eq!((prompts(0), prompts(1)), (vec![0, 1, 2], vec![3, 4, 0]));
    }

    #[tokio::test]
    async fn without_time_each_load_has_one_block() {
        let records = run(&comparison(Duration::ZERO), 100).await;
        assert_eq!(records.len(), 8);
        assert!(records.iter().all(|record| record.block == 0));
    }

    #[tokio::test]
    async fn figures_are_those_of_the_turns_whichever_of_them_are_disturbed() {
        let comparison = comparison(Duration::from_secs(3600));
        let records = run(&comparison, 12).await;
        let cells = comparison.cells(&records, 576);
        assert_eq!(cells.len(), 8);
        let cell = |backend: &str, proofs, concurrency| {
            let found = cells
                .iter()
                .find(|cell| (&*cell.backend, cell.proofs, cell.concurrency) == (backend, proofs, concurrency));
            found.unwrap().clone()
        };
        let plain = cell("candle", Proofs::Off, 3);
        assert_eq!((plain.turns, plain.requests, plain.tokens, plain.prompt_tokens), (12, 36, 144, 10.0));
        assert_eq!((plain.ttft_ms.p50, plain.token_ms.count, plain.overhead), (20.0, 108, None));
        assert_eq!(
            (plain.fin_bytes_per_token, plain.cpu_us_per_token.serve, plain.peak_rss_bytes.serve),
            (0.0, None, None)
        );
        let in_process = cell("candle", Proofs::Host, 1);
        assert_eq!((in_process.fin_bytes_per_token, in_process.proof_bytes_per_token), (1152.0, 9.0));
        assert_eq!((in_process.rows_us_per_token, in_process.proof_us_per_token), (2.0, 1.0));
        let overhead = in_process.overhead.unwrap();
        let near = |estimate: Estimate, value: f64| {
            assert!((estimate.value - value).abs() < 1e-9, "{estimate:?} is not {value}");
            assert!(estimate.low.unwrap() <= value + 1e-9 && estimate.high.unwrap() >= value - 1e-9, "{estimate:?}");
        };
        assert_eq!(overhead.pairs, 12);
        near(overhead.ttft_pct, 1.0);
        near(overhead.cpu_us_per_token, 20.0);
        // Four of other threads, one of them for folding, and two of the model's for copying rows out.
        near(overhead.fin_cpu_us_per_token, 5.0);
        near(overhead.time_pct, 1.0);
        let hop = cell("sglang", Proofs::Host, 3);
        assert_eq!((hop.fin_bytes_per_token, hop.received_bytes_per_token), (4850.0, 5000.0));
        assert_eq!((hop.cpu_us_per_token.serve, hop.peak_rss_bytes.serve), (Some(2000.0), Some(7)));
        let overhead = hop.overhead.unwrap();
        near(overhead.cpu_us_per_token, 50.0);
        near(overhead.fin_cpu_us_per_token, 13.0);
        let pooled = comparison.overhead(&records);
        assert_eq!(
            pooled.iter().map(|of| (&*of.backend, of.overhead.pairs)).collect::<Vec<_>>(),
            [("candle", 24), ("sglang", 24)]
        );
        near(pooled[1].overhead.fin_cpu_us_per_token, 13.0);
        // Whoever reads the files finds the same.
        let text = serde_json::to_string(&records[0]).unwrap();
        assert!(
            text.starts_with(
                r#"{"block":0,"backend":"candle","proofs":"off","concurrency":1,"new_tokens":4,"serve":null,"tokens":4"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<TurnRecord>(&text).unwrap(), records[0]);
    }

    #[test]
    fn turns_without_a_partner_are_no_pairs() {
        let record = |block, proofs| TurnRecord {
            block,
            mode: mode("candle", proofs),
            load: Load { concurrency: 1, new_tokens: 2 },
            serve: None,
            turn: Turn { tokens: 2, decode_tokens: 1, decode_seconds: 1.0, ttft_ms: vec![1.0], ..Turn::default() },
        };
        let (with, without) = ([record(0, Proofs::Host), record(1, Proofs::Host)], [record(1, Proofs::Off)]);
        let overhead = |without: &[TurnRecord]| Overhead::of(&with.each_ref(), &without.iter().collect::<Vec<_>>());
        assert_eq!(overhead(&without).unwrap().pairs, 1);
        assert_eq!(overhead(&[]), None);
    }
}
