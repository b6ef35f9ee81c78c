//! [`RawTensors`]: access to weight files for the crates of the workspace.

use std::path::{Path, PathBuf};

use burn::tensor::{AllocationProperty, Bytes, TensorData};
use hooklens_hooks::{DType, nearest};
use hooklens_io::object_stores::Ranges;
use hooklens_model::error::LoadError;

use super::convert::Converted;
use super::tensor_file::TensorFile;
use super::{Elements, Location, Runs, TensorInfo, WeightFiles, narrowed_in_place};

/// Opens several files together, like [`WeightFiles::open`]; for `mmap`, see
/// [`LoadOptions::mmap`](crate::loading::LoadOptions::mmap).
///
/// # Errors
/// Same as [`WeightFiles::open`].
pub fn open_files(paths: &[PathBuf], mmap: bool) -> Result<WeightFiles, LoadError> {
    WeightFiles::open_with(paths, mmap)
}

/// Opens a safetensors file that is embedded in the binary.
///
/// # Errors
/// [`LoadError::Corrupt`] if the file is invalid.
pub fn embedded_file(name: &str, bytes: &'static [u8]) -> Result<WeightFiles, LoadError> {
    let mut opened = WeightFiles::default();
    opened.add_safetensors(TensorFile::of_static(name, bytes))?;
    Ok(opened)
}

/// Opens a safetensors file in an object store; `path` is its URL.
///
/// # Errors
/// [`LoadError::Corrupt`] if the file is invalid, [`LoadError::File`] if it cannot be read.
pub fn object_file(path: &Path, object: Ranges) -> Result<WeightFiles, LoadError> {
    let mut opened = WeightFiles::default();
    opened.add_safetensors(TensorFile::of_object(path, object))?;
    Ok(opened)
}

/// Element type of a tensor, if it is a floating-point type that a model can compute in.
pub fn float_type(info: &TensorInfo) -> Option<DType> {
    info.float
}

/// Location of a tensor's elements.
pub fn location(info: &TensorInfo) -> &Location {
    &info.place
}

/// Access to parts of tensors and to the other contents of file headers.
pub trait RawTensors {
    /// Metadata value in the safetensors headers under a key.
    fn metadata(&self, key: &str) -> Option<&str>;

    /// Total size of all tensors as stored, in bytes.
    fn stored_bytes(&self) -> usize;

    /// Borrows a tensor without copying: its data stays on disk until used, and in the page cache afterwards. `None` if
    /// the tensor is not stored in the element type `compute`, is not aligned for it, or is in a file that is not in
    /// memory.
    ///
    /// # Errors
    /// Same as [`WeightFiles::read`].
    fn borrow(&self, name: &str, compute: DType) -> Result<Option<TensorData>, LoadError>;

    /// Like [`WeightFiles::read`], for a subset of the elements, which form a tensor of this shape.
    fn read_runs(&self, name: &str, compute: DType, runs: Runs, shape: Vec<usize>) -> Result<TensorData, LoadError>;

    /// Value of an integer tensor with a single element, whatever its shape; `None` for any other tensor.
    ///
    /// # Errors
    /// [`LoadError::File`] if the file cannot be read, [`LoadError::Corrupt`] if its contents are invalid.
    fn integer(&self, name: &str) -> Result<Option<i64>, LoadError>;

    /// Tensor names in the files that are most similar to `name`.
    fn nearest(&self, name: &str) -> Vec<String>;
}

impl RawTensors for WeightFiles {
    fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    fn stored_bytes(&self) -> usize {
        self.tensors.values().map(|t| t.bytes).sum()
    }

    fn borrow(&self, name: &str, compute: DType) -> Result<Option<TensorData>, LoadError> {
        let (info, stored) = self.stored(name)?;
        let (Location::File { file, bytes }, Elements::Float(stored)) = (&info.place, stored) else { return Ok(None) };
        let Some(lent) = self.files[*file].lend(bytes.clone()) else { return Ok(None) };
        let aligned = (lent.as_ptr() as usize).is_multiple_of(compute.size());
        Ok((stored == compute && aligned).then(|| {
            let bytes = Bytes::from_shared(lent, AllocationProperty::File);
            TensorData::from_bytes(bytes, info.shape.clone(), compute.burn())
        }))
    }

    fn read_runs(&self, name: &str, compute: DType, runs: Runs, shape: Vec<usize>) -> Result<TensorData, LoadError> {
        let (info, stored) = self.stored(name)?;
        let stored = match stored {
            Elements::Float(stored) => stored,
            Elements::Packed(format) => {
                let bytes = self.decoded(info, format, compute, runs)?;
                return Ok(TensorData::from_bytes(bytes, shape, compute.burn()));
            }
        };
        let bytes = match &info.place {
            Location::File { file, bytes } => self.files[*file].read(bytes.clone(), stored, compute, runs)?,
            Location::Joined(joined) => self.decoded_codes(joined, compute, runs)?,
            place @ (Location::Torch(_) | Location::Npz(_)) => {
                let all = place.read_whole()?;
                let whole = runs.count == 1 && runs.len * stored.size() == all.len();
                if whole && stored == compute {
                    Bytes::from_bytes_vec(all)
                } else if whole && compute.size() < stored.size() {
                    Bytes::from_bytes_vec(narrowed_in_place(all, stored, compute))
                } else {
                    let size = stored.size();
                    let mut out = Converted::with_capacity(compute, runs.len * runs.count);
                    for run in 0..runs.count {
                        let at = (runs.offset + run * runs.stride) * size;
                        out.extend(&all[at..at + runs.len * size], stored);
                    }
                    out.into_bytes()
                }
            }
        };
        Ok(TensorData::from_bytes(bytes, shape, compute.burn()))
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, LoadError> {
        let Some(info) = self.tensors.get(name).filter(|info| info.shape.iter().product::<usize>() == 1) else {
            return Ok(None);
        };
        let bytes = match &info.place {
            Location::File { file, bytes } => self.files[*file].bytes(bytes.clone())?.to_vec(),
            place => place.read_whole()?,
        };
        Ok(match (&*info.dtype, &*bytes) {
            ("i64", bytes) => bytes.try_into().ok().map(i64::from_le_bytes),
            ("i32", bytes) => bytes.try_into().ok().map(|bytes| i32::from_le_bytes(bytes).into()),
            _ => None,
        })
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        nearest(name, self.tensors.keys().map(String::as_str))
    }
}
