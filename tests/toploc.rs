//! Proofs against golden vectors of toploc 0.1.6, byte for byte, and against the rules
//! this crate adds (typed errors where toploc returns null proofs).

// Clippy knows a test function by its attribute; these allow its helpers the same.
#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;

use engy_miner::proof::{
    BatchCheck, DEFAULT_TOPK, Outcome, Policy, Proof, ProofBuilder, ProofError, ProofParams, Verifier, build_proofs,
    check_batch, verify_proofs,
};
use half::bf16;
use safetensors::SafeTensors;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// toploc's mantissa error when no exponent matched.
const NOTHING_MATCHED: f64 = 18_446_744_073_709_551_616.0;
const PRIME: u16 = 65497;

// ---- the golden vectors --------------------------------------------------------------

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    activations: String,
    layout: String,
    decode_batching_size: usize,
    topk: usize,
    skip_prefill: bool,
    proofs_base64: Vec<String>,
    null: bool,
    batches: Vec<GoldenBatch>,
    #[serde(default)]
    verify: Vec<GoldenVerify>,
}

#[derive(Deserialize)]
struct GoldenBatch {
    numel: usize,
    modulus: Option<u16>,
    indices_sorted: Option<Vec<u32>>,
    coeffs: Option<Vec<u16>>,
}

#[derive(Deserialize)]
struct GoldenVerify {
    activations: String,
    python_path: Option<Vec<GoldenCheck>>,
    cpp_path: Option<Vec<GoldenCheck>>,
}

#[derive(Deserialize)]
struct GoldenCheck {
    exp_mismatches: usize,
    mant_err_mean: f64,
    mant_err_median: f64,
}

struct Rows {
    flat: Vec<bf16>,
    hidden: usize,
}

impl Case {
    fn params(&self) -> ProofParams {
        ProofParams { topk: self.topk, batch: self.decode_batching_size }
    }

    /// Rows in the first list element, and in the first batch.
    fn first_rows(&self) -> (usize, usize) {
        let element = match self.layout.split_once(':') {
            Some((_, rows)) => rows.parse().unwrap(),
            None => 1,
        };
        if self.skip_prefill { (element, element + self.decode_batching_size - 1) } else { (element, element) }
    }

    fn build(&self, rows: &Rows) -> Result<Vec<Proof>, ProofError> {
        let (element, first) = self.first_rows();
        if self.skip_prefill && element == 1 {
            return build_proofs(&rows.flat, rows.hidden, self.params(), None);
        }
        if !self.skip_prefill {
            return build_proofs(&rows.flat, rows.hidden, self.params(), Some(first));
        }
        stream(rows, self.params(), first)
    }
}

fn stream(rows: &Rows, params: ProofParams, first: usize) -> Result<Vec<Proof>, ProofError> {
    let mut builder = ProofBuilder::with_first_batch(params, rows.hidden, first)?;
    let mut proofs = Vec::new();
    for row in rows.flat.chunks(rows.hidden) {
        proofs.extend(builder.push(row)?);
    }
    proofs.extend(builder.finish()?);
    Ok(proofs)
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/toploc/");
    fs::read(format!("{folder}{name}")).unwrap()
}

fn golden() -> (Golden, HashMap<String, Rows>) {
    let golden: Golden = serde_json::from_slice(&fixture("expected.json")).unwrap();
    let bytes = fixture("activations.safetensors");
    let rows = SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            assert_eq!(tensor.dtype(), safetensors::Dtype::BF16, "{name}");
            let flat = tensor.data().chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]])).collect();
            let hidden = tensor.shape()[1];
            (name, Rows { flat, hidden })
        })
        .collect();
    (golden, rows)
}

#[test]
fn every_golden_case_is_reproduced() {
    let (golden, activations) = golden();
    let (mut identical, mut too_small, mut non_finite, mut batches) = (0, 0, 0, 0);
    for case in &golden.cases {
        let rows = &activations[&case.activations];
        let built = case.build(rows);
        if rows.flat.iter().any(|x| !x.is_finite()) {
            let position = rows.flat.iter().position(|x| !x.is_finite()).unwrap();
            match built {
                Err(ProofError::NonFinite { row, column, .. }) => {
                    assert_eq!(row * rows.hidden + column, position, "{}", case.name);
                }
                other => panic!("{}: {other:?}", case.name),
            }
            non_finite += 1;
        } else if case.null {
            let first_small = case.batches.iter().position(|b| b.numel < case.topk);
            match built {
                Err(ProofError::TopKTooLarge { batch, elements, topk, .. }) => {
                    assert_eq!(Some(batch), first_small, "{}", case.name);
                    assert_eq!(elements, case.batches[batch].numel, "{}", case.name);
                    assert_eq!(topk, case.topk, "{}", case.name);
                }
                other => panic!("{}: {other:?}", case.name),
            }
            too_small += 1;
        } else {
            let built = built.unwrap();
            let text: Vec<String> = built.iter().map(Proof::to_base64).collect();
            assert_eq!(text, case.proofs_base64, "{}", case.name);
            batches += built.len();
            check_batches(case, rows, &built);
            identical += 1;
        }
    }
    let total = golden.cases.len();
    println!(
        "{total} golden cases: {identical} byte-identical ({batches} proofs), \
         {too_small} refused as too small, {non_finite} refused as non-finite"
    );
    assert_eq!(total, 110);
    assert_eq!(identical + too_small + non_finite, 110);
    assert_eq!((identical, too_small, non_finite), (92, 14, 4));
}

/// What the fixtures say about each batch beside its bytes.
fn check_batches(case: &Case, rows: &Rows, proofs: &[Proof]) {
    assert_eq!(proofs.len(), case.batches.len(), "{}", case.name);
    let mut start = 0;
    for (proof, batch) in proofs.iter().zip(&case.batches) {
        assert_eq!(Some(proof.modulus()), batch.modulus, "{}", case.name);
        if let Some(coeffs) = &batch.coeffs {
            assert_eq!(proof.coefficients(), coeffs, "{}", case.name);
        }
        // k points fix the polynomial, so meeting all of them means the same choice.
        for &index in batch.indices_sorted.as_ref().unwrap() {
            let bits = rows.flat[start + index as usize].to_bits();
            assert_eq!(proof.value_at(index), bits, "{} at {index}", case.name);
        }
        start += batch.numel;
    }
    assert_eq!(start, rows.flat.len(), "{}", case.name);
}

#[test]
fn every_golden_verification_is_reproduced() {
    let (golden, activations) = golden();
    let (mut cpp, mut python) = (0, 0);
    for case in golden.cases.iter().filter(|case| !case.null) {
        for verify in &case.verify {
            let rows = &activations[&verify.activations];
            let proofs: Vec<Proof> =
                case.proofs_base64.iter().map(|text| Proof::from_base64(text, case.topk).unwrap()).collect();
            let moduli: Vec<u16> = proofs.iter().map(Proof::modulus).collect();
            let (_, first) = case.first_rows();
            let mut verifier = Verifier::with_first_batch(proofs, case.params(), rows.hidden, first).unwrap();
            if rows.flat.iter().any(|x| !x.is_finite()) {
                let refused = rows.flat.chunks(rows.hidden).find_map(|row| verifier.push(row).err());
                assert!(matches!(refused, Some(ProofError::NonFinite { .. })), "{}", case.name);
                continue;
            }
            for row in rows.flat.chunks(rows.hidden) {
                verifier.push(row).unwrap();
            }
            let checks = verifier.finish().unwrap().batches;
            for (check, golden) in checks.iter().zip(verify.cpp_path.iter().flatten()) {
                assert_check(&case.name, check, golden, |m| m.upper_median);
                cpp += 1;
            }
            let python_path = verify.python_path.iter().flatten();
            for ((check, golden), &modulus) in checks.iter().zip(python_path).zip(&moduli) {
                // Under another modulus toploc's Python checker forgets to apply it.
                if modulus == PRIME {
                    assert_check(&case.name, check, golden, |m| m.median);
                    python += 1;
                } else if verify.activations == case.activations {
                    assert_eq!(check.exp_mismatches, 0, "{}", case.name);
                }
            }
        }
    }
    println!("{cpp} checks as toploc's C++ path, {python} as its Python path");
    assert!(cpp > 80 && python > 150, "{cpp} {python}");
}

fn assert_check(
    name: &str,
    check: &BatchCheck,
    golden: &GoldenCheck,
    median: impl Fn(engy_miner::proof::MantissaError) -> f64,
) {
    assert_eq!(check.exp_mismatches, golden.exp_mismatches, "{name}");
    let (mean, median) = match check.mantissa {
        Some(mantissa) => (mantissa.mean, median(mantissa)),
        None => (NOTHING_MATCHED, NOTHING_MATCHED),
    };
    assert!((mean - golden.mant_err_mean).abs() < 1e-9, "{name}");
    assert_eq!(median, golden.mant_err_median, "{name}");
}

// ---- edge behaviour ------------------------------------------------------------------

#[test]
fn topk_equal_to_the_batch_is_allowed() {
    let bits = [48889, 48923, 48911, 16171, 48714, 16377, 49075, 48963];
    let proof = one_proof(&bits.map(bf16::from_bits), 8, 8);
    assert_eq!(proof.to_base64(), "/9m++VfW2CNgXEBA/W9GhOr+");
}

#[test]
fn no_rows_make_no_proofs() {
    let params = ProofParams::default();
    assert_eq!(build_proofs(&[], 64, params, None), Ok(vec![]));
    let builder = ProofBuilder::new(params, 64).unwrap();
    assert_eq!(builder.finish(), Ok(None));
    let verification = verify_proofs(vec![], &[], 64, params, None).unwrap();
    let verdict = Policy::default().judge(&verification);
    assert_eq!(verdict.outcome, Outcome::Empty);
}

#[test]
fn an_empty_prompt_block_is_an_error_where_toploc_gives_a_null_proof() {
    let params = ProofParams::default();
    for prefill_rows in [0, 1] {
        assert!(build_proofs(&[], 64, params, Some(prefill_rows)).is_err());
    }
}

#[test]
fn null_proofs_and_impossible_ones_are_refused() {
    assert_eq!(Proof::from_base64("AAAAAAAAAAAAAAAAAAAAAAAA", 8), Err(ProofError::NullProof));
    // 65535 is no field element; toploc reads it all the same.
    let topk = 4;
    let bytes = [0xFF, 0xD9, 0, 255, 1, 0, 255, 0, 255, 255];
    assert_eq!(Proof::from_bytes(&bytes, topk), Err(ProofError::Coefficient { position: 3, value: 65535 }));
    for modulus in [3u16, 65498, 65535] {
        let mut bytes = [0; 10];
        bytes[..2].copy_from_slice(&modulus.to_be_bytes());
        let refused = Proof::from_bytes(&bytes, topk);
        assert_eq!(refused, Err(ProofError::Modulus { modulus, topk }));
    }
    for length in [0, 1, 2, 9, 11, 12] {
        let refused = Proof::from_bytes(&vec![1; length], topk);
        assert_eq!(refused, Err(ProofError::ProofLength { got: length, topk }));
    }
    assert!(matches!(Proof::from_base64("/9kAAA=", 1), Err(ProofError::Base64 { .. })));
}

#[test]
fn shapes_nobody_can_prove_are_refused() {
    let params = |topk, batch| ProofParams { topk, batch };
    for (params, hidden) in [
        (params(0, 32), 8),
        (params(65498, 32), 8),
        (params(8, 0), 8),
        (params(8, 32), 0),
        (params(8, 1 << 20), 2049),
        (params(8, usize::MAX), 2),
    ] {
        assert!(ProofBuilder::new(params, hidden).is_err(), "{params:?}");
        assert!(Verifier::new(vec![], params, hidden).is_err(), "{params:?}");
    }
    assert!(ProofBuilder::new(params(8, 1 << 20), 2048).is_ok());
    assert_eq!(
        build_proofs(&[bf16::ONE; 9], 4, params(2, 2), None),
        Err(ProofError::RaggedRows { elements: 9, hidden: 4 })
    );
}

#[test]
fn a_failed_builder_stays_failed() {
    let mut builder = ProofBuilder::new(ProofParams { topk: 2, batch: 2 }, 4).unwrap();
    builder.push(&[bf16::ONE; 4]).unwrap();
    assert_eq!(builder.push(&[bf16::ONE; 5]), Err(ProofError::RowWidth { row: 1, got: 5, hidden: 4 }));
    assert_eq!(builder.push(&[bf16::ONE; 4]), Err(ProofError::Poisoned));
    assert_eq!(builder.finish(), Err(ProofError::Poisoned));
}

#[test]
fn proofs_must_match_the_rows_in_number_and_topk() {
    let params = ProofParams { topk: 2, batch: 2 };
    let rows = Rows { flat: Noise(3).activations(5 * 8), hidden: 8 };
    let proofs = build_proofs(&rows.flat, 8, params, None).unwrap();
    assert_eq!(proofs.len(), 3);
    let verify = |proofs: &[Proof], rows: &[bf16]| {
        verify_proofs(proofs.to_vec(), rows, 8, params, None).map(|v| v.batches.len())
    };
    assert_eq!(verify(&proofs, &rows.flat), Ok(3));
    assert_eq!(verify(&proofs[..2], &rows.flat), Err(ProofError::TooFewProofs { proofs: 2, batch: 2, row: 4 }));
    assert_eq!(verify(&proofs, &rows.flat[..4 * 8]), Err(ProofError::TooManyProofs { proofs: 3, batches: 2, rows: 4 }));
    let other = ProofParams { topk: 3, batch: 2 };
    assert!(matches!(
        Verifier::new(proofs.clone(), other, 8),
        Err(ProofError::ProofTopK { batch: 0, got: 2, topk: 3 })
    ));
    // Carrying on past the error must not end in a clean verification.
    let mut verifier = Verifier::new(proofs[..2].to_vec(), params, 8).unwrap();
    let errors = rows.flat.chunks(8).filter(|r| verifier.push(r).is_err());
    assert_eq!(errors.count(), 1);
    assert_eq!(verifier.finish(), Err(ProofError::Poisoned));
}

#[test]
fn another_models_rows_fail_the_policy() {
    let params = ProofParams::default();
    let honest = Noise(1).activations(40 * 2048);
    let other = Noise(2).activations(40 * 2048);
    let proofs = build_proofs(&honest, 2048, params, None).unwrap();
    let verdict = |rows: &[bf16]| {
        let verification = verify_proofs(proofs.clone(), rows, 2048, params, None).unwrap();
        Policy::default().judge(&verification)
    };
    assert_eq!(verdict(&honest).to_string(), "PASS: 2 of 2 batches within 40 mismatches (worst 0, mean 0.0)");
    assert_eq!(verdict(&other).outcome, Outcome::Fail);
}

/// What `docs/proof.md` says under Limits: the largest activations of a batch mostly share
/// one exponent, so a forged constant meets exponents; only mantissas tell it.
#[test]
fn a_forged_constant_shows_in_the_mantissas_alone() {
    let rows: Vec<bf16> = Noise(5).activations(32 * 2048).iter().map(|x| bf16::from_f32(x.to_f32() * 1.5)).collect();
    let mut bytes = vec![0; 258];
    bytes[..2].copy_from_slice(&PRIME.to_be_bytes());
    bytes[2..4].copy_from_slice(&bf16::from_f32(10.0).to_bits().to_be_bytes());
    let forged = Proof::from_bytes(&bytes, DEFAULT_TOPK).unwrap();
    let check = check_batch(&forged, &rows, 2048).unwrap();
    assert_eq!(check.exp_mismatches, 0);
    assert!(check.mantissa.unwrap().mean > 5.0, "{check:?}");
}

// ---- cases met in the field ----------------------------------------------------------

/// A short last batch with fewer elements than top-k: toploc replaces every proof of the
/// answer by a null one, and returns one too many.
#[test]
fn fc_p01_a_last_batch_too_small_is_an_error_naming_it() {
    let hidden = 64;
    let rows: Vec<bf16> =
        (0..33 * hidden).map(|at| bf16::from_f64((at / hidden) as f64 + (at % hidden) as f64 / 64.0)).collect();
    let error = build_proofs(&rows, hidden, ProofParams::default(), None).unwrap_err();
    assert_eq!(error, ProofError::TopKTooLarge { batch: 1, rows: 1, elements: 64, topk: 128 });
    let message = error.to_string();
    assert!(message.starts_with("the second batch (rows: 1) has 64 elements, fewer than top-k 128"), "{message}");
}

/// NaN compares false with everything, so a naive selection would put it anywhere.
#[test]
fn fc_p03_non_finite_values_are_refused_by_place() {
    let params = ProofParams { topk: 4, batch: 32 };
    let mut builder = ProofBuilder::new(params, 8).unwrap();
    let row = [1.0, f32::NAN, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].map(bf16::from_f32);
    let error = builder.push(&row).unwrap_err();
    assert!(matches!(error, ProofError::NonFinite { batch: 0, row: 0, row_in_batch: 0, column: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("row 0, column 1 (row 0 of the first batch)"), "{error}");
    let row = [1.0, 2.0, 3.0, 4.0, 5.0, f32::NEG_INFINITY, 7.0, 8.0].map(bf16::from_f32);
    assert_eq!(builder.push(&row), Err(ProofError::Poisoned));
    let error = ProofBuilder::new(params, 8).unwrap().push(&row).unwrap_err();
    assert!(matches!(error, ProofError::NonFinite { column: 5, bits: 0xFF80, .. }), "{error:?}");
}

/// 33 rows: a full batch and one of a single row, whose indices start again at 0.
#[test]
fn fc_p04_indices_start_again_in_each_batch() {
    let mut rows = vec![bf16::from_f32(0.5); 33 * 8];
    let values = [(5, 9.0), (70, -8.0), (133, 7.0), (255, 6.0), (256, 3.0), (259, -2.0), (262, 1.5), (263, 1.0)];
    for (at, value) in values {
        rows[at] = bf16::from_f32(value);
    }
    let params = ProofParams { topk: 4, batch: 32 };
    let proofs = build_proofs(&rows, 8, params, None).unwrap();
    let text: Vec<String> = proofs.iter().map(Proof::to_base64).collect();
    assert_eq!(text, ["/9lVaO0F3R+9sw==", "/9lAQN4+5fyyLQ=="]);
    for index in [0, 3, 6, 7] {
        let bits = rows[256 + index as usize].to_bits();
        assert_eq!(proofs[1].value_at(index), bits);
    }
}

/// Chosen indices 1 and 65498 collide under the prime, so the modulus drops by one, and
/// building and checking must both use it.
#[test]
fn fc_p05_colliding_indices_lower_the_modulus() {
    let mut rows = vec![bf16::from_f32(0.25); 32 * 2048];
    rows[1] = bf16::from_f32(6.0);
    rows[3..=128].fill(bf16::from_f32(2.0));
    rows[65498] = bf16::from_f32(-12.0);
    let proof = one_proof(&rows, 2048, DEFAULT_TOPK);
    assert_eq!(proof.modulus(), 65496);
    let bytes = proof.to_bytes();
    assert_eq!(bytes[..2], [0xFF, 0xD8]);
    assert_eq!(bytes.len(), 258);
    assert_eq!(proof.to_base64().len(), 344);
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, "4a9a7f5b99dbd9b034639ce33d32485fd2d7d041df33224f4972ba4588241a69");
    let check = check_batch(&proof, &rows, 2048).unwrap();
    assert_eq!((check.compared, check.exp_mismatches), (128, 0));
    assert_eq!(check.mantissa.unwrap().mean, 0.0);
}

// ---- properties ----------------------------------------------------------------------

/// Any answer, streamed or whole, makes the same proofs, and they verify cleanly: the
/// polynomial meets every chosen point.
#[test]
fn streamed_and_whole_answers_make_the_same_clean_proofs() {
    let mut noise = Noise(11);
    for round in 0..300 {
        let hidden = 1 + noise.below(200);
        let batch = 1 + noise.below(8);
        let rows = 1 + noise.below(40);
        let topk = 1 + noise.below(hidden.min(24));
        let flat = if round % 3 == 0 {
            // Few distinct magnitudes: nearly everything is tied.
            (0..rows * hidden).map(|_| bf16::from_f32(noise.below(7) as f32 - 3.0)).collect()
        } else {
            noise.activations(rows * hidden)
        };
        let params = ProofParams { topk, batch };
        let whole = build_proofs(&flat, hidden, params, None).unwrap();
        let streamed = stream(&Rows { flat: flat.clone(), hidden }, params, batch).unwrap();
        assert_eq!(whole, streamed);
        let separate: Vec<Proof> = flat.chunks(batch * hidden).map(|rows| one_proof(rows, hidden, topk)).collect();
        assert_eq!(whole, separate);
        let verification = verify_proofs(whole, &flat, hidden, params, None).unwrap();
        for check in verification.batches {
            assert_eq!(check.exp_mismatches, 0);
            assert_eq!(check.mantissa.unwrap().mean, 0.0);
        }
    }
}

/// The chosen magnitudes are the largest, whatever happens among ties.
#[test]
fn the_chosen_magnitudes_are_the_largest() {
    let mut noise = Noise(17);
    for _ in 0..200 {
        let hidden = 16 + noise.below(3000);
        let topk = 1 + noise.below(16);
        let flat = noise.activations(hidden);
        let proof = one_proof(&flat, hidden, topk);
        let mut magnitudes: Vec<u16> = flat.iter().map(|x| x.to_bits() & 0x7FFF).collect();
        magnitudes.sort_unstable();
        let smallest = magnitudes[hidden - topk];
        for (index, value) in flat.iter().enumerate() {
            let bits = value.to_bits();
            if bits & 0x7FFF > smallest {
                assert_eq!(proof.value_at(index as u32), bits);
            }
        }
    }
}

/// A non-finite value is found wherever it stands, by builder and verifier alike.
#[test]
fn a_non_finite_value_is_found_anywhere() {
    let mut noise = Noise(23);
    let params = ProofParams { topk: 4, batch: 3 };
    for _ in 0..200 {
        let hidden = 4 + noise.below(400);
        let rows = 1 + noise.below(8);
        let mut flat = noise.activations(rows * hidden);
        let proofs = build_proofs(&flat, hidden, params, None).unwrap();
        let at = noise.below(flat.len());
        let bits = [0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81][noise.below(5)];
        flat[at] = bf16::from_bits(bits);
        let expected = ProofError::NonFinite {
            batch: at / hidden / 3,
            row: at / hidden,
            row_in_batch: at / hidden % 3,
            column: at % hidden,
            bits,
        };
        let built = build_proofs(&flat, hidden, params, None);
        assert_eq!(built, Err(expected.clone()));
        let verified = verify_proofs(proofs, &flat, hidden, params, None);
        assert_eq!(verified, Err(expected));
    }
}

/// Whatever a peer sends as a proof, reading and checking it ends in a value or an error.
#[test]
fn garbage_never_panics() {
    let mut noise = Noise(31);
    let rows = noise.activations(4 * 64);
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_ \n\xC3";
    let mut read = 0;
    for _ in 0..20_000 {
        let topk = noise.below(10);
        let length = match noise.below(3) {
            0 => (2 + 2 * topk).div_ceil(3) * 4,
            _ => noise.below(40),
        };
        let letters = if noise.below(2) == 0 { 64 } else { alphabet.len() };
        let bytes: Vec<u8> = (0..length).map(|_| alphabet[noise.below(letters)]).collect();
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(proof) = Proof::from_base64(&text, topk) {
            read += 1;
            assert_eq!(proof.to_base64(), text);
            assert!(check_batch(&proof, &rows, 64).is_ok());
        }
        let raw: Vec<u8> = (0..2 + 2 * topk).map(|_| noise.below(256) as u8).collect();
        if let Ok(proof) = Proof::from_bytes(&raw, topk) {
            read += 1;
            assert_eq!(proof.to_bytes(), raw);
        }
    }
    assert!(read > 1000, "only {read} of the garbage proofs were well-formed");
}

// ---- helpers -------------------------------------------------------------------------

/// The proof of one batch.
fn one_proof(rows: &[bf16], hidden: usize, topk: usize) -> Proof {
    let batch = rows.len() / hidden;
    let mut proofs = build_proofs(rows, hidden, ProofParams { topk, batch }, None).unwrap();
    assert_eq!(proofs.len(), 1);
    proofs.remove(0)
}

/// SplitMix64: the same numbers every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Bell-shaped values of spread about 2: sums of twelve uniform ones.
    fn activations(&mut self, count: usize) -> Vec<bf16> {
        (0..count)
            .map(|_| {
                let sum: f64 = (0..12).map(|_| (self.next() >> 40) as f64 / 16_777_216.0).sum();
                bf16::from_f64((sum - 6.0) * 2.0)
            })
            .collect()
    }
}
