//! Hook points of a decoder with a given configuration.

use super::mixer::KINDS;
use crate::config::{ActivationFn, Layers, NormKind, Positional, QkNormWeights, ResidualScheme, TransformerConfig};
use crate::points::{Outer, Points, PointsBuilder, Site, decoder_sites};

/// The hook points of a decoder with this configuration.
pub(crate) fn points_of(config: &TransformerConfig) -> Points {
    let mut points = PointsBuilder::new(
        config.n_layers(),
        match config.norm {
            NormKind::LayerNormPre | NormKind::RmsPre => "norms are folded into the weights that follow them",
            _ => "norms keep their weights",
        },
    );
    for outer in [Outer::Tokens, Outer::EmbedLnScale, Outer::EmbedLnNormalized, Outer::Embed, Outer::PosEmbed] {
        points.outer(outer, why_not_outer(config, outer));
    }
    let stack = points.stack(config.n_layers());
    for layer in 0..config.n_layers() {
        let block = format!("blocks.{layer}");
        for site in decoder_sites(config.residual == ResidualScheme::NormalizedSums) {
            let info = site.info(&block, layer);
            let whole = config.qk_norm.is_some_and(|norm| norm.weights == QkNormWeights::Whole);
            let info = if whole { site.over_all_heads(info) } else { info };
            let info = if config.d_value_of(layer) != config.d_head_of(layer) || !config.attends(layer) {
                site.of_values(info)
            } else {
                info
            };
            points.site(stack, layer, site, info, why_not(config, layer, site));
            if let (Site::ExpertIndices, Some(experts)) = (site, config.experts_of(layer)) {
                points.experts(stack, layer, experts.count, config.is_gated(layer));
            }
        }
    }
    for outer in [Outer::FinalScale, Outer::FinalNormalized] {
        points.outer(outer, why_not_outer(config, outer));
    }
    points.build()
}

/// The reason why a model with this configuration can't fire a point outside the blocks, or `None` if it can.
fn why_not_outer(config: &TransformerConfig, point: Outer) -> Option<&'static str> {
    let learned = matches!(config.positional, Positional::Learned | Positional::Shortformer);
    match point {
        Outer::EmbedLnScale | Outer::EmbedLnNormalized if !config.post_embedding_norm => {
            Some("the embedding has no norm")
        }
        Outer::PosEmbed if config.positional == Positional::LearnedNormalized => {
            Some("position embeddings are normalized together with token embeddings, as part of hook_embed")
        }
        Outer::PosEmbed if !learned => Some("the model has no position embeddings"),
        Outer::FinalScale | Outer::FinalNormalized if config.no_final_norm => {
            Some("the model has no norm before the unembedding")
        }
        Outer::FinalScale | Outer::FinalNormalized if config.final_norm() == NormKind::None => {
            Some("the model has no norms")
        }
        _ => None,
    }
}

/// Reason why attention points are absent in a layer with only an MLP.
const NO_MIXER: &str = "this layer has only an MLP";

/// The reason why a layer with a given token mixer can't fire one of the mixer points.
fn why_not_mixer(config: &TransformerConfig, layer: usize, site: Site) -> Option<&'static str> {
    if let Some(kind) = KINDS.iter().find(|kind| kind.sites.contains(&site)) {
        return (!(kind.is_in)(config, layer)).then_some(kind.absent);
    }
    match site {
        Site::AttnIn
        | Site::QInput
        | Site::KInput
        | Site::VInput
        | Site::Q
        | Site::K
        | Site::V
        | Site::QNormScale
        | Site::QNormNormalized
        | Site::KNormScale
        | Site::KNormNormalized
        | Site::VNormScale
        | Site::VNormNormalized
        | Site::RotQ
        | Site::RotK
        | Site::AttnScores
        | Site::Pattern
        | Site::ZGate
        | Site::HeadShares
        | Site::Z
        | Site::Result
            if !config.attends(layer) =>
        {
            let other = KINDS.iter().find(|kind| (kind.is_in)(config, layer));
            Some(other.map_or(NO_MIXER, |kind| kind.instead))
        }
        Site::Ln1Scale | Site::Ln1Normalized | Site::AttnOut | Site::ResidMid if !config.mixes(layer) => Some(NO_MIXER),
        Site::ZGate if !config.attn_gates => Some("head outputs are not gated"),
        Site::HeadShares if config.attn_experts.is_none() => Some("attention is not a mixture of experts"),
        _ => None,
    }
}

/// Reason why MLP points are absent in a layer without an MLP.
const NO_MLP: &str = "this layer has no MLP";

/// The reason why a model with this configuration can't fire the site, or `None` if it can.
fn why_not(config: &TransformerConfig, layer: usize, site: Site) -> Option<&'static str> {
    if let Some(reason) = why_not_mixer(config, layer, site) {
        return Some(reason);
    }
    let rotary = config.rotary(layer).is_some();
    let norms = config.norm != NormKind::None;
    let experts = config.experts_of(layer);
    let moe = experts.is_some();
    let shared = experts.and_then(|experts| experts.shared);
    match site {
        Site::AttnIn | Site::QInput | Site::KInput | Site::VInput if config.latent.is_some() => {
            Some("heads read latents instead of the residual stream; use hook_q_latent and hook_kv_latent")
        }
        Site::QLatent
        | Site::QLatentScale
        | Site::QLatentNormalized
        | Site::KvLatent
        | Site::KvLatentScale
        | Site::KvLatentNormalized
        | Site::KRope
            if config.latent.is_none() =>
        {
            Some("heads read the residual stream directly")
        }
        Site::QLatent | Site::QLatentScale | Site::QLatentNormalized
            if config.latent.is_some_and(|latent| latent.q_rank.is_none()) =>
        {
            Some("queries read the residual stream directly")
        }
        Site::AttnIn | Site::KInput | Site::VInput | Site::K | Site::V | Site::KNormScale | Site::KNormNormalized
            if config.reads_keys_of(layer).is_some() =>
        {
            Some(
                "this layer reuses the keys and values of an earlier layer; use that layer's point, or hook_rot_k of \
                 this layer",
            )
        }
        Site::VNormScale | Site::VNormNormalized if config.reads_keys_of(layer).is_some() => {
            Some("this layer reuses the keys and values of an earlier layer; use that layer's point")
        }
        Site::VNormScale | Site::VNormNormalized if config.qk_norm_of(layer).is_none_or(|norm| !norm.values) => {
            Some("the model does not normalize values")
        }
        Site::AttnIn if config.n_kv_heads_of(layer) != config.n_heads => Some(
            "grouped-query attention shares keys and values between heads; use hook_q_input, hook_k_input, \
             hook_v_input",
        ),
        Site::Ln1Scale | Site::Ln1Normalized if !norms => Some("the model has no norms"),
        Site::Ln1Scale | Site::Ln1Normalized if !config.pre_norms => {
            Some("the model normalizes only the outputs of attention and the MLP")
        }
        Site::QNormScale | Site::QNormNormalized | Site::KNormScale | Site::KNormNormalized
            if config.qk_norm_of(layer).is_none() =>
        {
            Some("this layer does not normalize queries and keys")
        }
        Site::RotQ | Site::RotK if !rotary => match config.positional {
            Positional::Rotary(_) => Some("this layer has no rotary embedding"),
            _ => Some("the model does not use rotary embeddings"),
        },
        Site::Ln1PostScale | Site::Ln1PostNormalized if !config.post_norms => {
            Some("the model does not normalize attention's output")
        }
        Site::NormalizedResidPost if config.residual != ResidualScheme::NormalizedSums => {
            Some("the model does not normalize the residual stream after a block")
        }
        Site::ResidMid if !config.has_mlp(layer) => Some(NO_MLP),
        Site::ResidMid if config.residual == ResidualScheme::Parallel => {
            Some("attention and the MLP run in parallel: there is no residual stream between them")
        }
        Site::MlpIn
        | Site::Ln2Scale
        | Site::Ln2Normalized
        | Site::MlpReads
        | Site::Pre
        | Site::PreLinear
        | Site::Mid
        | Site::MlpLnScale
        | Site::MlpLnNormalized
        | Site::Post
        | Site::ExpertWeights
        | Site::ExpertIndices
        | Site::SharedGate
        | Site::SharedPre
        | Site::SharedPost
        | Site::SharedShare
        | Site::SharedOut
        | Site::ExpertsOut
        | Site::MlpWrites
        | Site::Ln2PostScale
        | Site::Ln2PostNormalized
        | Site::MlpOut
            if !config.has_mlp(layer) =>
        {
            Some(NO_MLP)
        }
        Site::Ln2Scale | Site::Ln2Normalized if !norms => Some("the model has no norms"),
        Site::Ln2Scale | Site::Ln2Normalized if !config.pre_norms => {
            Some("the model normalizes only the outputs of attention and the MLP")
        }
        Site::Pre | Site::PreLinear | Site::Post if moe => {
            Some("the MLP is a mixture of experts; use mlp.experts.N.hook_gate, hook_pre and hook_post")
        }
        Site::PreLinear if !config.is_gated(layer) => Some("the MLP is not gated"),
        Site::Mid | Site::MlpLnScale | Site::MlpLnNormalized if config.activation != ActivationFn::SoluLn => {
            Some("the activation function has no norm")
        }
        Site::ExpertWeights | Site::ExpertIndices if !moe => Some("the MLP is not a mixture of experts"),
        Site::SharedGate | Site::SharedPre | Site::SharedPost | Site::SharedShare if shared.is_none() => {
            Some("the MLP has no shared expert")
        }
        Site::SharedGate if !config.is_gated(layer) => Some("the shared expert is not gated"),
        Site::SharedShare if shared.is_some_and(|shared| !shared.gated) => {
            Some("the shared expert's output is added without a gate")
        }
        Site::RouterLnScale
        | Site::RouterLnNormalized
        | Site::ExpertsLnScale
        | Site::ExpertsLnNormalized
        | Site::SharedLnPostScale
        | Site::SharedLnPostNormalized
        | Site::SharedOut
        | Site::ExpertsLnPostScale
        | Site::ExpertsLnPostNormalized
        | Site::ExpertsOut
            if experts.is_none_or(|experts| !experts.own_norms) =>
        {
            Some("the MLP is not a mixture of experts whose parts have their own norms")
        }
        Site::ResidMidPerLayer
        | Site::PerLayerInput
        | Site::PerLayerPre
        | Site::PerLayerPost
        | Site::PerLayerPostScale
        | Site::PerLayerPostNormalized
        | Site::PerLayerOut
            if config.per_layer_inputs.is_none() =>
        {
            Some("the model has no per-layer inputs")
        }
        Site::Ln2PostScale | Site::Ln2PostNormalized if !config.post_norms => {
            Some("the model does not normalize the MLP's output")
        }
        _ => None,
    }
}
