//! Configuration and tensor names shared by Llama and its many successors.

use serde_json::Value;

use super::hf_config::HfConfig;
use super::rope;
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ActivationFn, Experts, NormKind, Positional, Rotary, TransformerConfig, Window};
use hooklens_model::error::ConfigError;

/// RMS norm, rotary positions, a gated MLP, shared key/value heads.
pub(super) fn config(json: &HfConfig<'_>) -> Result<TransformerConfig, ConfigError> {
    config_turning(json, 1.0)
}

/// [`config`] of models that rotate this share of each head where the configuration does not say.
pub(super) fn config_turning(json: &HfConfig<'_>, turned: f64) -> Result<TransformerConfig, ConfigError> {
    let n_kv_heads = json.maybe_size("num_key_value_heads")?;
    config_of(json, turned, n_kv_heads, json.size("intermediate_size")?, json.number("rms_norm_eps", 1e-6)?)
}

/// [`config_turning`] of so many heads of keys and values, as many as heads unless given, and so many neurons, with
/// this epsilon in its norms.
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
    Ok(TransformerConfig {
        n_kv_heads: n_kv_heads.unwrap_or(n_heads),
        d_head,
        d_mlp,
        norm: NormKind::Rms,
        eps,
        activation: ActivationFn::from_name(json.text("hidden_act", "silu")?)?,
        gated_mlp: true,
        attn_scale: (d_head as f64).sqrt(),
        positional: Positional::Rotary(rope::read(json, (turned * d_head as f64) as usize, "rope_theta")?),
        ..base
    })
}

/// The same, rotating neighboring coordinates (GPT-J) rather than those half a head apart.
pub(super) fn of_neighbors(mut config: TransformerConfig) -> TransformerConfig {
    if let Positional::Rotary(rotary) = &mut config.positional {
        rotary.adjacent_pairs = true;
    }
    config
}

/// The rotations of layers of which only those with a window rotate; none where no layer has one.
pub(super) fn rotating_in_windows(config: &TransformerConfig) -> Vec<Option<Rotary>> {
    match &config.positional {
        Positional::Rotary(rotary) => {
            (0..config.n_layers).map(|layer| config.window(layer).map(|_| rotary.clone())).collect()
        }
        _ => Vec::new(),
    }
}

/// One window for all layers, if `sliding_window` names one.
pub(super) fn one_window(json: &HfConfig<'_>, n_layers: usize) -> Result<Vec<Option<Window>>, ConfigError> {
    Ok(match json.maybe_size("sliding_window")? {
        Some(width) => vec![Some(Window::Sliding(width)); n_layers],
        None => Vec::new(),
    })
}

/// Windows of the layers whose `layer_types` entry is `sliding_attention`, or, where there is no such
/// list, of those for which `otherwise` holds.
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
            let reason = "layers have a window, and `sliding_window` names none".to_string();
            return Err(ConfigError::Contradiction { field: "layer_types", reason });
        }
        return Ok(Vec::new());
    };
    Ok(match kinds {
        Some(kinds) => kinds.into_iter().map(|slides| slides.then_some(window)).collect(),
        None => (0..n_layers).map(|layer| otherwise(layer).then_some(window)).collect(),
    })
}

/// A mixture of experts of this configuration.
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

/// What the tensors of a layer are called, behind `model.layers.N.`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub(super) biases: Biases,
    /// Each norm's name here and there; those of queries and keys, where there are such, are the same everywhere.
    pub(super) norms: &'static [(&'static str, &'static str)],
    /// How norms' weights are kept.
    pub(super) norm_layout: Layout,
    /// Whether the last norm has a weight.
    pub(super) last_norm: bool,
    pub(super) mlp: MlpNames,
    /// Whether the unembedding is the embedding where the configuration does not say.
    pub(super) tied: bool,
}

/// What an MLP's projections are called.
#[derive(Debug, Clone, Copy)]
pub(super) enum MlpNames {
    /// `mlp.up_proj`, `mlp.gate_proj`, `mlp.down_proj`.
    Gated,
    /// `mlp.up_proj`, `mlp.down_proj`.
    Plain,
    /// A router, and behind a folder and a number each expert's `in`, `gate` and `out`.
    Experts { router: &'static str, folder: &'static str, parts: [&'static str; 3] },
    /// The family's own.
    Other,
}

/// Norms before attention and before the MLP.
pub(super) const BEFORE: &[(&str, &str)] = &[("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")];
/// Norms of queries and keys.
const QUERIES_AND_KEYS: &[(&str, &str)] = &[("attn.q_norm", "self_attn.q_norm"), ("attn.k_norm", "self_attn.k_norm")];

impl Names {
    /// Llama's own, without biases.
    pub(super) const LLAMA: Names = Names {
        biases: Biases { qkv: false, output: false, mlp: false },
        norms: BEFORE,
        norm_layout: Layout::AsIs,
        last_norm: true,
        mlp: MlpNames::Gated,
        tied: false,
    };

    /// With biases as the configuration's `attention_bias` and `mlp_bias` tell.
    pub(super) fn with_biases_of(self, json: &HfConfig<'_>) -> Result<Names, ConfigError> {
        let attention = json.flag("attention_bias", false)?;
        let biases = Biases { qkv: attention, output: attention, mlp: json.flag("mlp_bias", false)? };
        Ok(Names { biases, ..self })
    }
}

/// The tensor names, biases as the configuration's `attention_bias` and `mlp_bias` tell.
pub(super) fn weights(config: &TransformerConfig, json: &HfConfig<'_>) -> Result<WeightTable, ConfigError> {
    weights_with(config, json, Names::LLAMA.with_biases_of(json)?)
}

/// The tensor names.
pub(super) fn weights_with(
    config: &TransformerConfig,
    json: &HfConfig<'_>,
    names: Names,
) -> Result<WeightTable, ConfigError> {
    let mut table = WeightTable::new("", &["rotary_emb.inv_freq"]);
    table.add("embed.W_E", "model.embed_tokens.weight", Layout::AsIs);
    let weighed = config.qk_norm.is_some_and(|norm| norm.kind.has_weight());
    let heads: &[(&str, &str)] = if weighed { QUERIES_AND_KEYS } else { &[] };
    for layer in 0..config.n_layers {
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.{part}");
        let heads = if config.attends(layer) { heads } else { &[] };
        // A layer that lacks a part lacks its norms.
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
        // What a layer has in place of attention is named by its family.
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
                for expert in 0..config.experts.map_or(0, |experts| experts.count) {
                    for (part, name) in ["in", "gate", "out"].iter().zip(parts) {
                        let name = from(&format!("{folder}.{expert}.{name}"));
                        table.linear(&to(&format!("mlp.experts.{expert}.W_{part}")), &name, names.biases.mlp);
                    }
                }
            }
            // A model of mixtures may have layers without.
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

/// Multiplies what attention and the MLP add to the stream.
pub(super) fn scale_written(table: &mut WeightTable, n_layers: usize, by: f64) {
    for layer in 0..n_layers {
        for part in ["attn.W_O", "attn.b_O", "ssm.W_O", "ssm.b_O", "mlp.W_out", "mlp.b_out"] {
            table.scale(&format!("blocks.{layer}.{part}"), by);
        }
    }
}

/// One projection of this name to queries, keys and values, one behind the other.
pub(super) fn fuse_attention(table: &mut WeightTable, c: &TransformerConfig, layer: usize, name: &str, biased: bool) {
    let (width, kv_width) = (c.n_heads * c.d_head, c.n_kv_heads * c.d_head);
    for (letter, start) in [("Q", 0), ("K", width), ("V", width + kv_width)] {
        let layout = Layout::Rows { start, of: width + 2 * kv_width };
        table.add(format!("blocks.{layer}.attn.W_{letter}"), format!("{name}.weight"), layout);
        if biased {
            table.add(format!("blocks.{layer}.attn.b_{letter}"), format!("{name}.bias"), layout);
        }
    }
}

/// `mlp.gate_up_proj`, the gate's rows and then the input's, in place of the two projections apart.
pub(super) fn fuse_gate(table: &mut WeightTable, c: &TransformerConfig) {
    for layer in 0..c.n_layers {
        for (part, start) in [("gate", 0), ("in", c.d_mlp)] {
            let name = format!("model.layers.{layer}.mlp.gate_up_proj.weight");
            table.add(format!("blocks.{layer}.mlp.W_{part}"), name, Layout::Rows { start, of: 2 * c.d_mlp });
        }
    }
}

/// Layer norms, with biases, of these names in place of RMS norms, and the last norm's.
pub(super) fn layer_norms(table: &mut WeightTable, n_layers: usize, norms: &[(&str, &str)]) {
    for layer in 0..n_layers {
        for (norm, name) in norms {
            table.norm(&format!("blocks.{layer}.{norm}"), &format!("model.layers.{layer}.{name}"));
        }
    }
    table.norm("ln_final", "model.norm");
}
