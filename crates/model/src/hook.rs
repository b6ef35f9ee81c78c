//! Typed hook points, named as in TransformerLens.
//!
//! `hook::pattern(5)` is the point `blocks.5.attn.hook_pattern`, with its rank known to the compiler. Layers are `i32`,
//! `isize` or `usize`; negative ones count from the end, so `hook::resid_post(-1)` is in the last layer.
//!
//! ```
//! use hooklens::hook;
//! assert_eq!(hook::pattern(5).name(), "blocks.5.attn.hook_pattern");
//! ```
//!
//! Each function returns a [`Point`], which identifies what to read, edit or record:
//!
//! ```
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let mut looked = vec![];
//! let hooks = [
//!     hook::z(0).edit(|z, _| z.zeros_like()), // zeroes all heads of layer 0
//!     hook::pattern(-1).read(|pattern, at| looked.push((at.layer(), pattern.dims()))),
//! ];
//! let logits = model.run_with_hooks("When Mary and John", hooks)?;
//! assert_eq!(looked, [(Some(3), [1, 4, 5, 5])]); // [batch, head, query, key]
//! assert_eq!(logits.dims(), [1, 5, 61]);
//! # Ok::<(), hooklens::Error>(())
//! ```

use hooklens_hooks::Ordinal;
pub use hooklens_hooks::{At, Axis, Hook, Inside, Part, PartPoint, Point, PointInfo, Slice, Target, at};

macro_rules! layer_points {
    ($($(#[$doc:meta])* $name:ident $suffix:literal $rank:literal;)*) => { $(
        $(#[$doc])*
        #[doc = concat!("\n\n`blocks.{layer}.", $suffix, "`")]
        #[doc = "\n```"]
        #[doc = concat!("assert_eq!(hooklens::hook::", stringify!($name), "(3).name(), \"blocks.3.", $suffix, "\");")]
        #[doc = "```"]
        pub fn $name(layer: impl Ordinal) -> Point<$rank> {
            Point::in_layer(layer, $suffix)
        }
    )* };
}

layer_points! {
    /// Residual stream before the block, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.record("When Mary and John", hook::resid_pre(0))?.get(hook::resid_pre(0))?;
    /// assert_eq!(stream.dims(), [1, 5, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    resid_pre "hook_resid_pre" 3;
    /// Residual stream between attention and the MLP, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", hook::resid_mid(-1))?; // in the last layer
    /// assert_eq!(cache.names().next(), Some("blocks.3.hook_resid_mid"));
    /// assert_eq!(cache.get(hook::resid_mid(3))?.dims(), [1, 5, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    resid_mid "hook_resid_mid" 3;
    /// Residual stream after the block, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*hook_resid_{pre,post}")?;
    /// let [after, before] = [cache.get(hook::resid_post(0))?, cache.get(hook::resid_pre(1))?];
    /// assert_eq!((after - before).abs().max().into_scalar::<f32>(), 0.0); // equals the next block's input
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    resid_post "hook_resid_post" 3;
    /// Residual stream after the block and the norm that follows it, in models that normalize the stream there,
    /// `[batch, pos, d_model]`. This is the input of the next block.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::ResidualScheme;
    /// let config = TransformerConfig::new(2, 16, 2, 20, 8).with_residual(ResidualScheme::NormalizedSums);
    /// let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], "blocks.*.hook_{normalized_resid_post,resid_pre}")?;
    /// let [after, before] = [cache.get(hook::normalized_resid_post(0))?, cache.get(hook::resid_pre(1))?];
    /// assert_eq!((after - before).abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    normalized_resid_post "hook_normalized_resid_post" 3;
    /// Input of each attention head, shared by its queries, keys and values, before the norm, `[batch, pos, head,
    /// d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", hook::attn_in(0))?; // computed only on request
    /// assert_eq!(cache.get(hook::attn_in(0))?.dims(), [1, 5, 4, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    attn_in "hook_attn_in" 4;
    /// Input of each head's queries, before the norm, `[batch, pos, head, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// // Zero the query input of head 2; its keys and values are unchanged.
    /// let blind = hook::q_input(1).edit(|input, _| {
    ///     let [batch, pos, _, d_model] = input.dims();
    ///     input.clone().slice_assign([0..batch, 0..pos, 2..3, 0..d_model], input.narrow(2, 2, 1).zeros_like())
    /// });
    /// assert_eq!(model.run_with_hooks("When Mary and John", [blind])?.dims(), [1, 5, 61]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    q_input "hook_q_input" 4;
    /// Input of each head's keys, before the norm, `[batch, pos, kv_head, d_model]`.
    k_input "hook_k_input" 4;
    /// Input of each head's values, before the norm, `[batch, pos, kv_head, d_model]`.
    v_input "hook_v_input" 4;
    /// Output of attention, as added to the residual stream, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "blocks.0.*")?;
    /// let added = cache.get(hook::resid_mid(0))? - cache.get(hook::resid_pre(0))?;
    /// assert!((added - cache.get(hook::attn_out(0))?).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    attn_out "hook_attn_out" 3;
    /// Input of the MLP, before its norm, `[batch, pos, d_model]`.
    mlp_in "hook_mlp_in" 3;
    /// Input of the MLP's weight matrices: the output of the norm before it, including the norm's weights,
    /// `[batch, pos, d_model]`. Transcoders read this point.
    mlp_reads "mlp.hook_in" 3;
    /// Output of the MLP's weight matrices, before any norm that is applied to it, `[batch, pos, d_model]`.
    mlp_writes "mlp.hook_out" 3;
    /// Output of the MLP, as added to the residual stream, `[batch, pos, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "blocks.0.*")?;
    /// let sum = cache.get(hook::resid_mid(0))? + cache.get(hook::mlp_out(0))?;
    /// assert!((sum - cache.get(hook::resid_post(0))?).abs().max().into_scalar::<f32>() < 1e-6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    mlp_out "hook_mlp_out" 3;
    /// Queries, `[batch, pos, head, d_head]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let q = model.record("When Mary and John", hook::q(2))?.get(hook::q(2))?;
    /// assert_eq!(q.dims(), [1, 5, 4, 16]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    q "attn.hook_q" 4;
    /// Keys, `[batch, pos, kv_head, d_head]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "blocks.2.attn.hook_{q,k,attn_scores}")?;
    /// let [q, k] = [cache.get(hook::q(2))?.swap_dims(1, 2), cache.get(hook::k(2))?.swap_dims(1, 2)];
    /// let scores = q.matmul(k.transpose()) / (model.config().d_head() as f64).sqrt(); // before the mask
    /// let recorded = cache.get(hook::attn_scores(2))?;
    /// let last = (scores - recorded).narrow(2, 4, 1); // the last query sees all keys
    /// assert!(last.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    k "attn.hook_k" 4;
    /// Values, `[batch, pos, kv_head, d_head]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "blocks.2.attn.hook_{v,pattern,z}")?;
    /// let v = cache.get(hook::v(2))?.swap_dims(1, 2); // [batch, head, key, d_head]
    /// let z = cache.get(hook::pattern(2))?.matmul(v).swap_dims(1, 2);
    /// assert!((z - cache.get(hook::z(2))?).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    v "attn.hook_v" 4;
    /// Queries after the rotary embedding, `[batch, pos, head, d_head]`.
    rot_q "attn.hook_rot_q" 4;
    /// Keys after the rotary embedding, `[batch, pos, kv_head, d_head]`.
    rot_k "attn.hook_rot_k" 4;
    /// Attention scores, masked with negative infinity, `[batch, head, query, key]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let scores = model.record("When Mary and John", hook::attn_scores(0))?.get(hook::attn_scores(0))?;
    /// let of_next = scores.slice([0..1, 0..1, 0..1, 1..2]); // the first query, the second key
    /// assert_eq!(of_next.into_scalar::<f32>(), f32::NEG_INFINITY);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    attn_scores "attn.hook_attn_scores" 4;
    /// Attention pattern, `[batch, head, query, key]`. Each row sums to one, or to less than one with attention sinks.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let pattern = model.record("When Mary and John", hook::pattern(3))?.get(hook::pattern(3))?;
    /// assert_eq!(pattern.dims(), [1, 4, 5, 5]);
    /// assert!((pattern.sum_dim(3) - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pattern "attn.hook_pattern" 4;
    /// Each head's weighted sum of values, `[batch, pos, head, d_head]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// // Zero head 1 of layer 0 at every position.
    /// let ablate = hook::z(0).edit(|z, _| {
    ///     let [batch, pos, _, d_head] = z.dims();
    ///     z.clone().slice_assign([0..batch, 0..pos, 1..2, 0..d_head], z.narrow(2, 1, 1).zeros_like())
    /// });
    /// assert_eq!(model.run_with_hooks("When Mary and John", [ablate])?.dims(), [1, 5, 61]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    z "attn.hook_z" 4;
    /// Output of a gated delta net's heads, normalized and gated, `[batch, pos, value_head, d_value]`.
    linear_z "linear_attn.hook_z" 4;
    /// Output of a Mamba 2 mixer's heads, gated and normalized, `[batch, pos, head, d_head]`.
    ssm_z "ssm.hook_z" 4;
    /// Gated output of a short convolution, as a single head, `[batch, pos, 1, d_model]`.
    conv_z "conv.hook_z" 4;
    /// Output of each head to the residual stream, `[batch, pos, head, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", ["*hook_result", "*hook_attn_out"])?;
    /// let heads = cache.get(hook::result(1))?; // [batch, pos, head, d_model]
    /// let sum = heads.sum_dim(2).squeeze_dim::<3>(2) + model.stacked::<2>("b_O")?.narrow(0, 1, 1).unsqueeze();
    /// assert!((sum - cache.get(hook::attn_out(1))?).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    result "attn.hook_result" 4;
    /// Scale of the query norm, `[batch * pos * head, 1]`.
    q_norm_scale "attn.q_norm.hook_scale" 2;
    /// Normalized queries, before the norm's weight, `[batch * pos * head, d_head]`.
    q_norm_normalized "attn.q_norm.hook_normalized" 2;
    /// Scale of the key norm, `[batch * pos * kv_head, 1]`.
    k_norm_scale "attn.k_norm.hook_scale" 2;
    /// Normalized keys, before the norm's weight, `[batch * pos * kv_head, d_head]`.
    k_norm_normalized "attn.k_norm.hook_normalized" 2;
    /// Scale of the norm layer after attention, `[batch, pos, 1]`.
    ln1_post_scale "ln1_post.hook_scale" 3;
    /// Normalized attention output, `[batch, pos, d_model]`.
    ln1_post_normalized "ln1_post.hook_normalized" 3;
    /// Latent that latent attention computes queries from (DeepSeek V2), before its norm, `[batch, pos, q_rank]`.
    q_latent "attn.hook_q_latent" 3;
    /// Scale of the query latent's norm, `[batch, pos, 1]`.
    q_latent_scale "attn.q_latent_norm.hook_scale" 3;
    /// Normalized query latent, `[batch, pos, q_rank]`.
    q_latent_normalized "attn.q_latent_norm.hook_normalized" 3;
    /// Latent that latent attention computes keys and values from, before its norm, `[batch, pos, kv_rank]`.
    kv_latent "attn.hook_kv_latent" 3;
    /// Scale of the key/value latent's norm, `[batch, pos, 1]`.
    kv_latent_scale "attn.kv_latent_norm.hook_scale" 3;
    /// Normalized key/value latent, `[batch, pos, kv_rank]`.
    kv_latent_normalized "attn.kv_latent_norm.hook_normalized" 3;
    /// Rotary part of latent attention's keys, shared by all heads, before rotation, `[batch, pos, d_rope]`.
    k_rope "attn.hook_k_rope" 3;
    /// Scale of the norm layer after the MLP, `[batch, pos, 1]`.
    ln2_post_scale "ln2_post.hook_scale" 3;
    /// Normalized MLP output, `[batch, pos, d_model]`.
    ln2_post_normalized "ln2_post.hook_normalized" 3;
    /// Scale of the norm layer over neurons in a `solu_ln` MLP, `[batch, pos, 1]`.
    mlp_ln_scale "mlp.ln.hook_scale" 3;
    /// Normalized neurons of a `solu_ln` MLP, `[batch, pos, d_mlp]`.
    mlp_ln_normalized "mlp.ln.hook_normalized" 3;
    /// Router weights of the experts, `[batch * pos, expert]`: a softmax over the experts, a sigmoid for each expert,
    /// or the raw scores (SparseMixer).
    expert_weights "mlp.hook_expert_weights" 2;
    /// Router weights of the attention experts (JetMoE), `[batch, pos, expert]`. The outputs of an expert's heads are
    /// multiplied by the expert's weight.
    attn_expert_weights "attn.hook_expert_weights" 3;
    /// Pre-activations of the shared expert's neurons, `[batch, pos, d_shared]`.
    shared_gate "mlp.shared.hook_gate" 3;
    /// Linear branch of the gated shared expert, which multiplies the activations, `[batch, pos, d_shared]`.
    shared_pre "mlp.shared.hook_pre" 3;
    /// Neurons of the shared expert, as read by its output projection, `[batch, pos, d_shared]`.
    shared_post "mlp.shared.hook_post" 3;
    /// Gate of the shared expert's output (Qwen 2 MoE), `[batch, pos, 1]`.
    shared_share "mlp.shared.hook_share" 3;
    /// Scale of the norm before attention, `[batch, pos, 1]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let scale = model.record("When Mary and John", hook::ln1_scale(0))?.get(hook::ln1_scale(0))?;
    /// assert_eq!(scale.dims(), [1, 5, 1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ln1_scale "ln1.hook_scale" 3;
    /// Output of the norm before attention, `[batch, pos, d_model]`.
    ln1_normalized "ln1.hook_normalized" 3;
    /// Scale of the norm before the MLP, `[batch, pos, 1]`.
    ln2_scale "ln2.hook_scale" 3;
    /// Output of the norm before the MLP, `[batch, pos, d_model]`.
    ln2_normalized "ln2.hook_normalized" 3;
    /// Pre-activations of the MLP's neurons, `[batch, pos, d_mlp]`.
    mlp_pre "mlp.hook_pre" 3;
    /// Linear branch of a gated MLP, which multiplies the activations, `[batch, pos, d_mlp]`.
    mlp_pre_linear "mlp.hook_pre_linear" 3;
    /// Neurons of a `solu_ln` MLP after `solu`, before the norm, `[batch, pos, d_mlp]`.
    mlp_mid "mlp.hook_mid" 3;
    /// Neurons of the MLP, as read by its output projection, `[batch, pos, d_mlp]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "blocks.0.*")?;
    /// let (neurons, out) = (cache.get(hook::mlp_post(0))?, cache.get(hook::mlp_out(0))?);
    /// let map = model.weights().get::<2>("blocks.0.mlp.W_out")?;
    /// let bias = model.weights().get::<1>("blocks.0.mlp.b_out")?;
    /// let gap = neurons.matmul(map.unsqueeze()) + bias.unsqueeze() - out;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    mlp_post "mlp.hook_post" 3;
    /// Root mean square of each value vector, in models that normalize values, `[batch * pos * kv_head, 1]`.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// # use hooklens_model::config::{QkNorm, Settings};
    /// # let qk_norm = Some(QkNorm { values: true, ..QkNorm::HEADS });
    /// # let config = TransformerConfig::new(1, 16, 2, 20, 8).with_qk_norm(qk_norm);
    /// # let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let cache = model.record([1, 2, 3], hook::v_norm_scale(0))?;
    /// assert_eq!(cache.get(hook::v_norm_scale(0))?.dims(), [6, 1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    v_norm_scale "attn.v_norm.hook_scale" 2;
    /// Normalized values, `[batch * pos * kv_head, d_head]`.
    v_norm_normalized "attn.v_norm.hook_normalized" 2;
    /// Scale of the norm layer before the router, if the router has its own, `[batch, pos, 1]`.
    router_ln_scale "mlp.router_ln.hook_scale" 3;
    /// Normalized router input, before the norm's weight, `[batch, pos, d_model]`.
    router_ln_normalized "mlp.router_ln.hook_normalized" 3;
    /// Scale of the norm layer before the experts, if the experts have their own, `[batch, pos, 1]`.
    experts_ln_scale "mlp.experts_ln.hook_scale" 3;
    /// Normalized input of the experts, before the norm's weight, `[batch, pos, d_model]`.
    experts_ln_normalized "mlp.experts_ln.hook_normalized" 3;
    /// Scale of the norm layer after the shared expert, `[batch, pos, 1]`.
    shared_ln_post_scale "mlp.shared_ln_post.hook_scale" 3;
    /// Normalized output of the shared expert, before the norm's weight, `[batch, pos, d_model]`.
    shared_ln_post_normalized "mlp.shared_ln_post.hook_normalized" 3;
    /// Contribution of the shared expert, in models that normalize its output, `[batch, pos, d_model]`.
    shared_out "mlp.shared.hook_out" 3;
    /// Scale of the norm layer applied to the routed experts' summed output, `[batch, pos, 1]`.
    experts_ln_post_scale "mlp.experts_ln_post.hook_scale" 3;
    /// Normalized summed output of the routed experts, before the norm's weight, `[batch, pos, d_model]`.
    experts_ln_post_normalized "mlp.experts_ln_post.hook_normalized" 3;
    /// Contribution of the routed experts, in models that normalize their sum, `[batch, pos, d_model]`.
    experts_out "mlp.hook_experts_out" 3;
    /// Residual stream between the MLP and the contribution of per-layer inputs, `[batch, pos, d_model]`.
    resid_mid_per_layer "hook_resid_mid_per_layer" 3;
    /// Per-layer input of the block, `[batch, pos, d_per_layer]`.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// # use hooklens::NormKind;
    /// # use hooklens_model::config::{PerLayerInputs, Settings};
    /// # let config = TransformerConfig::new(2, 32, 4, 100, 32).with_norm(NormKind::Rms).with_per_layer_inputs(PerLayerInputs { width: 6 });
    /// # let model = HookedTransformer::random(config, 0, &Device::flex())?;
    /// let without = hook::per_layer_input(1).edit(|input, _| input.zeros_like());
    /// let cache = model.hooks([without]).record([1, 2, 3], hook::per_layer_out(1))?;
    /// assert_eq!(cache.get(hook::per_layer_out(1))?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    per_layer_input "per_layer.hook_input" 3;
    /// Pre-activation of the gate that multiplies the per-layer input, `[batch, pos, d_per_layer]`.
    per_layer_pre "per_layer.hook_pre" 3;
    /// Gated per-layer input, `[batch, pos, d_per_layer]`.
    per_layer_post "per_layer.hook_post" 3;
    /// Scale of the norm layer applied to the per-layer contribution, `[batch, pos, 1]`.
    per_layer_post_scale "per_layer_post.hook_scale" 3;
    /// Normalized per-layer contribution, before the norm's weight, `[batch, pos, d_model]`.
    per_layer_post_normalized "per_layer_post.hook_normalized" 3;
    /// Contribution of per-layer inputs to the residual stream, `[batch, pos, d_model]`.
    per_layer_out "hook_per_layer_out" 3;
}

/// Pre-activations of one expert's neurons, `[routed, d_mlp]`, with one row per token routed to the expert:
/// `blocks.{layer}.mlp.experts.{expert}.hook_gate`.
///
/// ```
/// use hooklens::prelude::*;
/// let config = TransformerConfig::new(1, 16, 2, 20, 8).with_gated_mlp(true).with_experts(4, 2);
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let gates = (0..4).map(|expert| hook::expert_gate(0, expert)).collect::<Vec<_>>();
/// let cache = model.record([1, 2, 3], gates)?;
/// let routed: usize = cache.iter().map(|(_, gate)| gate.shape()[0]).sum();
/// assert_eq!(routed, 3 * 2); // each of three tokens goes to two experts
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn expert_gate(layer: impl Ordinal, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_gate"))
}

/// Linear branch of one gated expert, which multiplies the activations, `[routed, d_mlp]`:
/// `blocks.{layer}.mlp.experts.{expert}.hook_pre`.
///
/// ```
/// assert_eq!(hooklens::hook::expert_pre(1, 3).name(), "blocks.1.mlp.experts.3.hook_pre");
/// ```
pub fn expert_pre(layer: impl Ordinal, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_pre"))
}

/// Neurons of one expert, as read by its output projection, `[routed, d_mlp]`:
/// `blocks.{layer}.mlp.experts.{expert}.hook_post`.
///
/// ```
/// assert_eq!(hooklens::hook::expert_post(1, 3).name(), "blocks.1.mlp.experts.3.hook_post");
/// ```
pub fn expert_post(layer: impl Ordinal, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_post"))
}

/// Scale of the embedding norm, `[batch, pos, 1]`: `embed.ln.hook_scale`.
///
/// ```
/// assert_eq!(hooklens::hook::embed_ln_scale().name(), "embed.ln.hook_scale"); // in Bloom
/// ```
pub fn embed_ln_scale() -> Point<3> {
    Point::new("embed.ln.hook_scale")
}

/// Normalized token embeddings, `[batch, pos, d_model]`: `embed.ln.hook_normalized`.
///
/// ```
/// assert_eq!(hooklens::hook::embed_ln_normalized().name(), "embed.ln.hook_normalized"); // in Bloom
/// ```
pub fn embed_ln_normalized() -> Point<3> {
    Point::new("embed.ln.hook_normalized")
}

/// Token embeddings, `[batch, pos, d_model]`: `hook_embed`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("Mary and Mary", hook::embed())?;
/// let embedded = cache.get(hook::embed())?;
/// let [first, again] = [1, 3].map(|pos| embedded.clone().narrow(1, pos, 1));
/// assert_eq!((first - again).abs().max().into_scalar::<f32>(), 0.0); // positions are added later
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn embed() -> Point<3> {
    Point::new("hook_embed")
}

/// Position embeddings, `[batch, pos, d_model]`: `hook_pos_embed`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", ["hook_embed", "hook_pos_embed", "resid_pre0"])?;
/// let sum = cache.get(hook::embed())? + cache.get(hook::pos_embed())?;
/// assert!((sum - cache.get(hook::resid_pre(0))?).abs().max().into_scalar::<f32>() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn pos_embed() -> Point<3> {
    Point::new("hook_pos_embed")
}

/// Scale of the final norm, `[batch, pos, 1]`: `ln_final.hook_scale`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", hook::final_scale())?;
/// assert_eq!(cache.get(hook::final_scale())?.dims(), [1, 5, 1]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn final_scale() -> Point<3> {
    Point::new("ln_final.hook_scale")
}

/// Output of the final norm, `[batch, pos, d_model]`: `ln_final.hook_normalized`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let (logits, cache) = model.run_with_cache("When Mary and John", hook::final_normalized())?;
/// let read = cache.get(hook::final_normalized())?;
/// let again = read.matmul(model.w_u().unsqueeze()) + model.b_u().unsqueeze();
/// assert!((again - logits).abs().max().into_scalar::<f32>() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn final_normalized() -> Point<3> {
    Point::new("ln_final.hook_normalized")
}

macro_rules! cross_points {
    ($($(#[$doc:meta])* $name:ident $suffix:literal;)*) => { $(
        $(#[$doc])*
        #[doc = concat!("\n\n`decoder.{layer}.cross_attn.", $suffix, "`")]
        #[doc = "\n```"]
        #[doc = concat!("assert_eq!(hooklens::hook::", stringify!($name), "(3).name(), \"decoder.3.cross_attn.", $suffix, "\");")]
        #[doc = "```"]
        pub fn $name(layer: impl Ordinal) -> Point<4> {
            Point::in_layer(layer, concat!("cross_attn.", $suffix)).of_decoder()
        }
    )* };
}

cross_points! {
    /// Queries of cross-attention, `[batch, pos, head, d_head]`.
    cross_q "hook_q";
    /// Keys of a decoder's cross-attention, over encoder positions, `[batch, key, head, d_head]`.
    cross_k "hook_k";
    /// Values of a decoder's cross-attention, over encoder positions, `[batch, key, head, d_head]`.
    cross_v "hook_v";
    /// Scores of cross-attention, `[batch, head, query, key]`.
    cross_attn_scores "hook_attn_scores";
    /// Pattern of cross-attention, `[batch, head, query, key]`.
    cross_pattern "hook_pattern";
    /// Each head's weighted sum of encoder values, `[batch, pos, head, d_head]`.
    cross_z "hook_z";
    /// Output of each cross-attention head to the residual stream, `[batch, pos, head, d_model]`.
    cross_result "hook_result";
}

/// Output of cross-attention, as added to the decoder's residual stream, `[batch, pos, d_model]`.
///
/// `decoder.{layer}.hook_cross_attn_out`
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let cache = model.record(([5, 6, 7, 1], [0, 4]), [hook::cross_attn_out(-1)])?;
/// assert_eq!(cache.get(hook::cross_attn_out(-1))?.dims()[..2], [1, 2]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn cross_attn_out(layer: impl Ordinal) -> Point<3> {
    Point::in_layer(layer, "hook_cross_attn_out").of_decoder()
}
