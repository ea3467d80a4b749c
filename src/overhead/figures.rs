//! From turns to figures.

use super::comparison::{Account, Comparison, Load, Mode, TurnRecord};
use super::results::{BackendOverhead, Cell, Distribution, Estimate, Overhead, Processes, Proofs};
use super::statistics::median;
use super::turn::Turn;

impl Comparison {
    /// What proofs cost each backend over all loads.
    #[must_use]
    pub fn overhead(&self, records: &[TurnRecord]) -> Vec<BackendOverhead> {
        let of = |mode: &Mode| records.iter().filter(|record| record.mode == *mode).collect::<Vec<_>>();
        let proven = self.modes.iter().filter(|mode| mode.proofs != Proofs::Off);
        let overhead = proven.filter_map(|mode| {
            let overhead = Overhead::of(&of(mode), &of(&Mode { proofs: Proofs::Off, ..mode.clone() }))?;
            Some(BackendOverhead { backend: mode.backend.clone(), overhead })
        });
        overhead.collect()
    }

    /// The turns in figures, one a mode and load.
    #[must_use]
    pub fn cells(&self, records: &[TurnRecord], hidden: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for load in &self.loads {
            for mode in &self.modes {
                let own = of(records, mode, *load);
                let plain = of(records, &Mode { proofs: Proofs::Off, ..mode.clone() }, *load);
                if !own.is_empty() {
                    cells.push(self.cell(mode, *load, &own, &plain, hidden));
                }
            }
        }
        cells
    }

    fn cell(&self, mode: &Mode, load: Load, own: &[&TurnRecord], plain: &[&TurnRecord], hidden: usize) -> Cell {
        let total = |of: fn(&Turn) -> f64| own.iter().map(|record| of(&record.turn)).sum::<f64>();
        let all = |of: fn(&Turn) -> &[f64]| {
            Distribution::of(own.iter().flat_map(|record| of(&record.turn)).copied().collect())
        };
        let middle = |records: &[&TurnRecord], of: &dyn Fn(&TurnRecord) -> f64| {
            median(records.iter().map(|record| of(record)).collect())
        };
        let received = |record: &TurnRecord| per_token(record, record.turn.received_bytes as f64);
        let requests: usize = own.iter().map(|record| record.turn.ttft_ms.len()).sum();
        let tokens: usize = own.iter().map(|record| record.turn.tokens).sum();
        let a_token = |value: f64| value / tokens.max(1) as f64;
        let proven = mode.proofs != Proofs::Off;
        let in_process = own.iter().all(|record| record.turn.received_bytes == 0);
        let serves: Option<Vec<Account>> = own.iter().map(|record| record.serve).collect();
        Cell {
            backend: mode.backend.clone(),
            proofs: mode.proofs,
            concurrency: load.concurrency,
            new_tokens: load.new_tokens,
            streamed: self.streamed,
            turns: own.len(),
            requests,
            tokens,
            prompt_tokens: total(|turn| turn.prompt_tokens as f64) / requests.max(1) as f64,
            ttft_ms: all(|turn| &turn.ttft_ms),
            token_ms: all(|turn| &turn.token_ms),
            last_token_to_response_ms: all(|turn| &turn.last_token_to_response_ms),
            tok_s: middle(own, &|record| rate(record.turn.tokens, record.turn.seconds)),
            decode_tok_s: middle(own, &|record| rate(record.turn.decode_tokens, record.turn.decode_seconds)),
            cpu_us_per_token: Processes {
                miner: middle(own, &|record| per_token(record, record.turn.cpu_us)),
                serve: serves
                    .as_ref()
                    .map(|_| middle(own, &|record| per_token(record, record.serve.unwrap_or_default().cpu_us))),
            },
            other_cpu_us_per_token: Processes {
                miner: middle(own, &|record| per_token(record, record.turn.other_cpu_us)),
                serve: serves
                    .as_ref()
                    .map(|_| middle(own, &|record| per_token(record, record.serve.unwrap_or_default().other_cpu_us))),
            },
            peak_rss_bytes: Processes {
                miner: own.iter().map(|record| record.turn.peak_rss_bytes).max().unwrap_or_default(),
                serve: serves.and_then(|serves| serves.iter().map(|account| account.peak_rss_bytes).max()),
            },
            received_bytes_per_token: middle(own, &received),
            fin_bytes_per_token: match (proven, in_process) {
                (false, _) => 0.0,
                (true, true) => (hidden * size_of::<half::bf16>()) as f64,
                (true, false) => middle(own, &received) - middle(plain, &received),
            },
            proof_bytes_per_token: a_token(total(|turn| turn.proof_bytes as f64)),
            rows_us_per_token: a_token(total(|turn| turn.rows_us)),
            proof_us_per_token: a_token(total(|turn| turn.proof_us)),
            overhead: proven.then(|| Overhead::of(own, plain)).flatten(),
        }
    }
}

fn of<'a>(records: &'a [TurnRecord], mode: &Mode, load: Load) -> Vec<&'a TurnRecord> {
    records.iter().filter(|record| record.mode == *mode && record.load == load).collect()
}

/// A turn's value, a token of it.
fn per_token(record: &TurnRecord, value: f64) -> f64 {
    value / record.turn.tokens.max(1) as f64
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl Overhead {
    /// From the turns that have a partner: of the same block and load, without proofs. `None` where there is none.
    #[must_use]
    pub fn of(proven: &[&TurnRecord], plain: &[&TurnRecord]) -> Option<Self> {
        let partner = |with: &&TurnRecord| {
            plain.iter().find(|without| (without.block, without.load) == (with.block, with.load)).copied()
        };
        let pairs: Vec<(&TurnRecord, &TurnRecord)> =
            proven.iter().filter_map(|with| Some((*with, partner(with)?))).collect();
        // Ratios are compared by their logarithms, so that a turn of twice the time and one of half of it weigh the same.
        let more = |of: fn(&Turn) -> f64| {
            let logs = pairs.iter().map(|(with, without)| (of(&with.turn) / of(&without.turn)).ln());
            let logs: Vec<f64> = logs.filter(|log| log.is_finite()).collect();
            Estimate::of(&logs).map(|log| log.exp_m1() * 100.0)
        };
        let dearer = |of: fn(&TurnRecord) -> f64| {
            let a_token = |record: &TurnRecord| per_token(record, of(record));
            let differences: Vec<f64> = pairs.iter().map(|(with, without)| a_token(with) - a_token(without)).collect();
            Estimate::of(&differences)
        };
        (!pairs.is_empty()).then(|| Self {
            pairs: pairs.len(),
            time_pct: more(|turn| turn.decode_seconds / turn.decode_tokens.max(1) as f64),
            ttft_pct: more(|turn| turn.ttft_ms.iter().sum::<f64>() / turn.ttft_ms.len().max(1) as f64),
            cpu_us_per_token: dearer(cpu),
            fin_cpu_us_per_token: dearer(cpu_of_fin),
        })
    }
}

/// Processor time of all processes that are known, microseconds.
fn cpu(record: &TurnRecord) -> f64 {
    record.turn.cpu_us + record.serve.map_or(0.0, |account| account.cpu_us)
}

/// The same without the model's threads and without folding, but with what the former take to copy rows out. In the process of a serve's
/// client there is no model: what reads its replies is one of the other threads.
fn cpu_of_fin(record: &TurnRecord) -> f64 {
    let copied = if record.turn.received_bytes == 0 { record.turn.rows_us } else { 0.0 };
    record.turn.other_cpu_us - record.turn.proof_us + copied + record.serve.map_or(0.0, |account| account.other_cpu_us)
}
