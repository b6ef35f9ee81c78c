//! A computed batch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Bytes;
use burn::tensor::TensorData;
use hooklens_hooks::{Axis, HookError, file_bytes, file_dtype, read_all};
use safetensors::Dtype;

use super::StoredTensor;
use super::manifest::Mark;
use super::placing::{FileTensor, Form, Named, PackedTensor, Placing, Widths};
use crate::error::DumpError;
use hooklens_model::error::Place;

/// A computed batch on its way to disk.
pub(crate) struct Batch {
    pub(super) number: usize,
    /// Number of input rows that precede this batch.
    pub(super) first_row: usize,
    pub(super) placing: Placing,
    pub(super) tensors: Vec<Named>,
    /// Collects points with non-finite values, if such values are allowed.
    pub(super) non_finite: Option<Noted>,
    /// Where the rows come from, in a packed dump.
    pub(super) stream: Option<FromStream>,
}

/// Where the rows of a batch come from, if they are read as a stream.
pub(super) struct FromStream {
    /// Index of each row, counted from the start of the run.
    pub(super) numbers: Vec<usize>,
    pub(super) places: Vec<Option<Place>>,
    /// The end of the window that this batch belongs to, if this is the last batch of the window.
    pub(super) end: Option<WindowEnd>,
}

/// The end of a window, whose rows are computed together, in any order.
#[derive(Debug, Clone)]
pub(super) struct WindowEnd {
    pub(super) mark: Mark,
    /// Hashes of the pieces that ended in this window.
    pub(super) ended: Vec<u64>,
    /// Number of prompts that were skipped in this window.
    pub(super) skipped: usize,
    /// Number of prompts in this window that begin with the beginning-of-sequence token.
    pub(super) with_bos: usize,
    /// Whether this is the end of the stream.
    pub(super) is_last: bool,
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

    /// Adds descriptions of the batch's tensors in an output of `rows` rows of these widths, unless they are already
    /// described. Returns whether any were added.
    pub(super) fn describe(
        &self,
        (rows, widths): (usize, Widths),
        sparse: bool,
        to: &mut BTreeMap<String, StoredTensor>,
    ) -> bool {
        let before = to.len();
        for named in &self.tensors {
            let sparse = sparse && named.axes.last() == Some(&Axis::Feature);
            let shape = || self.placing.shape_of_all(named, rows, widths);
            let described = || StoredTensor::new(named.axes, shape(), file_dtype(&named.activation), sparse);
            to.entry(named.name.clone()).or_insert_with(described);
        }
        to.len() > before
    }

    /// Reads the tensors from their devices, as rows without padding. Omits the mask; positions are the
    /// tokens' positions in their prompts.
    pub(super) fn pack(&self, path: &Path) -> Result<Vec<PackedTensor>, DumpError> {
        let failed = |e: HookError| DumpError::File { path: path.to_path_buf(), source: std::io::Error::other(e) };
        let read = read_all(self.tensors.iter().map(|named| &named.activation)).map_err(failed)?;
        let mut packed = Vec::new();
        for (named, data) in self.tensors.iter().zip(read) {
            if ["attention_mask", "positions"].contains(&&*named.name) {
                continue;
            }
            let tensor = self.placing.pack(named, &file_bytes(&named.activation, data));
            packed.push(self.check_packed(named, tensor)?);
        }
        let positions = self.placing.kept().flatten().flat_map(|position| (position as i64).to_le_bytes());
        let (name, form) = ("positions".to_string(), Form::Tokens(Vec::new()));
        let bytes = Bytes::from_bytes_vec(positions.collect());
        packed.push(PackedTensor { name, dtype: Dtype::I64, form, bytes });
        Ok(packed)
    }

    /// Checks that a packed tensor is finite. If it is not, notes the point, or fails if non-finite values are not
    /// allowed.
    fn check_packed(&self, named: &Named, tensor: PackedTensor) -> Result<PackedTensor, DumpError> {
        let PackedTensor { name, dtype, form, bytes } = tensor;
        let len = bytes.len() / (dtype.bitsize() / 8).max(1);
        let file = FileTensor { name, dtype, shape: vec![len], bytes };
        if let Some((at, value)) = file.first_non_finite(!named.filler.is_empty()) {
            match &self.non_finite {
                Some(noted) => drop(noted.lock().unwrap_or_else(PoisonError::into_inner).insert(named.name.clone())),
                None => return Err(self.not_finite(named, &form, dtype, at, value)),
            }
        }
        let FileTensor { name, bytes, .. } = file;
        Ok(PackedTensor { name, dtype, form, bytes })
    }

    fn not_finite(&self, named: &Named, form: &Form, dtype: Dtype, at: usize, value: f32) -> DumpError {
        // The row and, for tokens, the position in it.
        let (row, position) = match form {
            Form::Tokens(entry) => {
                let mut token = at / entry.iter().product::<usize>().max(1);
                let lengths = self.placing.kept().map(|kept| kept.len());
                let found = lengths.enumerate().find(|(_, len)| {
                    let here = token < *len;
                    token -= if here { 0 } else { *len };
                    here
                });
                (found.map_or(0, |(row, _)| row), Some(token))
            }
            Form::Rows(entry) => (at / entry.iter().product::<usize>().max(1), None),
            Form::Ragged(shapes) => {
                let mut left = at;
                let found = shapes.iter().position(|shape| {
                    let len = shape.iter().product::<usize>();
                    let here = left < len;
                    left -= if here { 0 } else { len };
                    here
                });
                (found.unwrap_or(0), None)
            }
        };
        let place = self.stream.as_ref().and_then(|stream| stream.places.get(row)?.clone());
        let prompt =
            if place.is_none() { self.stream.as_ref().and_then(|from| from.numbers.get(row)).copied() } else { None };
        let half = dtype == Dtype::F16;
        let error = DumpError::NotFinite { point: named.name.clone(), value, prompt, position, half };
        match place {
            Some(place) => DumpError::PromptAt { place, source: Box::new(error.into()) },
            None => error,
        }
    }

    /// Adds descriptions of packed tensors that are not described yet. Returns whether any were added.
    pub(super) fn describe_packed(&self, packed: &[PackedTensor], to: &mut BTreeMap<String, StoredTensor>) -> bool {
        let before = to.len();
        for tensor in packed {
            let Some(named) = self.tensors.iter().find(|named| named.name == tensor.name) else { continue };
            let sparse = named.axes.last() == Some(&Axis::Feature);
            let shape = || self.placing.shape_of_any(named);
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
