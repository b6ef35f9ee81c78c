//! Folds value biases into the attention's output bias.
//!
//! Every row of the attention pattern sums to one, so a head's value bias contributes a constant to the output:
//! `sum over heads of b_V[head] · W_O[head]`.

use super::{add_bias, times};
use crate::config::Layers;
use crate::model::HookedTransformer;

pub(super) fn apply(model: &mut HookedTransformer) {
    let heads = model.config.n_heads;
    let dtype = model.compute_type();
    for (layer, block) in model.weights.parts.blocks.iter_mut().enumerate() {
        let (kv_heads, d_head) = (model.config.n_kv_heads_of(layer), model.config.d_value_of(layer));
        let Some(attn) = block.attn_mut() else { continue };
        let Some(bias) = attn.v.bias.take() else { continue };
        let shared = bias.val().reshape([kv_heads, 1, d_head]).expand([kv_heads, heads / kv_heads, d_head]);
        let extra = times(shared.reshape([heads * d_head]), &attn.o);
        add_bias(&mut attn.o, extra, dtype);
    }
}
