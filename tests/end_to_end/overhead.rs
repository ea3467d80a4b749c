//! `engy-miner bench overhead`, as a researcher runs it: whole on a tiny model within seconds.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use engy_miner::backend::Backend;
use engy_miner::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig};
use engy_miner::overhead::{Cell, Matrix, Proofs, Role, Run, TurnRecord};
use serde::de::DeserializeOwned;

use crate::site::{fixture, load};

const HIDDEN: usize = 64;
/// A proof of 16 points.
const PROOF_BYTES: f64 = 2.0 + 2.0 * 16.0;

/// The command on the tiny Llama, with two loads of two lengths.
fn overhead(output: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["120", env!("CARGO_BIN_EXE_engy-miner"), "bench", "overhead"]).env_clear().env("ENGY_LOG", "warn");
    command.arg("--checkpoint").arg(fixture("models/tiny-llama")).arg("--spec").arg(fixture("tiny.toml"));
    command.args(["--seconds", "1", "--concurrency", "1,3", "--new-tokens", "4,8"]).arg("--output").arg(output);
    command
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> T {
    serde_json::from_str(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

fn read_lines<T: DeserializeOwned>(folder: &Path, name: &str) -> Vec<T> {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_backends_are_compared_and_judge_one_another() {
    let folder = tempfile::tempdir().unwrap();
    // It makes its folder.
    let output = folder.path().join("made/here");
    let mut command = overhead(&output);
    command.args(["--fake-serve", "--matrix-answers", "2"]);
    let done = run(command).await;
    let (said, errors) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert_eq!((done.status.code(), &*errors), (Some(0), ""), "{said}");
    assert!(said.contains("report.html") && said.lines().count() < 15, "{said}");

    let run: Run = read(&output, "run.json");
    assert_eq!((&*run.model, run.hidden, run.topk), ("tiny-llama", HIDDEN, 16));
    assert!(run.command.starts_with("engy-miner bench overhead --checkpoint "), "{}", run.command);
    assert!(run.complete && run.serve.unwrap().starts_with("a stand-in for sglang "));
    let cells: Vec<Cell> = read_lines(&output, "results.jsonl");
    let turns: Vec<TurnRecord> = read_lines(&output, "turns.jsonl");
    assert_eq!((cells.len(), turns.len()), (16, cells.iter().map(|cell| cell.turns).sum()));
    for cell in &cells {
        let name = format!("{} {:?} {} {}", cell.backend, cell.proofs, cell.concurrency, cell.new_tokens);
        let proven = cell.proofs == Proofs::Host;
        assert!(cell.turns > 0 && cell.tokens == cell.turns * cell.concurrency * cell.new_tokens, "{name}");
        assert_eq!((cell.requests, cell.ttft_ms.count), (cell.tokens / cell.new_tokens, cell.requests), "{name}");
        assert_eq!(cell.overhead.is_some(), proven, "{name}");
        // All answers are shorter than a batch of 32 rows: a proof each.
        let proof = if proven { PROOF_BYTES / cell.new_tokens as f64 } else { 0.0 };
        assert_eq!(cell.proof_bytes_per_token, proof, "{name}");
        let over_http = cell.backend == "sglang";
        assert_eq!(cell.cpu_us_per_token.serve.is_some(), over_http, "{name}");
        assert_eq!(cell.received_bytes_per_token > 0.0, over_http, "{name}");
        let fin = cell.fin_bytes_per_token;
        match (proven, over_http) {
            (false, _) => assert_eq!(fin, 0.0, "{name}"),
            (true, false) => assert_eq!(fin, (2 * HIDDEN) as f64, "{name}"),
            // A bf16 value takes 3 to 25 characters, and a row of the prompt comes with each answer.
            (true, true) => assert!((3 * HIDDEN..30 * HIDDEN).contains(&(fin as usize)), "{name}: {fin}"),
        }
        assert!(cell.decode_tok_s > 0.0 && cell.cpu_us_per_token.miner > 0.0, "{name}");
    }
    let matrix: Matrix = read(&output, "matrix.json");
    assert!(matrix.cells.iter().all(|cell| cell.is_right() && cell.answers == 2), "{matrix:?}");
    let found = |maker: &str, verifier: &str| {
        let cell = matrix.cells.iter().find(|cell| cell.maker == maker && cell.verifier == verifier);
        cell.map(|cell| cell.mismatches_max)
    };
    for maker in ["candle", "candle batch=2", "candle chunk=16", "sglang"] {
        for verifier in ["candle", "sglang"] {
            assert_eq!(found(maker, verifier), Some(0), "{maker} by {verifier}");
        }
    }
    let controls = matrix.variants.iter().filter(|variant| variant.role == Role::Control).count();
    assert!(controls >= 3, "{:?}", matrix.variants);
    let page = std::fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.matches("<svg").count() >= 5 && !page.contains("NaN"));
    let markdown = std::fs::read_to_string(output.join("report.md")).unwrap();
    assert!(markdown.contains("| candle |") && !markdown.contains("NaN"), "{markdown}");
}

/// Of a serve that somebody else runs, the miner's part is known, and no secret is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_serve_elsewhere_is_measured_from_outside() {
    engy_miner::tls::install();
    let (checkpoint, backend) = load(&fixture("models/tiny-llama"));
    let text = Arc::new(|ids: &[u32]| format!("{ids:?}"));
    let mut config = FakeServeConfig::new(Dialect::V0_5_23, Engine::backend(backend as Arc<dyn Backend>, text));
    config.model_path = checkpoint.path().display().to_string();
    config.api_key = Some("sk-secret".into());
    let serve = FakeServe::spawn(config).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = overhead(folder.path());
    command.args(["--serve-url", &serve.url(), "--backend", "sglang", "--serve-api-key", "sk-secret", "--whole"]);
    command.args(["--matrix-answers", "1"]);
    let done = run(command).await;
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(0), "{errors}");
    let run: Run = read(folder.path(), "run.json");
    assert!(run.serve.as_ref().unwrap().starts_with("sglang 0.5.23 at 127.0.0.1:"), "{run:?}");
    assert!(
        run.command.contains("--serve-api-key ***") && !format!("{run:?}{errors}").contains("sk-secret"),
        "{run:?}"
    );
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains("sk-secret"), "{text}");
    }
    assert!(!String::from_utf8(done.stdout).unwrap().contains("sk-secret"));
    let cells: Vec<Cell> = read_lines(folder.path(), "results.jsonl");
    assert_eq!(cells.len(), 8);
    assert!(
        cells.iter().all(|cell| cell.backend == "sglang" && cell.cpu_us_per_token.serve.is_none() && !cell.streamed)
    );
    let matrix: Matrix = read(folder.path(), "matrix.json");
    assert!(
        matrix.cells.iter().any(|cell| (&*cell.maker, &*cell.verifier) == ("sglang", "candle") && cell.passed == 1)
    );
    serve.shut_down().await;
}

#[test]
fn what_cannot_be_measured_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let prompts = |name: &str, text: &str| {
        std::fs::write(path(name), text).unwrap();
        path(name).display().to_string()
    };
    std::fs::write(path("file"), "").unwrap();
    let fails = |more: &[&str], output: &Path, what: &str| {
        let done = overhead(output).args(more).output().unwrap();
        let errors = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{more:?}: {errors}");
        let lines: Vec<&str> = errors.lines().filter(|line| !line.contains(" WARN ")).collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with("engy-miner: ") && lines[0].contains(what),
            "{more:?}: {errors}"
        );
    };
    let output = path("output");
    fails(&["--backend", "candle", "--fake-serve"], &output, "add --backend sglang");
    fails(&["--backend", "sglang"], &output, "give --serve-url its address, or --fake-serve");
    fails(&["--fake-serve", "--serve-url", "http://127.0.0.1:9"], &output, "either a serve or a stand-in");
    fails(&["--serve-url", "http://127.0.0.1:9"], &output, "the serve 127.0.0.1:9 cannot be measured");
    fails(&["--prompts", "/gone"], &output, "cannot read the prompts /gone");
    fails(&["--prompts", &prompts("a", "\n{\"prompt\":\"a\"}\n{\"prompt\":}\n")], &output, "line 3 of ");
    fails(&["--prompts", &prompts("b", "{\"text\":\"a\"}")], &output, "neither messages nor a prompt");
    fails(&["--prompts", &prompts("c", "{\"messages\":[]}")], &output, "line 1 of ");
    fails(&["--prompts", &prompts("d", "\n\n")], &output, "has no prompts");
    fails(&[], &path("file"), "cannot make the folder");
    let long = format!("{{\"prompt\":\"{}\"}}", "word ".repeat(150_000));
    fails(&["--prompts", &prompts("e", &long)], &output, "do not fit 131072, the model's context");
}
