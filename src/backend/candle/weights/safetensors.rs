//! Weights of a Hugging Face folder: one or many safetensors files, with or without an index.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde_json::Value;

use super::{LoadError, Progress, ProgressFn, WeightSource, check_shape, matrix};
use crate::backend::candle::kernels::{Format, Matrix, RowOrder};
use crate::checkpoint::SharedBytes;

const READABLE: &str = "F32, F16 and BF16";

/// A folder's tensors, found by name.
pub(in crate::backend::candle) struct SafetensorsWeights<'a> {
    files: Vec<MappedFile>,
    /// Which file holds a tensor.
    home: HashMap<String, usize>,
    progress: Progress<'a>,
}

pub(super) struct MappedFile {
    map: Arc<Mmap>,
    pub(super) metadata: Metadata,
    /// Where tensor data starts.
    data: usize,
}

impl<'a> SafetensorsWeights<'a> {
    pub(super) fn open(folder: &Path, progress: &'a ProgressFn) -> Result<Self, LoadError> {
        let mut files = Vec::new();
        let mut home = HashMap::new();
        let mut total = 0;
        for path in weight_files(folder)? {
            let file = MappedFile::open(&path)?;
            total += file.map.len() as u64;
            home.extend(file.metadata.tensors().into_keys().map(|name| (name, files.len())));
            files.push(file);
        }
        Ok(Self { files, home, progress: Progress::new(total, progress) })
    }

    /// A tensor where it lies in its file.
    fn matrix(&self, name: &str, shape: &[usize]) -> Result<Matrix, LoadError> {
        let missing = || LoadError::Missing { name: name.into() };
        let file = self.home.get(name).and_then(|&at| self.files.get(at)).ok_or_else(missing)?;
        let info = file.metadata.info(name).ok_or_else(missing)?;
        check_shape(name, shape, &info.shape)?;
        let format = match info.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            other => {
                let found = format!("{other:?}");
                return Err(LoadError::Dtype { name: name.into(), found, supported: READABLE });
            }
        };
        let (start, end) = info.data_offsets;
        let bytes = SharedBytes::mapped(&file.map, file.data + start..file.data + end).ok_or_else(missing)?;
        self.progress.read(&bytes);
        matrix(name, bytes, format, shape, RowOrder::Plain)
    }
}

impl WeightSource for SafetensorsWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        self.home.contains_key(name)
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        Self::matrix(self, name, &[output, input])
    }

    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
        Err(LoadError::Missing { name: name.into() })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError> {
        Self::matrix(self, name, &[len])
    }
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let unopened = |source| LoadError::Open { path: path.into(), source };
        let file = File::open(path).map_err(unopened)?;
        // SAFETY: the map is read-only and private to this process; truncating the file under it would fault us, as it
        // would any program that maps its models, and checkpoints are not edited in place. The golden tests read
        // every weight through such maps.
        let map = unsafe { Mmap::map(&file).map_err(unopened)? };
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|e| LoadError::Safetensors { path: path.into(), reason: format!("{e:?}") })?;
        // Eight bytes of header length, the header, then data: the format's fixed preamble.
        let data = header + 8;
        Ok(Self { map: Arc::new(map), metadata, data })
    }
}

/// The files of a folder: those that the index names, or all there are.
///
/// # Errors
/// When there are none, or the index is no index.
pub(super) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let files: BTreeSet<PathBuf> = match index(folder)? {
        Some(index) => index.into_values().collect(),
        None => fs::read_dir(folder)
            .map_err(|source| LoadError::Open { path: folder.into(), source })?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            .collect(),
    };
    if files.is_empty() {
        return Err(LoadError::NoWeights(folder.into()));
    }
    Ok(files.into_iter().collect())
}

/// Which file holds which tensor, where the folder says so.
///
/// # Errors
/// When the index cannot be read or names anything but files of this folder.
pub(super) fn index(folder: &Path) -> Result<Option<HashMap<String, PathBuf>>, LoadError> {
    let path = folder.join("model.safetensors.index.json");
    if !path.exists() {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(|source| LoadError::Open { path: path.clone(), source })?;
    let wrong = |reason: &str| LoadError::Safetensors { path: path.clone(), reason: reason.into() };
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(&e.to_string()))?;
    let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("it has no weight_map"))?;
    let file_of = |(name, file): (&String, &Value)| match file.as_str() {
        // Only plain names: an index must not make us read outside its folder.
        Some(file) if Path::new(file).file_name() == Some(file.as_ref()) => Ok((name.clone(), folder.join(file))),
        _ => Err(wrong(&format!("weight_map names {file}, which is no file name"))),
    };
    map.iter().map(file_of).collect::<Result<_, _>>().map(Some)
}
