//! The points an encoder with a decoder can fire, in TransformerLens's names, shapes and order.

use std::sync::Arc;

use hooklens_hooks::{Axis, Catalog, CatalogBuilder, PointId, PointInfo};

use super::config::EncoderDecoderConfig;
use crate::model::{HEAD_STREAM, NEURONS, NO_SITES, PER_HEAD, Points, Row, SCALE, SCORES, STREAM, Site, SiteIds};

/// Keys and values of the encoder's positions.
const PER_KEY: &[Axis] = &[Axis::Batch, Axis::Key, Axis::KvHead, Axis::DHead];

/// Attention of a block, in the encoder as in the decoder.
const ATTENTION: &[Row] = &[
    Row(Site::ResidPre, "hook_resid_pre", STREAM),
    Row(Site::AttnIn, "hook_attn_in", HEAD_STREAM),
    Row(Site::QInput, "hook_q_input", HEAD_STREAM),
    Row(Site::KInput, "hook_k_input", HEAD_STREAM),
    Row(Site::VInput, "hook_v_input", HEAD_STREAM),
    Row(Site::Ln1Scale, "ln1.hook_scale", SCALE),
    Row(Site::Ln1Normalized, "ln1.hook_normalized", STREAM),
    Row(Site::Q, "attn.hook_q", PER_HEAD),
    Row(Site::K, "attn.hook_k", PER_HEAD),
    Row(Site::V, "attn.hook_v", PER_HEAD),
    Row(Site::AttnScores, "attn.hook_attn_scores", SCORES),
    Row(Site::Pattern, "attn.hook_pattern", SCORES),
    Row(Site::Z, "attn.hook_z", PER_HEAD),
    Row(Site::Result, "attn.hook_result", HEAD_STREAM),
    Row(Site::AttnOut, "hook_attn_out", STREAM),
    Row(Site::ResidMid, "hook_resid_mid", STREAM),
];

const ENCODER_MLP: &[Row] = &[
    Row(Site::MlpIn, "hook_mlp_in", STREAM),
    Row(Site::Ln2Scale, "ln2.hook_scale", SCALE),
    Row(Site::Ln2Normalized, "ln2.hook_normalized", STREAM),
];

const CROSS_IN: &[Row] = &[
    Row(Site::CrossAttnIn, "hook_cross_attn_in", STREAM),
    Row(Site::Ln2Scale, "ln2.hook_scale", SCALE),
    Row(Site::Ln2Normalized, "ln2.hook_normalized", STREAM),
];

const CROSS: &[Row] = &[
    Row(Site::Q, "cross_attn.hook_q", PER_HEAD),
    Row(Site::K, "cross_attn.hook_k", PER_KEY),
    Row(Site::V, "cross_attn.hook_v", PER_KEY),
    Row(Site::AttnScores, "cross_attn.hook_attn_scores", SCORES),
    Row(Site::Pattern, "cross_attn.hook_pattern", SCORES),
    Row(Site::Z, "cross_attn.hook_z", PER_HEAD),
    Row(Site::Result, "cross_attn.hook_result", HEAD_STREAM),
];

const DECODER_MLP: &[Row] = &[
    Row(Site::CrossAttnOut, "hook_cross_attn_out", STREAM),
    Row(Site::ResidMidCross, "hook_resid_mid_cross", STREAM),
    Row(Site::MlpIn, "hook_mlp_in", STREAM),
    Row(Site::Ln3Scale, "ln3.hook_scale", SCALE),
    Row(Site::Ln3Normalized, "ln3.hook_normalized", STREAM),
];

const MLP: &[Row] = &[
    Row(Site::Pre, "mlp.hook_pre", NEURONS),
    Row(Site::PreLinear, "mlp.hook_pre_linear", NEURONS),
    Row(Site::Post, "mlp.hook_post", NEURONS),
    Row(Site::MlpOut, "hook_mlp_out", STREAM),
    Row(Site::ResidPost, "hook_resid_post", STREAM),
];

/// The catalogue of a model, and the way from a place in its forward pass to a point.
#[derive(Debug)]
pub(super) struct EncoderDecoderPoints {
    pub(super) catalog: Arc<Catalog>,
    pub(super) encoder: Points,
    pub(super) decoder: Points,
    /// Attention of the decoder's layers to the encoder.
    pub(super) cross: Points,
    pub(super) embed: Option<PointId>,
    /// Scale and result of each stack's last norm.
    pub(super) encoder_ln: [Option<PointId>; 2],
    pub(super) decoder_ln: [Option<PointId>; 2],
}

impl EncoderDecoderPoints {
    pub(super) fn new(config: &EncoderDecoderConfig) -> Self {
        let mut catalog = Catalog::builder(config.n_encoder_layers.max(config.n_decoder_layers));
        catalog.note("norms keep their weights");
        let outer = |catalog: &mut CatalogBuilder, name: String, axes: &'static [Axis]| {
            Some(catalog.add(PointInfo { name: name.into(), layer: None, axes, integer: false, on_request: false }))
        };
        let last = |catalog: &mut CatalogBuilder, stack: &str| {
            let scale = outer(catalog, format!("{stack}_final_ln.hook_scale"), SCALE);
            [scale, outer(catalog, format!("{stack}_final_ln.hook_normalized"), STREAM)]
        };
        let embed = outer(&mut catalog, "hook_embed".into(), STREAM);
        let gated = config.gated_mlp;
        let add = |catalog: &mut CatalogBuilder, into: &mut SiteIds, block: &str, layer: usize, rows: &[Row]| {
            for row in rows {
                if row.0 == Site::PreLinear && !gated {
                    catalog.absent(format!("{block}.{}", row.1), "its MLP is not gated");
                } else {
                    into[row.0 as usize] = Some(row.add(catalog, block, layer));
                }
            }
        };
        let mut encoder = vec![NO_SITES; config.n_encoder_layers];
        for (layer, ids) in encoder.iter_mut().enumerate() {
            for rows in [ATTENTION, ENCODER_MLP, MLP] {
                add(&mut catalog, ids, &format!("encoder.{layer}"), layer, rows);
            }
        }
        let encoder_ln = last(&mut catalog, "encoder");
        let (mut decoder, mut cross) = (Vec::new(), Vec::new());
        for layer in 0..config.n_decoder_layers {
            let block = format!("decoder.{layer}");
            let (mut own, mut to_encoder) = (NO_SITES, NO_SITES);
            add(&mut catalog, &mut own, &block, layer, ATTENTION);
            add(&mut catalog, &mut own, &block, layer, CROSS_IN);
            add(&mut catalog, &mut to_encoder, &block, layer, CROSS);
            add(&mut catalog, &mut own, &block, layer, DECODER_MLP);
            add(&mut catalog, &mut own, &block, layer, MLP);
            decoder.push(own);
            cross.push(to_encoder);
        }
        let decoder_ln = last(&mut catalog, "decoder");
        let catalog = Arc::new(catalog.build());
        let [encoder, decoder, cross] = [encoder, decoder, cross].map(|sites| Points::of_stack(&catalog, sites));
        Self { catalog, encoder, decoder, cross, embed, encoder_ln, decoder_ln }
    }
}

/// Whether a point belongs to the encoder.
pub(super) fn of_encoder(point: &PointInfo) -> bool {
    point.name.starts_with("encoder") || &*point.name == "hook_embed"
}
