//! The same goldens through a GGUF file.

use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::{Device, Tensor};

use super::{Golden, Settings, check_with, fixture};
use crate::checkpoint::Checkpoint;

/// The llama fixture as llama.cpp's converter would write it: renamed, query and key rows interleaved, rotation factors
/// as a tensor.
#[test]
fn a_gguf_of_the_llama_fixture_agrees_with_the_same_goldens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    write_gguf(&path);
    let (checkpoint, golden) = (Checkpoint::open(&path).unwrap(), Golden::load("tiny-llama", "f32"));
    for ranks in [1, 2, 4] {
        check_with(&checkpoint, &golden, Settings { ranks, ..Settings::default() });
    }
}

pub(super) fn write_gguf(path: &std::path::Path) {
    let weights =
        candle_core::safetensors::load(fixture("tiny-llama").join("model.safetensors"), &Device::Cpu).unwrap();
    let names = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
    ];
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    for (name, tensor) in weights {
        let stored = names.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let heads = match name.split('.').nth(4) {
            Some("q_proj") => 8,
            Some("k_proj") => 2,
            _ => 0,
        };
        let tensor = if heads > 0 {
            let (rows, columns) = tensor.dims2().unwrap();
            let halves = tensor.reshape((heads, 2, rows / heads / 2, columns)).unwrap().transpose(1, 2).unwrap();
            halves.contiguous().unwrap().reshape((rows, columns)).unwrap()
        } else {
            tensor
        };
        tensors.push((stored, QTensor::quantize(&tensor, GgmlDType::F32).unwrap()));
    }
    // llama3 scaling of the fixture's config: theta 500000, head of 8, factor 32, low 1, high 4, original length 64.
    let factors: Vec<f32> = (0..4)
        .map(|i| {
            let speed = 500_000_f32.powf(-(2.0 * i as f32) / 8.0);
            let turns = 64.0 * speed / (2.0 * std::f32::consts::PI);
            if turns < 1.0 {
                32.0
            } else if turns > 4.0 {
                1.0
            } else {
                let smooth = (turns - 1.0) / 3.0;
                1.0 / ((1.0 - smooth) / 32.0 + smooth)
            }
        })
        .collect();
    let factors = Tensor::new(factors, &Device::Cpu).unwrap();
    tensors.push(("rope_freqs.weight".into(), QTensor::quantize(&factors, GgmlDType::F32).unwrap()));
    let u32 = gguf_file::Value::U32;
    let metadata = [
        ("general.architecture", gguf_file::Value::String("llama".into())),
        ("llama.block_count", u32(2)),
        ("llama.embedding_length", u32(64)),
        ("llama.attention.head_count", u32(8)),
        ("llama.attention.head_count_kv", u32(2)),
        ("llama.feed_forward_length", u32(144)),
        ("llama.context_length", u32(131_072)),
        ("llama.vocab_size", u32(384)),
        ("llama.rope.freq_base", gguf_file::Value::F32(500_000.0)),
        ("llama.attention.layer_norm_rms_epsilon", gguf_file::Value::F32(1e-5)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}
