//! The configuration of a transformer, with one field per architectural choice.

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
