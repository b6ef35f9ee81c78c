//! Configuration and tensor names shared by Llama and its many successors.

use serde_json::Value;

use super::hf_config::HfConfig;
use super::rope;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{
    ActivationFn, Experts, Layers, NormDetails, NormKind, Positional, Rotary, Settings, TransformerConfig, Window,
};
use hooklens_model::error::ConfigError;

/// Reads a configuration with RMS norms, rotary positions, a gated MLP and shared key/value heads.
pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    config_turning(json, 1.0)
}

/// Like [`config`], for models that rotate this fraction of each head unless the file specifies another.
pub(super) fn config_turning(json: &HfConfig<'_>, turned: f64) -> Result<TransformerConfig, ConfigError> {
    let n_kv_heads = json.maybe_size("num_key_value_heads")?;
    config_of(json, turned, n_kv_heads, json.size("intermediate_size")?, json.number("rms_norm_eps", 1e-6)?)
}

/// Like [`config_turning`], with this number of key/value heads (by default one per head), MLP width and norm epsilon.
pub(super) fn config_of(
    json: &HfConfig<'_>,
    turned: f64,
    n_kv_heads: Option<usize>,
    d_mlp: usize,
    eps: f64,
) -> Result<TransformerConfig, ConfigError> {
    let (d_model, n_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let d_head = match json.maybe_size("head_dim")? {
        Some(d_head) => d_head,
        None => json.share("num_attention_heads", d_model, n_heads)?,
    };
    let base = TransformerConfig::new(
        json.layers("num_hidden_layers")?,
        d_model,
        n_heads,
        json.size("vocab_size")?,
        rope::context(json)?,
    );
    let turned = rope::share(json, turned)?;
    Ok(base
        .with_kv_heads(n_kv_heads.unwrap_or(n_heads))
        .with_d_head(d_head)
        .with_d_mlp(d_mlp)
        .with_gated_mlp(true)
        .with_positional(rope::read(json, (turned * d_head as f64) as usize, "rope_theta")?)
        .with_norm(NormKind::Rms)
        .with_eps(eps)
        .with_activation(json.text("hidden_act", "silu")?.parse::<ActivationFn>()?)
        .with_attn_scale((d_head as f64).sqrt()))
}

/// Changes the rotary embedding to rotate adjacent pairs (GPT-J) rather than coordinates half a head apart.
pub(super) fn of_neighbors(mut config: TransformerConfig) -> TransformerConfig {
    if let Positional::Rotary(rotary) = config.positional_mut() {
        rotary.adjacent_pairs = true;
    }
    config
}

/// Rotary embeddings of the layers if only windowed layers have them; empty for a model without rotary positions.
pub(super) fn rotating_in_windows(config: &TransformerConfig) -> Vec<Option<Rotary>> {
    match config.positional() {
        Positional::Rotary(rotary) => {
            (0..config.n_layers()).map(|layer| config.window(layer).map(|_| rotary.clone())).collect()
        }
        _ => Vec::new(),
    }
}

/// Window of each layer; empty if none has one.
pub(super) fn windows_of(config: &TransformerConfig) -> Vec<Option<Window>> {
    let windows: Vec<_> = (0..config.n_layers()).map(|layer| config.window(layer)).collect();
    if windows.iter().all(Option::is_none) { Vec::new() } else { windows }
}

/// The same window for all layers, if `sliding_window` is set.
pub(super) fn one_window(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    Ok(match json.maybe_size("sliding_window")? {
        Some(width) => vec![Some(Window::Sliding(width)); n_layers],
        None => Vec::new(),
    })
}

/// Window of each layer: `sliding_window` for layers listed as `sliding_attention` in `layer_types` or, without such a
/// list, layers for which `otherwise` holds; `None` for the others.
pub(super) fn windows_by_type(
    json: &HfConfig<'_>,
    n_layers: usize,
    otherwise: impl Fn(usize) -> bool,
) -> Result<Vec<Option<Window>>, ConfigError> {
    let slides = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(ConfigError::UnknownValue {
            field: "layer_types",
            given: kind.to_string(),
            known: "full_attention, sliding_attention",
        }),
    };
    let kinds = match json.per_layer("layer_types", n_layers)? {
        Some(kinds) => Some(kinds.iter().map(slides).collect::<Result<Vec<bool>, _>>()?),
        None => None,
    };
    let Some(window) = json.maybe_size("sliding_window")?.map(Window::Sliding) else {
        if kinds.is_some_and(|kinds| kinds.contains(&true)) {
            let reason = "it lists `sliding_attention`, but `sliding_window` is not set".to_string();
            return Err(ConfigError::Contradiction { field: "layer_types", reason });
        }
        return Ok(Vec::new());
    };
    Ok(match kinds {
        Some(kinds) => kinds.into_iter().map(|slides| slides.then_some(window)).collect(),
        None => (0..n_layers).map(|layer| otherwise(layer).then_some(window)).collect(),
    })
}

/// Settings of a mixture of experts.
pub(super) fn experts(json: &HfConfig<'_>, count: &str, renormalize: bool) -> Result<Option<Experts>, ConfigError> {
    let (count, per_token) = (json.size(count)?, json.size("num_experts_per_tok")?);
    Ok(Some(Experts { renormalize, ..Experts::new(count, per_token) }))
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy)]
pub(super) struct Biases {
    pub(super) qkv: bool,
    pub(super) output: bool,
    pub(super) mlp: bool,
}

/// Tensor names of a layer, after `model.layers.N.`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub(super) biases: Biases,
    /// For each norm, its name in hooklens and its name in the files. Query and key norms, if any, have the same names
    /// in all families.
    pub(super) norms: &'static [(&'static str, &'static str)],
    /// Storage layout of norm weights.
    pub(super) norm_layout: Layout,
    /// Whether the final norm has a weight.
    pub(super) last_norm: bool,
    pub(super) mlp: MlpNames,
    /// Whether the unembedding is tied if the file does not specify it.
    pub(super) tied: bool,
}

/// Tensor names of an MLP.
#[derive(Debug, Clone, Copy)]
pub(super) enum MlpNames {
    /// Gated MLP: `mlp.up_proj`, `mlp.gate_proj`, `mlp.down_proj`.
    Gated,
    /// Plain MLP: `mlp.up_proj`, `mlp.down_proj`.
    Plain,
    /// Mixture of experts: a router, and each expert's `in`, `gate` and `out` after a folder and a number.
    Experts { router: &'static str, folder: &'static str, parts: [&'static str; 3] },
    /// Other names, which the code of the model family adds.
    Other,
}

/// Names of the norms before attention and before the MLP.
pub(super) const BEFORE: &[(&str, &str)] = &[("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")];
/// Names of query and key norms.
const QUERIES_AND_KEYS: &[(&str, &str)] = &[("attn.q_norm", "self_attn.q_norm"), ("attn.k_norm", "self_attn.k_norm")];

impl Names {
    /// Llama's names, without biases.
    pub(super) const LLAMA: Names = Names {
        biases: Biases { qkv: false, output: false, mlp: false },
        norms: BEFORE,
        norm_layout: Layout::AsIs,
        last_norm: true,
        mlp: MlpNames::Gated,
        tied: false,
    };

    /// Sets biases from the configuration's `attention_bias` and `mlp_bias`.
    pub(super) fn with_biases_of(self, json: &HfConfig<'_>) -> Result<Names, ConfigError> {
        let attention = json.flag("attention_bias", false)?;
        let biases = Biases { qkv: attention, output: attention, mlp: json.flag("mlp_bias", false)? };
        Ok(Names { biases, ..self })
    }
}

/// Weight table with Llama's names and biases from `attention_bias` and `mlp_bias`.
pub(super) fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    weights_with(config, json, Names::LLAMA.with_biases_of(json)?)
}

/// Weight table with the given names.
pub(super) fn weights_with(
    config: &TransformerConfig,
    json: &HfConfig<'_>,
    names: Names,
) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    let weighed = config.qk_norm().is_some_and(|norm| norm.kind.has_weight());
    let heads: &[(&str, &str)] = if weighed { QUERIES_AND_KEYS } else { &[] };
    for layer in 0..config.n_layers() {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        let heads = if config.attends(layer) { heads } else { &[] };
        // A layer without attention or MLP also lacks its norms.
        let lacks = |norm: &str| {
            (norm.starts_with("ln1") && !config.mixes(layer)) || (norm.starts_with("ln2") && !config.has_mlp(layer))
        };
        for (norm, name) in names.norms.iter().chain(heads).filter(|(norm, _)| !lacks(norm)) {
            table.add(to(&format!("{norm}.w")), from(&format!("{name}.weight")), names.norm_layout);
        }
        let projections = [
            ("Q", "q_proj", names.biases.qkv),
            ("K", "k_proj", names.biases.qkv),
            ("V", "v_proj", names.biases.qkv),
            ("O", "o_proj", names.biases.output),
        ];
        // Mixers that replace attention are added by the families themselves.
        for (letter, name, biased) in projections.into_iter().filter(|_| config.attends(layer)) {
            table.linear(&to(&format!("attn.W_{letter}")), &from(&format!("self_attn.{name}")), biased);
        }
        if !config.has_mlp(layer) {
            continue;
        }
        let mixture = config.experts_of(layer).is_some();
        match names.mlp {
            MlpNames::Experts { router, folder, parts } if mixture => {
                table.linear(&to("mlp.W_gate"), &from(router), false);
                for expert in 0..config.experts().map_or(0, |experts| experts.count) {
                    for (part, name) in ["in", "gate", "out"].iter().zip(parts) {
                        let name = from(&format!("{folder}.{expert}.{name}"));
                        table.linear(&to(&format!("mlp.experts.{expert}.W_{part}")), &name, names.biases.mlp);
                    }
                }
            }
            // A model with mixtures of experts may have layers without experts.
            MlpNames::Gated | MlpNames::Experts { .. } => {
                for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
                    table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), names.biases.mlp);
                }
            }
            MlpNames::Plain => {
                for (part, name) in [("in", "up_proj"), ("out", "down_proj")] {
                    table.linear(&to(&format!("mlp.W_{part}")), &from(&format!("mlp.{name}")), names.biases.mlp);
                }
            }
            MlpNames::Other => {}
        }
    }
    if names.last_norm {
        table.add("ln_final.w", "model.norm.weight", names.norm_layout);
    }
    let tied = json.flag("tie_word_embeddings", names.tied)?;
    table.unembedding("lm_head.weight", tied);
    Ok(table)
}

/// Scales the outputs of attention and the MLP.
pub(super) fn scale_written(table: &mut WeightTable, n_layers: usize, by: f64) {
    for layer in 0..n_layers {
        for part in ["attn.W_O", "attn.b_O", "ssm.W_O", "ssm.b_O", "mlp.W_out", "mlp.b_out"] {
            table.scale(&format!("blocks.{layer}.{part}"), by);
        }
    }
}

/// Replaces the query, key and value projections by one fused projection with this name.
pub(super) fn fuse_attention(table: &mut WeightTable, c: &TransformerConfig, layer: usize, name: &str, biased: bool) {
    let (width, kv_width) = (c.n_heads() * c.d_head(), c.n_kv_heads() * c.d_head());
    for (letter, start) in [("Q", 0), ("K", width), ("V", width + kv_width)] {
        let layout = Layout::Rows { start, of: width + 2 * kv_width };
        table.add(format!("blocks.{layer}.attn.W_{letter}"), format!("{name}.weight"), layout);
        if biased {
            table.add(format!("blocks.{layer}.attn.b_{letter}"), format!("{name}.bias"), layout);
        }
    }
}

/// Replaces the gate and input projections by `mlp.gate_up_proj`, which contains the gate's rows first.
pub(super) fn fuse_gate(table: &mut WeightTable, c: &TransformerConfig) {
    for layer in 0..c.n_layers() {
        for (part, start) in [("gate", 0), ("in", c.d_mlp())] {
            let name = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
            table.add(format!("blocks.{layer}.mlp.W_{part}"), name, Layout::Rows { start, of: 2 * c.d_mlp() });
        }
    }
}

/// Replaces RMS norms by layer norms with biases, including the final norm.
pub(super) fn layer_norms(table: &mut WeightTable, n_layers: usize, norms: &[(&str, &str)]) {
    for layer in 0..n_layers {
        for (norm, name) in norms {
            table.norm(&format!("blocks.{layer}.{norm}"), &format!("model.layers.{layer}.{name}"));
        }
    }
    table.norm("ln_final", "model.norm");
}
