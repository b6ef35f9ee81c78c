//! Activations as ndarray arrays and safetensors files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Bytes, DType as BurnDType, Device, FloatDType, TensorData};
use ndarray::{ArrayD, IxDyn};
use safetensors::{Dtype, SafeTensorError, View};
use xxhash_rust::xxh3::Xxh3;

use crate::activation::Activation;
use crate::error::HookError;
use crate::hook::BoxError;
use crate::safetensors_header::SafetensorsHeader;
use crate::unfinished::Unfinished;

/// Element type of floats, in memory or in a file.
///
/// ```
/// use hooklens_hooks::DType;
/// let dtype: DType = "bfloat16".parse()?;
/// assert_eq!((dtype, dtype.size(), dtype.to_string()), (DType::BF16, 2, "bf16".to_string()));
/// assert!("int8".parse::<DType>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    BF16,
    /// 64-bit floats.
    F64,
}

impl DType {
    /// Burn's name for the type.
    pub fn burn(self) -> BurnDType {
        match self {
            DType::F32 => BurnDType::F32,
            DType::F16 => BurnDType::F16,
            DType::BF16 => BurnDType::BF16,
            DType::F64 => BurnDType::F64,
        }
    }

    /// Burn's name for the type among float types.
    pub fn float_dtype(self) -> FloatDType {
        match self {
            DType::F32 => FloatDType::F32,
            DType::F16 => FloatDType::F16,
            DType::BF16 => FloatDType::BF16,
            DType::F64 => FloatDType::F64,
        }
    }

    /// Minus infinity as a file of this type holds it.
    pub fn minus_infinity(self) -> Vec<u8> {
        match self {
            DType::F64 => f64::NEG_INFINITY.to_le_bytes().to_vec(),
            DType::F32 => f32::NEG_INFINITY.to_le_bytes().to_vec(),
            DType::F16 => 0xfc00u16.to_le_bytes().to_vec(),
            DType::BF16 => 0xff80u16.to_le_bytes().to_vec(),
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Whether a device stores and computes in this type. It is asked once for each: it is opened for that, and may be
    /// on another machine.
    ///
    /// ```
    /// assert!(hooklens_hooks::DType::BF16.is_supported_by(&burn::tensor::Device::flex()));
    /// ```
    pub fn is_supported_by(self, device: &Device) -> bool {
        static ANSWERS: Mutex<Vec<(Device, DType, bool)>> = Mutex::new(Vec::new());
        let device = device.clone().without_autodiff();
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., answer)) = answers.iter().find(|(asked, dtype, _)| *dtype == self && *asked == device) {
            return *answer;
        }
        let answer = device.supports_dtype(self.float_dtype());
        answers.push((device, self, answer));
        answer
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
        })
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" | "float32" => Ok(DType::F32),
            "f16" | "float16" => Ok(DType::F16),
            "bf16" | "bfloat16" => Ok(DType::BF16),
            "f64" | "float64" => Ok(DType::F64),
            other => Err(format!("`{other}` is not an element type; use f32, f16, bf16 or f64")),
        }
    }
}

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
    /// [`HookError::Io`] if the device can't give them.
    pub fn to_ndarray(&self) -> Result<ArrayD<f32>, HookError> {
        let values = self.to_data()?.convert::<f32>().try_into_vec::<f32>();
        let io = |source: BoxError| HookError::Io { name: "activation".into(), source };
        let values = values.map_err(|e| io(e.into()))?;
        ArrayD::from_shape_vec(IxDyn(self.shape()), values).map_err(|e| io(e.into()))
    }

    /// Element type in a safetensors file: floats keep theirs, integers are `I64`.
    pub fn file_dtype(&self) -> Dtype {
        match self.dtype() {
            BurnDType::F64 => Dtype::F64,
            BurnDType::F16 => Dtype::F16,
            BurnDType::BF16 => Dtype::BF16,
            dtype if dtype.is_float() => Dtype::F32,
            _ => Dtype::I64,
        }
    }

    /// The elements as a safetensors file holds them: row-major, little-endian.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::Activation;
    /// let one = Activation::from(Tensor::<1>::ones([1], &Device::flex()));
    /// assert_eq!(one.to_le_bytes()?[..], 1f32.to_le_bytes());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] if the device can't give them.
    pub fn to_le_bytes(&self) -> Result<Bytes, HookError> {
        Ok(self.le_bytes_of(self.to_data()?))
    }

    /// [`Activation::to_le_bytes`] of data already read.
    pub fn le_bytes_of(&self, data: TensorData) -> Bytes {
        let data = if self.is_integer() { data.convert::<i64>() } else { data };
        // Burn keeps elements in the machine's order, which is little-endian wherever Burn's
        // own safetensors store works too.
        data.into_bytes()
    }
}

/// An activation that safetensors can write.
struct Readable<'a> {
    activation: &'a Activation,
    bytes: Bytes,
}

impl View for Readable<'_> {
    fn dtype(&self) -> Dtype {
        self.activation.file_dtype()
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
/// The file appears whole or not at all: it is written beside its place and renamed.
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

/// [`write_safetensors`], to where the bytes go one after the other.
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
/// [`HookError::Io`].
pub fn write_safetensors_to<'a>(
    to: &mut impl Write,
    tensors: impl IntoIterator<Item = (String, &'a Activation)>,
    metadata: HashMap<String, String>,
) -> Result<(), HookError> {
    let io = |source: std::io::Error| HookError::Io { name: "tensors".into(), source: source.into() };
    write_views_to(to, readable(tensors)?, metadata).map(drop).map_err(io)
}

/// Activations with their bytes.
fn readable<'a>(
    tensors: impl IntoIterator<Item = (String, &'a Activation)>,
) -> Result<Vec<(String, Readable<'a>)>, HookError> {
    let one = |(name, activation): (String, &'a Activation)| match activation.to_le_bytes() {
        Ok(bytes) => Ok((name, Readable { activation, bytes })),
        Err(e) => Err(HookError::Io { name, source: e.into() }),
    };
    tensors.into_iter().map(one).collect()
}

/// [`write_safetensors`] for whatever safetensors can write; the XXH3 hash of the file's bytes (128 bits).
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

/// [`write_views`], to where the bytes go one behind the other.
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
/// What writing says, and a header that can't be.
pub fn write_views_to<V: View>(
    to: &mut impl Write,
    views: Vec<(String, V)>,
    metadata: HashMap<String, String>,
) -> std::io::Result<u128> {
    let (header, views) = laid_out(views, metadata).map_err(std::io::Error::other)?;
    write_out(to, &header, &views)
}

/// The header of a file of these tensors, which are in order then.
fn laid_out<V: View>(
    mut views: Vec<(String, V)>,
    metadata: HashMap<String, String>,
) -> Result<(SafetensorsHeader, Vec<(String, V)>), SafeTensorError> {
    views.sort_by(|(a, _), (b, _)| a.cmp(b));
    let tensors = views.iter().map(|(name, view)| (name.clone(), view.dtype(), view.shape().to_vec()));
    Ok((SafetensorsHeader::new(tensors, metadata)?, views))
}

/// Writes a file's bytes; gives their hash.
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
