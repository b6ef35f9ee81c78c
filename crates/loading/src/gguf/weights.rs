//! Maps weights to tensors in a GGUF file. Tensor names are the same in every architecture; which parts a block has
//! depends on which tensors the file contains.

use crate::weight_files::{Layout, WeightFiles, WeightTable};
use hooklens_model::config::{Layers, ResidualScheme, Settings, TransformerConfig};

/// Architectures whose files interleave the rows of query and key weights, because llama.cpp rotates adjacent pairs.
const PAIRED: [&str; 4] = ["llama", "smollm3", "granite", "olmo"];
/// Architecture in [`PAIRED`] whose files do not interleave the biases: llama.cpp's converter leaves them unchanged, a
/// bug that will not be fixed.
const UNPAIRED_BIASES: &str = "olmo";

/// Tensors that configure the rotary embedding and are not weights.
const DERIVED: &[&str] = &[
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    ".attn_rot_embd",
    "rotary_emb.inv_freq",
];

/// Builds the weight table of the architecture with this llama.cpp name.
pub(crate) fn weights(architecture: &str, c: &TransformerConfig, files: &WeightFiles) -> WeightTable {
    let mut table = WeightTable::new("", DERIVED);
    table.add("embed.W_E", "token_embd.weight", Layout::AsIs);
    let there = |name: &str| files.info(name).is_some();
    if there("position_embd.weight") {
        table.add("pos_embed.W_pos", "position_embd.weight", Layout::AsIs);
    }
    if there("token_embd_norm.weight") {
        table.norm("embed.ln", "token_embd_norm");
    }
    let (paired, width, kv_width) =
        (PAIRED.contains(&architecture), c.n_heads() * c.d_head(), c.n_kv_heads() * c.d_head());
    for layer in 0..c.n_layers() {
        let from = |part: &str| format!("blk.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        let there = |part: &str| there(&from(&format!("{part}.weight")));
        for (norm, part) in norms(architecture, c, there) {
            table.add(to(&format!("{norm}.w")), from(&format!("{part}.weight")), Layout::AsIs);
            if files.info(&from(&format!("{part}.bias"))).is_some() {
                table.add(to(&format!("{norm}.b")), from(&format!("{part}.bias")), Layout::AsIs);
            }
        }
        let mut linear = |weight: String, part: &str, layout: Layout, of_bias: Layout| {
            let bias = from(&format!("{part}.bias"));
            if files.info(&bias).is_some() {
                table.add(weight.replace(".W_", ".b_"), bias, of_bias);
            }
            table.add(weight, from(&format!("{part}.weight")), layout);
        };
        let fused = there("attn_qkv");
        for (letter, part, start) in [("Q", "attn_q", 0), ("K", "attn_k", width), ("V", "attn_v", width + kv_width)] {
            let weight = to(&format!("attn.W_{letter}"));
            if fused && !paired {
                let layout = Layout::Rows { start, of: width + 2 * kv_width };
                linear(weight, "attn_qkv", layout, layout);
            } else if paired && letter != "V" {
                let pairs = Layout::Paired { head: c.d_head() };
                linear(weight, part, pairs, if architecture == UNPAIRED_BIASES { Layout::AsIs } else { pairs });
            } else {
                linear(weight, part, Layout::Transposed, Layout::AsIs);
            }
        }
        linear(to("attn.W_O"), "attn_output", Layout::Transposed, Layout::AsIs);
        if let Some(experts) = c.experts() {
            linear(to("mlp.W_gate"), "ffn_gate_inp", Layout::Transposed, Layout::AsIs);
            for index in 0..experts.count {
                let layout = Layout::OfStack { index, of: experts.count };
                for (name, part) in [("in", "ffn_up_exps"), ("gate", "ffn_gate_exps"), ("out", "ffn_down_exps")] {
                    linear(to(&format!("mlp.experts.{index}.W_{name}")), part, layout, layout);
                }
            }
        } else if c.is_gated(layer) && !there("ffn_gate") {
            for (name, start) in [("gate", 0), ("in", c.d_mlp())] {
                let layout = Layout::Rows { start, of: 2 * c.d_mlp() };
                linear(to(&format!("mlp.W_{name}")), "ffn_up", layout, layout);
            }
            linear(to("mlp.W_out"), "ffn_down", Layout::Transposed, Layout::AsIs);
        } else {
            let gate = c.is_gated(layer).then_some(("gate", "ffn_gate"));
            for (name, part) in [("in", "ffn_up"), ("out", "ffn_down")].into_iter().chain(gate) {
                linear(to(&format!("mlp.W_{name}")), part, Layout::Transposed, Layout::AsIs);
            }
        }
        for (weight, part) in [
            ("attn.q_norm.w", "attn_q_norm.weight"),
            ("attn.k_norm.w", "attn_k_norm.weight"),
            ("attn.sinks", "attn_sinks.weight"),
        ] {
            if files.info(&from(part)).is_some() {
                table.add(to(weight), from(part), Layout::AsIs);
            }
        }
    }
    if there("output_norm.weight") {
        table.add("ln_final.w", "output_norm.weight", Layout::AsIs);
    }
    if there("output_norm.bias") {
        table.add("ln_final.b", "output_norm.bias", Layout::AsIs);
    }
    table.unembedding("output.weight", !there("output.weight"));
    if there("output.bias") {
        table.add("unembed.b_U", "output.bias", Layout::AsIs);
    }
    table
}

/// Norms of a block: for each, its name in hooklens and its name in the file.
fn norms(architecture: &str, c: &TransformerConfig, there: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    match architecture {
        "olmo" => Vec::new(),
        "olmo2" => vec![("ln1_post", "post_attention_norm"), ("ln2_post", "post_ffw_norm")],
        "gemma2" | "gemma3" => vec![
            ("ln1", "attn_norm"),
            ("ln1_post", "post_attention_norm"),
            ("ln2", "ffn_norm"),
            ("ln2_post", "post_ffw_norm"),
        ],
        "gpt-oss" => vec![("ln1", "attn_norm"), ("ln2", "post_attention_norm")],
        // If there are two norms, `attn_norm` is the norm of the MLP.
        "falcon" if there("attn_norm_2") => vec![("ln1", "attn_norm_2"), ("ln2", "attn_norm")],
        // In a parallel block, attention and MLP may share one norm.
        _ if c.residual() == ResidualScheme::Parallel && !there("ffn_norm") => {
            vec![("ln1", "attn_norm"), ("ln2", "attn_norm")]
        }
        _ => vec![("ln1", "attn_norm"), ("ln2", "ffn_norm")],
    }
}
