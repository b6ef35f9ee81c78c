//! Float element types.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType as BurnDType, Device, FloatDType};

/// Float element type, in memory or in a file.
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
    /// 16-bit brain floats (bfloat16).
    BF16,
    /// 64-bit floats.
    F64,
}

impl DType {
    /// The corresponding Burn element type.
    pub fn burn(self) -> BurnDType {
        match self {
            DType::F32 => BurnDType::F32,
            DType::F16 => BurnDType::F16,
            DType::BF16 => BurnDType::BF16,
            DType::F64 => BurnDType::F64,
        }
    }

    /// The corresponding Burn float type.
    pub(crate) fn float_dtype(self) -> FloatDType {
        match self {
            DType::F32 => FloatDType::F32,
            DType::F16 => FloatDType::F16,
            DType::BF16 => FloatDType::BF16,
            DType::F64 => FloatDType::F64,
        }
    }

    /// Size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }
}

/// Whether a device can store and compute in an element type. The answer is cached per device, because the query opens
/// the device, which may be remote.
///
/// ```
/// assert!(hooklens_hooks::device_supports(&burn::tensor::Device::flex(), hooklens_hooks::DType::BF16));
/// ```
pub fn device_supports(device: &Device, dtype: DType) -> bool {
    static ANSWERS: Mutex<Vec<(Device, DType, bool)>> = Mutex::new(Vec::new());
    let device = device.clone().without_autodiff();
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., answer)) = answers.iter().find(|(asked, own, _)| *own == dtype && *asked == device) {
        return *answer;
    }
    let answer = device.supports_dtype(dtype.float_dtype());
    answers.push((device, dtype, answer));
    answer
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
