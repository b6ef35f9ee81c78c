//! [`Architecture`]: the activation function of a dictionary.

use std::fmt;

/// The activation function of a dictionary. It also determines which parameters the encoder has.
///
/// ```
/// use hooklens::features::Architecture;
/// assert_eq!(Architecture::TopK { k: 32 }.to_string(), "topk (k 32)");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Architecture {
    /// `ReLU(pre)`.
    Standard,
    /// `pre` where it exceeds the latent's threshold, else 0.
    JumpRelu {
        /// Thresholds, `[latent]`.
        thresholds: Vec<f32>,
        /// Whether `pre` must also be positive. True for all formats except circuit-tracer's transcoder sets.
        positive: bool,
    },
    /// The k largest values of `ReLU(pre)` per token.
    TopK {
        /// Number of latents kept.
        k: usize,
    },
    /// The k pre-activations per token with the largest magnitudes, keeping their signs.
    AbsTopK {
        /// Number of latents kept.
        k: usize,
    },
    /// The largest value of `ReLU(pre)` in each of k groups of equal size.
    GroupMax {
        /// Number of groups.
        k: usize,
    },
    /// `ReLU(h W_enc · exp(r_mag) + b_mag)` where `h W_enc + b_gate` is positive, else 0. `h` is the encoder's input.
    Gated {
        /// `b_gate`, `[latent]`.
        gate_bias: Vec<f32>,
        /// `r_mag`, `[latent]`: logarithms of the scales of the encoder's columns.
        log_scale: Vec<f32>,
    },
    /// Matching pursuit: repeatedly selects the latent whose decoder row has the largest dot product with the residual,
    /// and subtracts the latent's contribution from the residual.
    MatchingPursuit {
        /// Norm of the residual below which iteration stops.
        residual_threshold: f32,
        /// Maximum number of iterations.
        max_iterations: usize,
        /// Whether iteration stops when a step selects no new latent.
        until_repeated: bool,
    },
}

impl Architecture {
    /// SAELens's name of the architecture.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Architecture::Standard => "standard",
            Architecture::JumpRelu { .. } => "jumprelu",
            Architecture::TopK { .. } => "topk",
            Architecture::AbsTopK { .. } => "abstopk",
            Architecture::GroupMax { .. } => "groupmax",
            Architecture::Gated { .. } => "gated",
            Architecture::MatchingPursuit { .. } => "matching_pursuit",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Architecture::TopK { k } | Architecture::AbsTopK { k } | Architecture::GroupMax { k } => {
                write!(f, " (k {k})")
            }
            _ => Ok(()),
        }
    }
}
