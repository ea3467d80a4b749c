//! How much room a checkpoint's weights will take, from headers and indexes: no weight is read.

use std::collections::{HashMap, HashSet};

use safetensors::tensor::{Dtype, TensorInfo};

use super::gguf;
use super::safetensors::{self as folder, MappedFile};
use super::{LoadError, SyntheticWeights, scales_of};
use crate::backend::candle::kernels::SQUARE;
use crate::backend::candle::model::tensors::TensorSpec;
use crate::checkpoint::{Checkpoint, Folder};

/// Bytes of a scale in released checkpoints (bf16).
const SCALE_BYTES: u64 = 2;

/// What is known of a checkpoint's tensors before they are loaded.
#[derive(Debug)]
pub(in crate::backend::candle) struct Inventory {
    /// How the files spell a tensor's name.
    spelling: fn(&str) -> Option<String>,
    /// Bytes in memory of each tensor whose header was seen, by the files' names.
    bytes: HashMap<String, u64>,
    /// Names that an index promises, where the files themselves are not here.
    promised: HashSet<String>,
    /// Bytes a weight of which nothing but its name is known.
    default_width: u64,
}

impl Inventory {
    /// Reads a checkpoint's headers; where a folder has only an index and a configuration, those.
    ///
    /// # Errors
    /// When a file is there and cannot be read.
    pub(in crate::backend::candle) fn read(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        match checkpoint {
            Checkpoint::Gguf(file) => {
                let bytes = file
                    .tensor_names()
                    .filter_map(|name| Some((name.to_owned(), gguf::memory_bytes(file.tensor(name)?)?)));
                Ok(Self {
                    spelling: gguf::stored_name,
                    bytes: bytes.collect(),
                    promised: HashSet::new(),
                    default_width: 4,
                })
            }
            Checkpoint::Folder(folder) => Self::of_folder(folder),
        }
    }

    /// What synthetic weights would be.
    pub(in crate::backend::candle) fn synthetic(tensors: &[TensorSpec]) -> Self {
        let quantised = |tensor: &&TensorSpec| SyntheticWeights::is_quantised(&tensor.name, &tensor.shape);
        let promised = tensors.iter().filter(quantised).map(|tensor| scales_of(&tensor.name)).collect();
        Self { spelling: |name| Some(name.to_owned()), bytes: HashMap::new(), promised, default_width: 2 }
    }

    fn of_folder(folder: &Folder) -> Result<Self, LoadError> {
        let mut bytes = HashMap::new();
        for path in folder::weight_files(folder.path())?.iter().filter(|path| path.exists()) {
            let file = MappedFile::open(path)?;
            bytes.extend(file.metadata.tensors().into_iter().map(|(name, info)| (name, stored_bytes(info))));
        }
        let promised = folder::index(folder.path())?.map(|index| index.into_keys().collect()).unwrap_or_default();
        let spelling = |name: &str| Some(name.to_owned());
        Ok(Self { spelling, bytes, promised, default_width: default_width(folder) })
    }

    /// Whether a tensor is there, or promised.
    pub(in crate::backend::candle) fn contains(&self, name: &str) -> bool {
        (self.spelling)(name).is_some_and(|name| self.bytes.contains_key(&name) || self.promised.contains(&name))
    }

    /// Whether a tensor is there or promised, in a tensor of all experts perhaps.
    pub(in crate::backend::candle) fn holds(&self, tensor: &TensorSpec) -> bool {
        self.contains(&tensor.name) || tensor.joined_name().is_some_and(|name| self.contains(&name))
    }

    /// The width of the squares of a tensor that share a scale; `None` where it has no scales.
    pub(in crate::backend::candle) fn square(&self, tensor: &TensorSpec) -> Option<usize> {
        self.contains(&scales_of(&tensor.name)).then_some(SQUARE)
    }

    /// Bytes in memory of a part of a tensor, of this shape, with its scales.
    pub(in crate::backend::candle) fn bytes(&self, tensor: &TensorSpec, shape: &[usize]) -> u64 {
        // A matrix has at most 2^48 elements (see the configuration's check), which times four does not overflow.
        let elements = |shape: &[usize]| shape.iter().map(|n| *n as u64).product::<u64>();
        let squares = |shape: &[usize]| shape.iter().map(|n| n.div_ceil(SQUARE) as u64).product::<u64>();
        let stored = |name: &str| (self.spelling)(name).and_then(|name| self.bytes.get(&name)).copied();
        let scaled = self.square(tensor).is_some();
        let weights = match stored(&tensor.name) {
            Some(bytes) => {
                let part = u128::from(bytes) * u128::from(elements(shape)) / u128::from(elements(&tensor.shape).max(1));
                u64::try_from(part).unwrap_or(u64::MAX)
            }
            None if scaled => elements(shape),
            None => elements(shape) * self.default_width,
        };
        if !scaled {
            return weights;
        }
        let scales = stored(&scales_of(&tensor.name));
        let width = scales.map_or(SCALE_BYTES, |bytes| bytes / squares(&tensor.shape).max(1));
        weights + width * squares(shape)
    }
}

fn stored_bytes(info: &TensorInfo) -> u64 {
    (info.data_offsets.1 - info.data_offsets.0) as u64
}

/// Bytes a weight by the configuration's word, for files that are not here.
fn default_width(folder: &Folder) -> u64 {
    let config = folder.config();
    let dtype = [Some(config), config.get("text_config")]
        .into_iter()
        .flatten()
        .find_map(|part| part.get("dtype").or_else(|| part.get("torch_dtype"))?.as_str());
    let dtype = match dtype {
        Some("float32") => Dtype::F32,
        _ => Dtype::BF16,
    };
    (dtype.bitsize() / 8) as u64
}
