//! Per-layer token embeddings.

use serde::{Deserialize, Serialize};

/// Per-layer token embeddings: a second, narrow embedding with a vector per token and layer (Gemma 4's small models).
///
/// The per-layer input of a layer is the sum of the token's vector and a normalized linear projection of the main token
/// embedding, divided by √2. After the MLP, the residual stream is projected to `width`, passed through the activation
/// function, multiplied by the per-layer input, projected back to `d_model`, and normalized.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::NormKind;
/// use hooklens_model::config::{PerLayerInputs, Settings};
/// let config = TransformerConfig::new(2, 32, 4, 100, 32).with_norm(NormKind::Rms).with_per_layer_inputs(PerLayerInputs { width: 6 });
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.1.*per_layer*")?;
/// assert_eq!(cache.get(hook::per_layer_input(1))?.dims(), [1, 3, 6]);
/// assert_eq!(cache.get(hook::per_layer_out(1))?.dims(), [1, 3, 32]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerLayerInputs {
    /// Width of one layer's vector.
    pub width: usize,
}
