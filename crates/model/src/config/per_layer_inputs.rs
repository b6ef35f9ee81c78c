//! Vectors of tokens that each layer has of its own.

use serde::{Deserialize, Serialize};

/// A second, narrow embedding with a vector for each token and layer (Gemma 4's small models).
///
/// A layer's input is the sum of its token's vector and of what a linear map makes of the embedding, normalized, over
/// the root of two. Behind the MLP the stream is taken to as many coordinates, through the activation function, times
/// the input, and back to the stream, normalized.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{NormKind, PerLayerInputs};
/// let config = TransformerConfig {
///     norm: NormKind::Rms,
///     per_layer_inputs: Some(PerLayerInputs { width: 6 }),
///     ..TransformerConfig::new(2, 32, 4, 100, 32)
/// };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.1.*per_layer*")?;
/// assert_eq!(cache.get(hook::per_layer_input(1))?.dims(), [1, 3, 6]);
/// assert_eq!(cache.get(hook::per_layer_out(1))?.dims(), [1, 3, 32]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerLayerInputs {
    /// Coordinates of one layer's vector.
    pub width: usize,
}
