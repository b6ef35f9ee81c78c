//! How a block adds to the residual stream.

use serde::{Deserialize, Serialize};

/// How the outputs of a block's mixer and MLP are added to the residual stream.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::ResidualScheme;
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_residual(ResidualScheme::Parallel);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let error = model.record([1, 2, 3], hook::resid_mid(0)).unwrap_err().to_string();
/// assert!(error.contains("attention and the MLP run in parallel"), "{error}");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ResidualScheme {
    /// The mixer's output is added first, and the MLP reads the sum (GPT-2, Llama). The inputs of both are normalized,
    /// except in OLMo 2. With [`with_post_norms`](super::TransformerConfig::with_post_norms), their outputs are also
    /// normalized.
    #[default]
    Sequential,
    /// The mixer and the MLP read the same residual stream (GPT-J, Pythia).
    Parallel,
    /// Post-norm blocks as in BERT: the residual stream is normalized after each addition (OPT-350M, the first GPT).
    /// Attention and the MLP read the stream directly, and `ln1` and `ln2` are applied to the sums.
    NormalizedSums,
    /// The outputs are added to the normalized inputs instead of to the residual stream (Bloom's
    /// `apply_residual_connection_post_layernorm`).
    NormalizedInputs,
}
