//! Mixtures of experts.

use serde::{Deserialize, Serialize};

/// A mixture of experts.
///
/// ```
/// use hooklens::{Experts, TransformerConfig};
/// let experts = Experts::new(8, 2); // Mixtral
/// let plain = TransformerConfig::new(2, 64, 4, 100, 32);
/// let config = TransformerConfig { experts: Some(experts), gated_mlp: true, ..plain };
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts used for a token.
    pub per_token: usize,
    /// Whether the chosen experts' weights are made to sum to one.
    pub renormalize: bool,
    /// Bounds within which an expert's gate and input are kept, in place of the activation function.
    pub clipped: Option<ClippedGate>,
    /// How the router's scores become weights.
    pub router: RouterFn,
    /// Whether a learned number is added to each expert's weight for the choice alone (DeepSeek V3).
    pub choice_bias: bool,
    /// Groups of experts of which only the best are chosen from.
    pub groups: Option<ExpertGroups>,
    /// Whether the chosen experts' weights multiply what experts read, not what they give (Llama 4).
    #[serde(default)]
    pub scales_inputs: bool,
    /// What the chosen experts' weights are multiplied by in the end.
    pub scale: f64,
    /// Whether each chosen expert's weight is multiplied by a learned number of its own as well (Gemma 4).
    #[serde(default)]
    pub own_scales: bool,
    /// Whether router and experts read the stream each through a norm of their own, which no other part has, and what
    /// they add is normalized, as is what the shared expert adds (Gemma 4). Not in blocks that normalize the stream.
    #[serde(default)]
    pub own_norms: bool,
    /// An expert that every token goes to, beside the chosen ones.
    pub shared: Option<SharedExpert>,
}

impl Experts {
    /// `per_token` of `count` experts, by a softmax whose chosen entries are made to sum to one.
    ///
    /// ```
    /// use hooklens::{Experts, RouterFn};
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
}

/// Experts of attention: each has a group of heads of its own, with queries and outputs, and all read the same keys and
/// values (JetMoE's mixture of attention heads).
///
/// Of `n_kv_heads` heads of keys and values each is read by a head of each expert: head `k * count + e` is expert `e`'s and
/// reads the keys and values `k`. A token goes to `per_token` experts, and what their heads give is multiplied by the
/// expert's share, a softmax over the chosen scores; all other heads give nothing.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::AttnExperts;
/// let attn_experts = Some(AttnExperts { count: 3, per_token: 2 });
/// let plain = TransformerConfig::new(1, 24, 6, 20, 8);
/// let config = TransformerConfig { attn_experts, n_kv_heads: 2, ..plain };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let cache = model.record([1, 2, 3], "blocks.0.attn.hook_*")?;
/// let shares = cache.get(hook::attn_expert_weights(0))?; // [batch, pos, expert]
/// assert!((shares.clone().sum().into_scalar::<f32>() - 3.0).abs() < 1e-6);
/// assert_eq!(shares.equal_elem(0.0).int().sum().into_scalar::<i32>(), 3); // one expert of each token's is not chosen
/// assert_eq!(cache.get(hook::pattern(0))?.dims(), [1, 6, 3, 3]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttnExperts {
    /// Number of experts.
    pub count: usize,
    /// Experts used for a token.
    pub per_token: usize,
}

/// How a router's scores become weights.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Experts, RouterFn};
/// let experts = Some(Experts { router: RouterFn::Sigmoid, ..Experts::new(4, 2) });
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let weights = model.record([1, 2, 3], hook::expert_weights(0))?.get(hook::expert_weights(0))?;
/// assert!(weights.max().into_scalar::<f32>() < 1.0); // each expert's by itself: they sum to more than one
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RouterFn {
    /// A softmax over all experts. Over the chosen ones alone it is the same with
    /// [`renormalize`](Experts::renormalize).
    Softmax,
    /// Each score's sigmoid.
    Sigmoid,
    /// SparseMixer (Phi 3.5 MoE): two experts, and of each the share that a softmax gives it among those whose scores
    /// are near its own, the first one left out for the second. The weights are the scores themselves.
    SparseMixer {
        /// Half the distance, relative to the larger score, within which scores are near.
        jitter: f64,
    },
}

/// Groups of as many experts each; those of a token are chosen within its best groups.
///
/// ```
/// use hooklens::{ExpertGroups, Experts, TransformerConfig};
/// let groups = Some(ExpertGroups { count: 3, kept: 1, best: 2 });
/// let experts = Some(Experts { groups, ..Experts::new(8, 2) });
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(2, 64, 4, 100, 32) };
/// let told = config.validate().unwrap_err().to_string();
/// assert_eq!(told, "`experts` does not fit: 8 experts can't be divided into 3 groups");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Groups a token's experts are chosen from.
    pub kept: usize,
    /// How many of a group's largest weights add up to the group's own (DeepSeek V2: one, V3: two).
    pub best: usize,
}

/// An expert that every token goes to.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Experts, SharedExpert};
/// let experts = Some(Experts { shared: Some(SharedExpert { d_mlp: 24, gated: true }), ..Experts::new(4, 2) });
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let post = model.record([1, 2, 3], hook::shared_post(0))?.get(hook::shared_post(0))?;
/// assert_eq!(post.dims(), [1, 3, 24]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Its neurons.
    pub d_mlp: usize,
    /// Whether its output is multiplied by the sigmoid of a score of its own (Qwen 2 MoE).
    pub gated: bool,
}

/// GPT-OSS's gate: `(1 + clip(in, -limit, limit)) g sigmoid(alpha g)` with `g = min(gate, limit)`.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{ClippedGate, Experts};
/// let clipped = Some(ClippedGate { alpha: 1.702, limit: 7.0 });
/// let experts = Some(Experts { clipped, ..Experts::new(4, 2) }); // as GPT-OSS has them
/// let config = TransformerConfig { experts, gated_mlp: true, ..TransformerConfig::new(1, 16, 2, 20, 8) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// assert_eq!(model.forward([1, 2, 3])?.dims(), [1, 3, 20]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClippedGate {
    /// Steepness of the sigmoid.
    pub alpha: f64,
    /// Largest value.
    pub limit: f64,
}
