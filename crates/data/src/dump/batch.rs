//! A computed batch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::TensorData;
use hooklens_hooks::{Axis, HookError, file_bytes, read_all};
use safetensors::Dtype;

use super::StoredTensor;
use super::placing::{FileTensor, Named, Placing, Widths};
use crate::error::DumpError;

/// A computed batch on its way to disk.
pub(crate) struct Batch {
    pub(super) number: usize,
    /// Number of input rows that precede this batch.
    pub(super) first_row: usize,
    pub(super) placing: Placing,
    pub(super) tensors: Vec<Named>,
    /// Collects points with non-finite values, if these are allowed.
    pub(super) non_finite: Option<Noted>,
}

/// Names of points, collected by the writer thread.
pub(super) type Noted = Arc<Mutex<BTreeSet<String>>>;

impl Batch {
    /// Arranges the tensors for an output of these widths.
    ///
    /// # Errors
    /// [`DumpError::NotFinite`] for a non-finite value, unless such values are allowed.
    pub(super) fn place(&self, widths: Widths, path: &Path) -> Result<Vec<FileTensor>, DumpError> {
        let failed = |e: HookError| DumpError::File { path: path.to_path_buf(), source: std::io::Error::other(e) };
        let read = read_all(self.tensors.iter().map(|named| &named.activation)).map_err(failed)?;
        let place = |(named, data): (&Named, TensorData)| {
            let tensor = self.placing.place(named, file_bytes(&named.activation, data), widths);
            self.check_finite(named, &tensor)?;
            Ok(tensor)
        };
        self.tensors.iter().zip(read).map(place).collect()
    }

    /// Adds the batch's tensors to the description of all tensors of an output of `rows` rows of these widths. Returns
    /// whether any were missing.
    pub(super) fn describe(
        &self,
        placed: &[FileTensor],
        (rows, widths): (usize, Widths),
        sparse: bool,
        to: &mut BTreeMap<String, StoredTensor>,
    ) -> bool {
        let before = to.len();
        for (named, tensor) in self.tensors.iter().zip(placed) {
            let sparse = sparse && named.axes.last() == Some(&Axis::Feature);
            let shape = || self.placing.shape_of_all(named, rows, widths);
            let described = || StoredTensor::new(named.axes, shape(), tensor.dtype, sparse);
            to.entry(named.name.clone()).or_insert_with(described);
        }
        to.len() > before
    }

    fn check_finite(&self, named: &Named, tensor: &FileTensor) -> Result<(), DumpError> {
        let masked = !named.filler.is_empty();
        let Some((at, value)) = tensor.first_non_finite(masked) else { return Ok(()) };
        if let Some(noted) = &self.non_finite {
            noted.lock().unwrap_or_else(PoisonError::into_inner).insert(named.name.clone());
            return Ok(());
        }
        let inner = |axes: usize| tensor.shape[axes..].iter().product::<usize>().max(1);
        let by_row = named.axes.first() == Some(&Axis::Batch);
        let by_position = matches!(named.axes.get(1), Some(Axis::Pos | Axis::Query | Axis::One));
        Err(DumpError::NotFinite {
            point: named.name.clone(),
            value,
            prompt: by_row.then(|| self.first_row + at / inner(1)),
            position: (by_row && by_position).then(|| at % inner(1) / inner(2)),
            half: tensor.dtype == Dtype::F16,
        })
    }
}
