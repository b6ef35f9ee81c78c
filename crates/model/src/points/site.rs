//! Hook points of a block, one per row: name, axes, and attributes.

use hooklens_hooks::{Axis, PointInfo, Segment};

use super::attributes::Attributes;
use super::axes::{
    CHANNELS, EXPERT_CHOICES, EXPERT_WEIGHTS, HEAD_ROWS, HEAD_ROWS_SCALE, HEAD_SHARES, HEAD_STREAM, K_ROPE,
    KV_HEAD_STREAM, KV_LATENT, NEURONS, PER_HEAD, PER_HEAD_VALUE, PER_KEY, PER_KEY_HEAD, PER_KV_HEAD, PER_LAYER,
    PER_VALUE_HEAD, Q_LATENT, SCALE, SCORES, SHARED_NEURONS, STREAM, VALUE_HEADS, WHOLE_ROWS, WHOLE_ROWS_SCALE,
};

macro_rules! sites {
    ($($site:ident $suffix:literal $axes:ident $($special:ident)*;)*) => {
        /// A hook point of a block.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Site {
            $($site,)*
        }

        pub(super) const ALL: &[Site] = &[$(Site::$site,)*];

        impl Site {
            /// Name of the point within its block.
            pub(crate) fn suffix(self) -> &'static str {
                match self {
                    $(Site::$site => $suffix,)*
                }
            }

            /// The point's catalog entry in block `layer`; its name starts with `block`.
            pub(crate) fn info(self, block: &str, layer: usize) -> PointInfo {
                match self {
                    $(Site::$site => {
                        PointInfo::new(format!("{block}.{}", $suffix), Some(layer), $axes)$(.$special())*
                    })*
                }
            }
        }
    };
}

// In firing order.
sites! {
    ResidPre "hook_resid_pre" STREAM;
    AttnIn "hook_attn_in" HEAD_STREAM on_request;
    QInput "hook_q_input" HEAD_STREAM on_request;
    KInput "hook_k_input" KV_HEAD_STREAM on_request;
    VInput "hook_v_input" KV_HEAD_STREAM on_request;
    Ln1Scale "ln1.hook_scale" SCALE;
    Ln1Normalized "ln1.hook_normalized" STREAM;
    QLatent "attn.hook_q_latent" Q_LATENT;
    QLatentScale "attn.q_latent_norm.hook_scale" SCALE;
    QLatentNormalized "attn.q_latent_norm.hook_normalized" Q_LATENT;
    KvLatent "attn.hook_kv_latent" KV_LATENT;
    KRope "attn.hook_k_rope" K_ROPE;
    KvLatentScale "attn.kv_latent_norm.hook_scale" SCALE;
    KvLatentNormalized "attn.kv_latent_norm.hook_normalized" KV_LATENT;
    ZGate "attn.hook_gate" PER_HEAD;
    HeadShares "attn.hook_expert_weights" HEAD_SHARES;
    Q "attn.hook_q" PER_HEAD;
    K "attn.hook_k" PER_KV_HEAD;
    V "attn.hook_v" PER_KV_HEAD;
    VNormScale "attn.v_norm.hook_scale" HEAD_ROWS_SCALE;
    VNormNormalized "attn.v_norm.hook_normalized" HEAD_ROWS;
    QNormScale "attn.q_norm.hook_scale" HEAD_ROWS_SCALE;
    QNormNormalized "attn.q_norm.hook_normalized" HEAD_ROWS;
    KNormScale "attn.k_norm.hook_scale" HEAD_ROWS_SCALE;
    KNormNormalized "attn.k_norm.hook_normalized" HEAD_ROWS;
    RotQ "attn.hook_rot_q" PER_HEAD;
    RotK "attn.hook_rot_k" PER_KV_HEAD with_past;
    AttnScores "attn.hook_attn_scores" SCORES scores;
    Pattern "attn.hook_pattern" SCORES;
    Z "attn.hook_z" PER_HEAD;
    Result "attn.hook_result" HEAD_STREAM on_request;
    // Gated delta nets, with TransformerLens's names.
    QPreConv "linear_attn.hook_q_pre_conv" PER_KEY_HEAD;
    KPreConv "linear_attn.hook_k_pre_conv" PER_KEY_HEAD;
    VPreConv "linear_attn.hook_v_pre_conv" PER_VALUE_HEAD;
    LinearQ "linear_attn.hook_q" PER_KEY_HEAD;
    LinearK "linear_attn.hook_k" PER_KEY_HEAD;
    LinearV "linear_attn.hook_v" PER_VALUE_HEAD;
    BetaLogit "linear_attn.hook_beta_logit" VALUE_HEADS;
    Beta "linear_attn.hook_beta" VALUE_HEADS;
    LogDecay "linear_attn.hook_log_decay" VALUE_HEADS;
    RecurrenceOut "linear_attn.hook_recurrence_out" PER_VALUE_HEAD;
    GateInput "linear_attn.hook_gate_input" PER_VALUE_HEAD;
    LinearZ "linear_attn.hook_z" PER_VALUE_HEAD;
    // Mamba 2.
    SsmPreConv "ssm.hook_pre_conv" CHANNELS;
    SsmX "ssm.hook_x" PER_VALUE_HEAD;
    SsmB "ssm.hook_b" PER_KEY_HEAD;
    SsmC "ssm.hook_c" PER_KEY_HEAD;
    SsmDt "ssm.hook_dt" VALUE_HEADS;
    SsmLogDecay "ssm.hook_log_decay" VALUE_HEADS;
    SsmOut "ssm.hook_recurrence_out" PER_VALUE_HEAD;
    SsmGate "ssm.hook_gate_input" PER_VALUE_HEAD;
    SsmZ "ssm.hook_z" PER_VALUE_HEAD;
    // Short convolutions.
    ConvB "conv.hook_b" CHANNELS;
    ConvX "conv.hook_x" CHANNELS;
    ConvPre "conv.hook_pre_conv" CHANNELS;
    ConvOut "conv.hook_conv_out" CHANNELS;
    ConvC "conv.hook_c" CHANNELS;
    ConvZ "conv.hook_z" PER_VALUE_HEAD;
    Ln1PostScale "ln1_post.hook_scale" SCALE;
    Ln1PostNormalized "ln1_post.hook_normalized" STREAM;
    AttnOut "hook_attn_out" STREAM;
    ResidMid "hook_resid_mid" STREAM;
    // Cross-attention.
    CrossAttnIn "hook_cross_attn_in" STREAM on_request;
    CrossAttnOut "hook_cross_attn_out" STREAM;
    ResidMidCross "hook_resid_mid_cross" STREAM;
    MlpIn "hook_mlp_in" STREAM on_request;
    Ln2Scale "ln2.hook_scale" SCALE;
    Ln2Normalized "ln2.hook_normalized" STREAM;
    Ln3Scale "ln3.hook_scale" SCALE;
    Ln3Normalized "ln3.hook_normalized" STREAM;
    MlpReads "mlp.hook_in" STREAM on_request;
    Pre "mlp.hook_pre" NEURONS;
    PreLinear "mlp.hook_pre_linear" NEURONS;
    Mid "mlp.hook_mid" NEURONS;
    MlpLnScale "mlp.ln.hook_scale" SCALE;
    MlpLnNormalized "mlp.ln.hook_normalized" NEURONS;
    Post "mlp.hook_post" NEURONS;
    RouterLnScale "mlp.router_ln.hook_scale" SCALE;
    RouterLnNormalized "mlp.router_ln.hook_normalized" STREAM;
    ExpertsLnScale "mlp.experts_ln.hook_scale" SCALE;
    ExpertsLnNormalized "mlp.experts_ln.hook_normalized" STREAM;
    ExpertWeights "mlp.hook_expert_weights" EXPERT_WEIGHTS;
    ExpertIndices "mlp.hook_expert_indices" EXPERT_CHOICES integers;
    SharedGate "mlp.shared.hook_gate" SHARED_NEURONS;
    SharedPre "mlp.shared.hook_pre" SHARED_NEURONS;
    SharedPost "mlp.shared.hook_post" SHARED_NEURONS;
    SharedShare "mlp.shared.hook_share" SCALE;
    SharedLnPostScale "mlp.shared_ln_post.hook_scale" SCALE;
    SharedLnPostNormalized "mlp.shared_ln_post.hook_normalized" STREAM;
    SharedOut "mlp.shared.hook_out" STREAM;
    ExpertsLnPostScale "mlp.experts_ln_post.hook_scale" SCALE;
    ExpertsLnPostNormalized "mlp.experts_ln_post.hook_normalized" STREAM;
    ExpertsOut "mlp.hook_experts_out" STREAM;
    MlpWrites "mlp.hook_out" STREAM on_request;
    Ln2PostScale "ln2_post.hook_scale" SCALE;
    Ln2PostNormalized "ln2_post.hook_normalized" STREAM;
    Ln3PostScale "ln3_post.hook_scale" SCALE;
    Ln3PostNormalized "ln3_post.hook_normalized" STREAM;
    MlpOut "hook_mlp_out" STREAM;
    ResidMidPerLayer "hook_resid_mid_per_layer" STREAM;
    PerLayerInput "per_layer.hook_input" PER_LAYER;
    PerLayerPre "per_layer.hook_pre" PER_LAYER;
    PerLayerPost "per_layer.hook_post" PER_LAYER;
    PerLayerPostScale "per_layer_post.hook_scale" SCALE;
    PerLayerPostNormalized "per_layer_post.hook_normalized" STREAM;
    PerLayerOut "hook_per_layer_out" STREAM;
    ResidPost "hook_resid_post" STREAM;
    // Encoders, which normalize the residual stream after each addition.
    NormalizedResidPost "hook_normalized_resid_post" STREAM;
}

impl Site {
    /// Changes the point's catalog entry for a model that normalizes queries and keys over all heads together.
    pub(crate) fn over_all_heads(self, mut info: PointInfo) -> PointInfo {
        info.axes = match self {
            Site::QNormScale | Site::KNormScale => WHOLE_ROWS_SCALE,
            Site::QNormNormalized | Site::KNormNormalized => WHOLE_ROWS,
            _ => info.axes,
        };
        info
    }

    /// Changes the point's catalog entry for a layer whose values have a different width than its keys.
    pub(crate) fn of_values(self, mut info: PointInfo) -> PointInfo {
        if matches!(self, Site::V | Site::Z) {
            info.axes = PER_HEAD_VALUE;
        }
        info
    }

    /// The catalog entry of the corresponding cross-attention point, with `cross_attn` instead of `attn` in its name.
    pub(crate) fn cross(self, block: &str, layer: usize) -> PointInfo {
        let mut info = self.info(block, layer);
        info.name = format!("{block}.cross_{}", self.suffix()).into();
        if matches!(self, Site::K | Site::V) {
            (info.axes, info.segment) = (PER_KEY, Segment::CrossKeys);
        }
        info.keys_of_encoder = info.axes.contains(&Axis::Key);
        info
    }
}
