//! Mixture-of-experts settings.

use serde::{Deserialize, Serialize};

use super::{ConfigError, Layers, NormKind, Positional, TransformerConfig};

/// Settings of a mixture-of-experts MLP.
///
/// ```
/// use hooklens::TransformerConfig;
/// use hooklens_model::config::{Layers, Experts};
/// let experts = Experts::new(8, 2); // Mixtral
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// let config = plain.with_gated_mlp(true).with_mixture(experts);
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts chosen per token (top-k).
    pub per_token: usize,
    /// Whether the chosen experts' weights are renormalized to sum to one.
    pub renormalize: bool,
    /// Clipped gate that replaces the activation function (GPT-OSS).
    pub clipped: Option<ClippedGate>,
    /// How router scores become weights.
    pub router: RouterFn,
    /// Whether experts are chosen by their weight plus a learned bias, which the routing weights themselves do not
    /// include (DeepSeek V3).
    pub choice_bias: bool,
    /// Group-limited routing: experts are chosen only from the best groups.
    pub groups: Option<ExpertGroups>,
    /// Whether the routing weights multiply the experts' inputs instead of their outputs (Llama 4).
    #[serde(default)]
    pub scales_inputs: bool,
    /// Factor applied to the final routing weights.
    pub scale: f64,
    /// Whether each expert's routing weight is also multiplied by a learned scale (Gemma 4).
    #[serde(default)]
    pub own_scales: bool,
    /// Whether the router and the experts each have their own pre-norm, and the outputs of the routed experts and of
    /// the shared expert are each normalized (Gemma 4). Not supported with `residual_norms` or `normalized_residual`.
    #[serde(default)]
    pub own_norms: bool,
    /// Shared expert, applied to every token in addition to the chosen ones.
    pub shared: Option<SharedExpert>,
}

impl Experts {
    /// Maximum number of experts over all layers. Guards allocations against nonsensical values.
    const MOST: usize = 100_000;

    /// Creates settings that choose `per_token` of `count` experts with a softmax router, and renormalize the chosen
    /// experts' weights to sum to one.
    ///
    /// ```
    /// use hooklens_model::config::{Experts, RouterFn};
    /// let experts = Experts { router: RouterFn::Sigmoid, ..Experts::new(8, 2) };
    /// assert!(experts.renormalize && experts.shared.is_none() && experts.scale == 1.0);
    /// ```
    pub fn new(count: usize, per_token: usize) -> Self {
        Self {
            count,
            per_token,
            renormalize: true,
            clipped: None,
            router: RouterFn::Softmax,
            choice_bias: false,
            groups: None,
            scales_inputs: false,
            scale: 1.0,
            own_scales: false,
            own_norms: false,
            shared: None,
        }
    }

    /// Checks the settings for the MLPs of a model.
    pub(super) fn check(&self, config: &TransformerConfig, gated: bool) -> Result<(), ConfigError> {
        let fails = |reason: String| ConfigError::refuse("experts", reason);
        let Self { count, per_token, .. } = *self;
        let all = count.saturating_mul(config.n_layers());
        if per_token == 0 || per_token > count || all > Self::MOST {
            return fails(format!(
                "can't choose {per_token} of {count} experts per token (a model can have at most {} experts)",
                Self::MOST
            ));
        }
        if self.clipped.is_some() && !gated {
            return fails("clipped gates require gated experts".into());
        }
        if self.clipped.is_some() && self.scales_inputs {
            return fails("clipped gates can't be combined with `scales_inputs`".into());
        }
        if self.own_norms && (self.shared.is_none() || config.norm == NormKind::None) {
            return fails("`own_norms` requires a shared expert and a `norm` other than `None`".into());
        }
        if self.own_norms && config.stream_is_normalized() {
            return fails("`own_norms` can't be combined with a normalized residual stream".into());
        }
        if let RouterFn::SparseMixer { jitter } = self.router
            && (per_token != 2 || self.renormalize || !jitter.is_finite())
        {
            let reason = "SparseMixer requires two experts per token, no renormalization and a finite jitter";
            return fails(reason.into());
        }
        if !(self.scale.is_finite() && self.scale != 0.0) {
            return fails(format!("`scale` is {}; it must be finite and nonzero", self.scale));
        }
        if let Some(own) = self.shared.filter(|own| !(1..=TransformerConfig::LARGEST).contains(&own.d_mlp)) {
            return fails(format!("the shared expert has {} neurons; expected 1 to 2^28", own.d_mlp));
        }
        self.groups.map_or(Ok(()), |groups| groups.check(count, per_token))
    }
}

/// Mixture of attention heads (JetMoE): each expert has its own group of heads, with query and output projections, and
/// all experts share keys and values.
///
/// Each of the `n_kv_heads` key/value heads is read by one head of each expert, or by the same number of heads of each.
/// Head `h` belongs to expert `h % count`. A token is routed to `per_token` experts, whose head outputs are multiplied by
/// the experts' weights: a softmax over the chosen experts' scores. All other heads output zero.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens_model::config::{AttnExperts, Settings};
/// let attn_experts = Some(AttnExperts { count: 3, per_token: 2 });
/// let plain = TransformerConfig::new(1, 24, 6, 20, 8);
/// let config = plain.with_kv_heads(2).with_attn_experts(attn_experts);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.0.attn.hook_*")?;
/// let shares = cache.get(hook::attn_expert_weights(0))?; // [batch, pos, expert]
/// assert!((shares.clone().sum().into_scalar::<f32>() - 3.0).abs() < 1e-6);
/// assert_eq!(shares.equal_elem(0.0).int().sum().into_scalar::<i32>(), 3); // each token skips one expert
/// assert_eq!(cache.get(hook::pattern(0))?.dims(), [1, 6, 3, 3]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttnExperts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts chosen per token (top-k).
    pub per_token: usize,
}

impl AttnExperts {
    /// Checks the numbers against a model's attention settings.
    pub(super) fn check(self, config: &TransformerConfig) -> Result<(), ConfigError> {
        let fails = |reason: String| ConfigError::refuse("attn_experts", reason);
        let Self { count, per_token } = self;
        if per_token == 0 || per_token > count {
            return fails(format!("can't choose {per_token} of {count} experts per token"));
        }
        for kv_heads in config.attending().map(|layer| config.n_kv_heads_of(layer)) {
            let (heads, n_heads) = (count.saturating_mul(kv_heads), config.n_heads);
            if heads == 0 || !n_heads.is_multiple_of(heads) {
                return fails(format!(
                    "{count} experts with {kv_heads} key/value heads need a multiple of {heads} heads, not {n_heads}"
                ));
            }
        }
        if config.latent.is_some() || config.attn_gates || config.positional == Positional::Shortformer {
            let reason =
                "attention experts can't be combined with latent attention, `attn_gates` or Shortformer positions";
            return fails(reason.into());
        }
        Ok(())
    }
}

/// How router scores become routing weights.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens_model::config::{Layers, Experts, RouterFn};
/// let experts = Some(Experts { router: RouterFn::Sigmoid, ..Experts::new(4, 2) });
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_gated_mlp(true).with_mixture(experts);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let weights = model.record([1, 2, 3], hook::expert_weights(0))?.get(hook::expert_weights(0))?;
/// assert!(weights.max().into_scalar::<f32>() < 1.0); // separate sigmoids, whose sum may exceed one
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RouterFn {
    /// Softmax over all experts. With [`renormalize`](Experts::renormalize), this equals a softmax over the chosen
    /// experts only.
    Softmax,
    /// Sigmoid of each score.
    Sigmoid,
    /// SparseMixer (Phi 3.5 MoE): chooses two experts. The weight of each is its softmax among the experts with scores
    /// close to its own score; the second expert's softmax excludes the first expert. `hook_expert_weights` holds
    /// the raw scores.
    SparseMixer {
        /// Two scores are close if they differ by less than twice this value, relative to the larger score.
        jitter: f64,
    },
}

/// Group-limited routing: experts are split into groups of equal size, and a token's experts are chosen from its best
/// groups.
///
/// ```
/// use hooklens::TransformerConfig;
/// use hooklens_model::config::{Layers, ExpertGroups, Experts};
/// let groups = Some(ExpertGroups { count: 3, kept: 1, best: 2 });
/// let experts = Some(Experts { groups, ..Experts::new(8, 2) });
/// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_gated_mlp(true).with_mixture(experts);
/// let message = config.validate().unwrap_err().to_string();
/// assert_eq!(message, "invalid `experts`: 8 experts can't be divided into 3 groups");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token's experts are chosen from.
    pub kept: usize,
    /// Number of a group's largest weights that are added up to score the group (DeepSeek V2: one, V3: two).
    pub best: usize,
}

impl ExpertGroups {
    /// Checks that `per_token` of `experts` experts can be chosen from the groups.
    fn check(self, experts: usize, per_token: usize) -> Result<(), ConfigError> {
        let Self { count, kept, best } = self;
        if count == 0 || !experts.is_multiple_of(count) {
            return ConfigError::refuse("experts", format!("{experts} experts can't be divided into {count} groups"));
        }
        let each = experts / count;
        if kept == 0 || kept > count || best == 0 || best > each || kept * each < per_token {
            let reason = format!(
                "can't choose {per_token} experts per token from {kept} of {count} groups of {each}, ranked by their \
                 best {best}"
            );
            return ConfigError::refuse("experts", reason);
        }
        Ok(())
    }
}

/// An expert that is applied to every token.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens_model::config::{Layers, Experts, SharedExpert};
/// let experts = Some(Experts { shared: Some(SharedExpert { d_mlp: 24, gated: true }), ..Experts::new(4, 2) });
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_gated_mlp(true).with_mixture(experts);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let post = model.record([1, 2, 3], hook::shared_post(0))?.get(hook::shared_post(0))?;
/// assert_eq!(post.dims(), [1, 3, 24]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Number of neurons.
    pub d_mlp: usize,
    /// Whether the output is multiplied by a sigmoid gate (Qwen 2 MoE).
    pub gated: bool,
}

/// GPT-OSS's gate: `(1 + clip(in, -limit, limit)) g sigmoid(alpha g)` with `g = min(gate, limit)`.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens_model::config::{Layers, ClippedGate, Experts};
/// let clipped = Some(ClippedGate { alpha: 1.702, limit: 7.0 });
/// let experts = Some(Experts { clipped, ..Experts::new(4, 2) }); // as in GPT-OSS
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_gated_mlp(true).with_mixture(experts);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// assert_eq!(model.forward([1, 2, 3])?.dims(), [1, 3, 20]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClippedGate {
    /// Steepness of the sigmoid.
    pub alpha: f64,
    /// Clipping limit.
    pub limit: f64,
}
