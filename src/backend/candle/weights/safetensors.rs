//! Weights of a Hugging Face folder: one or many safetensors files, with or without an index.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde_json::Value;

use super::{Fp8Activations, LoadError, Progress, ProgressFn, WeightSource, check_shape, matrix, scales_of};
use crate::backend::candle::kernels::{Format, Matrix, RowOrder, SQUARE};
use crate::checkpoint::SharedBytes;

const READABLE: &str = "F32, F16 and BF16, and matrices of F8_E4M3,";

/// A folder's tensors, found by name.
pub(in crate::backend::candle) struct SafetensorsWeights<'a> {
    files: Vec<MappedFile>,
    /// Which file holds a tensor.
    home: HashMap<String, usize>,
    activations: Fp8Activations,
    progress: Progress<'a>,
}

pub(super) struct MappedFile {
    map: Arc<Mmap>,
    pub(super) metadata: Metadata,
    /// Where tensor data starts.
    data: usize,
}

impl<'a> SafetensorsWeights<'a> {
    pub(super) fn open(
        folder: &Path,
        activations: Fp8Activations,
        progress: &'a ProgressFn,
    ) -> Result<Self, LoadError> {
        let mut files = Vec::new();
        let mut home = HashMap::new();
        let mut total = 0;
        for path in weight_files(folder)? {
            let file = MappedFile::open(&path)?;
            total += file.map.len() as u64;
            home.extend(file.metadata.tensors().into_keys().map(|name| (name, files.len())));
            files.push(file);
        }
        Ok(Self { files, home, activations, progress: Progress::new(total, progress) })
    }

    /// A tensor where it lies in its file.
    fn matrix(&self, name: &str, shape: &[usize]) -> Result<Matrix, LoadError> {
        let (dtype, bytes) = self.stored(name, shape)?;
        match (dtype, shape) {
            (Dtype::F8_E4M3, &[rows, columns]) => self.scaled(name, rows, columns, bytes),
            _ => plain(name, dtype, shape, bytes),
        }
    }

    /// Eight-bit weights with the scales of their squares, which stand under the name `{name}_scale_inv` and multiply in spite
    /// of it. The checkpoint's list of what was not converted is not asked: a tensor's own type says it.
    fn scaled(&self, name: &str, rows: usize, columns: usize, bytes: SharedBytes) -> Result<Matrix, LoadError> {
        let scale_name = scales_of(name);
        let (down, across) = (rows.div_ceil(SQUARE), columns.div_ceil(SQUARE));
        let (dtype, stored) = self.stored(&scale_name, &[down, across])?;
        let stored = plain(&scale_name, dtype, &[down, across], stored)?;
        let mut scales = vec![0_f32; down * across];
        for (row, scales) in scales.chunks_exact_mut(across).enumerate() {
            stored.decode_row(row, scales);
        }
        if let Some(wrong) = scales.iter().find(|scale| !Matrix::is_scale(**scale)) {
            return Err(LoadError::Value { name: scale_name, found: format!("the scale {wrong}") });
        }
        Matrix::with_scales(bytes, rows, columns, &scales)
            .ok_or_else(|| LoadError::Config(format!("{name}: {rows} rows of {columns} values cannot be read")))
    }

    /// A tensor's type and bytes.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<(Dtype, SharedBytes), LoadError> {
        let missing = || LoadError::Missing { name: name.into() };
        let file = self.home.get(name).and_then(|&at| self.files.get(at)).ok_or_else(missing)?;
        let info = file.metadata.info(name).ok_or_else(missing)?;
        check_shape(name, shape, &info.shape)?;
        let (start, end) = info.data_offsets;
        let bytes = SharedBytes::mapped(&file.map, file.data + start..file.data + end).ok_or_else(missing)?;
        Ok((info.dtype, bytes))
    }
}

/// Weights of a type that has no scales.
fn plain(name: &str, dtype: Dtype, shape: &[usize], bytes: SharedBytes) -> Result<Matrix, LoadError> {
    let format = match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        other => {
            let found = format!("{other:?}");
            return Err(LoadError::Dtype { name: name.into(), found, supported: READABLE });
        }
    };
    matrix(name, bytes, format, shape, RowOrder::Plain)
}

impl WeightSource for SafetensorsWeights<'_> {
    fn contains(&self, name: &str) -> bool {
        self.home.contains_key(name)
    }

    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        self.progress.read(name, matrix)
    }

    fn rounds_activations(&self) -> bool {
        self.activations == Fp8Activations::Dynamic
    }

    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError> {
        Self::matrix(self, name, &[output, input])
    }

    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError> {
        let (dtype, bytes) = self.stored(name, &[count, output, input])?;
        let size = bytes.len() / count.max(1);
        let part = |at: usize| {
            let part =
                bytes.part(at * size..(at + 1) * size).ok_or_else(|| LoadError::Missing { name: name.into() })?;
            plain(name, dtype, &[output, input], part)
        };
        (0..count).map(part).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::serialize_to_file;
    use safetensors::tensor::TensorView;

    const NAME: &str = "layer.weight";
    const SCALES: &str = "layer.weight_scale_inv";

    /// The only matrix of a folder with these tensors.
    fn load(tensors: &[(&str, Dtype, &[usize], &[u8])], shape: (usize, usize)) -> Result<Matrix, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.to_string(), TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
        });
        serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        let weights = SafetensorsWeights::open(folder.path(), Fp8Activations::default(), &|_, _| {}).unwrap();
        let matrix = WeightSource::matrix(&weights, NAME, shape.0, shape.1)?;
        weights.read(NAME, &matrix)?;
        Ok(matrix)
    }

    fn bf16(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
    }

    #[test]
    fn eight_bit_weights_take_the_scales_beside_them() {
        // 0x38 is 1.
        let weights = vec![0x38; 130 * 160];
        let f32s: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        for (dtype, scales) in [(Dtype::BF16, bf16(&[1.0, 2.0, 3.0, 4.0])), (Dtype::F32, f32s)] {
            let tensors: [(&str, Dtype, &[usize], &[u8]); 2] =
                [(NAME, Dtype::F8_E4M3, &[130, 160], &weights), (SCALES, dtype, &[2, 2], &scales)];
            let matrix = load(&tensors, (130, 160)).unwrap();
            let mut row = vec![0.0; 160];
            for (at, want) in [(0, [1.0, 2.0]), (127, [1.0, 2.0]), (128, [3.0, 4.0])] {
                matrix.decode_row(at, &mut row);
                assert_eq!([row[127], row[128]], want, "row {at}");
            }
        }
    }

    #[test]
    fn a_plain_tensor_needs_no_scales() {
        let weights = bf16(&[1.0, 2.0, 3.0, 4.0]);
        let matrix = load(&[(NAME, Dtype::BF16, &[2, 2], &weights)], (2, 2)).unwrap();
        let mut row = [0.0; 2];
        matrix.decode_row(1, &mut row);
        assert_eq!(row, [3.0, 4.0]);
    }

    #[test]
    fn eight_bit_weights_that_cannot_be_are_refused_by_name() {
        let weights: (&str, Dtype, &[usize], &[u8]) = (NAME, Dtype::F8_E4M3, &[2, 3], &[0x38; 6]);
        let refusal = |tensors: &[(&str, Dtype, &[usize], &[u8])]| load(tensors, (2, 3)).unwrap_err().to_string();
        let one = bf16(&[1.0]);
        let said = refusal(&[weights]);
        assert!(said.contains("lack the tensor layer.weight_scale_inv"), "{said}");
        let said = refusal(&[weights, (SCALES, Dtype::BF16, &[2, 1], &bf16(&[1.0, 1.0]))]);
        assert!(said.contains("layer.weight_scale_inv has the shape [2, 1]"), "{said}");
        let said = refusal(&[weights, (SCALES, Dtype::F8_E4M3, &[1, 1], &[0x38])]);
        assert!(said.contains("layer.weight_scale_inv is of type F8_E4M3"), "{said}");
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let said = refusal(&[weights, (SCALES, Dtype::BF16, &[1, 1], &bf16(&[wrong]))]);
            assert!(said.contains("layer.weight_scale_inv holds the scale"), "{said}");
        }
        let nan = (NAME, Dtype::F8_E4M3, &[2, 3][..], &[0, 0, 0, 0, 0xff, 0][..]);
        let said = refusal(&[nan, (SCALES, Dtype::BF16, &[1, 1], &one)]);
        assert!(said.contains("layer.weight holds no number in row 1, column 1"), "{said}");
    }
}
