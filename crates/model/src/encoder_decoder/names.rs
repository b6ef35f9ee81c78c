//! Names of an encoder-decoder's weights.

use crate::model::{in_block, in_map};

/// Name of the weight at this field path: TransformerLens's name, if TransformerLens has this weight.
pub(super) fn in_encoder_decoder(fields: &[&str]) -> String {
    match fields {
        ["embed"] => "embed.W_E".into(),
        ["decoder_embed"] => "decoder_embed.W_E".into(),
        ["encoder_positions"] => "pos_embed.W_pos".into(),
        ["decoder_positions"] => "decoder_pos_embed.W_pos".into(),
        [stack @ ("encoder" | "decoder"), layer, own @ ..] => in_block(&format!("{stack}.{layer}"), own),
        ["encoder_bias", layer] => format!("encoder.{layer}.attn.rel_pos_bias.weight"),
        ["decoder_bias", layer] => format!("decoder.{layer}.attn.rel_pos_bias.weight"),
        ["encoder_ln", own] => format!("encoder_final_ln.{own}"),
        ["decoder_ln", own] => format!("decoder_final_ln.{own}"),
        ["unembed", kind] => in_map("unembed", "U", kind),
        _ => fields.join("."),
    }
}
