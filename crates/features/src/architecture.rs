//! How a dictionary goes from pre-activations to activations.

use std::fmt;

/// The activation function of a dictionary, which decides what of its encoder is trained and stored.
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
    /// `pre` where it is above the latent's threshold, else 0.
    JumpRelu {
        /// Thresholds, `[latent]`.
        thresholds: Vec<f32>,
        /// Whether it has to be above zero too, as everywhere but in circuit-tracer's sets.
        positive: bool,
    },
    /// Of each token the k largest of `ReLU(pre)`.
    TopK {
        /// Latents kept.
        k: usize,
    },
    /// Of each token the k pre-activations furthest from zero, with their signs.
    AbsTopK {
        /// Latents kept.
        k: usize,
    },
    /// Of each of k groups of equal length the largest of `ReLU(pre)`.
    GroupMax {
        /// Groups.
        k: usize,
    },
    /// `ReLU(h W_enc · exp(r_mag) + b_mag)` where `h W_enc + b_gate` is above zero.
    Gated {
        /// `b_gate`, `[latent]`.
        gate_bias: Vec<f32>,
        /// `r_mag`, `[latent]`: logarithms of what the encoder's columns are multiplied by.
        log_scale: Vec<f32>,
    },
    /// Latents are taken one by one: the one whose decoder row goes furthest along what is left, until one
    /// comes again or less than `residual_threshold` is left.
    MatchingPursuit {
        /// Norm of what may be left.
        residual_threshold: f32,
        /// Most steps.
        max_iterations: usize,
        /// Whether it ends when a step takes no new latent.
        until_repeated: bool,
    },
}

impl Architecture {
    /// SAELens's name of it.
    pub fn name(&self) -> &'static str {
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
