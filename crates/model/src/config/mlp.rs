//! The MLP of a layer.

use serde::{Deserialize, Serialize};

use super::{ActivationFn, ConfigError, Experts, TransformerConfig};

/// The MLP of a layer. The activation function is [`TransformerConfig::activation`].
///
/// ```
/// use hooklens::TransformerConfig;
/// use hooklens_model::config::{Layers, Experts, MlpConfig};
/// // A gated MLP in the first layer, a mixture of experts in the second (DeepSeek).
/// let mlps = [
///     MlpConfig::Gated { d_mlp: 256 },
///     MlpConfig::Experts { experts: Experts::new(8, 2), d_mlp: 32, gated: true },
/// ];
/// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_mlps(mlps)?;
/// config.validate()?;
/// assert_eq!((config.d_mlp_of(0), config.d_mlp_of(1)), (256, 32));
/// assert_eq!((config.experts_of(0), config.experts_of(1)), (None, Some(Experts::new(8, 2))));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MlpConfig {
    /// `out(act(in(x)))`.
    Dense {
        /// Number of neurons.
        d_mlp: usize,
    },
    /// `out(act(gate(x)) * in(x))`.
    Gated {
        /// Number of neurons.
        d_mlp: usize,
    },
    /// A mixture of experts.
    Experts {
        /// Number of experts, and how they are chosen.
        experts: Experts,
        /// Number of neurons of each expert.
        d_mlp: usize,
        /// Whether the experts are gated.
        gated: bool,
    },
    /// No MLP: the layer has only a token mixer.
    None,
}

impl MlpConfig {
    /// Number of neurons; in a mixture, the number per expert. 0 without an MLP.
    pub fn d_mlp(&self) -> usize {
        match *self {
            Self::Dense { d_mlp } | Self::Gated { d_mlp } | Self::Experts { d_mlp, .. } => d_mlp,
            Self::None => 0,
        }
    }

    /// Whether the activation is multiplied by a second projection.
    pub fn is_gated(&self) -> bool {
        match *self {
            Self::Gated { .. } => true,
            Self::Experts { gated, .. } => gated,
            Self::Dense { .. } | Self::None => false,
        }
    }

    /// The mixture of experts, if the MLP is one.
    pub fn experts(&self) -> Option<Experts> {
        match *self {
            Self::Experts { experts, .. } => Some(experts),
            Self::Dense { .. } | Self::Gated { .. } | Self::None => None,
        }
    }

    /// The same kind of MLP with `d_mlp` neurons.
    pub(super) fn with_d_mlp(self, d_mlp: usize) -> Self {
        match self {
            Self::Dense { .. } => Self::Dense { d_mlp },
            Self::Gated { .. } => Self::Gated { d_mlp },
            Self::Experts { experts, gated, .. } => Self::Experts { experts, d_mlp, gated },
            Self::None => Self::None,
        }
    }

    /// The same MLP with or without a gate.
    pub(super) fn with_gate(self, gated: bool) -> Self {
        match self {
            Self::Dense { d_mlp } | Self::Gated { d_mlp } if gated => Self::Gated { d_mlp },
            Self::Dense { d_mlp } | Self::Gated { d_mlp } => Self::Dense { d_mlp },
            Self::Experts { experts, d_mlp, .. } => Self::Experts { experts, d_mlp, gated },
            Self::None => Self::None,
        }
    }

    /// The mixture of experts with the width and gating of this MLP; if `experts` is `None`, the dense MLP.
    pub(super) fn with_experts(self, experts: Option<Experts>) -> Self {
        let (d_mlp, gated) = (self.d_mlp(), self.is_gated());
        match (self, experts) {
            (Self::None, _) => Self::None,
            (_, Some(experts)) => Self::Experts { experts, d_mlp, gated },
            (_, None) if gated => Self::Gated { d_mlp },
            (_, None) => Self::Dense { d_mlp },
        }
    }

    /// Checks the sizes for an MLP of a model.
    pub(super) fn check(&self, config: &TransformerConfig) -> Result<(), ConfigError> {
        if *self == Self::None {
            return Ok(());
        }
        let d_mlp = self.d_mlp();
        if !(1..=TransformerConfig::LARGEST).contains(&d_mlp) {
            return Err(ConfigError::BadSize { field: "d_mlp", given: d_mlp });
        }
        if config.activation == ActivationFn::SoluLn && !matches!(self, Self::Dense { .. }) {
            return ConfigError::refuse("activation", "solu_ln requires plain MLPs: no gates and no experts".into());
        }
        let Some(experts) = self.experts() else { return Ok(()) };
        if config.activation == ActivationFn::Xielu {
            let reason = "xielu has learned slopes, which are not supported in mixtures of experts";
            return ConfigError::refuse("activation", reason.into());
        }
        experts.check(config, self.is_gated())
    }
}
