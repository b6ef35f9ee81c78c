//! Mixtures of experts.

use serde::{Deserialize, Serialize};

/// A mixture of experts.
///
/// ```
/// use hooklens::{Experts, TransformerConfig};
/// let experts = Experts { count: 8, per_token: 2, renormalize: true, clipped: None }; // Mixtral
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// let config = TransformerConfig { experts: Some(experts), gated_mlp: true, ..plain };
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts used for a token.
    pub per_token: usize,
    /// Whether the chosen experts' weights are made to sum to one.
    pub renormalize: bool,
    /// Bounds within which an expert's gate and input are kept, in place of the activation function.
    pub clipped: Option<ClippedGate>,
}

/// GPT-OSS's gate: `(1 + clip(in, -limit, limit)) g sigmoid(alpha g)` with `g = min(gate, limit)`.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{ClippedGate, Experts};
/// let clipped = Some(ClippedGate { alpha: 1.702, limit: 7.0 });
/// let experts = Some(Experts { count: 4, per_token: 2, renormalize: true, clipped }); // as GPT-OSS has them
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// assert_eq!(model.forward([1, 2, 3])?.dims(), [1, 3, 20]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClippedGate {
    /// Steepness of the sigmoid.
    pub alpha: f64,
    /// Largest value.
    pub limit: f64,
}
