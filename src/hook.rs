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
