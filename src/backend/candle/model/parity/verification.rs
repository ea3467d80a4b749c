//! What a verifier makes of honest miners on other numerics and of miners with other weights: the table of
//! `docs/verification.md`, which these tests print with `--nocapture`.

#![allow(clippy::print_stdout, reason = "the table's figures")]

use half::bf16;

use super::hybrid::{BF16, FP8, open};
use super::*;
use crate::backend::candle::weights::ChangedWeights;
use crate::proof::{Policy, ProofParams, Verification, build_proofs, verify_proofs};

const PARAMS: ProofParams = ProofParams { topk: 128, batch: 32 };

fn narrow(rows: &[Vec<f32>]) -> Vec<bf16> {
    rows.iter().flatten().map(|x| bf16::from_f32(*x)).collect()
}

/// Proofs of a miner's rows, checked against a verifier's.
fn verify(theirs: &[Vec<f32>], mine: &[Vec<f32>]) -> Verification {
    let hidden = mine[0].len();
    let proofs = build_proofs(&narrow(theirs), hidden, PARAMS, None).unwrap();
    verify_proofs(proofs, &narrow(mine), hidden, PARAMS, None).unwrap()
}

fn mismatches(verification: &Verification) -> Vec<usize> {
    verification.batches.iter().map(|batch| batch.exp_mismatches).collect()
}

/// The rows that choose each token of an answer, recomputed in one pass.
fn recompute(machine: &mut Machine, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = prompt.iter().chain(&answer[..answer.len() - 1]).copied().collect();
    machine.scheduler.submit(9, tokens.clone(), tokens.len(), Wanted::RowsFrom(prompt.len() - 1)).unwrap();
    let (rows, _) = machine.run(0).remove(&9).unwrap();
    machine.scheduler.remove(9);
    rows
}

/// Rows that the reference computed in bf16 are proven, and judged by this engine's f32 recompute of the same tokens.
#[test]
fn an_honest_miner_in_bf16_passes_the_f32_recompute() {
    let theirs = Golden::load(BF16, "bf16");
    // The bf16 goldens were fed the ids that f32 chose.
    let fed = Golden::load(BF16, "f32");
    for (at, (prompt, answer)) in fed.prompts.iter().enumerate() {
        let mut machine = Machine::open(&open(BF16), 512);
        let check = verify(&theirs.rows(at, "step_fin"), &recompute(&mut machine, prompt, answer));
        println!("bf16 against f32, p{at}: {:?} mismatches of 128", mismatches(&check));
        assert!(Policy::default().judge(&check).is_pass(), "p{at}: {check:?}");
    }
}

/// Chunks, company and keys in another form: all of that is honest.
#[test]
fn an_honest_miner_with_other_settings_passes() {
    let golden = Golden::load(FP8, "f32");
    let mut miner = Machine::open(&open(FP8), 7);
    for (id, (prompt, _)) in (0_u64..).zip(&golden.prompts) {
        miner.scheduler.submit(id, prompt.clone(), prompt.len() + STEPS, Wanted::Next).unwrap();
    }
    let answers = miner.run(STEPS);
    for (at, (prompt, _)) in golden.prompts.iter().enumerate() {
        let (rows, ids) = &answers[&(at as u64)];
        let check = verify(rows, &recompute(&mut Machine::open(&open(FP8), 512), prompt, ids));
        assert_eq!(mismatches(&check), [0, 0], "p{at}");
    }
}

/// A model over several ranks adds in another order, which is hardly seen.
#[test]
fn an_honest_miner_with_more_ranks_passes() {
    for (model, ranks) in [("tiny-llama", 4), ("tiny-qwen3_moe", 4), (BF16, 2)] {
        let golden = Golden::load(model, "f32");
        let settings = Settings { ranks, ..Settings::default() };
        for (at, (prompt, answer)) in golden.prompts.iter().enumerate() {
            let theirs = recompute(&mut Machine::with(&open(model), settings), prompt, answer);
            let check = verify(&theirs, &recompute(&mut Machine::open(&open(model), 512), prompt, answer));
            println!("{model} over {ranks} ranks, p{at}: {:?} mismatches of 128", mismatches(&check));
            assert_eq!(mismatches(&check), [0, 0], "{model}, p{at}");
        }
    }
}

/// Keys and values in narrower forms are honest noise.
#[test]
fn an_honest_miner_with_narrow_keys_and_values_passes() {
    let golden = Golden::load(FP8, "f32");
    for (what, kv_dtype) in [("bf16 keys and values", DType::BF16), ("e4m3 keys and values", DType::F8E4M3)] {
        let settings = Settings { kv_dtype, ..Settings::default() };
        for (at, (prompt, answer)) in golden.prompts.iter().enumerate() {
            let theirs = recompute(&mut Machine::with(&open(FP8), settings), prompt, answer);
            let check = verify(&theirs, &recompute(&mut Machine::open(&open(FP8), 512), prompt, answer));
            println!("{what}, p{at}: {:?} mismatches of 128", mismatches(&check));
            assert!(Policy::default().judge(&check).is_pass(), "{what}, p{at}: {check:?}");
        }
    }
}

/// Activations in eight bits are so much noise on a model this narrow that a verifier has to round them too: then nothing is
/// left of it.
#[test]
fn rounded_activations_are_verified_with_rounded_activations() {
    let golden = Golden::load(FP8, "f32");
    let rounded = Settings { activations: Fp8Activations::Dynamic, ..Settings::default() };
    for (at, (prompt, answer)) in golden.prompts.iter().enumerate() {
        let theirs = recompute(&mut Machine::with(&open(FP8), rounded), prompt, answer);
        let plain = verify(&theirs, &recompute(&mut Machine::open(&open(FP8), 512), prompt, answer));
        println!("e4m3 activations, p{at}: {:?} mismatches of 128", mismatches(&plain));
        assert!(mismatches(&plain).iter().all(|count| *count > 0), "p{at}: nothing was rounded");
        let alike = Settings { prefill_chunk: 7, ..rounded };
        let check = verify(&theirs, &recompute(&mut Machine::with(&open(FP8), alike), prompt, answer));
        assert_eq!(mismatches(&check), [0, 0], "p{at}");
    }
}

/// What a verifier finds of a miner with changed weights, prompt by prompt: each batch's mismatches, and the verdict.
fn check_changed(model: &str, change: &str) -> Vec<(Vec<usize>, bool)> {
    let golden = Golden::load(model, "f32");
    let checkpoint = open(model);
    let config = DecoderConfig::read(&checkpoint).unwrap();
    let weights = weights::open(&checkpoint, config.gguf_heads(), Fp8Activations::default(), &|_, _| {}).unwrap();
    let changed = ChangedWeights::new(weights.as_ref(), change.parse().unwrap(), &config).unwrap();
    let prompts = golden.prompts.iter().enumerate().map(|(at, (prompt, answer))| {
        let mut miner = Machine::of_weights(&changed, &config, Settings::default());
        let theirs = recompute(&mut miner, prompt, answer);
        let check = verify(&theirs, &recompute(&mut Machine::open(&checkpoint, 512), prompt, answer));
        println!("{model} {change}, p{at}: {:?} mismatches of 128", mismatches(&check));
        (mismatches(&check), Policy::default().judge(&check).is_pass())
    });
    prompts.collect()
}

#[test]
fn a_miner_with_other_weights_is_rejected() {
    for change in ["int4", "seed:1", "noise:0.1", "without-layer:0", "without-layer:3", "reversed-expert:0:1"] {
        assert!(check_changed(FP8, change).iter().all(|(_, passes)| !passes), "{change}");
    }
}

/// In the last layer, where no other layer carries the difference on, the exponents of the largest values hardly change.
#[test]
fn a_miner_with_one_wrong_expert_in_the_last_layer_passes() {
    for (mismatches, passes) in check_changed(FP8, "reversed-expert:3:1") {
        assert!(passes && mismatches.iter().all(|count| *count > 0), "{mismatches:?}");
    }
}
