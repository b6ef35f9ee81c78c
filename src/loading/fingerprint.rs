//! What tells one model's weights from another's.

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Activation, HookError};
use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::save::Weight;
use crate::error::{ConfigError, Result};
use crate::model::HookedTransformer;

/// Elements that are copied and hashed at once, so that no weight stands in memory a second time.
const PIECE: usize = 1 << 20;
/// Rows of a piece at least: a transposed matrix is read a few elements from each line of memory.
const ROWS: usize = 16;

impl HookedTransformer {
    /// A hash of the configuration and of every weight as it is in memory: name, shape, element type and all bytes
    /// (XXH3, 128 bits). Another model, processing, element type or edit has another; the same weights have the same
    /// in every process, however they were loaded. All weights are read each time, a few megabytes at once: half a
    /// gigabyte takes about half a second on two cores.
    ///
    /// It guards against mistakes, not against someone who makes weights to fit a hash.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::standard())?;
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, folded.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device can't give the weights.
    pub fn fingerprint(&self) -> Result<String> {
        let config = serde_json::to_vec(self.config()).map_err(|e| ConfigError::Malformed { reason: e.to_string() })?;
        let mut pieces = Vec::new();
        self.each_weight(&mut |name, weight| {
            let (shape, matrix) = match weight {
                Weight::Matrix(m) => (m.dims().to_vec(), m),
                Weight::Vector(v) => (v.dims().to_vec(), v.unsqueeze()),
            };
            let [rows, cols] = matrix.dims();
            let step = (PIECE / cols.max(1)).max(ROWS);
            let label = format!("{name} {shape:?} {:?}", matrix.dtype());
            let piece = |start| {
                let matrix = matrix.clone().detach();
                Piece { label: format!("{label} {start}"), matrix, start, rows: step.min(rows - start) }
            };
            pieces.extend((0..rows).step_by(step).map(piece));
        });
        let hashes: Result<Vec<u128>, HookError> = match pieces.iter().all(|p| p.matrix.device() == Device::flex()) {
            true => pieces.par_iter().map(Piece::hash).collect(),
            // A device of its own gives one tensor at a time anyway.
            false => pieces.iter().map(Piece::hash).collect(),
        };
        let mut all = Xxh3::new();
        all.update(&config);
        hashes?.into_iter().for_each(|hash| all.update(&hash.to_le_bytes()));
        Ok(format!("{:032x}", all.digest128()))
    }
}

/// Some rows of a weight.
struct Piece {
    /// Tells it from every other piece, and weights of one shape and type from those of another.
    label: String,
    matrix: Tensor<2>,
    start: usize,
    rows: usize,
}

impl Piece {
    /// The hash of its label and its elements, row by row.
    fn hash(&self) -> Result<u128, HookError> {
        let rows: Activation = self.matrix.clone().narrow(0, self.start, self.rows).into();
        let elements = xxh3_128(&rows.to_le_bytes()?);
        let mut hash = Xxh3::new();
        hash.update(self.label.as_bytes());
        hash.update(&elements.to_le_bytes());
        Ok(hash.digest128())
    }
}
