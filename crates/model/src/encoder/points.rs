//! Hook points of an encoder.

use super::config::EncoderConfig;
use super::weights::OutputHeads;
use crate::config::{NormKind, Positional};
use crate::points::{Outer, Points, PointsBuilder, Site};

/// Points of attention, in firing order.
const ATTENTION: &[Site] = &[
    Site::Q,
    Site::K,
    Site::V,
    Site::RotQ,
    Site::RotK,
    Site::AttnScores,
    Site::Pattern,
    Site::Z,
    Site::Result,
    Site::AttnOut,
    Site::ResidMid,
    Site::MlpIn,
];
/// Points of the MLP.
const MLP: &[Site] =
    &[Site::MlpReads, Site::Pre, Site::PreLinear, Site::Post, Site::MlpWrites, Site::MlpOut, Site::ResidPost];

/// Points of a block, in firing order.
fn block(pre_norms: bool) -> Vec<Site> {
    let (ln1, ln2) = ([Site::Ln1Scale, Site::Ln1Normalized], [Site::Ln2Scale, Site::Ln2Normalized]);
    let reads = [Site::ResidPre, Site::QInput, Site::KInput, Site::VInput];
    let last = [Site::NormalizedResidPost];
    match pre_norms {
        true => [&reads[..], &ln1, ATTENTION, &ln2, MLP, &last].concat(),
        false => [&reads[..], ATTENTION, &ln1, MLP, &ln2, &last].concat(),
    }
}

/// Hook points of an encoder with these output heads.
pub(super) fn points_of(config: &EncoderConfig, heads: OutputHeads) -> Points {
    let mut points = PointsBuilder::new(config.n_layers, "norms keep their weights");
    for outer in
        [Outer::TokenEmbed, Outer::PositionEmbed, Outer::TokenTypeEmbed, Outer::EmbedLnScale, Outer::EmbedLnNormalized]
    {
        match config.d_embed {
            Some(_) => points.narrow_outer(outer, why_not(config, heads, outer)),
            None => points.outer(outer, why_not(config, heads, outer)),
        }
    }
    points.outer(Outer::FullEmbed, None);
    let stack = points.stack(config.n_layers);
    let sites = block(config.pre_norms);
    for layer in 0..config.n_layers {
        for site in &sites {
            let info = site.info(&format!("blocks.{layer}"), layer);
            points.site(stack, layer, *site, info, why_not_in_block(config, layer, *site));
        }
    }
    for outer in [Outer::FinalScale, Outer::FinalNormalized] {
        points.outer(
            outer,
            (!config.pre_norms).then_some("the blocks normalize the residual stream, so there is no final norm"),
        );
    }
    for outer in [Outer::MlmLnScale, Outer::MlmLnNormalized] {
        match config.d_embed {
            Some(_) => points.narrow_outer(outer, why_not(config, heads, outer)),
            None => points.outer(outer, why_not(config, heads, outer)),
        }
    }
    for outer in [Outer::PoolerOut, Outer::NspOut] {
        points.outer(outer, why_not(config, heads, outer));
    }
    points.build()
}

fn why_not(config: &EncoderConfig, heads: OutputHeads, point: Outer) -> Option<&'static str> {
    match point {
        Outer::TokenTypeEmbed if config.token_types == 0 => Some("the model has no token types"),
        Outer::PositionEmbed if config.positional != Positional::Learned => {
            Some("the model has no position embeddings")
        }
        Outer::EmbedLnScale | Outer::EmbedLnNormalized if !config.embed_norm => Some("the embedding has no norm"),
        Outer::MlmLnScale | Outer::MlmLnNormalized if !heads.mlm => {
            Some("the model's files contain no masked-token head")
        }
        Outer::PoolerOut if !heads.pooler => Some("the model's files contain no pooler"),
        Outer::NspOut if !heads.nsp => Some("the model's files contain no next-sentence head"),
        _ => None,
    }
}

/// Reason why hooks at `site` can't fire in layer `layer`, or `None` if they can.
fn why_not_in_block(config: &EncoderConfig, layer: usize, site: Site) -> Option<&'static str> {
    let rotates = match &config.positional {
        Positional::Rotary(_) => config.layer_rotary.is_empty() || config.layer_rotary[layer].is_some(),
        _ => false,
    };
    match site {
        Site::RotQ | Site::RotK if !rotates => Some("the layer has no rotary embedding"),
        Site::Ln1Scale | Site::Ln1Normalized if config.attn_norm(layer) == NormKind::None => {
            Some("the first layer's attention has no norm")
        }
        Site::PreLinear if !config.gated_mlp => Some("the MLP is not gated"),
        Site::NormalizedResidPost if config.pre_norms => {
            Some("the residual stream is not normalized between blocks; the final norm is ln_final.hook_normalized")
        }
        _ => None,
    }
}
