//! The configuration of a transformer: its architecture as independent choices, one field each.
//!
//! ```
//! use hooklens::prelude::*;
//! use hooklens::{ActivationFn, NormKind, Positional, RopeScaling, Rotary};
//! // A small model of Llama's kind.
//! let rotary = Rotary { dim: 16, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None };
//! let config = TransformerConfig {
//!     norm: NormKind::Rms,
//!     positional: Positional::Rotary(rotary),
//!     activation: ActivationFn::Silu,
//!     gated_mlp: true,
//!     n_kv_heads: 2,
//!     ..TransformerConfig::new(2, 64, 4, 100, 32)
//! };
//! let model = HookedTransformer::random(config, 0, &Device::flex())?;
//! assert_eq!(model.record([1, 2, 3], "k0")?.get(hook::k(0))?.dims(), [1, 3, 2, 16]);
//! # Ok::<(), hooklens::Error>(())
//! ```

mod activation_fn;
mod error;
mod experts;
mod gated_delta;
mod growing_rotation;
mod latent;
mod mixer;
mod norm_kind;
mod per_layer_inputs;
mod positional;
mod qk_norm;
mod query_growth;
mod rotary;
mod short_conv;
mod state_space;
mod transformer;
mod validate;
mod window;

pub use activation_fn::ActivationFn;
pub use error::ConfigError;
pub use experts::{AttnExperts, ClippedGate, ExpertGroups, Experts, RouterFn, SharedExpert};
pub use gated_delta::GatedDelta;
pub(crate) use growing_rotation::Threshold;
pub use latent::Latent;
pub use mixer::Mixer;
pub use norm_kind::NormKind;
pub use per_layer_inputs::PerLayerInputs;
pub use positional::Positional;
pub use qk_norm::{QkNorm, QkNormWeights};
pub use query_growth::QueryGrowth;
pub use rotary::{RopeScaling, Rotary};
pub use short_conv::ShortConv;
pub use state_space::StateSpace;
pub use transformer::TransformerConfig;
pub use window::Window;
