//! Numbers that no measurement should give.

use proptest::prelude::*;

use super::super::{html, markdown, summary};
use super::{balanced, no_nonsense, sample};
use crate::overhead::{
    BackendOverhead, Cell, Distribution, Estimate, Matrix, MatrixCell, Overhead, Processes, Proofs, Role,
};

fn number() -> impl Strategy<Value = f64> {
    let odd = [0.0, -0.0, 1e-310, 1e-9, 1e15, 1e300, f64::MAX, f64::MIN, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    prop_oneof![proptest::sample::select(odd.to_vec()), -1e6..1e6, 0.0..1.0]
}

fn whole() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(usize::MAX), 0usize..5, 1usize..100_000]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just("candle".into()), Just("sglang".into()), any::<String>(), Just("long ".repeat(60))]
}

prop_compose! {
    fn estimate()(value in number(), low in proptest::option::of(number()), high in proptest::option::of(number())) -> Estimate {
        Estimate { value, low, high }
    }
}

prop_compose! {
    fn distribution()(
        count in whole(), mean in number(), p50 in number(), p99 in number(),
        percentiles in proptest::collection::vec(number(), 0..102),
    ) -> Distribution {
        Distribution { count, mean, p50, p99, percentiles }
    }
}

prop_compose! {
    fn overhead()(
        (pairs, time_pct, ttft_pct) in (whole(), estimate(), estimate()),
        (cpu_us_per_token, fin_cpu_us_per_token) in (estimate(), estimate()),
    ) -> Overhead {
        Overhead { pairs, time_pct, ttft_pct, cpu_us_per_token, fin_cpu_us_per_token }
    }
}

prop_compose! {
    fn pooled()(backend in name(), overhead in overhead()) -> BackendOverhead {
        BackendOverhead { backend, overhead }
    }
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Honest), Just(Role::Control), Just(Role::Edge)]
}

prop_compose! {
    fn cell()(
        (backend, proven, concurrency, new_tokens, streamed) in (name(), any::<bool>(), whole(), whole(), any::<bool>()),
        (ttft_ms, token_ms) in (distribution(), distribution()),
        numbers in proptest::array::uniform10(number()),
        (serve, other) in (proptest::option::of(number()), proptest::option::of(number())),
        overhead in proptest::option::of(overhead()),
    ) -> Cell {
        Cell {
            backend,
            proofs: if proven { Proofs::Host } else { Proofs::Off },
            concurrency,
            new_tokens,
            streamed,
            turns: concurrency,
            requests: new_tokens,
            tokens: concurrency,
            prompt_tokens: numbers[0],
            last_token_to_response_ms: ttft_ms.clone(),
            ttft_ms,
            token_ms,
            tok_s: numbers[1],
            decode_tok_s: numbers[2],
            cpu_us_per_token: Processes { miner: numbers[3], serve },
            other_cpu_us_per_token: Processes { miner: numbers[9], serve: other },
            peak_rss_bytes: Processes { miner: u64::MAX, serve: serve.map(|_| 0) },
            received_bytes_per_token: numbers[4],
            fin_bytes_per_token: numbers[5],
            proof_bytes_per_token: numbers[6],
            rows_us_per_token: numbers[7],
            proof_us_per_token: numbers[8],
            overhead,
        }
    }
}

prop_compose! {
    fn pair()(
        (maker, verifier, role) in (name(), name(), role()),
        (answers, passed, batches, mismatches_max) in (whole(), whole(), whole(), whole()),
        (mismatches_mean, mismatches_p99) in (number(), number()),
        mantissa_mean in proptest::option::of(number()),
        mantissa_max in proptest::option::of(number()),
    ) -> MatrixCell {
        MatrixCell {
            maker, verifier, role, answers, passed, batches, mismatches_mean, mismatches_p99, mismatches_max,
            mantissa_mean, mantissa_max,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_number_breaks_a_report(
        cells in proptest::collection::vec(cell(), 0..10),
        pairs in proptest::option::of(proptest::collection::vec(pair(), 0..12)),
        (hidden, topk, max_mismatches) in (whole(), whole(), whole()),
        (seconds, others, pass_ratio) in (number(), number(), number()),
        (began, overhead) in (any::<u64>(), proptest::collection::vec(pooled(), 0..4)),
    ) {
        let mut run = sample::run();
        (run.hidden, run.topk, run.seconds, run.others, run.began) = (hidden, topk, seconds, others, began);
        run.overhead = overhead;
        let matrix = pairs.map(|cells| Matrix { variants: sample::matrix().variants, cells, max_mismatches, pass_ratio });
        // Names may say anything, so nonsense is looked for where they are tame.
        let page = html(&run, &cells, matrix.as_ref()).unwrap();
        balanced(&page);
        let said = summary(&run, &cells, matrix.as_ref());
        prop_assert!(said.lines().all(|line| !line.is_empty() && !line.contains(|c: char| c.is_control())), "{said}");
        let tame: Vec<Cell> = cells.into_iter().map(|cell| Cell { backend: "candle".into(), ..cell }).collect();
        let matrix = matrix.map(|mut matrix| {
            for cell in &mut matrix.cells {
                (cell.maker, cell.verifier) = ("a".into(), "b".into());
            }
            matrix
        });
        for of in &mut run.overhead {
            of.backend = "candle".into();
        }
        no_nonsense(&html(&run, &tame, matrix.as_ref()).unwrap());
        no_nonsense(&markdown(&run, &tame, matrix.as_ref()));
    }
}
