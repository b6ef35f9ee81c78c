//! [`ComputeType`]: number formats of computations by name.

use std::fmt;
use std::str::FromStr;

use hooklens_hooks::DType;

use super::LoadOptions;

/// Number format of computations, as the command line and the Python module name it.
///
/// ```
/// use hooklens_loading::loading::ComputeType;
/// assert_eq!("q8".parse(), Ok(ComputeType::Q8));
/// assert_eq!("bf16-products".parse::<ComputeType>()?.to_string(), "bf16-products");
/// assert!("q4".parse::<ComputeType>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    /// An element type for weights and activations.
    Float(DType),
    /// `f32`, with the inputs of quantized weights rounded to 8 bits.
    Q8,
    /// `f32`, with the inputs of `bf16` weights rounded to `bf16`.
    Bf16Products,
}

impl ComputeType {
    /// Options with which a model computes in this format.
    pub fn set(self, options: LoadOptions) -> LoadOptions {
        match self {
            Self::Float(dtype) => options.dtype(dtype),
            Self::Q8 => options.quantize_activations(),
            Self::Bf16Products => options.bf16_products(),
        }
    }
}

impl fmt::Display for ComputeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(dtype) => dtype.fmt(f),
            Self::Q8 => f.write_str("q8"),
            Self::Bf16Products => f.write_str("bf16-products"),
        }
    }
}

impl FromStr for ComputeType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "q8" => Ok(Self::Q8),
            "bf16-products" => Ok(Self::Bf16Products),
            _ => text.parse().map(Self::Float).map_err(|error| format!("{error}, or q8, or bf16-products")),
        }
    }
}
