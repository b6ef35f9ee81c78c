//! Decoder layers of models trained with fairseq, under Hugging Face's tensor names.

use crate::weight_files::WeightTable;
use hooklens_model::config::{NormDetails, TransformerConfig};

/// Adds the layers whose names start with `root`, with biases if `biased`, and their norms if the norms have weights.
pub(super) fn layers(table: &mut WeightTable, config: &TransformerConfig, root: &str, biased: bool) {
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("{root}.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        if config.norm().has_weight() {
            table.norm(&to("ln1"), &from("self_attn_layer_norm"));
            table.norm(&to("ln2"), &from("final_layer_norm"));
        }
        for (letter, name) in [("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")] {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), biased);
        }
        table.linear(&to("mlp.W_in"), &from("fc1"), biased);
        table.linear(&to("mlp.W_out"), &from("fc2"), biased);
    }
}
