//! The configuration of a transformer: its sizes and architectural choices.
//!
//! ```
//! use hooklens::prelude::*;
//! use hooklens::{ActivationFn, NormKind, RopeScaling, Rotary};
//! // A small model with Llama's architecture.
//! let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
//! let config = TransformerConfig::new(2, 64, 4, 100, 32).with_kv_heads(2).with_gated_mlp(true).with_positional(rotary).with_norm(NormKind::Rms).with_activation(ActivationFn::Silu);
//! let model = HookedTransformer::random(config, 0, &Device::flex())?;
//! assert_eq!(model.record([1, 2, 3], "k0")?.get(hook::k(0))?.dims(), [1, 3, 2, 16]);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_model::config::{
    ActivationFn, ConfigError, NormKind, Positional, ResidualScheme, RopeScaling, Rotary, TransformerConfig, Window,
};
