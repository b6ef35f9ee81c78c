//! The hook points an encoder fires.

use super::config::EncoderConfig;
use super::weights::OutputHeads;
use crate::points::{Outer, Points, PointsBuilder, Site};

/// The points of a block, in firing order.
const BLOCK: &[Site] = &[
    Site::ResidPre,
    Site::QInput,
    Site::KInput,
    Site::VInput,
    Site::Q,
    Site::K,
    Site::V,
    Site::AttnScores,
    Site::Pattern,
    Site::Z,
    Site::Result,
    Site::AttnOut,
    Site::ResidMid,
    Site::MlpIn,
    Site::Ln1Scale,
    Site::Ln1Normalized,
    Site::MlpReads,
    Site::Pre,
    Site::Post,
    Site::MlpWrites,
    Site::MlpOut,
    Site::ResidPost,
    Site::Ln2Scale,
    Site::Ln2Normalized,
    Site::NormalizedResidPost,
];

/// The points of an encoder with these heads.
pub(super) fn points_of(config: &EncoderConfig, heads: OutputHeads) -> Points {
    let mut points = PointsBuilder::new(config.n_layers, "norms keep their weights");
    for outer in [
        Outer::TokenEmbed,
        Outer::PositionEmbed,
        Outer::TokenTypeEmbed,
        Outer::EmbedLnScale,
        Outer::EmbedLnNormalized,
        Outer::FullEmbed,
    ] {
        points.outer(outer, why_not(config, heads, outer));
    }
    let stack = points.stack(config.n_layers);
    for layer in 0..config.n_layers {
        for site in BLOCK {
            points.site(stack, layer, *site, site.info(&format!("blocks.{layer}"), layer), None);
        }
    }
    for outer in [Outer::MlmLnScale, Outer::MlmLnNormalized, Outer::PoolerOut, Outer::NspOut] {
        points.outer(outer, why_not(config, heads, outer));
    }
    points.build()
}

fn why_not(config: &EncoderConfig, heads: OutputHeads, point: Outer) -> Option<&'static str> {
    match point {
        Outer::TokenTypeEmbed if config.token_types == 0 => Some("it makes no difference between kinds of token"),
        Outer::MlmLnScale | Outer::MlmLnNormalized if !heads.mlm => Some("its files have no masked-token head"),
        Outer::PoolerOut if !heads.pooler => Some("its files have no pooler"),
        Outer::NspOut if !heads.nsp => Some("its files have no next-sentence head"),
        _ => None,
    }
}
