//! Weights from files to tensors.
//!
//! A model asks for its parts by their Hugging Face names; where those names come from (a folder of safetensors, a GGUF
//! file) is behind [`WeightSource`]. Files are mapped, and only what a model asks for is read. A missing, misshapen or
//! oddly typed tensor is an error with its name, never a guess.

mod change;
mod changed;
mod gguf;
mod inventory;
mod safetensors;
mod sharded;
mod synthetic;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::kernels::{Format, Matrix, RowOrder, first_nan};
use super::model::config::NormRule;
use super::model::layers::{Embedding, Linear, RmsNorm};
use super::model::shards::Shard;
use crate::checkpoint::gguf::GgufError;
use crate::checkpoint::{Checkpoint, SharedBytes};

pub use self::change::WeightsChange;
pub(super) use self::changed::ChangedWeights;
pub(super) use self::gguf::GgufWeights;
pub(super) use self::inventory::Inventory;
pub(super) use self::safetensors::SafetensorsWeights;
pub(super) use self::sharded::ShardedWeights;
pub(super) use self::synthetic::SyntheticWeights;

/// The name of a block-quantised matrix's scales, as released checkpoints spell it. They multiply, whatever it says.
fn scales_of(name: &str) -> String {
    format!("{name}_scale_inv")
}

/// Called while weights load, with bytes done and bytes in all.
pub type ProgressFn = dyn Fn(u64, u64) + Send + Sync;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The architecture is not one of ours.
    #[error("the architecture {found:?} is not supported: {supported} are")]
    Architecture {
        /// What the checkpoint says.
        found: String,
        /// What there is.
        supported: &'static str,
    },
    /// A configuration value is missing or out of range.
    #[error("the checkpoint's configuration is wrong: {0}")]
    Config(String),
    /// What is asked for does not fit the model or the machine: more ranks, or more memory, than there can be.
    #[error("{0}")]
    Start(String),
    /// The model uses something that this engine does not compute.
    #[error("the checkpoint asks for {0}, which this engine does not compute")]
    Unsupported(String),
    /// A folder holds no weights.
    #[error("no *.safetensors in {}: download the weights, not only the configuration", .0.display())]
    NoWeights(PathBuf),
    /// A weight file cannot be opened.
    #[error("cannot open the weight file {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A safetensors file is damaged.
    #[error("the weight file {} is truncated or corrupt ({reason}); download it again", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What its header check says.
        reason: String,
    },
    /// A GGUF file is damaged.
    #[error("tensor {name} of {}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        source: GgufError,
    },
    /// A tensor that the model needs is not there.
    #[error("the weights lack the tensor {name}: the download is incomplete, or the configuration is another model's")]
    Missing {
        /// Its name, as the files would spell it.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has the shape {found:?}, the configuration says {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// What the configuration implies.
        expected: Vec<usize>,
        /// What the file holds.
        found: Vec<usize>,
    },
    /// A tensor is of a type that this engine does not read.
    #[error("tensor {name} is of type {found}, which this engine does not read ({supported} it does)")]
    Dtype {
        /// Its name.
        name: String,
        /// The type.
        found: String,
        /// The types that are read.
        supported: &'static str,
    },
    /// A tensor holds what no such tensor can.
    #[error("tensor {name} holds {found}: the file is damaged; download it again")]
    Value {
        /// Its name.
        name: String,
        /// What it holds, and where.
        found: String,
    },
    /// The tensor library refused.
    #[error("cannot make a tensor of {name}: {source}")]
    Tensor {
        /// Its name.
        name: String,
        /// The library's reason.
        source: candle_core::Error,
    },
}

/// What activations look like where they meet block-FP8 weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fp8Activations {
    /// As they are: the products are those of the dequantised weights.
    #[default]
    AsTheyAre,
    /// Rounded to e4m3 in groups of 128 of a token, as serves with eight-bit units do: fin then comes out near theirs.
    Dynamic,
}

/// Where a model's parts come from. What it gives is a view of stored bytes: they are read when [`WeightSource::read`] is told
/// which of them are wanted.
pub(super) trait WeightSource {
    /// Whether a tensor is there.
    fn contains(&self, name: &str) -> bool;

    /// Whether activations are to be rounded where they meet eight-bit weights.
    fn rounds_activations(&self) -> bool {
        false
    }

    /// Brings a matrix's bytes into memory and looks through them.
    ///
    /// # Errors
    /// When a weight is no number.
    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError>;

    /// Weights `[output, input]`, as they are stored.
    fn matrix(&self, name: &str, output: usize, input: usize) -> Result<Matrix, LoadError>;

    /// A tensor `[count, output, input]`, as `count` matrices.
    fn stack(&self, name: &str, count: usize, output: usize, input: usize) -> Result<Vec<Matrix>, LoadError>;

    /// A vector of `len` values, as a matrix of one row.
    fn vector(&self, name: &str, len: usize) -> Result<Matrix, LoadError>;
}

impl dyn WeightSource + '_ {
    /// A projection `[output, input]`.
    pub(super) fn linear(&self, name: &str, output: usize, input: usize) -> Result<Linear, LoadError> {
        self.linear_of(name, self.matrix(name, output, input)?)
    }

    /// A projection with these weights, which are called `name`.
    pub(super) fn linear_of(&self, name: &str, matrix: Matrix) -> Result<Linear, LoadError> {
        self.read(name, &matrix)?;
        Ok(Linear::new(matrix, self.rounds_activations()))
    }

    /// A rank's part of a table: `rows` rows of `hidden` values.
    pub(super) fn embedding(
        &self,
        name: &str,
        rows: usize,
        hidden: usize,
        shard: Shard,
    ) -> Result<Embedding, LoadError> {
        let table = self.matrix(name, rows, hidden)?;
        self.read(name, &table)?;
        Ok(Embedding::new(table, shard))
    }

    /// A norm over `len` values.
    pub(super) fn norm(&self, name: &str, len: usize, rule: NormRule) -> Result<RmsNorm, LoadError> {
        let mut values = self.values(name, len)?;
        for value in &mut values {
            *value += rule.offset;
        }
        Ok(RmsNorm::new(values, rule.eps))
    }

    /// A vector of `len` values, in f32.
    pub(super) fn values(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let mut values = vec![0_f32; len];
        self.vector(name, len)?.decode_row(0, &mut values);
        // There are few of these, and everything passes through them.
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(LoadError::Value { name: name.into(), found: format!("{} at place {at}", values[at]) });
        }
        Ok(values)
    }
}

/// Opens the weights of a checkpoint.
pub(super) fn open<'a>(
    checkpoint: &'a Checkpoint,
    heads: GgufHeads,
    activations: Fp8Activations,
    progress: &'a ProgressFn,
) -> Result<Box<dyn WeightSource + 'a>, LoadError> {
    Ok(match checkpoint {
        Checkpoint::Folder(folder) => Box::new(SafetensorsWeights::open(folder.path(), activations, progress)?),
        Checkpoint::Gguf(file) => Box::new(GgufWeights::open(file, heads, progress)),
    })
}

/// Head counts, which the GGUF reader needs to undo that format's reordering of query and key rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct GgufHeads {
    pub(super) query: usize,
    pub(super) key: usize,
}

/// Counts loaded bytes and tells whoever shows them.
struct Progress<'a> {
    done: AtomicU64,
    total: u64,
    tell: &'a ProgressFn,
}

impl<'a> Progress<'a> {
    fn new(total: u64, tell: &'a ProgressFn) -> Self {
        tell(0, total);
        Self { done: AtomicU64::new(0), total, tell }
    }

    /// Brings a mapped matrix into memory, so that the first request does not wait for the disk.
    fn read(&self, name: &str, matrix: &Matrix) -> Result<(), LoadError> {
        // The smallest page that any of our machines has: one byte of each is enough.
        const PAGE: usize = 4096;
        /// Told of in larger portions: a large model has tens of millions of rows.
        const PORTION: u64 = 1 << 20;
        let mut untold = 0;
        for row in 0..matrix.rows() {
            let bytes = matrix.row_bytes(row);
            if matrix.is_eight_bit()
                && let Some(column) = first_nan(bytes)
            {
                let found = format!("no number in row {}, column {column}", matrix.place(row));
                return Err(LoadError::Value { name: name.into(), found });
            }
            std::hint::black_box(bytes.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum ^ byte));
            untold += bytes.len() as u64;
            if untold >= PORTION {
                self.add(std::mem::take(&mut untold));
            }
        }
        self.add(untold);
        Ok(())
    }

    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.tell)(done.min(self.total), self.total);
    }
}

/// A matrix, or a vector as one row, over stored bytes.
fn matrix(
    name: &str,
    bytes: SharedBytes,
    format: Format,
    shape: &[usize],
    order: RowOrder,
) -> Result<Matrix, LoadError> {
    let (rows, columns) = match *shape {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        _ => (0, 0),
    };
    Matrix::new(bytes, format, rows, columns, order.clone())
        .ok_or_else(|| LoadError::Config(format!("{name}: {format:?} of {shape:?} cannot be read in {order:?} order")))
}

fn check_shape(name: &str, expected: &[usize], found: &[usize]) -> Result<(), LoadError> {
    if expected == found {
        return Ok(());
    }
    Err(LoadError::Shape { name: name.into(), expected: expected.into(), found: found.into() })
}
