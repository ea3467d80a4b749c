//! Reading GGUF files (versions 2 and 3): a header of typed metadata and a table of tensors, then their bytes.
//!
//! The file is mapped, not read: a tensor's bytes are a slice of the map. Every length in the header is checked
//! against what the file holds before anything is allocated for it, so a corrupt file is an error and never a panic.
//! Source of the layout: the GGUF specification of the ggml project.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::SharedBytes;

const MAGIC: &[u8; 4] = b"GGUF";
/// Tensor data starts at a multiple of this unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Names are short; the specification allows more than any file uses.
const LONGEST_NAME: usize = 256;
/// ggml tensors have at most four dimensions.
const MAX_DIMENSIONS: u32 = 4;

/// A mapped GGUF file with its header read.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Arc<Mmap>,
    metadata: HashMap<String, GgufValue>,
    tensors: HashMap<String, GgufTensor>,
}

/// One tensor of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Row-major shape, outermost first (the file stores it innermost first).
    pub shape: Vec<usize>,
    /// ggml's number for the element type.
    pub dtype: u32,
    /// Bytes from the start of the file.
    offset: u64,
}

/// A metadata value. Integers are widened; arrays keep their elements.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer, or a non-negative signed one.
    Unsigned(u64),
    /// A negative integer.
    Signed(i64),
    /// A float of either width.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text. Bytes that are not UTF-8 are replaced.
    String(String),
    /// Values of one type.
    Array(Vec<GgufValue>),
}

impl GgufValue {
    /// A non-negative integer.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(n) => Some(*n),
            _ => None,
        }
    }

    /// Any number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(x) => Some(*x),
            Self::Unsigned(n) => Some(*n as f64),
            Self::Signed(n) => Some(*n as f64),
            _ => None,
        }
    }
}

/// What is wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be opened or mapped.
    #[error("cannot map the file: {0}")]
    Io(#[from] std::io::Error),
    /// The file starts with something else.
    #[error("not a GGUF file: it does not start with the bytes `GGUF`")]
    Magic,
    /// A version that this program does not read.
    #[error("GGUF version {0} is not supported (2 and 3 are); convert the file anew")]
    Version(u32),
    /// The header promises more than the file holds.
    #[error(
        "the file is truncated or corrupt: {what} needs {needed} bytes at offset {at}, the file has {size}; download it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Bytes wanted.
        needed: u64,
        /// Where.
        at: u64,
        /// The file's length.
        size: u64,
    },
    /// A header field holds what no writer puts there.
    #[error("the header is corrupt: {0}; download the file again")]
    Corrupt(String),
}

impl GgufFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// When it cannot be mapped, or its header is damaged.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this process. Another process that truncates the file while it
        // is mapped would fault us, as it would any program that maps its models; checkpoints are not edited in place.
        // The test `reads_what_was_written` reads through the map.
        let map = unsafe { Mmap::map(&file)? };
        let (metadata, tensors) = parse(&map)?;
        Ok(Self { path: path.into(), map: Arc::new(map), metadata, tensors })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A metadata value.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// A text.
    #[must_use]
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            GgufValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// A non-negative integer.
    #[must_use]
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.value(key)?.as_u64()
    }

    /// A number as f64.
    #[must_use]
    pub fn f64(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// True or false.
    #[must_use]
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.value(key)? {
            GgufValue::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// An array of texts; `None` if it is missing or any element is something else.
    #[must_use]
    pub fn strings(&self, key: &str) -> Option<Vec<&str>> {
        self.array(key)?
            .iter()
            .map(|v| match v {
                GgufValue::String(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// An array.
    #[must_use]
    pub fn array(&self, key: &str) -> Option<&[GgufValue]> {
        match self.value(key)? {
            GgufValue::Array(values) => Some(values),
            _ => None,
        }
    }

    /// A tensor's entry in the table.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.get(name)
    }

    /// All tensor names, in no order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The first `length` bytes of a tensor's data, as stored.
    ///
    /// # Errors
    /// When the file ends before them.
    pub fn bytes(&self, tensor: &GgufTensor, length: usize) -> Result<SharedBytes, GgufError> {
        let start = usize::try_from(tensor.offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(length)?));
        range.and_then(|range| SharedBytes::mapped(&self.map, range)).ok_or_else(|| GgufError::Truncated {
            what: "a tensor".into(),
            needed: length as u64,
            at: tensor.offset,
            size: self.map.len() as u64,
        })
    }
}

type Header = (HashMap<String, GgufValue>, HashMap<String, GgufTensor>);

fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    if !bytes.starts_with(MAGIC) {
        return Err(GgufError::Magic);
    }
    let mut reader = Reader { bytes, at: MAGIC.len() };
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version(version));
    }
    let tensor_count = reader.u64("the tensor count")?;
    let value_count = reader.u64("the metadata count")?;
    let mut metadata = HashMap::new();
    for _ in 0..value_count {
        let key = reader.name("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        let value = reader.value(kind, &key, 0)?;
        metadata.insert(key, value);
    }
    let mut tensors = HashMap::new();
    for _ in 0..tensor_count {
        let name = reader.name("a tensor name")?;
        let tensor = reader.tensor(&name)?;
        tensors.insert(name, tensor);
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(GgufValue::Unsigned(n)) if n.is_power_of_two() => *n,
        Some(_) => return Err(GgufError::Corrupt("general.alignment is no power of two".into())),
    };
    let data = (reader.at as u64).next_multiple_of(alignment);
    for (name, tensor) in &mut tensors {
        tensor.offset = tensor
            .offset
            .checked_add(data)
            .ok_or_else(|| GgufError::Corrupt(format!("the offset of tensor {name} is out of range")))?;
    }
    Ok((metadata, tensors))
}

/// A cursor over the header that never reads past the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let slice = usize::try_from(length)
            .ok()
            .and_then(|length| self.at.checked_add(length))
            .and_then(|end| self.bytes.get(self.at..end));
        let Some(slice) = slice else {
            return Err(GgufError::Truncated {
                what: what.into(),
                needed: length,
                at: self.at as u64,
                size: self.bytes.len() as u64,
            });
        };
        self.at += slice.len();
        Ok(slice)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A text that names something: a longer one is a damaged length.
    fn name(&mut self, what: &str) -> Result<String, GgufError> {
        let at = self.at;
        let name = self.string(what)?;
        if name.len() > LONGEST_NAME {
            return Err(GgufError::Corrupt(format!("{what} at offset {at} has {} bytes", name.len())));
        }
        Ok(name)
    }

    fn string(&mut self, what: &str) -> Result<String, GgufError> {
        let length = self.u64(what)?;
        Ok(String::from_utf8_lossy(self.take(length, what)?).into_owned())
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<GgufValue, GgufError> {
        /// Arrays of arrays are legal; a deep nest is an attack on the stack.
        const MAX_DEPTH: usize = 4;
        let signed = |n: i64| u64::try_from(n).map_or(GgufValue::Signed(n), GgufValue::Unsigned);
        Ok(match kind {
            0 => GgufValue::Unsigned(u8::from_le_bytes(self.array(key)?).into()),
            1 => signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => GgufValue::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => GgufValue::Unsigned(self.u32(key)?.into()),
            5 => signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => GgufValue::Bool(self.array::<1>(key)?[0] != 0),
            8 => GgufValue::String(self.string(key)?),
            9 if depth < MAX_DEPTH => {
                let kind = self.u32(key)?;
                let length = self.u64(key)?;
                // No reservation: the length is the file's claim, and each element must still be read from the file.
                let mut values = Vec::new();
                for _ in 0..length {
                    values.push(self.value(kind, key, depth + 1)?);
                }
                GgufValue::Array(values)
            }
            10 => GgufValue::Unsigned(self.u64(key)?),
            11 => signed(i64::from_le_bytes(self.array(key)?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array(key)?)),
            other => return Err(GgufError::Corrupt(format!("metadata {key} has type {other}"))),
        })
    }

    /// An entry of the tensor table, its offset still counted from the start of the data.
    fn tensor(&mut self, name: &str) -> Result<GgufTensor, GgufError> {
        let dimensions = self.u32(name)?;
        if dimensions > MAX_DIMENSIONS {
            return Err(GgufError::Corrupt(format!("tensor {name} has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64(name)?;
            let size =
                usize::try_from(size).map_err(|_| GgufError::Corrupt(format!("tensor {name} has a side of {size}")))?;
            shape.push(size);
        }
        shape.reverse();
        if shape.iter().try_fold(1_usize, |n, &side| n.checked_mul(side)).is_none() {
            return Err(GgufError::Corrupt(format!("tensor {name} has the shape {shape:?}")));
        }
        Ok(GgufTensor { shape, dtype: self.u32(name)?, offset: self.u64(name)? })
    }
}

/// Writing GGUF files, for tests of what reads them.
#[cfg(test)]
pub(crate) mod testing {
    use super::GgufValue;

    /// A file with this metadata and no tensors.
    pub(crate) fn metadata_only(values: &[(&str, GgufValue)]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(0_u64.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        for (key, value) in values {
            string(&mut out, key);
            out.extend(kind(value).to_le_bytes());
            write(&mut out, value);
        }
        out
    }

    pub(super) fn string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn kind(value: &GgufValue) -> u32 {
        match value {
            GgufValue::Unsigned(_) => 10,
            GgufValue::Signed(_) => 11,
            GgufValue::Float(_) => 12,
            GgufValue::Bool(_) => 7,
            GgufValue::String(_) => 8,
            GgufValue::Array(_) => 9,
        }
    }

    fn write(out: &mut Vec<u8>, value: &GgufValue) {
        match value {
            GgufValue::Unsigned(n) => out.extend(n.to_le_bytes()),
            GgufValue::Signed(n) => out.extend(n.to_le_bytes()),
            GgufValue::Float(x) => out.extend(x.to_le_bytes()),
            GgufValue::Bool(b) => out.push(u8::from(*b)),
            GgufValue::String(text) => string(out, text),
            GgufValue::Array(values) => {
                out.extend(kind(&values[0]).to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| write(out, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::string;
    use super::*;

    /// A file with one value of each kind and one 2 x 3 tensor of f32.
    fn sample() -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(1_u64.to_le_bytes());
        out.extend(4_u64.to_le_bytes());
        string(&mut out, "a.text");
        out.extend(8_u32.to_le_bytes());
        string(&mut out, "héllo");
        string(&mut out, "a.count");
        out.extend(5_u32.to_le_bytes());
        out.extend((-3_i32).to_le_bytes());
        string(&mut out, "a.list");
        out.extend(9_u32.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend(2_u64.to_le_bytes());
        string(&mut out, "x");
        string(&mut out, "y");
        string(&mut out, "a.float");
        out.extend(6_u32.to_le_bytes());
        out.extend(0.5_f32.to_le_bytes());
        string(&mut out, "w");
        out.extend(2_u32.to_le_bytes());
        out.extend(3_u64.to_le_bytes());
        out.extend(2_u64.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        out.extend(0_u64.to_le_bytes());
        out.resize(out.len().next_multiple_of(32), 0);
        for x in 0..6 {
            out.extend((x as f32).to_le_bytes());
        }
        out
    }

    #[test]
    fn reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        std::fs::write(&path, sample()).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.str("a.text"), Some("héllo"));
        assert_eq!(file.value("a.count"), Some(&GgufValue::Signed(-3)));
        assert_eq!(file.strings("a.list"), Some(vec!["x", "y"]));
        assert_eq!(file.f64("a.float"), Some(0.5));
        let tensor = file.tensor("w").unwrap();
        assert_eq!((tensor.shape.as_slice(), tensor.dtype), ([2, 3].as_slice(), 0));
        assert_eq!(file.bytes(tensor, 24).unwrap()[20..], 5_f32.to_le_bytes());
        assert!(matches!(file.bytes(tensor, 25), Err(GgufError::Truncated { .. })));
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_an_error_or_a_value_but_no_panic() {
        let good = sample();
        let header = good.len() - 24;
        for end in 0..header - 24 {
            assert!(parse(&good[..end]).is_err(), "cut at {end}");
        }
        for at in 0..header {
            for flip in [0x01, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let _ = parse(&bad);
            }
        }
    }

    #[test]
    fn lengths_beyond_the_file_do_not_allocate() {
        let mut bad = b"GGUF".to_vec();
        bad.extend(3_u32.to_le_bytes());
        bad.extend(u64::MAX.to_le_bytes());
        bad.extend(u64::MAX.to_le_bytes());
        bad.extend(u64::MAX.to_le_bytes());
        assert!(matches!(parse(&bad), Err(GgufError::Truncated { .. })));
    }
}
