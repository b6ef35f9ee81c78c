//! The points a configuration can fire, in TransformerLens's names, shapes and order.

use std::sync::Arc;

use hooklens_hooks::{Axis, Catalog, CatalogBuilder, PointId, PointInfo};

use crate::config::{ActivationFn, NormKind, Positional, TransformerConfig};

use Axis::{
    Batch, BatchPos, BatchPosHead, Choice, DHead, DMlp, DModel, Expert, Head, HeadDHead, Key, KvHead, One, Pos, Query,
    Routed,
};

pub(crate) const STREAM: &[Axis] = &[Batch, Pos, DModel];
pub(crate) const SCALE: &[Axis] = &[Batch, Pos, One];
pub(crate) const NEURONS: &[Axis] = &[Batch, Pos, DMlp];
pub(crate) const PER_HEAD: &[Axis] = &[Batch, Pos, Head, DHead];
const PER_KV_HEAD: &[Axis] = &[Batch, Pos, KvHead, DHead];
pub(crate) const HEAD_STREAM: &[Axis] = &[Batch, Pos, Head, DModel];
const KV_HEAD_STREAM: &[Axis] = &[Batch, Pos, KvHead, DModel];
pub(crate) const SCORES: &[Axis] = &[Batch, Head, Query, Key];
const HEAD_ROWS: &[Axis] = &[BatchPosHead, DHead];
const HEAD_ROWS_SCALE: &[Axis] = &[BatchPosHead, One];
const WHOLE_ROWS: &[Axis] = &[BatchPos, HeadDHead];
const WHOLE_ROWS_SCALE: &[Axis] = &[BatchPos, One];

/// No points.
pub(crate) const NO_SITES: SiteIds = [None; SITES];

/// Points outside the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outer {
    Tokens,
    EmbedLnScale,
    EmbedLnNormalized,
    Embed,
    PosEmbed,
    FinalScale,
    FinalNormalized,
}

/// Points of one block, in firing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    ResidPre,
    AttnIn,
    QInput,
    KInput,
    VInput,
    Ln1Scale,
    Ln1Normalized,
    Q,
    K,
    V,
    QNormScale,
    QNormNormalized,
    KNormScale,
    KNormNormalized,
    RotQ,
    RotK,
    AttnScores,
    Pattern,
    Z,
    Result,
    Ln1PostScale,
    Ln1PostNormalized,
    AttnOut,
    ResidMid,
    MlpIn,
    Ln2Scale,
    Ln2Normalized,
    Pre,
    PreLinear,
    Mid,
    MlpLnScale,
    MlpLnNormalized,
    Post,
    ExpertWeights,
    ExpertIndices,
    Ln2PostScale,
    Ln2PostNormalized,
    MlpOut,
    ResidPost,
    // Of encoders, whose stream is normalised after each addition.
    NormalizedResidPost,
    // Of decoders that attend to an encoder.
    CrossAttnIn,
    CrossAttnOut,
    ResidMidCross,
    Ln3Scale,
    Ln3Normalized,
}

const SITES: usize = Site::Ln3Normalized as usize + 1;

/// The points of one block, by site.
pub(crate) type SiteIds = [Option<PointId>; SITES];

/// A point of a block: its site, its name behind the block's and its axes.
#[derive(Debug)]
pub(crate) struct Row(pub(crate) Site, pub(crate) &'static str, pub(crate) &'static [Axis]);

impl Row {
    /// Adds the point of block `layer`, whose points' names begin with `block`.
    pub(crate) fn add(&self, catalog: &mut CatalogBuilder, block: &str, layer: usize) -> PointId {
        let Row(site, suffix, axes) = self;
        catalog.add(PointInfo {
            name: format!("{block}.{suffix}").into(),
            layer: Some(layer),
            axes,
            integer: *site == Site::ExpertIndices,
            on_request: matches!(
                site,
                Site::AttnIn
                    | Site::QInput
                    | Site::KInput
                    | Site::VInput
                    | Site::Result
                    | Site::MlpIn
                    | Site::CrossAttnIn
            ),
        })
    }
}

/// Every block point: its name after `blocks.{layer}.` and its axes.
const BLOCK: &[Row] = &[
    Row(Site::ResidPre, "hook_resid_pre", STREAM),
    Row(Site::AttnIn, "hook_attn_in", HEAD_STREAM),
    Row(Site::QInput, "hook_q_input", HEAD_STREAM),
    Row(Site::KInput, "hook_k_input", KV_HEAD_STREAM),
    Row(Site::VInput, "hook_v_input", KV_HEAD_STREAM),
    Row(Site::Ln1Scale, "ln1.hook_scale", SCALE),
    Row(Site::Ln1Normalized, "ln1.hook_normalized", STREAM),
    Row(Site::Q, "attn.hook_q", PER_HEAD),
    Row(Site::K, "attn.hook_k", PER_KV_HEAD),
    Row(Site::V, "attn.hook_v", PER_KV_HEAD),
    Row(Site::QNormScale, "attn.q_norm.hook_scale", HEAD_ROWS_SCALE),
    Row(Site::QNormNormalized, "attn.q_norm.hook_normalized", HEAD_ROWS),
    Row(Site::KNormScale, "attn.k_norm.hook_scale", HEAD_ROWS_SCALE),
    Row(Site::KNormNormalized, "attn.k_norm.hook_normalized", HEAD_ROWS),
    Row(Site::RotQ, "attn.hook_rot_q", PER_HEAD),
    Row(Site::RotK, "attn.hook_rot_k", PER_KV_HEAD),
    Row(Site::AttnScores, "attn.hook_attn_scores", SCORES),
    Row(Site::Pattern, "attn.hook_pattern", SCORES),
    Row(Site::Z, "attn.hook_z", PER_HEAD),
    Row(Site::Result, "attn.hook_result", HEAD_STREAM),
    Row(Site::Ln1PostScale, "ln1_post.hook_scale", SCALE),
    Row(Site::Ln1PostNormalized, "ln1_post.hook_normalized", STREAM),
    Row(Site::AttnOut, "hook_attn_out", STREAM),
    Row(Site::ResidMid, "hook_resid_mid", STREAM),
    Row(Site::MlpIn, "hook_mlp_in", STREAM),
    Row(Site::Ln2Scale, "ln2.hook_scale", SCALE),
    Row(Site::Ln2Normalized, "ln2.hook_normalized", STREAM),
    Row(Site::Pre, "mlp.hook_pre", NEURONS),
    Row(Site::PreLinear, "mlp.hook_pre_linear", NEURONS),
    Row(Site::Mid, "mlp.hook_mid", NEURONS),
    Row(Site::MlpLnScale, "mlp.ln.hook_scale", SCALE),
    Row(Site::MlpLnNormalized, "mlp.ln.hook_normalized", NEURONS),
    Row(Site::Post, "mlp.hook_post", NEURONS),
    Row(Site::ExpertWeights, "mlp.hook_expert_weights", &[BatchPos, Expert]),
    Row(Site::ExpertIndices, "mlp.hook_expert_indices", &[BatchPos, Choice]),
    Row(Site::Ln2PostScale, "ln2_post.hook_scale", SCALE),
    Row(Site::Ln2PostNormalized, "ln2_post.hook_normalized", STREAM),
    Row(Site::MlpOut, "hook_mlp_out", STREAM),
    Row(Site::ResidPost, "hook_resid_post", STREAM),
];

const EXPERT: [&str; 3] = ["hook_gate", "hook_pre", "hook_post"];

/// Points of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertPoints {
    pub(crate) gate: Option<PointId>,
    pub(crate) pre: Option<PointId>,
    pub(crate) post: Option<PointId>,
}

/// The catalogue of a model, and the way from a place in its forward pass to a point.
#[derive(Debug, Clone)]
pub(crate) struct Points {
    pub(crate) catalog: Arc<Catalog>,
    outer: [Option<PointId>; 7],
    /// One row of sites a layer.
    sites: Vec<SiteIds>,
    experts: Vec<Vec<ExpertPoints>>,
}

impl Points {
    /// The point at `site` of block `layer`, if this model fires it.
    #[inline]
    pub(crate) fn at(&self, layer: usize, site: Site) -> Option<PointId> {
        self.sites[layer][site as usize]
    }

    /// The point `outer`, if this model fires it.
    #[inline]
    pub(crate) fn outer(&self, outer: Outer) -> Option<PointId> {
        self.outer[outer as usize]
    }

    /// The points of one expert of block `layer`.
    pub(crate) fn expert(&self, layer: usize, expert: usize) -> ExpertPoints {
        self.experts[layer][expert]
    }

    /// The blocks of a stack whose points are in a catalogue already.
    pub(crate) fn of_stack(catalog: &Arc<Catalog>, sites: Vec<SiteIds>) -> Self {
        Self { catalog: catalog.clone(), outer: [None; 7], sites, experts: Vec::new() }
    }

    /// Lists what a model of this configuration can fire.
    pub(crate) fn new(config: &TransformerConfig) -> Self {
        let mut catalog = Catalog::builder(config.n_layers);
        catalog.note(match config.norm {
            NormKind::LayerNormPre | NormKind::RmsPre => "norms are folded into the weights behind them",
            _ => "norms keep their weights",
        });
        let mut outer = [None; 7];
        for (point, name, axes) in [
            (Outer::Tokens, "hook_tokens", &[Batch, Pos][..]),
            (Outer::EmbedLnScale, "embed.ln.hook_scale", SCALE),
            (Outer::EmbedLnNormalized, "embed.ln.hook_normalized", STREAM),
            (Outer::Embed, "hook_embed", STREAM),
            (Outer::PosEmbed, "hook_pos_embed", STREAM),
        ] {
            outer[point as usize] = add_outer(&mut catalog, config, point, name, axes);
        }
        let mut sites = Vec::new();
        let mut experts = Vec::new();
        for layer in 0..config.n_layers {
            let mut row = [None; SITES];
            let mut of_layer = Vec::new();
            for Row(site, suffix, axes) in BLOCK {
                let block = format!("blocks.{layer}");
                let axes = match *axes {
                    HEAD_ROWS if config.qk_norm_whole => WHOLE_ROWS,
                    HEAD_ROWS_SCALE if config.qk_norm_whole => WHOLE_ROWS_SCALE,
                    axes => axes,
                };
                match why_not(config, layer, *site) {
                    Some(reason) => catalog.absent(format!("{block}.{suffix}"), reason),
                    None => row[*site as usize] = Some(Row(*site, suffix, axes).add(&mut catalog, &block, layer)),
                }
                if *site == Site::ExpertIndices && config.experts.is_some() && !config.attn_only {
                    of_layer = add_experts(&mut catalog, config, layer);
                }
            }
            sites.push(row);
            experts.push(of_layer);
        }
        for (point, name, axes) in [
            (Outer::FinalScale, "ln_final.hook_scale", SCALE),
            (Outer::FinalNormalized, "ln_final.hook_normalized", STREAM),
        ] {
            outer[point as usize] = add_outer(&mut catalog, config, point, name, axes);
        }
        Self { catalog: Arc::new(catalog.build()), outer, sites, experts }
    }
}

fn add_outer(
    catalog: &mut CatalogBuilder,
    config: &TransformerConfig,
    point: Outer,
    name: &str,
    axes: &'static [Axis],
) -> Option<PointId> {
    let learned = matches!(config.positional, Positional::Learned | Positional::Shortformer);
    let reason = match point {
        Outer::EmbedLnScale | Outer::EmbedLnNormalized if !config.post_embedding_norm => {
            Some("its embedding has no norm")
        }
        Outer::PosEmbed if !learned => Some("it has no position vectors"),
        Outer::FinalScale | Outer::FinalNormalized if config.final_norm() == NormKind::None => Some("it has no norms"),
        _ => None,
    };
    if let Some(reason) = reason {
        catalog.absent(name, reason);
        return None;
    }
    let tokens = point == Outer::Tokens;
    Some(catalog.add(PointInfo { name: name.into(), layer: None, axes, integer: tokens, on_request: tokens }))
}

fn add_experts(catalog: &mut CatalogBuilder, config: &TransformerConfig, layer: usize) -> Vec<ExpertPoints> {
    let count = config.experts.map_or(0, |e| e.count);
    let one = |expert: usize| {
        let mut ids = EXPERT.map(|suffix| {
            Some(catalog.add(PointInfo {
                name: format!("blocks.{layer}.mlp.experts.{expert}.{suffix}").into(),
                layer: Some(layer),
                axes: &[Routed, DMlp],
                integer: false,
                on_request: false,
            }))
        });
        ExpertPoints { gate: ids[0].take(), pre: ids[1].take(), post: ids[2].take() }
    };
    (0..count).map(one).collect()
}

/// Why a model of this configuration can't fire the site, or `None` if it can.
fn why_not(config: &TransformerConfig, layer: usize, site: Site) -> Option<&'static str> {
    let rotary = config.rotary(layer).is_some();
    let norms = config.norm != NormKind::None;
    let moe = config.experts.is_some();
    match site {
        Site::AttnIn if config.n_kv_heads != config.n_heads => Some(
            "grouped-query attention shares keys and values between heads; use hook_q_input, hook_k_input, hook_v_input",
        ),
        Site::Ln1Scale | Site::Ln1Normalized if !norms => Some("it has no norms"),
        Site::Ln1Scale | Site::Ln1Normalized if !config.pre_norms => Some("it normalises outputs only"),
        Site::QNormScale | Site::QNormNormalized | Site::KNormScale | Site::KNormNormalized if !config.qk_norm => {
            Some("it does not normalise queries and keys")
        }
        Site::RotQ | Site::RotK if !rotary => match config.positional {
            Positional::Rotary(_) => Some("this layer rotates nothing"),
            _ => Some("its positions are not rotary"),
        },
        Site::Ln1PostScale | Site::Ln1PostNormalized if !config.post_norms => {
            Some("it does not normalise attention's output")
        }
        Site::ResidMid if config.attn_only => Some("it has no MLP"),
        Site::ResidMid if config.parallel => {
            Some("attention and the MLP run in parallel: there is no stream between them")
        }
        Site::MlpIn
        | Site::Ln2Scale
        | Site::Ln2Normalized
        | Site::Pre
        | Site::PreLinear
        | Site::Mid
        | Site::MlpLnScale
        | Site::MlpLnNormalized
        | Site::Post
        | Site::ExpertWeights
        | Site::ExpertIndices
        | Site::Ln2PostScale
        | Site::Ln2PostNormalized
        | Site::MlpOut
            if config.attn_only =>
        {
            Some("it has no MLP")
        }
        Site::Ln2Scale | Site::Ln2Normalized if !norms => Some("it has no norms"),
        Site::Ln2Scale | Site::Ln2Normalized if !config.pre_norms => Some("it normalises outputs only"),
        Site::Pre | Site::PreLinear | Site::Post if moe => {
            Some("its MLP is a mixture; use mlp.experts.N.hook_gate, hook_pre and hook_post")
        }
        Site::PreLinear if !config.gated_mlp => Some("its MLP is not gated"),
        Site::Mid | Site::MlpLnScale | Site::MlpLnNormalized if config.activation != ActivationFn::SoluLn => {
            Some("its activation function has no norm")
        }
        Site::ExpertWeights | Site::ExpertIndices if !moe => Some("its MLP is not a mixture of experts"),
        Site::Ln2PostScale | Site::Ln2PostNormalized if !config.post_norms => {
            Some("it does not normalise the MLP's output")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table row out of place would send a tensor to another point's hooks.
    #[test]
    fn the_table_lists_sites_in_their_order() {
        for (place, Row(site, ..)) in BLOCK.iter().enumerate() {
            assert_eq!(*site as usize, place, "{site:?}");
        }
    }
}
