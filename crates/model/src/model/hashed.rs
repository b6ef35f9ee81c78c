//! Hashing of weights, in pieces.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor};
use hooklens_hooks::{Activation, HookError, file_bytes};
use rayon::prelude::*;
use serde::Serialize;
use std::ops::Range;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::cpu::packed_matrix::PackedMatrix;
use crate::error::{ConfigError, Result};

/// Number of elements copied and hashed at once, so that no weight is held in memory twice.
const PIECE: usize = 1 << 20;
/// Minimum number of rows per piece. In a transposed matrix, fewer rows would use only a few elements of each cache
/// line.
const ROWS: usize = 16;

/// Number of evenly spaced samples that are hashed from a weight that is not fully hashed. On a GPU, each sample is a
/// blocking read.
const SAMPLES: usize = 4;
/// Number of elements per sample.
const SAMPLE: usize = 1024;

/// How much of each weight is hashed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Extent {
    #[default]
    Whole,
    Samples,
}

/// Collects pieces of weights and hashes them (128-bit XXH3).
#[derive(Default)]
pub struct Hashed {
    pieces: Vec<Piece>,
    extent: Extent,
}

impl std::fmt::Debug for Hashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashed").finish_non_exhaustive()
    }
}

impl Hashed {
    pub(crate) fn new(extent: Extent) -> Self {
        Self { pieces: Vec::new(), extent }
    }

    /// Adds a weight with this name and shape, viewed as a matrix.
    pub fn add(&mut self, name: &str, shape: &[usize], matrix: Tensor<2>) {
        let [rows, columns] = matrix.dims();
        let step = (PIECE / columns.max(1)).max(ROWS);
        let label = format!("{name} {shape:?} {}", hashed_dtype(matrix.dtype()));
        if self.extent == Extent::Samples && rows * columns > SAMPLES * SAMPLE {
            let (width, height) = (columns.min(SAMPLE), (SAMPLE / columns.max(1)).clamp(1, rows));
            let piece = |number: usize| {
                let row = (rows - height) * number / (SAMPLES - 1);
                let column = (columns - width) * ((number * 3) % SAMPLES) / (SAMPLES - 1);
                let part = Part::Rows(matrix.clone().detach().narrow(1, column, width), row..row + height);
                Piece { label: format!("{label} {row} {column}"), part }
            };
            self.pieces.extend((0..SAMPLES).map(piece));
            return;
        }
        let piece = |start| {
            let matrix = matrix.clone().detach();
            let part = Part::Rows(matrix, start..rows.min(start + step));
            Piece { label: format!("{label} {start}"), part }
        };
        self.pieces.extend((0..rows).step_by(step).map(piece));
    }

    /// Adds a quantized weight, hashed by its bytes.
    pub(crate) fn add_blocks(&mut self, name: &str, packed: &PackedMatrix) {
        let label = format!("{name} {}", packed.described());
        self.pieces.push(Piece { label, part: Part::Blocks(packed.clone(), self.extent) });
    }

    /// Hash of the configuration followed by all pieces.
    pub fn finish(self, config: &[u8]) -> Result<String> {
        let hashes: Result<Vec<u128>, HookError> = match self.pieces.iter().all(Piece::is_here) {
            true => self.pieces.par_iter().map(Piece::hash).collect(),
            // Other devices serve one read at a time anyway.
            false => self.pieces.iter().map(Piece::hash).collect(),
        };
        let mut all = Xxh3::new();
        all.update(config);
        hashes?.into_iter().for_each(|hash| all.update(&hash.to_le_bytes()));
        Ok(format!("{:032x}", all.digest128()))
    }
}

/// Name of an element type in the hash. Fingerprints are stored, so they must not depend on Burn's names.
fn hashed_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::Flex32 => "Flex32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        _ => dtype.name(),
    }
}

/// A part of a weight.
struct Piece {
    /// Name, location, shape, and element type, which are part of the hash.
    label: String,
    part: Part,
}

#[allow(clippy::large_enum_variant, reason = "nearly all are of the large variant")]
enum Part {
    Rows(Tensor<2>, Range<usize>),
    Blocks(PackedMatrix, Extent),
}

impl Piece {
    /// Whether the data is in this process's memory.
    fn is_here(&self) -> bool {
        match &self.part {
            Part::Rows(matrix, _) => matrix.device() == Device::flex(),
            Part::Blocks(..) => true,
        }
    }

    /// Hash of the label and the elements, row by row.
    fn hash(&self) -> Result<u128, HookError> {
        let elements = match &self.part {
            Part::Rows(matrix, rows) => {
                let rows: Activation = matrix.clone().narrow(0, rows.start, rows.len()).into();
                xxh3_128(&file_bytes(&rows, rows.to_data()?))
            }
            Part::Blocks(packed, Extent::Whole) => xxh3_128(packed.bytes()),
            Part::Blocks(packed, Extent::Samples) => {
                let (bytes, mut hash) = (packed.bytes(), Xxh3::new());
                for number in 0..SAMPLES {
                    let start = bytes.len().saturating_sub(SAMPLE) * number / (SAMPLES - 1);
                    hash.update(&bytes[start..bytes.len().min(start + SAMPLE)]);
                }
                hash.digest128()
            }
        };
        let mut hash = Xxh3::new();
        hash.update(self.label.as_bytes());
        hash.update(&elements.to_le_bytes());
        Ok(hash.digest128())
    }
}

/// Hash of a configuration and of all tensors of a module, in order.
pub fn hash_of(config: &impl Serialize, weights: &impl Module, hashed: Hashed) -> Result<String> {
    let config = serde_json::to_vec(config).map_err(|source| ConfigError::Unwritable { source })?;
    let mut tensors = Tensors { hashed, count: 0 };
    weights.visit(&mut tensors);
    tensors.hashed.finish(&config)
}

/// Collects all tensors of a module, in order.
struct Tensors {
    hashed: Hashed,
    count: usize,
}

impl ModuleVisitor for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let rows = shape.iter().product::<usize>() / columns;
        self.hashed.add(&format!("tensor {}", self.count), &shape, tensor.reshape([rows, columns]));
        self.count += 1;
    }
}
