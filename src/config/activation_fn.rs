//! Activation functions of MLPs.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// The MLP's activation function.
///
/// ```
/// use hooklens::ActivationFn;
/// assert_eq!(ActivationFn::from_name("gelu_pytorch_tanh")?, ActivationFn::GeluNew);
/// assert_eq!(ActivationFn::GeluNew.name(), "gelu_new");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ActivationFn {
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)`, by the error function.
    Gelu,
    /// The tanh approximation of GPT-2 (also `gelu_fast` and `gelu_pytorch_tanh`, which differ
    /// from it by rounding only).
    GeluNew,
    /// `x sigmoid(x)`.
    Silu,
    /// `x softmax(x)`.
    Solu,
    /// `x softmax(x)`, then a layer norm over neurons.
    SoluLn,
}

impl ActivationFn {
    /// Reads a name as TransformerLens and Hugging Face spell it.
    ///
    /// ```
    /// use hooklens::ActivationFn;
    /// assert_eq!(ActivationFn::from_name("silu")?, ActivationFn::Silu);
    /// assert!(ActivationFn::from_name("sillu").unwrap_err().to_string().contains("silu")); // the names known
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::UnknownValue`] listing the known names.
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        match name {
            "relu" => Ok(Self::Relu),
            "gelu" | "gelu_python" => Ok(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => Ok(Self::GeluNew),
            "silu" | "swish" => Ok(Self::Silu),
            "solu" => Ok(Self::Solu),
            "solu_ln" => Ok(Self::SoluLn),
            other => Err(ConfigError::UnknownValue {
                field: "activation",
                given: other.to_string(),
                known: "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, solu, solu_ln",
            }),
        }
    }

    /// The name TransformerLens uses.
    ///
    /// ```
    /// use hooklens::ActivationFn;
    /// for name in ["relu", "gelu", "gelu_new", "silu", "solu_ln"] {
    ///     assert_eq!(ActivationFn::from_name(name)?.name(), name);
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluNew => "gelu_new",
            Self::Silu => "silu",
            Self::Solu => "solu",
            Self::SoluLn => "solu_ln",
        }
    }
}
