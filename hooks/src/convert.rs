//! Activations as ndarray arrays and safetensors files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use burn::tensor::{Bytes, DType as BurnDType, TensorData};
use ndarray::{ArrayD, IxDyn};
use safetensors::{Dtype, SafeTensorError, View};
use xxhash_rust::xxh3::Xxh3;

use crate::activation::Activation;
use crate::error::{BoxError, HookError};
use crate::safetensors_header::SafetensorsHeader;
use crate::unfinished::Unfinished;

impl Activation {
    /// The elements as an array of `f32` (integers and other float types are converted).
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let square = Activation::from(Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &Device::flex()));
    /// let array = square.to_ndarray()?;
    /// assert_eq!((array.shape(), array[[1, 0]], array.sum()), (&[2, 2][..], 3.0, 10.0));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] if reading from the device fails.
    pub fn to_ndarray(&self) -> Result<ArrayD<f32>, HookError> {
        let values = self.to_data()?.convert::<f32>().try_into_vec::<f32>();
        let io = |source: BoxError| HookError::Io { name: "activation".into(), source };
        let values = values.map_err(|e| io(e.into()))?;
        ArrayD::from_shape_vec(IxDyn(self.shape()), values).map_err(|e| io(e.into()))
    }
}

/// Element type in which an activation is stored in a file.
pub fn file_dtype(activation: &Activation) -> Dtype {
    match activation.dtype() {
        BurnDType::F64 => Dtype::F64,
        BurnDType::F16 => Dtype::F16,
        BurnDType::BF16 => Dtype::BF16,
        dtype if dtype.is_float() => Dtype::F32,
        _ => Dtype::I64,
    }
}

/// Little-endian bytes of data already read from an activation, in the type given by [`file_dtype`].
pub fn file_bytes(activation: &Activation, data: TensorData) -> Bytes {
    let data = if !activation.dtype().is_float() { data.convert::<i64>() } else { data };
    // Burn stores elements in native byte order, which is little-endian on every platform that Burn's own
    // safetensors store supports.
    data.into_bytes()
}

/// An activation in a form that safetensors can write.
struct Readable<'a> {
    activation: &'a Activation,
    bytes: Bytes,
}

impl View for Readable<'_> {
    fn dtype(&self) -> Dtype {
        file_dtype(self.activation)
    }

    fn shape(&self) -> &[usize] {
        self.activation.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes named activations to one safetensors file, with `metadata` in its header.
///
/// The write is atomic: a temporary file is written next to the target and renamed.
///
/// ```
/// use std::collections::HashMap;
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::{Activation, write_safetensors};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("directions.safetensors");
/// let direction = Activation::from(Tensor::<1>::ones([64], &Device::flex()));
/// let about = HashMap::from([("model".to_string(), "gpt2".to_string())]);
/// write_safetensors(&path, [("direction".to_string(), &direction)], about)?;
/// let bytes = std::fs::read(&path)?;
/// assert_eq!(safetensors::SafeTensors::deserialize(&bytes)?.tensor("direction")?.shape(), [64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`HookError::Io`] naming the file.
pub fn write_safetensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, &'a Activation)>,
    metadata: HashMap<String, String>,
) -> Result<(), HookError> {
    write_views(path, readable(tensors)?, metadata).map(drop)
}

/// Like [`write_safetensors`], but writes to a stream.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::{Activation, write_safetensors_to};
/// let direction = Activation::from(Tensor::<1>::ones([64], &Device::flex()));
/// let mut file = Vec::new();
/// write_safetensors_to(&mut file, [("direction".to_string(), &direction)], Default::default())?;
/// assert_eq!(safetensors::SafeTensors::deserialize(&file)?.tensor("direction")?.shape(), [64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`HookError::Io`] if reading from a device or writing to `to` fails.
pub fn write_safetensors_to<'a>(
    to: &mut impl Write,
    tensors: impl IntoIterator<Item = (String, &'a Activation)>,
    metadata: HashMap<String, String>,
) -> Result<(), HookError> {
    let io = |source: std::io::Error| HookError::Io { name: "tensors".into(), source: source.into() };
    write_views_to(to, readable(tensors)?, metadata).map(drop).map_err(io)
}

/// Reads the bytes of each activation.
fn readable<'a>(
    tensors: impl IntoIterator<Item = (String, &'a Activation)>,
) -> Result<Vec<(String, Readable<'a>)>, HookError> {
    let one = |(name, activation): (String, &'a Activation)| match activation.to_data() {
        Ok(data) => Ok((name, Readable { activation, bytes: file_bytes(activation, data) })),
        Err(e) => Err(HookError::Io { name, source: e.into() }),
    };
    tensors.into_iter().map(one).collect()
}

/// Like [`write_safetensors`], for any safetensors [`View`]. Returns the 128-bit XXH3 hash of the file's bytes.
///
/// ```
/// use std::collections::HashMap;
/// use safetensors::{Dtype, tensor::TensorView};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("bytes.safetensors");
/// let view = TensorView::new(Dtype::U8, vec![3], &[1, 2, 3])?;
/// hooklens_hooks::write_views(&path, vec![("bytes".to_string(), view)], HashMap::new())?;
/// let bytes = std::fs::read(&path)?;
/// assert_eq!(safetensors::SafeTensors::deserialize(&bytes)?.tensor("bytes")?.data(), [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`HookError::Io`] naming the file.
pub fn write_views<V: View>(
    path: &Path,
    views: Vec<(String, V)>,
    metadata: HashMap<String, String>,
) -> Result<u128, HookError> {
    let io = |source: BoxError| HookError::Io { name: path.display().to_string(), source };
    let (header, views) = laid_out(views, metadata).map_err(|e| io(e.into()))?;
    let write = || -> std::io::Result<u128> {
        let mut unfinished = Unfinished::in_order(path)?;
        unfinished.set_len(header.bytes().len() as u64 + header.data_len())?;
        let mut file = BufWriter::with_capacity(1 << 20, &mut unfinished);
        let hash = write_out(&mut file, &header, &views)?;
        file.flush()?;
        drop(file);
        unfinished.finish()?;
        Ok(hash)
    };
    write().map_err(|e| io(e.into()))
}

/// Like [`write_views`], but writes to a stream.
///
/// ```
/// use std::collections::HashMap;
/// use safetensors::{Dtype, SafeTensors, tensor::TensorView};
/// let view = TensorView::new(Dtype::F32, vec![2], &[0; 8])?;
/// let mut file = Vec::new();
/// hooklens_hooks::write_views_to(&mut file, vec![("zeros".into(), view)], HashMap::new())?;
/// assert_eq!(SafeTensors::deserialize(&file)?.names(), ["zeros"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An I/O error from `to`, or an error if the header is invalid.
pub fn write_views_to<V: View>(
    to: &mut impl Write,
    views: Vec<(String, V)>,
    metadata: HashMap<String, String>,
) -> std::io::Result<u128> {
    let (header, views) = laid_out(views, metadata).map_err(std::io::Error::other)?;
    write_out(to, &header, &views)
}

/// Sorts the tensors by name and builds the header of their file.
fn laid_out<V: View>(
    mut views: Vec<(String, V)>,
    metadata: HashMap<String, String>,
) -> Result<(SafetensorsHeader, Vec<(String, V)>), SafeTensorError> {
    views.sort_by(|(a, _), (b, _)| a.cmp(b));
    let tensors = views.iter().map(|(name, view)| (name.clone(), view.dtype(), view.shape().to_vec()));
    Ok((SafetensorsHeader::new(tensors, metadata)?, views))
}

/// Writes the file's bytes and returns their hash.
fn write_out<V: View>(to: &mut impl Write, header: &SafetensorsHeader, views: &[(String, V)]) -> std::io::Result<u128> {
    let mut hash = Xxh3::new();
    hash.update(header.bytes());
    to.write_all(header.bytes())?;
    for number in header.order() {
        let data = views[*number].1.data();
        hash.update(&data);
        to.write_all(&data)?;
    }
    Ok(hash.digest128())
}
