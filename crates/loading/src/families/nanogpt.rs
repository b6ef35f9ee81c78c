//! nanoGPT: GPT-2 with `torch.nn.Linear` matrices, optionally without biases. Checkpoints store the configuration as
//! `model_args`.

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family { name: "nanogpt", architectures: &["nanoGPT"], prefix: "", config, weights };

fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let base = json.sizes(["n_layer", "n_embd", "n_head"], json.size("block_size")?)?;
    Ok(base.with_activation(ActivationFn::Gelu))
}

fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let biased = json.flag("bias", true)?;
    let mut table = WeightTable::new("", &[".attn.bias"]);
    let norm = |table: &mut WeightTable, to: &str, from: &str| {
        table.add(format!("{to}.w"), format!("{from}.weight"), Layout::AsIs);
        if biased {
            table.add(format!("{to}.b"), format!("{from}.bias"), Layout::AsIs);
        }
    };
    table.add("embed.W_E", "transformer.wte.weight", Layout::AsIs);
    table.add("pos_embed.W_pos", "transformer.wpe.weight", Layout::AsIs);
    let width = config.d_model();
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("transformer.h.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        norm(&mut table, &to("ln1"), &from("ln_1"));
        norm(&mut table, &to("ln2"), &from("ln_2"));
        for (part, letter) in ["Q", "K", "V"].into_iter().enumerate() {
            let layout = Layout::Rows { start: part * width, of: 3 * width };
            table.add(to(&format!("attn.W_{letter}")), from("attn.c_attn.weight"), layout);
            if biased {
                table.add(to(&format!("attn.b_{letter}")), from("attn.c_attn.bias"), layout);
            }
        }
        table.linear(&to("attn.W_O"), &from("attn.c_proj"), biased);
        table.linear(&to("mlp.W_in"), &from("mlp.c_fc"), biased);
        table.linear(&to("mlp.W_out"), &from("mlp.c_proj"), biased);
    }
    norm(&mut table, "ln_final", "transformer.ln_f");
    table.unembedding("lm_head.weight", true);
    Ok(table)
}
