//! What a dictionary is trained to be: its activation function and what keeps it sparse.

use std::fmt;

/// An activation function and the part of the loss that keeps latents few. The other part is the reconstruction's:
/// `‖y − ŷ‖²`, summed over the width, mean over tokens. Inputs have a mean norm of `sqrt(d_in)` unless that is turned off,
/// and coefficients are for such.
///
/// ```
/// use hooklens::features::Objective;
/// assert_eq!(Objective::BatchTopK { k: 32.0 }.to_string(), "batchtopk, k 32");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Objective {
    /// Of a batch of T tokens the `k T` largest pre-activations above zero (Bussmann et al. 2024). Becomes JumpReLU with
    /// one threshold for all.
    BatchTopK {
        /// Mean of active latents a token.
        k: f64,
    },
    /// Of each token the k largest above zero (Gao et al. 2024).
    TopK {
        /// Active latents a token.
        k: usize,
    },
    /// BatchTopK whose first latents have to reconstruct alone, at several widths (Bussmann et al. 2025).
    Matryoshka {
        /// Mean of active latents a token.
        k: f64,
        /// Widths, rising; the number of latents is added at the end.
        widths: Vec<usize>,
    },
    /// A threshold a latent, trained by straight-through gradients of width `bandwidth` (Rajamanoharan et al. 2024).
    JumpRelu {
        /// What keeps latents few.
        sparsity: JumpReluSparsity,
        /// Width of the window around a threshold in which it gets gradients.
        bandwidth: f32,
        /// Thresholds at the beginning.
        threshold: f32,
    },
    /// `λ Σ acts · ‖W_dec row‖`, ReLU.
    L1 {
        /// λ.
        coefficient: f32,
    },
    /// Gated (Rajamanoharan et al. 2024): `λ Σ ReLU(gate) · ‖W_dec row‖`, and the gate's own reconstruction.
    Gated {
        /// λ.
        coefficient: f32,
    },
}

/// What keeps the latents of a JumpReLU dictionary few.
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
        /// Active latents a token that are aimed at.
        target: f32,
    },
}

impl Objective {
    /// JumpReLU that aims at so many active latents a token.
    pub fn jump_relu(target: f32) -> Self {
        let sparsity = JumpReluSparsity::Quadratic { coefficient: 1.0, target };
        Objective::JumpRelu { sparsity, bandwidth: 0.5, threshold: 0.1 }
    }

    /// Whether the latents of a batch are chosen together.
    pub(super) fn by_batch(&self) -> Option<f64> {
        match self {
            Objective::BatchTopK { k } | Objective::Matryoshka { k, .. } => Some(*k),
            _ => None,
        }
    }

    /// Whether the number of active latents is chosen, not brought about by a penalty.
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
                    JumpReluSparsity::Step { coefficient } => write!(f, "jumprelu, {coefficient} times L0")?,
                    JumpReluSparsity::Tanh { coefficient, scale } => {
                        write!(f, "jumprelu, {coefficient} times tanh of {scale}")?;
                    }
                    JumpReluSparsity::Quadratic { coefficient, target } => {
                        write!(f, "jumprelu, L0 {target} by {coefficient}")?;
                    }
                }
                write!(f, ", bandwidth {bandwidth}, first threshold {threshold}")
            }
            Objective::L1 { coefficient } => write!(f, "l1, coefficient {coefficient}"),
            Objective::Gated { coefficient } => write!(f, "gated, coefficient {coefficient}"),
        }
    }
}
