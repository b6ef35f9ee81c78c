//! Code shared by families with mixtures of experts: names, layers without experts, shared experts.

use serde_json::Value;

use super::hf_config::HfConfig;
use super::llama_like::{Biases, MlpNames, Names};
use crate::weight_files::{Layout, WeightTable};
use hooklens_model::config::{ExpertGroups, Experts, Layers, MlpConfig, RouterFn, SharedExpert, TransformerConfig};
use hooklens_model::error::ConfigError;

/// Usual names of a layer's router and experts.
pub(super) const EXPERTS: MlpNames =
    MlpNames::Experts { router: "mlp.gate", folder: "mlp.experts", parts: ["up_proj", "gate_proj", "down_proj"] };

/// Llama's tensor names with the experts in [`EXPERTS`], and attention biases if `attention_bias` is set.
pub(super) fn names(json: &HfConfig<'_>) -> Result<Names, ConfigError> {
    let attention = json.flag("attention_bias", false)?;
    Ok(Names { mlp: EXPERTS, biases: Biases { qkv: attention, output: attention, mlp: false }, ..Names::LLAMA })
}

/// Adds experts of width `d_mlp` in all layers except those for which `dense` holds; these have an MLP of width
/// `config.d_mlp`.
pub(super) fn with_experts(
    mut config: TransformerConfig,
    (experts, d_mlp): (Experts, usize),
    dense: impl Fn(usize) -> bool,
) -> TransformerConfig {
    for (_, layer) in config.layers_mut().iter_mut().enumerate().filter(|(number, _)| !dense(*number)) {
        layer.mlp = MlpConfig::Experts { experts, d_mlp, gated: layer.mlp.is_gated() };
    }
    config
}

/// Which layers have a plain MLP, according to `mlp_layer_types` or, without such a list, `otherwise`.
pub(super) fn dense_by_type(
    json: &HfConfig<'_>,
    n_layers: usize,
    otherwise: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    let dense = |kind: &Value| match kind.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(json.unsupported("mlp_layer_types")),
    };
    match json.per_layer("mlp_layer_types", n_layers)? {
        Some(kinds) => kinds.iter().map(dense).collect(),
        None => Ok((0..n_layers).map(otherwise).collect()),
    }
}

/// DeepSeek V3's experts and the width of each: sigmoid scores, groups, and shared experts combined into one. All
/// fields must be present or have a default.
pub(super) fn deepseek(json: &HfConfig<'_>) -> Result<(Experts, usize), ConfigError> {
    let (experts, d_mlp) = deepseek_without_groups(json)?;
    let (count, kept) = (json.size_or("n_group", 1)?, json.size_or("topk_group", 1)?);
    Ok((Experts { groups: (count > 1).then_some(ExpertGroups { count, kept, best: 2 }), ..experts }, d_mlp))
}

/// Like [`deepseek`], but ignores groups.
pub(super) fn deepseek_without_groups(json: &HfConfig<'_>) -> Result<(Experts, usize), ConfigError> {
    // Names used by Bailing and Sarvam.
    let own_or = |own: &'static str, usual: &'static str| if json.given().has(own) { own } else { usual };
    let count = json.size(own_or("num_experts", "n_routed_experts"))?;
    let d_mlp = json.size("moe_intermediate_size")?;
    let shared = json.size_or(own_or("num_shared_experts", "n_shared_experts"), 0)?;
    let experts = Experts {
        renormalize: json.flag("norm_topk_prob", true)?,
        scale: json.number("routed_scaling_factor", 1.0)?,
        ..by_sigmoids(count, json.size("num_experts_per_tok")?, shared, d_mlp)
    };
    Ok((experts, d_mlp))
}

/// Experts chosen by sigmoid scores plus a bias, `per_token` of `count`, with shared experts of width `d_mlp` combined
/// into one.
pub(super) fn by_sigmoids(count: usize, per_token: usize, shared: usize, d_mlp: usize) -> Experts {
    Experts {
        router: RouterFn::Sigmoid,
        choice_bias: true,
        shared: (shared > 0).then_some(SharedExpert { d_mlp: shared.saturating_mul(d_mlp), gated: false }),
        ..Experts::new(count, per_token)
    }
}

/// Adds stacked experts: `gate_up_proj` as `[expert, in, 2 * out]` with the gates first, and `down_proj`.
pub(super) fn add_stacked(table: &mut WeightTable, to: &str, from: &str, of: usize) {
    for index in 0..of {
        for (part, name, half, parts) in
            [("gate", "gate_up_proj", 0, 2), ("in", "gate_up_proj", 1, 2), ("out", "down_proj", 0, 1)]
        {
            let layout = Layout::ColumnsOfCube { index, of, part: half, parts };
            table.add(format!("{to}.{index}.W_{part}"), format!("{from}.{name}"), layout);
        }
    }
}

/// Adds stacked experts: `input_linear` as `[expert, 2 * out, in]` with the gates' rows first, and `output_linear`.
pub(super) fn add_halved(table: &mut WeightTable, to: &str, from: &str, of: usize, d_mlp: usize) {
    for index in 0..of {
        for (part, start) in [("gate", 0), ("in", d_mlp)] {
            let layout = Layout::RowsOfStack { index, of, start, rows: 2 * d_mlp };
            table.add(format!("{to}.{index}.W_{part}"), format!("{from}.input_linear.weight"), layout);
        }
        let layout = Layout::OfStack { index, of };
        table.add(format!("{to}.{index}.W_out"), format!("{from}.output_linear.weight"), layout);
    }
}

/// Adds the shared experts and the routers' biases under these names within a layer.
pub(super) fn add_shared(table: &mut WeightTable, c: &TransformerConfig, shared: &str, choice_bias: Option<&str>) {
    for layer in 0..c.n_layers() {
        let Some(experts) = c.experts_of(layer) else { continue };
        let from = |part: &str| format!("model.layers.{layer}.{part}");
        let to = |part: &str| format!("blocks.{layer}.mlp.{part}");
        if experts.shared.is_some() {
            for (part, name) in [("in", "up_proj"), ("gate", "gate_proj"), ("out", "down_proj")] {
                table.linear(&to(&format!("shared.W_{part}")), &from(&format!("{shared}.{name}")), false);
            }
        }
        if let (true, Some(name)) = (experts.choice_bias, choice_bias) {
            table.add(to("choice_bias"), from(name), Layout::AsIs);
        }
    }
}
