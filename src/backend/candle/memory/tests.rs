use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;
use crate::backend::candle::KvDtype;

fn plan(checkpoint: &Path, options: &EngineOptions, free: Option<u64>) -> Result<MemoryPlan, LoadError> {
    MemoryPlanner::read(&Checkpoint::open(checkpoint).unwrap())?.plan(options, Room::Machine(free))
}

fn tiny_llama() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/tiny-llama")
}

#[test]
fn a_folder_takes_the_bytes_of_its_tensors() {
    let plan = plan(&tiny_llama(), &EngineOptions::default(), Some(1 << 30)).unwrap();
    // The file but for its header (8 bytes of length, then JSON): every tensor in it is used.
    let file = std::fs::read(tiny_llama().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    assert_eq!(plan.weights_bytes, file.len() as u64 - 8 - header);
    // Two layers, keys and values of two heads of eight, four bytes each.
    assert_eq!((plan.kv_bytes_per_token, plan.state_bytes_per_sequence), (2 * 2 * 2 * 8 * 4, 0));
    let left = (1 << 30) - plan.weights_bytes - plan.workspace_bytes;
    assert_eq!(plan.tokens_that_fit, Some(left / plan.kv_bytes_per_token));
}

#[test]
fn the_cache_follows_its_flags() {
    let with = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions::default();
        change(&mut options);
        plan(&tiny_llama(), &options, Some(8 << 20)).unwrap()
    };
    assert_eq!(with(|o| o.max_total_tokens = Some(100)).cache_tokens, 112, "whole blocks of 16");
    let half = with(|o| o.mem_fraction = Some(0.5));
    let room = (8 << 20) - half.weights_bytes - half.workspace_bytes;
    assert!(half.cache_bytes <= room / 2 + 16 * half.kv_bytes_per_token && half.cache_bytes > room * 2 / 5, "{half:?}");
    assert_eq!(with(|o| o.kv_dtype = KvDtype::Bf16).kv_bytes_per_token, 2 * 2 * 2 * 8 * 2);
    // The default is one whole context, which this machine of eight mebibytes refuses to allocate.
    let default = with(|_| ());
    assert_eq!(default.cache_tokens, default.model_context);
    let refusal = default.cache_blocks().unwrap_err().to_string();
    assert!(refusal.contains("33554432 bytes") && refusal.contains("8388608 are free"), "{refusal}");
    assert_eq!(half.cache_blocks().unwrap() as usize, half.cache_tokens / 16);
    let absurd = with(|o| o.max_total_tokens = Some(usize::MAX));
    assert!(absurd.cache_blocks().is_err());
}

/// A folder with Qwen3.6's configuration and an index that promises the release's tensors in FP8.
fn qwen36() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = include_str!("../../../../models/qwen3.6-35b-a3b.config.json");
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let config = DecoderConfig::read(&Checkpoint::open(dir.path()).unwrap()).unwrap();
    // The release quantises every projection but these.
    let plain = ["embed_tokens", "lm_head", "in_proj_a", "in_proj_b", "conv1d", "mlp.gate.", "shared_expert_gate"];
    let mut map = serde_json::Map::new();
    for tensor in tensors(&config, true) {
        if tensor.shape.len() == 2 && !plain.iter().any(|part| tensor.name.contains(part)) {
            map.insert(format!("{}_scale_inv", tensor.name), "layers-0.safetensors".into());
        }
        map.insert(tensor.name, "layers-0.safetensors".into());
    }
    let index = json!({ "weight_map": map });
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    dir
}

/// From configuration and index alone: the sums that the model's description gives.
#[test]
fn qwen36_in_fp8_takes_what_its_description_says() {
    let folder = qwen36();
    let options = EngineOptions { kv_dtype: KvDtype::Bf16, max_running: 4, ..EngineOptions::default() };
    let planner = MemoryPlanner::read(&Checkpoint::open(folder.path()).unwrap()).unwrap();
    let over = |ranks| planner.plan(&EngineOptions { ranks, ..options.clone() }, Room::Machine(None));
    let plan = over(1).unwrap();
    let (experts, shared_experts) = (32_212_254_720_u64, 125_829_120);
    let (recurrent, attention) = (1_006_632_960, 272_629_760);
    let (scales, router, tables) = (4_103_680, 41_943_040, 2_034_237_440);
    // Linear layers: a and b, filters, A_log, dt_bias, gated norm; attention: two head norms; all: norms, shared gates.
    let small = 2 * (30 * (2 * 32 * 2048 + 8192 * 4 + 32 + 32 + 128) + 10 * 2 * 256 + 40 * 3 * 2048 + 2048);
    let quantised = experts + shared_experts + recurrent + attention;
    assert_eq!(plan.weights_bytes, quantised + scales + router + tables + small);
    assert_eq!(plan.kv_bytes_per_token, 20_480);
    // Matrices and the convolution's tails, both in f32 on CPU.
    assert_eq!(plan.state_bytes_per_sequence, 62_914_560 + 2 * 1_474_560);
    let snapshots = EngineOptions::DEFAULT_STATE_CACHE_BYTES / plan.state_bytes_per_sequence;
    assert_eq!((plan.snapshots, snapshots), (Some(16), 16));
    assert_eq!(plan.state_bytes, (4 + snapshots) * plan.state_bytes_per_sequence);
    // Four ranks: 8.97e9 bytes each, one key head each and so held twice, a quarter of the states.
    let four = over(4).unwrap();
    assert_eq!(four.ranks.len(), 4);
    let rank = four.ranks[3];
    let split = experts / 4 + shared_experts / 4 + recurrent / 4 + tables / 4;
    // Of 272,629,760 bytes of attention, queries and outputs are 251,658,240.
    let heads = 251_658_240 / 4 + (272_629_760 - 251_658_240) / 2;
    assert!(rank.weights_bytes.abs_diff(split + heads + router) < 12_000_000, "{rank:?}");
    assert!(rank.weights_bytes.abs_diff(8_970_000_000) < 20_000_000, "{rank:?}");
    assert_eq!((rank.rank, rank.kv_bytes_per_token), (3, 10_240));
    assert_eq!(rank.state_bytes_per_sequence, plan.state_bytes_per_sequence / 4);
    let two = over(2).unwrap().ranks[1];
    assert_eq!(two.kv_bytes_per_token, 10_240);
    assert!(two.weights_bytes < plan.weights_bytes / 2 + router);
    let refusal = over(8).unwrap_err().to_string();
    assert!(refusal.contains("64 of the values of a feed-forward block's width"), "{refusal}");
    assert!(refusal.contains("it does over 1, 2, 4"), "{refusal}");
    assert!(over(3).is_err());
}

/// The reference machine: four cards of 24 GiB.
#[test]
fn cards_hold_what_is_left_beside_a_ranks_part() {
    let folder = qwen36();
    let planner = MemoryPlanner::read(&Checkpoint::open(folder.path()).unwrap()).unwrap();
    let cards = Room::Devices(24 << 30);
    let with = |kv_dtype| EngineOptions { kv_dtype, ranks: 4, max_running: 8, ..EngineOptions::default() };
    let plan = planner.plan(&with(KvDtype::Bf16), cards).unwrap();
    let rank = plan.ranks[2];
    // 24 running and kept states of a quarter of 65.9 MB each.
    assert_eq!(rank.state_bytes, (8 + u64::from(plan.snapshots.unwrap())) * rank.state_bytes_per_sequence);
    // Steps of 520 rows: four of the stream, eight experts' gate, up, product and output, the shared expert's, the router's 256; and
    // eight rows of a quarter of the logits. Beside a gibibyte for the driver.
    let row = 4 * 2048 + 8 * (3 * 128 + 2048) + 3 * 128 + 256;
    assert_eq!(rank.workspace_bytes - DEVICE_RESERVE, 4 * (520 * row + 8 * 62_080));
    let left = (24 << 30) - rank.weights_bytes - rank.state_bytes - rank.workspace_bytes;
    assert_eq!(rank.max_tokens, Some(left / 10_240));
    // About 13 GiB for keys and values, the machine's description says.
    assert!((13_u64 << 30..15 << 30).contains(&left), "{left}");
    assert!(plan.fits() && plan.cache_tokens as u64 <= left / 10_240, "{plan:?}");
    assert!(plan.cache_tokens as u64 > left / 10_240 - 16 || plan.cache_tokens == 8 * 262_144);
    // Eight whole contexts are 21.5e9 bytes a rank in bf16, and half of that in fp8.
    let (found, plan) = planner.options_that_fit(&with(KvDtype::Bf16), cards, 8).unwrap();
    assert_eq!(found, EngineOptions { max_total_tokens: Some(8 * 262_144), ..with(KvDtype::Fp8E4m3) });
    assert_eq!(plan.cache_bytes, 8 * 262_144 * 5_120 * 4);
    // Two cards hold no half of the weights beside that, so four are proposed; one more context than fits is no one's.
    let two = EngineOptions { ranks: 2, ..with(KvDtype::Bf16) };
    assert_eq!(planner.options_that_fit(&two, cards, 8).unwrap().0.ranks, 4);
    assert_eq!(planner.options_that_fit(&with(KvDtype::Bf16), cards, 64), None);
    assert_eq!(
        planner.options_that_fit(&two, Room::Machine(Some(48 << 30)), 8),
        None,
        "ranks share a machine's memory"
    );
    // A card that does not hold its part of the weights holds no token.
    let small = planner.plan(&with(KvDtype::Bf16), Room::Devices(8 << 30)).unwrap();
    assert_eq!((small.tokens_that_fit, small.fits()), (Some(0), false));
}

#[test]
fn a_folder_that_lacks_a_tensor_has_no_plan() {
    let folder = qwen36();
    let path = folder.path().join("model.safetensors.index.json");
    let index = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, index.replace("layers.7.mlp.gate.weight", "layers.7.mlp.gates.weight")).unwrap();
    let error = MemoryPlanner::read(&Checkpoint::open(folder.path()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("layers.7.mlp.gate.weight") && error.contains("incomplete"), "{error}");
}
