//! Short convolution settings.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::mixer::check_sizes;

/// A gated short convolution that replaces attention (LFM2).
///
/// The residual stream is projected to `B`, `C`, and `x`, each of width `d_model`. At each position `y = C * conv(B *
/// x)`, with a depthwise causal convolution over `width` positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConv {
    /// Kernel width of the convolution, including the current position; at least two.
    pub width: usize,
}

impl ShortConv {
    /// Checks the size for the mixer of layer `layer`.
    pub(super) fn check(self, layer: usize) -> Result<(), ConfigError> {
        check_sizes("short convolution", layer, &[], self.width)
    }
}
