//! Training objectives: the activation function and the sparsity loss.

use std::fmt;

/// An activation function and its sparsity loss. The other part of the loss is the reconstruction error `‖y − ŷ‖²`,
/// summed over the width and averaged over tokens. Inputs are scaled to a mean norm of `sqrt(d_in)` unless that is
/// turned off, and coefficients are relative to such inputs.
///
/// ```
/// use hooklens::features::Objective;
/// assert_eq!(Objective::BatchTopK { k: 32.0 }.to_string(), "batchtopk, k 32");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Objective {
    /// Keeps the `k · T` largest positive pre-activations in a batch of T tokens (Bussmann et al. 2024). Saved as
    /// JumpReLU with one threshold for all latents.
    BatchTopK {
        /// Mean number of active latents per token.
        k: f64,
    },
    /// Keeps the k largest positive pre-activations of each token (Gao et al. 2024).
    TopK {
        /// Number of active latents per token.
        k: usize,
    },
    /// BatchTopK with several prefixes of the latents, each of which must reconstruct activations on its own (Bussmann
    /// et al. 2025).
    Matryoshka {
        /// Mean number of active latents per token.
        k: f64,
        /// Widths of the prefixes, in ascending order; the total number of latents is appended.
        widths: Vec<usize>,
    },
    /// One threshold per latent, trained with straight-through gradients of width `bandwidth` (Rajamanoharan et al.
    /// 2024).
    JumpRelu {
        /// The sparsity loss.
        sparsity: JumpReluSparsity,
        /// Width of the window around a threshold in which the threshold receives gradients.
        bandwidth: f32,
        /// Initial thresholds.
        threshold: f32,
    },
    /// ReLU with the penalty `λ Σ acts · ‖W_dec row‖`.
    L1 {
        /// λ.
        coefficient: f32,
    },
    /// A gated dictionary (Rajamanoharan et al. 2024), with the penalty `λ Σ ReLU(gate) · ‖W_dec row‖` and an auxiliary
    /// loss for the reconstruction from gate activations.
    Gated {
        /// λ.
        coefficient: f32,
    },
}

/// The sparsity loss of a JumpReLU dictionary.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum JumpReluSparsity {
    /// `λ L0`.
    Step {
        /// λ.
        coefficient: f32,
    },
    /// `λ Σ tanh(c · acts · ‖W_dec row‖)`.
    Tanh {
        /// λ.
        coefficient: f32,
        /// c.
        scale: f32,
    },
    /// `λ (L0 / target − 1)²`.
    Quadratic {
        /// λ.
        coefficient: f32,
        /// Target number of active latents per token.
        target: f32,
    },
}

impl Objective {
    /// JumpReLU with this target number of active latents per token.
    pub fn jump_relu(target: f32) -> Self {
        let sparsity = JumpReluSparsity::Quadratic { coefficient: 1.0, target };
        Objective::JumpRelu { sparsity, bandwidth: 0.5, threshold: 0.1 }
    }

    /// Mean number of active latents per token, if the active latents are chosen over the whole batch.
    pub(super) fn by_batch(&self) -> Option<f64> {
        match self {
            Objective::BatchTopK { k } | Objective::Matryoshka { k, .. } => Some(*k),
            _ => None,
        }
    }

    /// Whether the number of active latents is fixed, rather than determined by a penalty.
    pub(super) fn is_top_k(&self) -> bool {
        matches!(self, Objective::TopK { .. }) || self.by_batch().is_some()
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Objective::BatchTopK { k } => write!(f, "batchtopk, k {k}"),
            Objective::TopK { k } => write!(f, "topk, k {k}"),
            Objective::Matryoshka { k, widths } => write!(f, "matryoshka, k {k}, widths {widths:?}"),
            Objective::JumpRelu { sparsity, bandwidth, threshold } => {
                match sparsity {
                    JumpReluSparsity::Step { coefficient } => write!(f, "jumprelu, L0 penalty {coefficient}")?,
                    JumpReluSparsity::Tanh { coefficient, scale } => {
                        write!(f, "jumprelu, tanh penalty {coefficient}, scale {scale}")?;
                    }
                    JumpReluSparsity::Quadratic { coefficient, target } => {
                        write!(f, "jumprelu, target L0 {target}, coefficient {coefficient}")?;
                    }
                }
                write!(f, ", bandwidth {bandwidth}, initial threshold {threshold}")
            }
            Objective::L1 { coefficient } => write!(f, "l1, coefficient {coefficient}"),
            Objective::Gated { coefficient } => write!(f, "gated, coefficient {coefficient}"),
        }
    }
}
