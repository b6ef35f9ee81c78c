//! Mamba-2, and code shared by families with its mixer, whose five input projections are fused into one.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::Family;
use super::hf_config::HfConfig;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{GatedNorm, Layers, MixerConfig, NormKind, Positional, StateSpace, TransformerConfig};
use hooklens_model::error::ConfigError;

pub(super) static FAMILY: Family = Family {
    name: "mamba2",
    architectures: &["Mamba2ForCausalLM", "Mamba2Model"],
    prefix: "backbone.",
    config,
    weights,
};

/// Hugging Face's defaults for fields missing from `config.json`.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "vocab_size": 32_768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
        "state_size": 128, "n_groups": 8, "conv_kernel": 4
    })
});

/// Reads a configuration. Layers consist of a mixer only.
fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    let json = &json.defaulting(&DEFAULTS);
    if json.text("hidden_act", "silu")? != "silu" {
        return Err(json.unsupported("hidden_act"));
    }
    // Files write infinity in several ways, none of which is a JSON number.
    let limits = json.list("time_step_limit")?.into_iter().flatten();
    if limits.filter_map(Value::as_f64).any(|limit| limit != 0.0) {
        return Err(json.unsupported("time_step_limit"));
    }
    let (n_layers, d_model, n_groups) =
        (json.layers("num_hidden_layers")?, json.size("hidden_size")?, json.size("n_groups")?);
    let space = StateSpace {
        n_groups,
        width: json.size("conv_kernel")?,
        norm_groups: n_groups,
        ..StateSpace::new(json.size("num_heads")?, json.size("head_dim")?, json.size("state_size")?)
    };
    // There is no limit on positions.
    let n_ctx = json.maybe_size("max_position_embeddings")?.unwrap_or(1 << 20);
    Ok(TransformerConfig::new(n_layers, d_model, 1, json.size("vocab_size")?, n_ctx)
        .with_mixers(vec![MixerConfig::Mamba2(space); n_layers])?
        .with_positional(Positional::None)
        .with_norm(NormKind::Rms)
        .with_eps(json.number("layer_norm_epsilon", 1e-5)?)
        .with_attn_only(true))
}

fn weights(c: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &[]);
    table.add("embed.W_E", "backbone.embeddings.weight", Layout::AsIs);
    for layer in 0..c.n_layers() {
        table.add(format!("blocks.{layer}.ln1.w"), format!("backbone.layers.{layer}.norm.weight"), Layout::AsIs);
    }
    let (maps, conv) = (json.flag("use_bias", false)?, json.flag("use_conv_bias", true)?);
    Names { folder: "backbone.layers", part: "mixer", maps, outputs: maps, conv }.add(&mut table, c);
    table.add("ln_final.w", "backbone.norm_f.weight", Layout::AsIs);
    table.unembedding("lm_head.weight", json.flag("tie_word_embeddings", false)?);
    Ok(table)
}

/// Checks that `mamba_d_head`, if it is a number, equals `d_head`, the head width that follows from other sizes
/// (described by `given_by`).
pub(super) fn check_head_width(json: &HfConfig<'_>, given_by: &str, d_head: usize) -> Result<(), ConfigError> {
    match json.get("mamba_d_head").filter(|given| given.is_number()) {
        Some(given) if given.as_u64() != Some(d_head as u64) => {
            let reason = format!("it is {given}, but {given_by} give {d_head}");
            Err(ConfigError::Contradiction { field: "mamba_d_head", reason })
        }
        _ => Ok(()),
    }
}

/// Tensor names of a mixer, and which tensors have biases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// Prefix of the layers.
    pub(super) folder: &'static str,
    /// Name of the mixer within a layer.
    pub(super) part: &'static str,
    /// Whether the input projections have biases.
    pub(super) maps: bool,
    /// Whether the output projection has a bias.
    pub(super) outputs: bool,
    /// Whether the convolution has a bias.
    pub(super) conv: bool,
}

impl Names {
    /// Adds the mixers of all layers that have one. The fused projection contains the gate, the channels of the
    /// convolution and the time steps, in this order.
    pub(super) fn add(self, table: &mut WeightTable, c: &TransformerConfig) {
        for layer in 0..c.n_layers() {
            let Some(space) = c.state_space_of(layer) else { continue };
            let from = |part: &str| format!("{}.{layer}.{}.{part}", self.folder, self.part);
            let to = |part: &str| format!("blocks.{layer}.ssm.{part}");
            let (all, shared) = (space.n_heads * space.d_head, space.n_groups * space.d_state);
            let of = 2 * (all + shared) + space.n_heads;
            let parts = [("gate", 0), ("x", all), ("B", 2 * all), ("C", 2 * all + shared), ("dt", 2 * (all + shared))];
            for (part, start) in parts {
                let layout = Layout::Rows { start, of };
                table.add(to(&format!("W_{part}")), from("in_proj.weight"), layout);
                if self.maps {
                    table.add(to(&format!("b_{part}")), from("in_proj.bias"), layout);
                }
            }
            table.linear(&to("W_O"), &from("out_proj"), self.outputs);
            table.add(to("conv"), from("conv1d.weight"), Layout::Filters);
            if self.conv {
                table.add(to("conv_bias"), from("conv1d.bias"), Layout::AsIs);
            }
            for part in ["A_log", "dt_bias", "D"] {
                table.add(to(part), from(part), Layout::AsIs);
            }
            if space.norm != GatedNorm::None {
                table.add(to("norm.w"), from("norm.weight"), Layout::AsIs);
            }
        }
    }
}
