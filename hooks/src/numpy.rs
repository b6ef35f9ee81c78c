//! Export to NumPy files: `.npy` for one activation, `.npz` for a whole recording.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::activation::Activation;
use crate::cache::ActivationCache;
use crate::convert::file_dtype;
use crate::error::{BoxError, HookError};
use crate::unfinished::Unfinished;

impl Activation {
    /// Writes a `.npy` file for `numpy.load`, in C order: `f32` (16-bit floats are widened), `f64`, or `i64`. The write
    /// is atomic.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("ones.npy");
    /// let ones = Activation::from(Tensor::<2>::ones([2, 3], &Device::flex()));
    /// ones.save_npy(&path)?;
    /// assert!(std::fs::read(&path)?.starts_with(b"\x93NUMPY\x01\x00"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] naming the file.
    pub fn save_npy(&self, path: impl AsRef<Path>) -> Result<(), HookError> {
        let path = path.as_ref();
        let bytes = npy(self).map_err(|e| unwritten(path, e))?;
        crate::write_file(path, &bytes).map_err(|e| unwritten(path, e))
    }
}

impl ActivationCache {
    /// Writes an uncompressed `.npz` file, with one array per point under its name (gradients with `_grad` appended).
    /// Arrays are copied to the host one at a time.
    pub(crate) fn save_npz(&self, path: &Path) -> Result<(), HookError> {
        let named = self.iter().map(|(name, activation)| (format!("{name}.npy"), activation));
        let gradients = self.gradients().map(|(name, gradient)| (format!("{name}_grad.npy"), gradient));
        let write = || -> Result<(), BoxError> {
            let mut file = ZipWriter::new(BufWriter::new(Unfinished::beside(path)?));
            for (name, activation) in named.chain(gradients) {
                let bytes = npy(activation)?;
                let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
                // Zip headers without the large-file extension are limited to four gigabytes.
                file.start_file(name, stored.large_file(u32::try_from(bytes.len()).is_err()))?;
                file.write_all(&bytes)?;
            }
            let unfinished = file.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            unfinished.finish()?;
            Ok(())
        };
        write().map_err(|e| unwritten(path, e))
    }
}

fn unwritten(path: &Path, error: impl Into<BoxError>) -> HookError {
    HookError::Io { name: path.display().to_string(), source: error.into() }
}

/// Encodes an activation in NumPy format 1.0.
fn npy(activation: &Activation) -> Result<Vec<u8>, HookError> {
    let data = activation.to_data()?;
    let (kind, data) = match file_dtype(activation) {
        Dtype::I64 => ("<i8", data.convert::<i64>()),
        Dtype::F64 => ("<f8", data),
        _ => ("<f4", data.convert::<f32>()),
    };
    let elements = data.into_bytes();
    let mut file = header(kind, activation.shape());
    file.extend_from_slice(&elements);
    Ok(file)
}

/// The header, padded with spaces to a multiple of 64 bytes and terminated by a newline.
fn header(kind: &str, shape: &[usize]) -> Vec<u8> {
    let lengths: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}", lengths.trim_end());
    const BEFORE: usize = 10;
    let len = (BEFORE + text.len() + 1).next_multiple_of(64) - BEFORE;
    text.extend(std::iter::repeat_n(' ', len - 1 - text.len()));
    text.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    // Shapes have at most six axes, so the header length fits into two bytes.
    file.extend((len as u16).to_le_bytes());
    file.extend(text.into_bytes());
    file
}
