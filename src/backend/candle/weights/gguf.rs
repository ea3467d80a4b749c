//! Weights of a GGUF file of the llama family.

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;

use super::{GgufHeads, LoadError, Progress, ProgressFn, WeightSource, check_shape, matrix};
use crate::backend::candle::kernels::{Format, Matrix, RowOrder};
use crate::checkpoint::SharedBytes;
use crate::checkpoint::gguf::{GgufFile, GgufTensor};

const READABLE: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K";

/// A GGUF file's tensors under their Hugging Face names.
pub(in crate::backend::candle) struct GgufWeights<'a> {
    file: &'a GgufFile,
    heads: GgufHeads,
    progress: Progress<'a>,
}

impl<'a> GgufWeights<'a> {
    pub(super) fn open(file: &'a GgufFile, heads: GgufHeads, progress: &'a ProgressFn) -> Self {
        let total = file
            .tensor_names()
            .filter_map(|name| file.tensor(name))
            .filter_map(|tensor| stored_bytes(ggml_dtype(tensor.dtype)?, &tensor.shape))
            .fold(0_u64, |total, bytes| total.saturating_add(bytes as u64));
        Self { file, heads, progress: Progress::new(total, progress) }
    }

    /// A tensor where it lies in the file; formats that the products do not read are widened to f32 first.
    fn matrix(&self, name: &str, shape: &[usize]) -> Result<Matrix, LoadError> {
        let missing = || LoadError::Missing { name: name.into() };
        let stored = stored_name(name).ok_or_else(missing)?;
        let entry = self.file.tensor(&stored).ok_or_else(|| LoadError::Missing { name: stored.clone() })?;
        check_shape(&stored, shape, &entry.shape)?;
        let unreadable = || LoadError::Dtype {
            name: stored.clone(),
            found: format!("{} in ggml's numbering", entry.dtype),
            supported: READABLE,
        };
        let dtype = ggml_dtype(entry.dtype).ok_or_else(unreadable)?;
        let length = stored_bytes(dtype, shape).ok_or_else(|| {
            LoadError::Config(format!("{stored}: a row of {shape:?} is no whole number of {dtype:?} blocks"))
        })?;
        let bytes = self.file.bytes(entry, length).map_err(|source| LoadError::Gguf {
            path: self.file.path().into(),
            name: stored.clone(),
            source,
        })?;
        let rows = shape.first().copied().unwrap_or_default();
        let order = match stored.rsplit('.').nth(1) {
            Some("attn_q") => RowOrder::Interleaved { head_dim: rows / self.heads.query },
            Some("attn_k") => RowOrder::Interleaved { head_dim: rows / self.heads.key },
            _ => RowOrder::Plain,
        };
        let (format, bytes) = match stored_format(dtype) {
            Some(format) => (format, bytes),
            None => (Format::F32, widened(&stored, &bytes, dtype, shape)?),
        };
        matrix(&stored, bytes, format, shape, order)
    }
}

impl WeightSource for GgufWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        stored_name(name).is_some_and(|name| self.file.tensor(&name).is_some())
    }

    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        self.progress.read(name, matrix)
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        Self::matrix(self, name, &[output, input])
    }

    fn stack(&self, name: &str, _: usize, _: usize, _: usize) -> Result<Vec<Matrix>, LoadError> {
        // No architecture that we read from GGUF files has one.
        Err(LoadError::Missing { name: name.into() })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
        Self::matrix(self, name, &[len])
    }
}

/// Bytes that a tensor takes in memory; `None` where it cannot be read.
pub(super) fn memory_bytes(tensor: &GgufTensor) -> Option<u64> {
    let dtype = ggml_dtype(tensor.dtype)?;
    let bytes = match stored_format(dtype) {
        Some(_) => stored_bytes(dtype, &tensor.shape)?,
        None => tensor.shape.iter().product::<usize>().checked_mul(size_of::<f32>())?,
    };
    Some(bytes as u64)
}

/// The formats that products read as they are.
fn stored_format(dtype: GgmlDType) -> Option<Format> {
    Some(match dtype {
        GgmlDType::F32 => Format::F32,
        GgmlDType::F16 => Format::F16,
        GgmlDType::BF16 => Format::Bf16,
        GgmlDType::Q4_0 => Format::Q4_0,
        GgmlDType::Q4_1 => Format::Q4_1,
        GgmlDType::Q8_0 => Format::Q8_0,
        _ => return None,
    })
}

/// Blocks of any format as f32, by the tensor library.
fn widened(name: &str, bytes: &[u8], dtype: GgmlDType, shape: &[usize]) -> Result<SharedBytes, LoadError> {
    // The library reads blocks in place and wants them aligned: a fresh vector is.
    let aligned = bytes.to_vec();
    let values = qtensor_from_ggml(dtype, &aligned, shape.to_vec(), &Device::Cpu)
        .and_then(|blocks| blocks.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>())
        .map_err(|source| LoadError::Tensor { name: name.into(), source })?;
    Ok(SharedBytes::owned(values.into_iter().flat_map(f32::to_le_bytes).collect()))
}

/// The GGUF name of a tensor that Hugging Face calls `name`.
pub(super) fn stored_name(name: &str) -> Option<String> {
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
    fn names_of_the_llama_family() {
        assert_eq!(stored_name("model.layers.12.mlp.up_proj.weight").unwrap(), "blk.12.ffn_up.weight");
        assert_eq!(stored_name("lm_head.weight").unwrap(), "output.weight");
        assert_eq!(stored_name("model.layers.0.self_attn.q_norm.weight"), None);
    }
}
