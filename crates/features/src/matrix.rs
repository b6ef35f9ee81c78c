//! Matrices of a dictionary, read on first use.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, Tensor};
use hooklens_hooks::DType;

use crate::error::FeatureError;
use hooklens_loading::weight_files::{Location, RawTensors, Runs, WeightFiles, float_type, location};
use hooklens_model::cpu;
use hooklens_model::device::is_cubecl;
use hooklens_model::error::Result;

/// A weight matrix, `[rows, columns]`, that stays in its file until used.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    shape: [usize; 2],
    device: Device,
    /// Where the matrix is stored; `None` if it was created in memory.
    stored: Option<Stored>,
    held: OnceLock<Tensor<2>>,
}

/// A matrix stored in a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) files: Arc<WeightFiles>,
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) lies: Lies,
}

/// Layout of a matrix `[rows, columns]` in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    /// Stored as `[rows, columns]`.
    AsIs,
    /// Stored transposed, as `[columns, rows]`.
    Turned,
    /// Part `part` of a tensor `[rows, of, columns]`.
    Part { part: usize, of: usize },
}

impl Matrix {
    /// Wraps a matrix that is in memory.
    pub(super) fn made(matrix: Tensor<2>) -> Self {
        let (shape, device) = (matrix.dims(), matrix.device());
        Self { shape, device, stored: None, held: OnceLock::from(matrix.detach()) }
    }

    /// Refers to a matrix of this shape in a file. The shape must have been checked.
    pub(super) fn stored(shape: [usize; 2], stored: Stored, device: &Device) -> Self {
        Self { shape, device: device.clone(), stored: Some(stored), held: OnceLock::new() }
    }

    /// `[rows, columns]`.
    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Moves the matrix to another device.
    pub(super) fn to_device(&self, device: &Device) -> Self {
        if *device == self.device {
            return self.clone();
        }
        let held = match (&self.stored, self.held.get()) {
            (None, Some(held)) => OnceLock::from(held.clone().to_device(device)),
            _ => OnceLock::new(),
        };
        Self { device: device.clone(), held, ..self.clone() }
    }

    /// The matrix in f32, or in the file's 16-bit type. With `by_rows`, rows are contiguous.
    pub(super) fn get(&self, by_rows: bool) -> Result<Tensor<2>> {
        if let Some(held) = self.held.get() {
            return Ok(held.clone());
        }
        let Some(stored) = &self.stored else { return Ok(Tensor::empty(self.shape, &self.device)) };
        let read = stored.read(self.shape, &self.device, by_rows)?;
        // Often only a few rows of a decoder are needed, so the whole decoder is not checked.
        if !by_rows {
            self.check(&read, 0..self.shape[0])?;
        }
        Ok(self.held.get_or_init(|| read).clone())
    }

    /// Reads one row, `[1, columns]`. If the file stores tensors uncompressed, reads only this row, in either layout.
    pub(super) fn row(&self, row: usize) -> Result<Tensor<2>> {
        match &self.stored {
            Some(stored) if self.held.get().is_none() && stored.lies == Lies::Turned && stored.is_mapped() => {
                let [rows, columns] = self.shape;
                let runs = Runs { offset: row, len: 1, stride: rows, count: columns };
                let data = stored.files.read_runs(&stored.name, DType::F32, runs, vec![1, columns])?;
                Ok(Tensor::from_data(data, (&self.device, burn::tensor::DType::F32)))
            }
            _ => Ok(self.get(true)?.narrow(0, row, 1)),
        }
    }

    /// Fails if an element of `rows` is not finite.
    pub(super) fn check(&self, matrix: &Tensor<2>, rows: Range<usize>) -> Result<()> {
        let Some((row, column)) = cpu::not_finite(matrix, rows) else { return Ok(()) };
        let value = matrix.clone().slice([row..row + 1, column..column + 1]).cast(burn::tensor::DType::F32);
        let value: f32 = value.into_scalar();
        let (path, tensor) = match &self.stored {
            Some(stored) => (stored.path.clone(), stored.name.clone()),
            None => ("in-memory dictionary".into(), "a matrix".into()),
        };
        Err(FeatureError::NotFinite { path, tensor, value, row, column }.into())
    }
}

impl Stored {
    /// Whether elements can be read individually.
    fn is_mapped(&self) -> bool {
        self.files.info(&self.name).is_some_and(|info| matches!(location(info), Location::File { .. }))
    }

    fn read(&self, [rows, columns]: [usize; 2], device: &Device, by_rows: bool) -> Result<Tensor<2>> {
        let float = self.files.info(&self.name).and_then(float_type);
        let narrow = matches!(float, Some(DType::F16 | DType::BF16)) && !is_cubecl(device);
        let kept = if narrow { float.unwrap_or(DType::F32) } else { DType::F32 };
        // CubeCL devices may read the data later, when the file may have changed, so it cannot be borrowed there.
        if !is_cubecl(device)
            && (self.lies != Lies::Turned || !by_rows)
            && let Some(data) = self.files.borrow(&self.name, kept)?
        {
            let options = (device, data.dtype());
            return Ok(match self.lies {
                Lies::AsIs => Tensor::from_data(data, options),
                Lies::Turned => Tensor::<2>::from_data(data, options).transpose(),
                Lies::Part { part, of } => {
                    let whole = Tensor::<3>::from_data(data, options).reshape([rows, of * columns]);
                    whole.narrow(1, part * columns, columns)
                }
            });
        }
        let (runs, shape) = match self.lies {
            Lies::AsIs => (Runs::all(rows * columns), vec![rows, columns]),
            Lies::Turned => (Runs::all(rows * columns), vec![columns, rows]),
            Lies::Part { part, of } => {
                let runs = Runs { offset: part * columns, len: columns, stride: of * columns, count: rows };
                (runs, vec![rows, columns])
            }
        };
        let data = self.files.read_runs(&self.name, kept, runs, shape)?;
        let dtype = data.dtype();
        let read = Tensor::<2>::from_data(data, (device, dtype));
        Ok(match self.lies {
            Lies::Turned if by_rows => Tensor::from_data(read.transpose().into_data(), (device, dtype)),
            Lies::Turned => read.transpose(),
            _ => read,
        })
    }
}
