//! The transformer: one configurable block covers every model family.

mod alibi;
mod attention;
mod attention_rules;
mod attn_experts;
mod block;
mod blocks;
mod concatenate;
mod convolution;
mod decoder;
mod disentangled;
mod each_weight;
mod embedding;
mod fingerprint;
mod forward;
mod function;
mod gated_delta_net;
mod hashed;
mod identity;
mod init;
mod latent;
mod linear;
mod loss;
mod mamba2;
mod mlp;
mod moe;
mod norm;
mod output;
mod pages;
mod paging;
mod pass;
mod per_layer;
mod placed;
mod points;
mod position_bias;
mod recurrence;
mod report;
mod rotary;
mod sequence;
mod shared_keys;
mod short_convolution;
mod soft_cap;
mod stacked;
mod tokens;
mod transformer;
mod weights;

pub use attention::Attention;
pub use block::Block;
pub use decoder::DecoderModel;
pub use each_weight::Weight;
pub use gated_delta_net::GatedDeltaNet;
pub use latent::LatentMaps;
pub use linear::Linear;
pub use loss::{lm_accuracy, lm_cross_entropy_loss, lm_loss_per_token};
pub use mamba2::Mamba2;
pub use mlp::{Mlp, Slopes};
pub use moe::ExpertRun;
pub use moe::{Expert, Moe, MoeNorms, SharedMlp};
pub use norm::Norm;
pub use output::Output;
pub use pages::Pages;
pub use per_layer::{PerLayer, PerLayerEmbed};
pub use report::LoadReport;
pub use short_convolution::ShortConvolution;
pub use tokens::Occurrence;
pub use transformer::HookedTransformer;
pub use weights::{Embed, Weights};

pub(crate) use attention::{ProjectionInput, mix, raw_scores, softmax_rows};
pub(crate) use block::attention_reads;
pub(crate) use disentangled::{Disentangled, LogBuckets};
pub(crate) use embedding::{position_vectors, rows_of, token_vectors};
pub(crate) use forward::last_rows;
pub use hashed::{Hashed, hash_of};
pub(crate) use identity::Identities;
pub use init::solu_norm;
pub use norm::{NormPoints, narrowed, widened};
pub use paging::Paging;
pub(crate) use pass::Pass;
pub use placed::placed;
pub(crate) use points::points_of;
pub(crate) use position_bias::{Buckets, position_bias};
pub use rotary::RotaryTable;
pub(crate) use sequence::{Sequence, at_columns};
pub(crate) use soft_cap::soft_capped;

/// The points that a model with this configuration can fire.
pub fn catalog_of(config: &crate::config::TransformerConfig) -> std::sync::Arc<hooklens_hooks::Catalog> {
    points_of(config).catalog
}
