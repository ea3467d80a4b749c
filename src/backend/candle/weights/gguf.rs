//! Weights of a GGUF file of the llama family, widened to f32.
//!
//! The tensor library could multiply quantised blocks directly, but rounds the activations to 8 bits for it. That moves
//! fin by half a percent, enough to change the demo model's answers from those of the same weights in f32.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{Device, Tensor};

use super::{GgufHeads, LoadError, Progress, ProgressFn, WeightSource, check_shape};
use crate::backend::candle::model::layers::{Embedding, Linear};
use crate::checkpoint::gguf::GgufFile;

const READABLE: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K";

/// A GGUF file's tensors under their Hugging Face names.
pub(in crate::backend::candle) struct GgufWeights<'a> {
    file: &'a GgufFile,
    heads: GgufHeads,
    device: Device,
    progress: Progress<'a>,
}

impl<'a> GgufWeights<'a> {
    pub(super) fn open(file: &'a GgufFile, heads: GgufHeads, device: &Device, progress: &'a ProgressFn) -> Self {
        let total = file
            .tensor_names()
            .filter_map(|name| file.tensor(name))
            .filter_map(|tensor| stored_bytes(ggml_dtype(tensor.dtype)?, &tensor.shape))
            .fold(0_u64, |total, bytes| total.saturating_add(bytes as u64));
        Self {
            file,
            heads,
            device: device.clone(),
            progress: Progress::new(total, progress),
        }
    }

    /// A tensor as f32, its query or key rows put back in order.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let missing = || LoadError::Missing { name: name.into() };
        let stored_name = stored_name(name).ok_or_else(missing)?;
        let entry = self.file.tensor(&stored_name).ok_or_else(|| LoadError::Missing {
            name: stored_name.clone(),
        })?;
        check_shape(&stored_name, shape, &entry.shape)?;
        let unreadable = || LoadError::Dtype {
            name: stored_name.clone(),
            found: format!("{} in ggml's numbering", entry.dtype),
            supported: READABLE,
        };
        let dtype = ggml_dtype(entry.dtype).ok_or_else(unreadable)?;
        let length = stored_bytes(dtype, shape).ok_or_else(|| {
            LoadError::Config(format!(
                "{stored_name}: a row of {shape:?} is no whole number of {dtype:?} blocks"
            ))
        })?;
        let bytes = self.file.bytes(entry, length).map_err(|source| LoadError::Gguf {
            path: self.file.path().into(),
            name: stored_name.clone(),
            source,
        })?;
        let heads = match stored_name.rsplit('.').nth(1) {
            Some("attn_q") => Some(self.heads.query),
            Some("attn_k") => Some(self.heads.key),
            _ => None,
        };
        let ordered = heads.and_then(|heads| rows_in_halves(bytes, shape, heads));
        // Blocks are read in place by the tensor library, which wants them aligned: a fresh vector is.
        let bytes = ordered.unwrap_or_else(|| bytes.to_vec());
        let tensor = qtensor_from_ggml(dtype, &bytes, shape.to_vec(), &self.device)
            .and_then(|blocks| blocks.dequantize(&self.device))
            .map_err(|source| LoadError::Tensor {
                name: stored_name,
                source,
            })?;
        self.progress.add(length);
        Ok(tensor)
    }
}

impl WeightSource for GgufWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        stored_name(name).is_some_and(|name| self.file.tensor(&name).is_some())
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor, LoadError> {
        self.tensor(name, &[len])
    }

    fn linear(&self, name: &str, output: usize, input: usize) -> Result<Linear, LoadError> {
        Ok(Linear::new(self.tensor(name, &[output, input])?))
    }

    fn embedding(&self, name: &str, vocab: usize, hidden: usize) -> Result<Embedding, LoadError> {
        Ok(Embedding::new(self.tensor(name, &[vocab, hidden])?))
    }
}

/// Puts the rows of a query or key projection back into halves.
///
/// llama.cpp's converter interleaves each head's two halves (row `2j + h` of a head is row `h * d/2 + j` of the
/// original) because its rotary embedding turns neighbouring pairs; ours turns halves. Rows are whole runs of blocks,
/// so moving them is exact for any quantisation.
fn rows_in_halves(bytes: &[u8], shape: &[usize], heads: usize) -> Option<Vec<u8>> {
    let rows = *shape.first()?;
    let head_dim = rows.checked_div(heads)?;
    let row_bytes = bytes.len().checked_div(rows)?;
    if row_bytes == 0 || head_dim * heads != rows || head_dim % 2 != 0 {
        return None;
    }
    let half = head_dim / 2;
    let mut ordered = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let stored = head * head_dim + 2 * (within % half) + within / half;
        ordered.extend_from_slice(bytes.get(stored * row_bytes..(stored + 1) * row_bytes)?);
    }
    Some(ordered)
}

/// The GGUF name of a tensor that Hugging Face calls `name`.
fn stored_name(name: &str) -> Option<String> {
    let whole = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.into());
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match part {
        "input_layernorm.weight" => "attn_norm",
        "self_attn.q_proj.weight" => "attn_q",
        "self_attn.k_proj.weight" => "attn_k",
        "self_attn.v_proj.weight" => "attn_v",
        "self_attn.o_proj.weight" => "attn_output",
        "post_attention_layernorm.weight" => "ffn_norm",
        "mlp.gate_proj.weight" => "ffn_gate",
        "mlp.up_proj.weight" => "ffn_up",
        "mlp.down_proj.weight" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}

/// Bytes of a stored tensor; `None` if a row is no whole number of blocks.
fn stored_bytes(dtype: GgmlDType, shape: &[usize]) -> Option<usize> {
    let elements: usize = shape.iter().product();
    let row = *shape.last()?;
    if !row.is_multiple_of(dtype.block_size()) {
        return None;
    }
    (elements / dtype.block_size()).checked_mul(dtype.type_size())
}

/// ggml's element types by their numbers in files.
fn ggml_dtype(number: u32) -> Option<GgmlDType> {
    Some(match number {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_go_back_to_halves() {
        // Two heads of four rows, one byte a row; llama.cpp stores head rows 0 1 2 3 as 0 2 1 3.
        let stored = [0, 2, 1, 3, 4, 6, 5, 7];
        assert_eq!(rows_in_halves(&stored, &[8, 1], 2).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(rows_in_halves(&stored, &[8, 1], 3), None);
    }

    #[test]
    fn names_of_the_llama_family() {
        assert_eq!(
            stored_name("model.layers.12.mlp.up_proj.weight").unwrap(),
            "blk.12.ffn_up.weight"
        );
        assert_eq!(stored_name("lm_head.weight").unwrap(), "output.weight");
        assert_eq!(stored_name("model.layers.0.self_attn.q_norm.weight"), None);
    }
}
