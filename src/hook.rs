//! Typed hook points, named as in TransformerLens.
//!
//! `hook::pattern(5)` is the point `blocks.5.attn.hook_pattern`; its rank is known to the
//! compiler. Layers may be negative: `hook::resid_post(-1)` is the last one's.
//!
//! ```
//! use hooklens::hook;
//! assert_eq!(hook::pattern(5).name(), "blocks.5.attn.hook_pattern");
//! ```

pub use hooklens_hooks::{At, Axis, Hook, IntoEdit, IntoRead, Point, PointInfo, Target, at};

macro_rules! layer_points {
    ($($(#[$doc:meta])* $name:ident $suffix:literal $rank:literal;)*) => { $(
        $(#[$doc])*
        #[doc = concat!("\n\n`blocks.{layer}.", $suffix, "`")]
        pub fn $name(layer: isize) -> Point<$rank> {
            Point::in_layer(layer, $suffix)
        }
    )* };
}

layer_points! {
    /// The residual stream before the block, `[batch, pos, d_model]`.
    resid_pre "hook_resid_pre" 3;
    /// The residual stream between attention and the MLP, `[batch, pos, d_model]`.
    resid_mid "hook_resid_mid" 3;
    /// The residual stream after the block, `[batch, pos, d_model]`.
    resid_post "hook_resid_post" 3;
    /// What each head's queries, keys and values read, `[batch, pos, head, d_model]`.
    attn_in "hook_attn_in" 4;
    /// What each head's queries read, before the norm, `[batch, pos, head, d_model]`.
    q_input "hook_q_input" 4;
    /// What each head's keys read, before the norm, `[batch, pos, kv_head, d_model]`.
    k_input "hook_k_input" 4;
    /// What each head's values read, before the norm, `[batch, pos, kv_head, d_model]`.
    v_input "hook_v_input" 4;
    /// What attention adds to the stream, `[batch, pos, d_model]`.
    attn_out "hook_attn_out" 3;
    /// What the MLP reads, before its norm, `[batch, pos, d_model]`.
    mlp_in "hook_mlp_in" 3;
    /// What the MLP adds to the stream, `[batch, pos, d_model]`.
    mlp_out "hook_mlp_out" 3;
    /// Queries, `[batch, pos, head, d_head]`.
    q "attn.hook_q" 4;
    /// Keys, `[batch, pos, kv_head, d_head]`.
    k "attn.hook_k" 4;
    /// Values, `[batch, pos, kv_head, d_head]`.
    v "attn.hook_v" 4;
    /// Queries after rotation, `[batch, pos, head, d_head]`.
    rot_q "attn.hook_rot_q" 4;
    /// Keys after rotation, `[batch, pos, kv_head, d_head]`.
    rot_k "attn.hook_rot_k" 4;
    /// Attention scores, masked with minus infinity, `[batch, head, query, key]`.
    attn_scores "attn.hook_attn_scores" 4;
    /// Attention pattern: each row sums to one, `[batch, head, query, key]`.
    pattern "attn.hook_pattern" 4;
    /// Each head's mix of values, `[batch, pos, head, d_head]`.
    z "attn.hook_z" 4;
    /// Each head's own addition to the stream, `[batch, pos, head, d_model]`.
    result "attn.hook_result" 4;
    /// Scale of each query's norm, `[batch * pos * head, 1]`.
    q_norm_scale "attn.q_norm.hook_scale" 2;
    /// Each query's norm, before its weight, `[batch * pos * head, d_head]`.
    q_norm_normalized "attn.q_norm.hook_normalized" 2;
    /// Scale of each key's norm, `[batch * pos * kv_head, 1]`.
    k_norm_scale "attn.k_norm.hook_scale" 2;
    /// Each key's norm, before its weight, `[batch * pos * kv_head, d_head]`.
    k_norm_normalized "attn.k_norm.hook_normalized" 2;
    /// Scale of the norm of attention's output, `[batch, pos, 1]`.
    ln1_post_scale "ln1_post.hook_scale" 3;
    /// The norm of attention's output, `[batch, pos, d_model]`.
    ln1_post_normalized "ln1_post.hook_normalized" 3;
    /// Scale of the norm of the MLP's output, `[batch, pos, 1]`.
    ln2_post_scale "ln2_post.hook_scale" 3;
    /// The norm of the MLP's output, `[batch, pos, d_model]`.
    ln2_post_normalized "ln2_post.hook_normalized" 3;
    /// Scale of the norm over a `solu_ln` MLP's neurons, `[batch, pos, 1]`.
    mlp_ln_scale "mlp.ln.hook_scale" 3;
    /// The norm over a `solu_ln` MLP's neurons, `[batch, pos, d_mlp]`.
    mlp_ln_normalized "mlp.ln.hook_normalized" 3;
    /// The router's softmax over experts, `[batch * pos, expert]`.
    expert_weights "mlp.hook_expert_weights" 2;
    /// Scale of the norm before attention, `[batch, pos, 1]`.
    ln1_scale "ln1.hook_scale" 3;
    /// Output of the norm before attention, `[batch, pos, d_model]`.
    ln1_normalized "ln1.hook_normalized" 3;
    /// Scale of the norm before the MLP, `[batch, pos, 1]`.
    ln2_scale "ln2.hook_scale" 3;
    /// Output of the norm before the MLP, `[batch, pos, d_model]`.
    ln2_normalized "ln2.hook_normalized" 3;
    /// Neurons before the activation function, `[batch, pos, d_mlp]`.
    mlp_pre "mlp.hook_pre" 3;
    /// The projection a gated MLP multiplies by, `[batch, pos, d_mlp]`.
    mlp_pre_linear "mlp.hook_pre_linear" 3;
    /// Neurons after `solu`, before its norm, `[batch, pos, d_mlp]`.
    mlp_mid "mlp.hook_mid" 3;
    /// Neurons as the MLP's last projection reads them, `[batch, pos, d_mlp]`.
    mlp_post "mlp.hook_post" 3;
}

/// Neurons of one expert before the activation function, `[routed, d_mlp]`, a row a token routed
/// to it: `blocks.{layer}.mlp.experts.{expert}.hook_gate`.
pub fn expert_gate(layer: isize, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_gate"))
}

/// The projection one expert multiplies by, `[routed, d_mlp]`:
/// `blocks.{layer}.mlp.experts.{expert}.hook_pre`.
pub fn expert_pre(layer: isize, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_pre"))
}

/// One expert's neurons as its last projection reads them, `[routed, d_mlp]`:
/// `blocks.{layer}.mlp.experts.{expert}.hook_post`.
pub fn expert_post(layer: isize, expert: usize) -> Point<2> {
    Point::in_layer(layer, &format!("mlp.experts.{expert}.hook_post"))
}

/// Scale of the norm of token embeddings, `[batch, pos, 1]`: `embed.ln.hook_scale`.
pub fn embed_ln_scale() -> Point<3> {
    Point::new("embed.ln.hook_scale")
}

/// The norm of token embeddings, `[batch, pos, d_model]`: `embed.ln.hook_normalized`.
pub fn embed_ln_normalized() -> Point<3> {
    Point::new("embed.ln.hook_normalized")
}

/// Token embeddings, `[batch, pos, d_model]`: `hook_embed`.
pub fn embed() -> Point<3> {
    Point::new("hook_embed")
}

/// Position embeddings, `[batch, pos, d_model]`: `hook_pos_embed`.
pub fn pos_embed() -> Point<3> {
    Point::new("hook_pos_embed")
}

/// Scale of the last norm, `[batch, pos, 1]`: `ln_final.hook_scale`.
pub fn final_scale() -> Point<3> {
    Point::new("ln_final.hook_scale")
}

/// Output of the last norm, `[batch, pos, d_model]`: `ln_final.hook_normalized`.
pub fn final_normalized() -> Point<3> {
    Point::new("ln_final.hook_normalized")
}
