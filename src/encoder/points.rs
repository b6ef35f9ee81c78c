//! The points an encoder can fire, in TransformerLens's names, shapes and order.

use std::sync::Arc;

use hooklens_hooks::{Axis, Catalog, CatalogBuilder, PointId, PointInfo};

use super::config::EncoderConfig;
use super::weights::Heads;
use crate::model::{HEAD_STREAM, NEURONS, NO_SITES, PER_HEAD, Points, Row, SCALE, SCORES, STREAM, Site};

const BLOCK: &[Row] = &[
    Row(Site::ResidPre, "hook_resid_pre", STREAM),
    Row(Site::QInput, "hook_q_input", HEAD_STREAM),
    Row(Site::KInput, "hook_k_input", HEAD_STREAM),
    Row(Site::VInput, "hook_v_input", HEAD_STREAM),
    Row(Site::Q, "attn.hook_q", PER_HEAD),
    Row(Site::K, "attn.hook_k", PER_HEAD),
    Row(Site::V, "attn.hook_v", PER_HEAD),
    Row(Site::AttnScores, "attn.hook_attn_scores", SCORES),
    Row(Site::Pattern, "attn.hook_pattern", SCORES),
    Row(Site::Z, "attn.hook_z", PER_HEAD),
    Row(Site::Result, "attn.hook_result", HEAD_STREAM),
    Row(Site::AttnOut, "hook_attn_out", STREAM),
    Row(Site::ResidMid, "hook_resid_mid", STREAM),
    Row(Site::MlpIn, "hook_mlp_in", STREAM),
    Row(Site::Ln1Scale, "ln1.hook_scale", SCALE),
    Row(Site::Ln1Normalized, "ln1.hook_normalized", STREAM),
    Row(Site::Pre, "mlp.hook_pre", NEURONS),
    Row(Site::Post, "mlp.hook_post", NEURONS),
    Row(Site::MlpOut, "hook_mlp_out", STREAM),
    Row(Site::ResidPost, "hook_resid_post", STREAM),
    Row(Site::Ln2Scale, "ln2.hook_scale", SCALE),
    Row(Site::Ln2Normalized, "ln2.hook_normalized", STREAM),
    Row(Site::NormalizedResidPost, "hook_normalized_resid_post", STREAM),
];

/// Points outside the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outer {
    Embed,
    PosEmbed,
    TokenTypeEmbed,
    EmbedLnScale,
    EmbedLnNormalized,
    FullEmbed,
    MlmLnScale,
    MlmLnNormalized,
    PoolerOut,
    NspOut,
}

/// Their names and axes.
const OUTER: &[(Outer, &str, &[Axis])] = &[
    (Outer::Embed, "embed.hook_embed", STREAM),
    (Outer::PosEmbed, "embed.hook_pos_embed", STREAM),
    (Outer::TokenTypeEmbed, "embed.hook_token_type_embed", STREAM),
    (Outer::EmbedLnScale, "embed.ln.hook_scale", SCALE),
    (Outer::EmbedLnNormalized, "embed.ln.hook_normalized", STREAM),
    (Outer::FullEmbed, "hook_full_embed", STREAM),
    (Outer::MlmLnScale, "mlm_head.ln.hook_scale", SCALE),
    (Outer::MlmLnNormalized, "mlm_head.ln.hook_normalized", STREAM),
    (Outer::PoolerOut, "pooler.hook_pooler_out", &[Axis::Batch, Axis::DModel]),
    (Outer::NspOut, "nsp_head.hook_nsp_out", &[Axis::Batch, Axis::Choice]),
];

/// The catalogue of an encoder, and the way from a place in its forward pass to a point.
#[derive(Debug)]
pub(super) struct EncoderPoints {
    pub(super) catalog: Arc<Catalog>,
    pub(super) blocks: Points,
    outer: [Option<PointId>; OUTER.len()],
}

impl EncoderPoints {
    /// Lists what an encoder with these heads can fire.
    pub(super) fn new(config: &EncoderConfig, heads: Heads) -> Self {
        let mut catalog = Catalog::builder(config.n_layers);
        catalog.note("norms keep their weights");
        let mut outer = [None; OUTER.len()];
        let mut add = |catalog: &mut CatalogBuilder, from: Outer, to: Outer| {
            for (place, name, axes) in
                OUTER.iter().filter(|(p, ..)| (from as usize..=to as usize).contains(&(*p as usize)))
            {
                match why_not(config, heads, *place) {
                    Some(reason) => catalog.absent(*name, reason),
                    None => {
                        let name = (*name).into();
                        let info = PointInfo { name, layer: None, axes, integer: false, on_request: false };
                        outer[*place as usize] = Some(catalog.add(info));
                    }
                }
            }
        };
        add(&mut catalog, Outer::Embed, Outer::FullEmbed);
        let mut sites = Vec::new();
        for layer in 0..config.n_layers {
            let mut block = NO_SITES;
            for row in BLOCK {
                block[row.0 as usize] = Some(row.add(&mut catalog, &format!("blocks.{layer}"), layer));
            }
            sites.push(block);
        }
        add(&mut catalog, Outer::MlmLnScale, Outer::NspOut);
        let catalog = Arc::new(catalog.build());
        Self { blocks: Points::of_stack(&catalog, sites), catalog, outer }
    }

    /// The point `outer`, if this model fires it.
    pub(super) fn outer(&self, outer: Outer) -> Option<PointId> {
        self.outer[outer as usize]
    }
}

fn why_not(config: &EncoderConfig, heads: Heads, point: Outer) -> Option<&'static str> {
    match point {
        Outer::TokenTypeEmbed if config.token_types == 0 => Some("it makes no difference between kinds of token"),
        Outer::MlmLnScale | Outer::MlmLnNormalized if !heads.mlm => Some("its files have no masked-token head"),
        Outer::PoolerOut if !heads.pooler => Some("its files have no pooler"),
        Outer::NspOut if !heads.nsp => Some("its files have no next-sentence head"),
        _ => None,
    }
}
