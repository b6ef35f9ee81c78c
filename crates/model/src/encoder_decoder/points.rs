//! Hook points of an encoder-decoder.

use hooklens_hooks::Segment;

use super::config::EncoderDecoderConfig;
use super::positions::StackPositions;
use crate::points::{Outer, Points, PointsBuilder, Site};

/// Index of the stack that holds the points of the encoder's blocks.
pub(super) const ENCODER: usize = 0;
/// Index of the stack that holds the points of the decoder's blocks, except cross-attention.
pub(super) const DECODER: usize = 1;
/// Index of the stack that holds the cross-attention points of the decoder's blocks.
pub(super) const CROSS: usize = 2;

const INPUTS: &[Site] = &[Site::ResidPre, Site::AttnIn, Site::QInput, Site::KInput, Site::VInput];
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
    Site::Ln1PostScale,
    Site::Ln1PostNormalized,
    Site::AttnOut,
    Site::ResidMid,
];
const TO_ENCODER: &[Site] = &[Site::Q, Site::K, Site::V, Site::AttnScores, Site::Pattern, Site::Z, Site::Result];
const MLP: &[Site] = &[Site::MlpReads, Site::Pre, Site::PreLinear, Site::Post, Site::MlpWrites];
const MLP_OUT: &[Site] = &[Site::MlpOut, Site::ResidPost];
const LN1: &[Site] = &[Site::Ln1Scale, Site::Ln1Normalized];
const LN2: &[Site] = &[Site::Ln2Scale, Site::Ln2Normalized];
const LN3: &[Site] = &[Site::Ln3Scale, Site::Ln3Normalized];
const LN2_POST: &[Site] = &[Site::Ln2PostScale, Site::Ln2PostNormalized];
const LN3_POST: &[Site] = &[Site::Ln3PostScale, Site::Ln3PostNormalized];

/// Hook points of a model with this configuration.
pub(super) fn points_of(config: &EncoderDecoderConfig) -> Points {
    let n_layers = config.n_encoder_layers.max(config.n_decoder_layers);
    let mut points = PointsBuilder::new(n_layers, "norms keep their weights");
    let after = config.norm_after;
    let rotary = matches!(config.positions, StackPositions::Rotary { .. });
    let no_vectors = match config.positions {
        StackPositions::Table { .. } => None,
        StackPositions::Distances { .. } => Some("the model uses relative position biases"),
        StackPositions::Rotary { .. } => Some("the model uses rotary embeddings"),
    };
    let no_norm = (!config.embed_norm).then_some("the embedding has no norm");
    let no_last = after.then_some("the model normalizes after each sublayer and has no final norm");
    points.outer(Outer::EncoderEmbed, None);
    points.outer(Outer::EncoderPosEmbed, no_vectors);
    points.outer(Outer::EncoderEmbedLnScale, no_norm);
    points.outer(Outer::EncoderEmbedLnNormalized, no_norm);
    // In the order of the constants `ENCODER`, `DECODER` and `CROSS`.
    for layers in [config.n_encoder_layers, config.n_decoder_layers, config.n_decoder_layers] {
        points.stack(layers);
    }
    let why_not = |site| match site {
        Site::PreLinear if !config.gated_mlp => Some("the MLP is not gated"),
        Site::NormalizedResidPost if !after => Some("the model normalizes before each sublayer, not after"),
        Site::RotQ | Site::RotK if !rotary => Some("the model does not use rotary embeddings"),
        Site::Ln1PostScale
        | Site::Ln1PostNormalized
        | Site::Ln2PostScale
        | Site::Ln2PostNormalized
        | Site::Ln3PostScale
        | Site::Ln3PostNormalized
            if !config.post_norms =>
        {
            Some("the model does not normalize the outputs of attention and the MLP")
        }
        _ => None,
    };
    // Each norm fires before or after its sublayer, depending on `after`.
    let norms = |before, behind| if after { behind } else { before };
    for layer in 0..config.n_encoder_layers {
        let first = [INPUTS, norms(LN1, &[]), ATTENTION, &[Site::MlpIn], norms(LN2, LN1)];
        let second = [MLP, LN2_POST, MLP_OUT, norms(&[], LN2), &[Site::NormalizedResidPost]];
        for site in first.into_iter().chain(second).flatten() {
            let mut info = site.info(&format!("encoder.{layer}"), layer);
            info.segment = Segment::Encoder;
            points.site(ENCODER, layer, *site, info, why_not(*site));
        }
    }
    points.outer(Outer::EncoderFinalScale, no_last);
    points.outer(Outer::EncoderFinalNormalized, no_last);
    points.outer(Outer::DecoderPosEmbed, no_vectors);
    points.outer(Outer::DecoderEmbedLnScale, no_norm);
    points.outer(Outer::DecoderEmbedLnNormalized, no_norm);
    for layer in 0..config.n_decoder_layers {
        let block = format!("decoder.{layer}");
        let own = |points: &mut PointsBuilder, sites: &[&[Site]]| {
            sites.iter().copied().flatten().for_each(|site| {
                points.site(DECODER, layer, *site, site.info(&block, layer), why_not(*site));
            });
        };
        own(&mut points, &[INPUTS, norms(LN1, &[]), ATTENTION, &[Site::CrossAttnIn], norms(LN2, LN1)]);
        for site in TO_ENCODER {
            points.site(CROSS, layer, *site, site.cross(&block, layer), None);
        }
        let crossed = &[Site::CrossAttnOut, Site::ResidMidCross, Site::MlpIn];
        own(&mut points, &[LN2_POST, crossed, norms(LN3, LN2), MLP, LN3_POST, MLP_OUT]);
        own(&mut points, &[norms(&[], LN3), &[Site::NormalizedResidPost]]);
    }
    points.outer(Outer::DecoderFinalScale, no_last);
    points.outer(Outer::DecoderFinalNormalized, no_last);
    points.build()
}
