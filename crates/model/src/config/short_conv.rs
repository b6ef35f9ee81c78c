//! Short convolution settings.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::mixer::check_sizes;

/// A gated short convolution that replaces attention (LFM2).
///
/// The residual stream is projected to `B`, `C`, and `x`, each of width `d_model`. At each position `y = C * conv(B *
/// x)`, with a depthwise causal convolution over `width` positions.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{AttentionConfig, MixerConfig, NormKind, ShortConv};
/// let mixers = vec![MixerConfig::ShortConvolution(ShortConv { width: 3 }), MixerConfig::Attention(AttentionConfig::new(4, 8))];
/// let config = TransformerConfig::new(2, 32, 4, 100, 32).with_mixers(mixers)?.with_norm(NormKind::Rms);
/// assert_eq!((config.attends(0), config.short_conv_of(0)), (false, Some(ShortConv { width: 3 })));
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.0.conv.hook_{b,c,x,z}")?;
/// assert_eq!(cache.get::<3>("blocks.0.conv.hook_b")?.dims(), [1, 3, 32]);
/// assert_eq!(cache.get::<4>("blocks.0.conv.hook_z")?.dims(), [1, 3, 1, 32]); // stored as a single head
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConv {
    /// Kernel width of the convolution, including the current position; at least two.
    pub width: usize,
}

impl ShortConv {
    /// Checks the size, as the mixer of layer `layer`.
    pub(super) fn check(self, layer: usize) -> Result<(), ConfigError> {
        check_sizes("short convolution", layer, &[], self.width)
    }
}
