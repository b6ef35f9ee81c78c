//! Names of an encoder's weights.

use crate::model::{in_block, in_map};

/// Name of the weight at this field path: TransformerLens's name, if TransformerLens has this weight.
pub(super) fn in_encoder(fields: &[&str]) -> String {
    match fields {
        ["embed", "tokens"] => "embed.embed.W_E".into(),
        ["embed", "positions"] => "embed.pos_embed.W_pos".into(),
        ["embed", "token_types"] => "embed.token_type_embed.W_token_type".into(),
        ["embed", "norm", own] => format!("embed.ln.{own}"),
        ["embed", "projection", kind] => in_map("embed", "proj", kind),
        ["relative", "table"] => "rel_pos.W".into(),
        ["relative", "norm", own] => format!("rel_pos.ln.{own}"),
        ["blocks", layer, own @ ..] => in_block(&format!("blocks.{layer}"), own),
        ["mlm_head", "unembed", kind] => in_map("unembed", "U", kind),
        ["mlm_head", "dense", "weight"] => "mlm_head.W".into(),
        ["mlm_head", "dense", "bias"] => "mlm_head.b".into(),
        [head @ ("pooler" | "nsp_head"), "weight"] => format!("{head}.W"),
        [head @ ("pooler" | "nsp_head"), "bias"] => format!("{head}.b"),
        _ => fields.join("."),
    }
}
