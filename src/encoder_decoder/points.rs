//! The hook points an encoder with a decoder fires.

use hooklens_hooks::Segment;

use super::config::EncoderDecoderConfig;
use crate::points::{Outer, Points, PointsBuilder, Site};

/// The stacks of blocks, by number.
pub(super) const ENCODER: usize = 0;
pub(super) const DECODER: usize = 1;
/// Attention of the decoder's layers to the encoder.
pub(super) const CROSS: usize = 2;

const ATTENTION: &[Site] = &[
    Site::ResidPre,
    Site::AttnIn,
    Site::QInput,
    Site::KInput,
    Site::VInput,
    Site::Ln1Scale,
    Site::Ln1Normalized,
    Site::Q,
    Site::K,
    Site::V,
    Site::AttnScores,
    Site::Pattern,
    Site::Z,
    Site::Result,
    Site::AttnOut,
    Site::ResidMid,
];
const TO_ENCODER: &[Site] = &[Site::Q, Site::K, Site::V, Site::AttnScores, Site::Pattern, Site::Z, Site::Result];
const MLP: &[Site] =
    &[Site::MlpReads, Site::Pre, Site::PreLinear, Site::Post, Site::MlpWrites, Site::MlpOut, Site::ResidPost];

/// The points of a model of this configuration.
pub(super) fn points_of(config: &EncoderDecoderConfig) -> Points {
    let n_layers = config.n_encoder_layers.max(config.n_decoder_layers);
    let mut points = PointsBuilder::new(n_layers, "norms keep their weights");
    points.outer(Outer::EncoderEmbed, None);
    // In the order of the constants.
    for layers in [config.n_encoder_layers, config.n_decoder_layers, config.n_decoder_layers] {
        points.stack(layers);
    }
    let why_not = |site| (site == Site::PreLinear && !config.gated_mlp).then_some("its MLP is not gated");
    for layer in 0..config.n_encoder_layers {
        for site in ATTENTION.iter().chain(&[Site::MlpIn, Site::Ln2Scale, Site::Ln2Normalized]).chain(MLP) {
            let info = site.info(&format!("encoder.{layer}"), layer).in_segment(Segment::Encoder);
            points.site(ENCODER, layer, *site, info, why_not(*site));
        }
    }
    points.outer(Outer::EncoderFinalScale, None);
    points.outer(Outer::EncoderFinalNormalized, None);
    for layer in 0..config.n_decoder_layers {
        let block = format!("decoder.{layer}");
        let own = |points: &mut PointsBuilder, sites: &[Site]| {
            sites.iter().for_each(|site| {
                points.site(DECODER, layer, *site, site.info(&block, layer), why_not(*site));
            });
        };
        own(&mut points, ATTENTION);
        own(&mut points, &[Site::CrossAttnIn, Site::Ln2Scale, Site::Ln2Normalized]);
        for site in TO_ENCODER {
            points.site(CROSS, layer, *site, site.cross(&block, layer), None);
        }
        own(&mut points, &[Site::CrossAttnOut, Site::ResidMidCross, Site::MlpIn, Site::Ln3Scale, Site::Ln3Normalized]);
        own(&mut points, MLP);
    }
    points.outer(Outer::DecoderFinalScale, None);
    points.outer(Outer::DecoderFinalNormalized, None);
    points.build()
}
