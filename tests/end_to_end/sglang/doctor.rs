//! `engy-miner doctor`, as an operator runs it.

use std::process::{Command, Output};

use engy_miner::fake_serve::{Dialect, Fault};
use serde_json::Value;

use super::seeded;
use crate::site::fixture;

async fn doctor(urls: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engy-miner"));
    command.args(["doctor", "--serve-url", urls]).args(more).env_clear();
    command.arg("--checkpoint").arg(fixture("models/tiny-llama")).arg("--spec").arg(fixture("tiny.toml"));
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What a serve costs is seen however it was started, and whatever it was asked before.
#[tokio::test(flavor = "multi_thread")]
async fn costs_are_found_behind_a_prefix_cache_and_a_long_stream_interval() {
    let (serve, _) =
        seeded(Dialect::V0_4_9, 64, |config| (config.radix_cache, config.stream_interval) = (true, 8)).await;
    for _ in 0..2 {
        let output = doctor(&serve.url(), &[]).await;
        let found = stdout(&output);
        assert!(found.contains("warning prompt rows") && found.contains("every event of a stream repeats"), "{found}");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_fault_among_serves_is_a_failure() {
    let (serve, _) = seeded(Dialect::V0_5_6, 64, |config| config.max_running = 14).await;
    let (dead, _) = seeded(Dialect::V0_5_6, 64, |_| ()).await;
    dead.shut_down().await;
    let output = doctor(&format!("{},{}", serve.url(), dead.url()), &["--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let findings = |at: usize| report["serves"][at]["findings"].as_array().unwrap();
    // 24 requests at once are 12 for each of two, and two places are for others.
    assert!(
        findings(0).iter().all(|finding| finding["severity"] != "fault" && finding["topic"] != "places"),
        "{report}"
    );
    assert_eq!((&findings(1)[0]["severity"], &findings(1)[0]["topic"]), (&"fault".into(), &"address".into()));
}

/// A stream that breaks off, or ends in an error, is no stream without hidden states.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_is_told_as_it_failed() {
    let (serve, _) = seeded(Dialect::V0_5_6, 64, |_| ()).await;
    for (fault, says) in [(Fault::ErrorEvent { after: 2 }, "500"), (Fault::ResetAfter { bytes: 3000 }, "broke off")] {
        serve.queue([None, Some(fault)]);
        let output = doctor(&serve.url(), &[]).await;
        let found = stdout(&output);
        assert!(found.contains("FAULT") && found.contains(says), "{found}");
        assert!(!found.contains("without hidden states"), "{found}");
        assert_eq!(output.status.code(), Some(1));
    }
}
