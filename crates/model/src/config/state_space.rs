//! Mamba 2 state space settings.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::mixer::check_sizes;

/// Sizes of a Mamba 2 mixer, whose heads keep one state matrix each instead of keys and values (Dao and Gu 2024).
///
/// At each position, a head decays its state `S` (`[d_state, d_head]`), adds the outer product of `B` and its input
/// `x`, scaled by a step `dt`, and reads the state with `C`: `S = exp(dt A) S + dt Bᵀ x; y = C S + D x`. `x`, `B`, and
/// `C` first pass through a causal convolution over `width` positions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StateSpace {
    /// Number of heads, each with its own state.
    pub n_heads: usize,
    /// Width of a head.
    pub d_head: usize,
    /// Number of head groups that share `B` and `C`.
    pub n_groups: usize,
    /// Width of `B` and `C`.
    pub d_state: usize,
    /// Kernel width of the convolution, including the current position; at least two.
    pub width: usize,
    /// Number of channel groups that `norm` normalizes separately (Nemotron-H: `n_groups`).
    #[serde(default = "one")]
    pub norm_groups: usize,
    /// Norm applied to the head outputs, before or after the gate.
    #[serde(default, skip_serializing_if = "GatedNorm::is_default")]
    pub norm: GatedNorm,
    /// Minimum step `dt`; smaller steps are clamped (Nemotron-H).
    #[serde(default)]
    pub least_step: f64,
}

/// RMS norm applied to the head outputs of a Mamba 2 mixer, and its order relative to the output gate.
///
/// ```
/// use hooklens_model::config::{GatedNorm, StateSpace};
/// let falcon = StateSpace { norm: GatedNorm::None, ..StateSpace::new(4, 8, 6) };
/// assert_ne!(falcon.norm, GatedNorm::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GatedNorm {
    /// The product of output and gate is normalized (Mamba 2).
    #[default]
    AfterGate,
    /// The output is normalized, then multiplied by the gate.
    BeforeGate,
    /// No norm (Falcon-H1).
    None,
}

impl GatedNorm {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn one() -> usize {
    1
}

impl StateSpace {
    /// Creates sizes for `n_heads` heads of width `d_head` with states `[d_state, d_head]`, and defaults for the other
    /// fields: one group, a convolution over four positions, one norm group.
    ///
    /// ```
    /// use hooklens_model::config::StateSpace;
    /// let space = StateSpace::new(4, 8, 6);
    /// assert_eq!((space.n_groups, space.width, space.norm_groups, space.least_step), (1, 4, 1, 0.0));
    /// ```
    pub fn new(n_heads: usize, d_head: usize, d_state: usize) -> Self {
        Self {
            n_heads,
            d_head,
            n_groups: 1,
            d_state,
            width: 4,
            norm_groups: 1,
            norm: GatedNorm::AfterGate,
            least_step: 0.0,
        }
    }

    /// Number of convolution channels: inputs of all heads, then `B` and `C` of all groups.
    pub fn channels(self) -> usize {
        self.n_heads * self.d_head + 2 * self.n_groups * self.d_state
    }

    /// Checks the sizes for the mixer of layer `layer`.
    pub(super) fn check(self, layer: usize) -> Result<(), ConfigError> {
        let Self { n_heads, d_head, n_groups, d_state, width, norm_groups, least_step, .. } = self;
        check_sizes("state space", layer, &[n_heads, d_head, n_groups, d_state], width)?;
        if !n_heads.is_multiple_of(n_groups) {
            let reason = format!("{n_heads} heads of layer {layer} can't be divided evenly into {n_groups} groups");
            return ConfigError::refuse("mixers", reason);
        }
        let channels = n_heads * d_head;
        if norm_groups == 0 || !channels.is_multiple_of(norm_groups) {
            let reason =
                format!("{channels} channels of layer {layer} can't be divided evenly into {norm_groups} norm groups");
            return ConfigError::refuse("mixers", reason);
        }
        if !(least_step.is_finite() && least_step >= 0.0) {
            let reason =
                format!("the minimum step of layer {layer} must be finite and non-negative (got {least_step})");
            return ConfigError::refuse("mixers", reason);
        }
        Ok(())
    }
}
