//! The program as a user runs it: bad input gives one clear line and a non-zero exit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use engy_miner::gateway::{Gateway, GatewayConfig};
use engy_miner::protocol::MinerKey;

use crate::site::fixture;

/// A command that ends within a minute: one that fails to fail would serve for ever.
fn engy_miner(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_engy-miner")]).args(args).env_clear().env("ENGY_LOG", "warn");
    command
}

/// Runs a command that must fail: one line on standard error that starts with the program's name and says `what`.
fn fails_with(output: Output, what: &str) {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.contains(" WARN ")).collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].starts_with("engy-miner: ") && lines[0].contains(what), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("mk-secret"), "{stderr}");
}

fn mine(checkpoint: &Path, state: &Path) -> Command {
    let spec = fixture("tiny.toml");
    let mut command = engy_miner(&["mine", "--legs", "2"]);
    command.arg("--checkpoint").arg(checkpoint).arg("--spec").arg(spec).arg("--state-dir").arg(state);
    command.env("MINER_KEY", "mk-secret").env("GW", "ws://127.0.0.1:9/gw");
    command
}

#[test]
fn checkpoints_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let run = |checkpoint: &Path| mine(checkpoint, dir.path()).output().unwrap();
    fails_with(run(&path("gone")), "no checkpoint at");
    std::fs::write(path("junk.gguf"), b"not a model").unwrap();
    fails_with(run(&path("junk.gguf")), "not a GGUF file");
    std::fs::write(path("cut.gguf"), b"GGUF\x03\0\0\0\x10\0\0\0\0\0\0\0").unwrap();
    fails_with(run(&path("cut.gguf")), "truncated or corrupt");

    let llama = fixture("models/tiny-llama");
    let broken = path("broken");
    std::fs::create_dir(&broken).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(llama.join(name), broken.join(name)).unwrap();
    }
    fails_with(run(&broken), "no *.safetensors in");
    let weights = std::fs::read(llama.join("model.safetensors")).unwrap();
    std::fs::write(broken.join("model.safetensors"), &weights[..weights.len() - 1000]).unwrap();
    fails_with(run(&broken), "is truncated or corrupt");
    std::fs::write(broken.join("model.safetensors"), &weights).unwrap();
    std::fs::write(broken.join("tokenizer.json"), "{}").unwrap();
    fails_with(run(&broken), "the tokenizer of");
    std::fs::remove_file(broken.join("tokenizer.json")).unwrap();
    fails_with(run(&broken), "no tokenizer at");
    std::fs::copy(llama.join("tokenizer.json"), broken.join("tokenizer.json")).unwrap();
    std::fs::write(broken.join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    fails_with(run(&broken), "the architecture \"mamba\" is not supported");
}

/// Whoever serves another model than they say is judged a cheat.
#[test]
fn a_checkpoint_of_another_width_than_its_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = engy_miner(&["mine", "--legs", "2", "--model", "qwen3.6-35b-a3b"]);
    command.arg("--checkpoint").arg(fixture("models/tiny-llama")).arg("--state-dir").arg(dir.path());
    command.env("MINER_KEY", "mk-secret").env("GW", "ws://127.0.0.1:9/gw");
    fails_with(command.output().unwrap(), "another model than qwen3.6-35b-a3b: its hidden states have 64 values");
}

#[test]
fn flags_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let llama = fixture("models/tiny-llama");
    let sglang = |more: &[&str]| mine(&llama, dir.path()).args(["--backend", "sglang"]).args(more).output().unwrap();
    fails_with(sglang(&[]), "give --serve-url its address");
    fails_with(sglang(&["--serve-url", "127.0.0.1:30000"]), "the serve address \"127.0.0.1:30000\" is wrong");
    fails_with(sglang(&["--serve-url", "http://127.0.0.1:9"]), "it cannot be reached");
    fails_with(mine(&llama, dir.path()).env("GW", "http://127.0.0.1:9/gw").output().unwrap(), "not ws or wss");
    fails_with(mine(&llama, dir.path()).env("GW", "not an address").output().unwrap(), "gateway address");
    fails_with(mine(&llama, dir.path()).env("MINER_KEY", "").output().unwrap(), "MINER_KEY is empty");
    fails_with(mine(&llama, dir.path()).args(["--worker-name", "../x"]).output().unwrap(), "worker name");
    fails_with(mine(&llama, dir.path()).args(["--max-request-s", "nan"]).output().unwrap(), "--max-request-s");
    fails_with(mine(&llama, dir.path()).args(["--tp-size", "3"]).output().unwrap(), "does not split over 3 ranks");
    let no_gpu = match cfg!(feature = "cuda") {
        // Whatever the machine lacks, or else the layers do.
        true => "cpu",
        false => "computes on the processor alone",
    };
    fails_with(mine(&llama, dir.path()).args(["--devices", "cuda:0"]).output().unwrap(), no_gpu);
    fails_with(engy_miner(&["bench", "collectives", "--devices", "cpu,cpu"]).output().unwrap(), "--tp-size says 1");
    fails_with(mine(&llama, dir.path()).args(["--devices", "cpu,cpu"]).output().unwrap(), "--tp-size says 1");
    let plan = |checkpoint: &Path, more: &[&str]| {
        engy_miner(&["plan", "--json", "--checkpoint"]).arg(checkpoint).args(more).output().unwrap()
    };
    fails_with(plan(&llama, &["--tp-size", "16"]), "it does over 1, 2, 4, 8");
    let shapes = |text: &str| engy_miner(&["bench", "engine", "--synthetic", text]).output().unwrap();
    assert_eq!(shapes("gpt-5").status.code(), Some(2), "a flag's value that cannot be read is the parser's to refuse");
    let unnamed = engy_miner(&["mine", "--checkpoint", "x"]).env("MINER_KEY", "mk-secret").output().unwrap();
    fails_with(unnamed, "which model does the checkpoint hold?");
    let unknown = engy_miner(&["demo", "--model", "gpt-5", "--checkpoint", "x"]).output().unwrap();
    fails_with(unknown, "no spec for the model \"gpt-5\"");
    let home = engy_miner(&["demo"]).env("HOME", dir.path()).output().unwrap();
    fails_with(home, "run scripts/fetch-demo-model");
}

/// Few and narrow rows: it is the shape of the output that matters, and that a file's rows make the proofs that they made before.
#[test]
fn the_prover_is_measured_on_its_own_rows_and_on_a_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows");
    let shape = |hidden: &str, topk: &str, more: &[&str]| {
        let mut command = engy_miner(&["bench", "proof", "--json", "--hidden", hidden, "--topk", topk]);
        command.args(more).output().unwrap()
    };
    let bench = |more: &[&str]| shape("16", "8", more);
    let path = file.to_str().unwrap();
    let measured = |more: &[&str]| {
        let output = bench(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let wrote = measured(&["--rows", "40", "--write", path]);
    let keys: Vec<&String> = wrote.as_object().unwrap().keys().take(8).collect();
    let times = ["us_per_token", "us_scan", "us_interpolate", "us_floor", "gb_per_s", "proofs_sha256"];
    assert_eq!(keys[..2], ["hidden", "topk"]);
    assert_eq!(keys[2..], times);
    assert!(times.iter().all(|key| !wrote["heavy_tailed"][key].is_null()), "{wrote}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 40 * 16 * 2);
    let read = measured(&["--input", path]);
    assert_eq!((&read["rows"], &read["proofs_sha256"]), (&wrote["rows"], &wrote["proofs_sha256"]));
    assert_ne!(measured(&["--input", path, "--batch", "20"])["proofs_sha256"], wrote["proofs_sha256"]);

    fails_with(shape("16", "0", &[]), "top-k 0 cannot be proven");
    fails_with(shape("0", "8", &[]), "32 rows by 0 columns");
    fails_with(bench(&["--batch", "0"]), "0 rows by 16 columns");
    fails_with(bench(&["--rows", "0"]), "--rows 0 measures nothing");
    fails_with(bench(&["--runs", "0"]), "--runs 0 measures nothing");
    fails_with(shape("16", "513", &[]), "--topk 513 is more than the 512 elements");
    fails_with(shape("16", "17", &["--rows", "33"]), "smallest batch (1 rows of 16)");
    fails_with(bench(&["--rows", "18446744073709551615"]), "lower --rows, --batch or --hidden");
    fails_with(shape("18446744073709551615", "8", &[]), "use fewer rows a batch");
    fails_with(shape("17", "8", &["--input", path]), "no whole number of rows of 17");
    fails_with(bench(&["--input", "/nonexistent"]), "cannot read rows from /nonexistent");
    fails_with(bench(&["--rows", "32", "--write", "/nonexistent/rows"]), "cannot write the rows to /nonexistent/rows");
    let mut rows = std::fs::read(&file).unwrap();
    rows[2 * 35..2 * 36].copy_from_slice(&half::bf16::NAN.to_le_bytes());
    std::fs::write(&file, rows).unwrap();
    fails_with(bench(&["--input", path]), "holds NaN at row 2, column 3");
    std::fs::write(&file, []).unwrap();
    fails_with(bench(&["--input", path]), "has 0 bytes, no whole number of rows");
}

#[test]
fn a_port_that_is_taken() {
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = holder.local_addr().unwrap().to_string();
    fails_with(engy_miner(&["gateway", "--listen", &address]).output().unwrap(), &address);
    fails_with(engy_miner(&["fake-serve", "--listen", &address]).output().unwrap(), &address);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key() {
    let mut config = GatewayConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.miner_key = Some(MinerKey::new("mk-right"));
    let gateway = Gateway::bind(config).await.unwrap();
    let url = gateway.ws_url();
    tokio::spawn(gateway.run(std::future::pending()));
    let dir = tempfile::tempdir().unwrap();
    let mut command = mine(&fixture("models/tiny-llama"), dir.path());
    command.env("GW", url);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    fails_with(output, "refuses this worker: unknown miner key");
}

/// A log reader that goes away must not take the miner with it.
#[test]
fn a_closed_standard_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut miner = mine(&fixture("models/tiny-llama"), dir.path());
    miner.env("ENGY_LOG", "trace").stderr(Stdio::piped()).stdout(Stdio::null());
    let mut miner = miner.spawn().unwrap();
    // Read until it dials, which it does for ever, then close the pipe: its next log line meets no reader.
    let mut lines = BufReader::new(miner.stderr.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("cannot dial the gateway") {}
    drop(lines);
    // It goes on until it is told to stop, and then ends as asked.
    let stopped = Command::new("kill").args(["-TERM", &miner.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let status = miner.wait().unwrap();
    assert!(status.code() == Some(0) || status.code() == Some(124), "{status:?}");
}

#[test]
fn proofs_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let llama = fixture("models/tiny-llama");
    let (llama, spec) = (llama.to_str().unwrap(), fixture("tiny.toml"));
    let verify = |proof: &str| {
        let path = dir.path().join("proof.json");
        std::fs::write(&path, proof).unwrap();
        engy_miner(&["verify", "--checkpoint", llama]).arg("--spec").arg(&spec).arg(&path).output().unwrap()
    };
    fails_with(verify("{"), "is no proof");
    fails_with(verify("{}"), "is no proof");
    let empty = r#"{"commitment": {"model_root": "", "output_token_ids": [], "toploc": {"proofs": [], "topk": 16,
        "decode_batching_size": 32, "skip_prefill": true, "n_tokens": 0, "prompt_ids": []}}}"#;
    let refused = verify(empty);
    assert_eq!(refused.status.code(), Some(3), "a claim that contradicts itself has failed");
    assert!(
        String::from_utf8(refused.stdout).unwrap().starts_with("FAIL: the commitment is malformed: it has no prompt")
    );
    let gone = engy_miner(&["verify", "--checkpoint", llama, "/nonexistent.json"]).output().unwrap();
    fails_with(gone, "cannot read the proof");
}

/// What a start would allocate, as one object of numbers.
#[test]
fn a_plan_is_printed_without_loading_anything() {
    let run = |model: &str, more: &[&str]| {
        let checkpoint = fixture("models").join(model);
        let output = engy_miner(&["plan", "--json", "--checkpoint"]).arg(checkpoint).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let whole = run("tiny-qwen3_5_moe-f32", &["--max-total-tokens", "1000", "--max-running-requests", "3"]);
    assert_eq!((whole["cache_tokens"].as_u64(), whole["kv_bytes_per_token"].as_u64()), (Some(1008), Some(512)));
    assert_eq!(whole["cache_bytes"], 1008 * 512);
    let halves = run("tiny-qwen3_5_moe-f32", &["--tp-size", "2"]);
    assert_eq!(halves["ranks"].as_array().unwrap().len(), 2);
    let rank = &halves["ranks"][1];
    assert_eq!((rank["rank"].as_u64(), rank["kv_bytes_per_token"].as_u64()), (Some(1), Some(256)));
    let (half, all) = (rank["weights_bytes"].as_u64().unwrap(), whole["weights_bytes"].as_u64().unwrap());
    assert!(half > all / 2 && half < all * 6 / 10, "{half} of {all}: norms and routers are held twice");
    // On devices: what is left of each beside weights, states and workspace; and flags for more contexts than fit so.
    let cards = run("tiny-qwen3_5_moe-f32", &["--device-memory", "2GiB", "--tp-size", "2", "--contexts", "3"]);
    assert_eq!((cards["device_bytes"].as_u64(), cards["free_bytes"].as_u64()), (Some(2 << 30), None));
    let rank = &cards["ranks"][0];
    assert_eq!(rank["kv_bytes_per_token"], 128, "bf16, where nothing else is asked for");
    let number = |name: &str| rank[name].as_u64().unwrap();
    let left = (2 << 30) - number("weights_bytes") - number("state_bytes") - number("workspace_bytes");
    assert_eq!(number("max_tokens"), left / 128);
    let context = cards["model_context"].as_u64().unwrap();
    assert_eq!(
        cards["contexts"],
        serde_json::json!({"wanted": 3, "flags": ["--max-running-requests 3", format!("--max-total-tokens {}", 3 * context)]})
    );
    assert_eq!(run("tiny-llama", &["--device-memory", "1GiB"])["contexts"]["flags"], serde_json::Value::Null);
}

#[test]
fn a_fake_serve_answers_and_says_what_it_is() {
    let mut command = engy_miner(&["fake-serve", "--listen", "127.0.0.1:0", "--seeded", "hidden=4,vocab=50"]);
    command.env("ENGY_LOG", "info").stderr(Stdio::piped());
    let mut serve = command.spawn().unwrap();
    let mut lines = BufReader::new(serve.stderr.take().unwrap()).lines();
    let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains("a fake sglang serve listens")).unwrap();
    let address = line.split("http://").nth(1).unwrap().split('"').next().unwrap();
    let ask = |request: String| {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let info = ask("GET /get_server_info HTTP/1.0\r\n\r\n".into());
    assert!(info.contains("\"version\":\"0.5.6\"") && info.contains("no sglang"), "{info}");
    let body = r#"{"input_ids": [1, 2], "return_hidden_states": true, "sampling_params": {"max_new_tokens": 2}}"#;
    let answer = ask(format!("POST /generate HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert!(answer.contains("\"completion_tokens\":2") && answer.contains("\"hidden_states\":[[["), "{answer}");
    let killed = Command::new("kill").args(["-TERM", &serve.id().to_string()]).status().unwrap();
    assert!(killed.success() && serve.wait().unwrap().code().is_some());
}
