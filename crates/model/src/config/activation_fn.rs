//! MLP activation functions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Activation function of an MLP. Parses the names that TransformerLens and Hugging Face use, and is displayed under
/// TransformerLens's name, or under Hugging Face's if TransformerLens has none.
///
/// ```
/// use hooklens::ActivationFn;
/// assert_eq!("gelu_pytorch_tanh".parse::<ActivationFn>()?, ActivationFn::GeluNew);
/// assert_eq!(ActivationFn::GeluNew.to_string(), "gelu_new");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ActivationFn {
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)`, computed with the error function.
    Gelu,
    /// GPT-2's tanh approximation of GELU. Also covers `gelu_fast` and `gelu_pytorch_tanh`, which differ only in
    /// rounding.
    GeluNew,
    /// `x sigmoid(x)`.
    Silu,
    /// `max(x, 0)²`.
    Relu2,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `max(x, 0.01 x)`.
    LeakyRelu,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    /// GELU, clipped to `[-10, 10]`.
    Gelu10,
    /// `x tanh(ln(1 + eˣ))`.
    Mish,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `(1 + erf((x - 0.707107) / (0.282095 √2))) / 2`.
    Laplace,
    /// Identity.
    Linear,
    /// xIELU (Huang and Schlag 2024): `up x² + x/2` above zero and `down (eˣ - 1 - x) + x/2` below, where each MLP
    /// learns the two slopes `up` and `down` (Apertus).
    Xielu,
    /// `x softmax(x)`.
    Solu,
    /// `x softmax(x)`, then a layer norm over neurons.
    SoluLn,
}

/// Whether an activation function maps zero to zero.
pub fn keeps_zero(activation: ActivationFn) -> bool {
    !matches!(activation, ActivationFn::Sigmoid | ActivationFn::Laplace)
}

impl FromStr for ActivationFn {
    type Err = ConfigError;

    /// Parses a TransformerLens or Hugging Face name.
    ///
    /// ```
    /// use hooklens::ActivationFn;
    /// assert_eq!("silu".parse::<ActivationFn>()?, ActivationFn::Silu);
    /// let unknown = "sillu".parse::<ActivationFn>();
    /// assert!(unknown.unwrap_err().to_string().contains("silu")); // the known names
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::UnknownValue`] with the known names.
    fn from_str(name: &str) -> Result<Self, ConfigError> {
        match name {
            "relu" => Ok(Self::Relu),
            "gelu" | "gelu_python" => Ok(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_accurate" => Ok(Self::GeluNew),
            "silu" | "swish" => Ok(Self::Silu),
            "relu2" => Ok(Self::Relu2),
            "relu6" => Ok(Self::Relu6),
            "leaky_relu" => Ok(Self::LeakyRelu),
            "quick_gelu" => Ok(Self::QuickGelu),
            "gelu_10" => Ok(Self::Gelu10),
            "mish" => Ok(Self::Mish),
            "tanh" => Ok(Self::Tanh),
            "sigmoid" => Ok(Self::Sigmoid),
            "laplace" => Ok(Self::Laplace),
            "linear" => Ok(Self::Linear),
            "xielu" => Ok(Self::Xielu),
            "solu" => Ok(Self::Solu),
            "solu_ln" => Ok(Self::SoluLn),
            other => Err(ConfigError::UnknownValue {
                field: "activation",
                given: other.to_string(),
                known: "relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, silu, relu2, relu6, leaky_relu, quick_gelu, gelu_10, \
                        mish, tanh, sigmoid, laplace, linear, xielu, solu, solu_ln",
            }),
        }
    }
}

impl fmt::Display for ActivationFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::GeluNew => "gelu_new",
            Self::Silu => "silu",
            Self::Relu2 => "relu2",
            Self::Relu6 => "relu6",
            Self::LeakyRelu => "leaky_relu",
            Self::QuickGelu => "quick_gelu",
            Self::Gelu10 => "gelu_10",
            Self::Mish => "mish",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Laplace => "laplace",
            Self::Linear => "linear",
            Self::Xielu => "xielu",
            Self::Solu => "solu",
            Self::SoluLn => "solu_ln",
        })
    }
}
