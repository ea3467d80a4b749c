//! Figures as a measurement would find them.

use crate::overhead::{
    BackendOverhead, Cell, Distribution, Estimate, Machine, Matrix, MatrixCell, Overhead, Processes, Proofs, Role, Run,
    Variant,
};

pub(super) fn run() -> Run {
    Run {
        command:
            "engy-miner bench overhead --checkpoint Qwen3-4B-FP8 --sglang http://127.0.0.1:30000 --concurrency 1,8 \
                  --new-tokens 64,256 --turns 12"
                .into(),
        version: "0.1.0".into(),
        began: 1_785_000_000,
        seconds: 1834.2,
        machine: Machine {
            processor: "AMD EPYC 9554 64-Core Processor".into(),
            cores: 16,
            memory_bytes: 137_438_953_472,
            system: "Debian GNU/Linux 12 (Linux 6.1.0)".into(),
        },
        model: "Qwen3-4B-FP8".into(),
        hidden: 2560,
        topk: 128,
        serve: Some("sglang 0.5.2, Qwen3-4B-FP8, tp 1".into()),
        others: 0.021,
        complete: true,
        overhead: vec![pooled("candle", around(0.41, 0.24)), pooled("sglang", around(26.4, 1.3))],
    }
}

/// Over four loads of twelve pairs each.
pub(super) fn pooled(backend: &str, time_pct: Estimate) -> BackendOverhead {
    BackendOverhead { backend: backend.into(), overhead: Overhead { pairs: 48, time_pct, ..overhead(backend) } }
}

fn overhead(backend: &str) -> Overhead {
    let http = backend == "sglang";
    Overhead {
        pairs: 12,
        time_pct: if http { around(26.0, 2.4) } else { around(0.4, 0.5) },
        ttft_pct: if http { around(2.0, 2.5) } else { around(0.1, 0.9) },
        cpu_us_per_token: if http { around(1440.0, 180.0) } else { around(24.0, 90.0) },
        fin_cpu_us_per_token: if http { around(1460.0, 30.0) } else { around(23.0, 1.5) },
    }
}

/// Four modes at two loads and two lengths.
pub(super) fn cells() -> Vec<Cell> {
    [(1, 64), (1, 256), (8, 64), (8, 256)].into_iter().flat_map(modes_at).collect()
}

/// Both backends with and without proofs at one load.
pub(super) fn modes_at(load: (usize, usize)) -> [Cell; 4] {
    [("sglang", Proofs::Off), ("sglang", Proofs::Host), ("candle", Proofs::Off), ("candle", Proofs::Host)]
        .map(|(backend, proofs)| cell(backend, proofs, load))
}

pub(super) fn cell(backend: &str, proofs: Proofs, (concurrency, new_tokens): (usize, usize)) -> Cell {
    let (http, proven) = (backend == "sglang", proofs == Proofs::Host);
    let busy = concurrency as f64;
    let token = if http { 11.0 } else { 14.0 } * busy.powf(0.4);
    let token = token
        * if !proven {
            1.0
        } else if http {
            1.31
        } else {
            1.003
        };
    let rows = if http { 6.0 + 540.0 * f64::from(u8::from(proven)) } else { 1.9 * f64::from(u8::from(proven)) };
    let proof = if proven { 21.0 } else { 0.0 };
    let model = 13_000.0 / busy.powf(0.6);
    Cell {
        backend: backend.into(),
        proofs,
        concurrency,
        new_tokens,
        streamed: true,
        turns: 12,
        requests: 12 * concurrency,
        tokens: 12 * concurrency * new_tokens,
        prompt_tokens: 312.4,
        ttft_ms: distribution(12 * concurrency, if http { 95.0 } else { 140.0 } * busy.powf(0.7), 0.25),
        token_ms: distribution(12 * concurrency * new_tokens, token, 0.08),
        last_token_to_response_ms: distribution(12 * concurrency, if proven { 2.4 } else { 0.9 }, 0.3),
        tok_s: busy * 940.0 / token,
        decode_tok_s: busy * 1000.0 / token,
        cpu_us_per_token: Processes {
            miner: rows + proof + if http { 160.0 } else { model },
            serve: http.then_some(model * 0.8 + if proven { 900.0 } else { 0.0 }),
        },
        other_cpu_us_per_token: Processes {
            miner: 52.0 + proof + if http { rows } else { 0.0 },
            serve: http.then_some(270.0 + if proven { 893.0 } else { 0.0 }),
        },
        peak_rss_bytes: Processes {
            miner: if http { 210_000_000 } else { 5_300_000_000 },
            serve: http.then_some(7_900_000_000),
        },
        received_bytes_per_token: if http { 38.0 + if proven { 31_400.0 } else { 0.0 } } else { 0.0 },
        fin_bytes_per_token: if !proven {
            0.0
        } else if http {
            31_400.0
        } else {
            5120.0
        },
        proof_bytes_per_token: if proven { 10.75 } else { 0.0 },
        rows_us_per_token: rows,
        proof_us_per_token: proof,
        overhead: proven.then(|| Overhead {
            time_pct: if http { around(31.0 - busy, 2.4) } else { around(0.32 + busy * 0.02, 0.5) },
            ..overhead(backend)
        }),
    }
}

pub(super) fn around(value: f64, wide: f64) -> Estimate {
    Estimate { value, low: Some(value - wide), high: Some(value + wide * 1.1) }
}

/// Skewed to the right, as latencies are.
pub(super) fn distribution(count: usize, middle: f64, wide: f64) -> Distribution {
    let at = |percent: f64| {
        let share = (percent / 100.0).clamp(0.004, 0.996);
        middle * (wide * 0.55 * (share / (1.0 - share)).ln()).exp()
    };
    let percentiles: Vec<f64> = (0..=100).map(|percent| at(f64::from(percent))).collect();
    Distribution { count, mean: middle * (1.0 + wide * wide), p50: at(50.0), p99: at(99.0), percentiles }
}

/// Four honest variants, one maker at the edge for each thing that may become of it, and two controls.
pub(super) fn matrix() -> Matrix {
    matrix_of(
        &["candle kv=bf16", "candle kv=fp8_e4m3", "candle kv=fp8_e4m3 chunk=16", "sglang"],
        &["noise of 3 %", "no layer 8", "int4 weights"],
        &["candle q4_0 weights", "candle one layer less"],
    )
}

/// All that a run has.
pub(super) fn large_matrix() -> Matrix {
    matrix_of(
        &[
            "candle",
            "candle batch=2",
            "candle chunk=16",
            "candle kv=bf16",
            "candle kv=fp8_e4m3",
            "candle tp=3",
            "candle weights=bf16",
            "sglang",
        ],
        &["noise of 3 %", "no layer 8", "int4 weights"],
        &["another seed", "int2 weights", "no first layer"],
    )
}

/// Ten honest variants with long names, which stand upright.
pub(super) fn wide_matrix() -> Matrix {
    let names: Vec<String> = (0..10)
        .map(|place| {
            let (kv, chunk) = (["bf16", "fp8_e4m3"][place % 2], 16 << (place / 2));
            format!("candle kv={kv} chunk={chunk}")
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    matrix_of(
        &names,
        &["candle noise of 3 % kv=fp8_e4m3 chunk=16"],
        &["candle q4_0 weights chunk=16", "candle one layer less"],
    )
}

/// Makers at the edge are accepted, rejected and split in turns.
pub(super) fn matrix_of(honest: &[&str], edges: &[&str], controls: &[&str]) -> Matrix {
    let variant =
        |name: &str, role| Variant { name: name.into(), flags: format!("--variant {}", name.replace(' ', "-")), role };
    let roles = [(honest, Role::Honest), (controls, Role::Control), (edges, Role::Edge)];
    let variants: Vec<Variant> =
        roles.iter().flat_map(|(names, role)| names.iter().map(|name| variant(name, *role))).collect();
    let edge = |maker: &Variant| edges.iter().position(|name| *name == maker.name).unwrap_or_default() % 3;
    let cell = |maker: &Variant, verifier: &str, far: usize| {
        let (mean, passed) = match maker.role {
            Role::Control => (68.0 + far as f64 * 2.3, 0),
            Role::Edge => [(13.0 + far as f64, 16), (45.5 + far as f64, 0), (38.0 + far as f64, 8)][edge(maker)],
            Role::Honest if maker.name == verifier => (0.0, 16),
            Role::Honest => (2.1 + far as f64 * 1.7, 16),
        };
        MatrixCell {
            maker: maker.name.clone(),
            verifier: verifier.into(),
            role: maker.role,
            answers: 16,
            passed,
            batches: 128,
            mismatches_mean: mean,
            mismatches_p99: mean * 1.5,
            mismatches_max: ((mean * 1.8) as usize).min(121),
            mantissa_mean: (mean > 0.0).then_some(mean / 9.0),
            mantissa_max: (mean > 0.0).then_some(mean / 5.0),
        }
    };
    let cells = variants.iter().enumerate().flat_map(|(row, maker)| {
        honest.iter().enumerate().map(move |(column, verifier)| cell(maker, verifier, row.abs_diff(column) % 5))
    });
    Matrix { cells: cells.collect(), variants: variants.clone(), max_mismatches: 40, pass_ratio: 0.99 }
}
