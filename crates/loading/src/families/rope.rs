//! Rotary embedding settings in Hugging Face configurations.

use super::hf_config::HfConfig;
use super::phi3;
use hooklens_model::config::{RopeScaling, Rotary, Window};
use hooklens_model::error::ConfigError;

/// Fields that describe a rotary embedding.
pub(super) const FIELDS: [&str; 16] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
];

/// Reads base and scaling; `dim` is the number of rotated coordinates. Newer files store all settings in
/// `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
pub(super) fn read(json: &HfConfig<'_>, dim: usize, base_field: &str) -> Result<Rotary, ConfigError> {
    let parameters = parameters(json, "full_attention")?;
    let base = match &parameters {
        Some(parameters) => parameters.number("rope_theta", json.number(base_field, 10_000.0)?)?,
        None => json.number(base_field, 10_000.0)?,
    };
    // A family's default does not apply if the file has `rope_parameters`.
    let older = if parameters.is_some() { json.given().object("rope_scaling")? } else { json.object("rope_scaling")? };
    let scaling = match (parameters, older) {
        (Some(parameters), None) => read_scaling(json, &parameters, true)?,
        (None, Some(older)) => read_scaling(json, &older, false)?,
        (Some(parameters), Some(older)) => {
            let [newer, older] = [read_scaling(json, &parameters, true)?, read_scaling(json, &older, false)?];
            if newer != older {
                let reason = "it differs from `rope_scaling`, which is also set".to_string();
                return Err(ConfigError::Contradiction { field: "rope_parameters", reason });
            }
            newer
        }
        (None, None) => RopeScaling::None,
    };
    Ok(Rotary { dim, base, adjacent_pairs: false, scaling })
}

/// Reads the rotary embedding of layers of this type, for files that always list it per type.
pub(super) fn of_type(json: &HfConfig<'_>, layers: &str, d_head: usize) -> Result<Rotary, ConfigError> {
    let all = json.object("rope_parameters")?;
    let own = all.map(|all| all.object(layers)).transpose()?.flatten();
    let own = own.ok_or_else(|| json.unsupported("rope_parameters"))?;
    let scaling = match own.text("rope_type", "default")? {
        "proportional" => {
            let share = own.number("partial_rotary_factor", 1.0)?;
            RopeScaling::Proportional {
                pairs: (share * d_head as f64 / 2.0) as usize,
                factor: own.number("factor", 1.0)?,
            }
        }
        _ => read_scaling(json, &own, true)?,
    };
    let base = own.needed_number("rope_theta")?;
    Ok(Rotary { dim: d_head, base, adjacent_pairs: false, scaling })
}

/// Reads the rotary embedding of windowed layers from a newer file of a family with windows; `None` for older files.
pub(super) fn of_windows(json: &HfConfig<'_>, far: &Rotary) -> Result<Option<Rotary>, ConfigError> {
    let Some(all) = json.object("rope_parameters")? else { return Ok(None) };
    let Some(own) = all.object("sliding_attention")? else { return Ok(None) };
    let base = own.number("rope_theta", 10_000.0)?;
    Ok(Some(Rotary { base, scaling: read_scaling(json, &own, true)?, ..far.clone() }))
}

/// The `rope_parameters` of a newer file; in families with windows, the parameters for layers of this type.
pub(super) fn parameters<'j>(json: &HfConfig<'j>, layers: &str) -> Result<Option<HfConfig<'j>>, ConfigError> {
    let Some(all) = json.object("rope_parameters")? else { return Ok(None) };
    Ok(Some(all.object(layers)?.unwrap_or(all)))
}

/// Rotary embedding of each layer: `near` if it has a window, else `far`.
pub(super) fn by_window(windows: &[Option<Window>], near: &Rotary, far: &Rotary) -> Vec<Option<Rotary>> {
    windows.iter().map(|window| Some(if window.is_some() { near } else { far }.clone())).collect()
}

/// Fraction of each head that is rotated.
pub(super) fn share(json: &HfConfig<'_>, default: f64) -> Result<f64, ConfigError> {
    const SHARE: &str = "partial_rotary_factor";
    match parameters(json, "full_attention")?.filter(|parameters| parameters.has(SHARE)) {
        Some(parameters) => parameters.needed_number(SHARE),
        None => json.number(SHARE, default),
    }
}

/// Context length, which is only informative for a model without a position table.
pub(super) fn context(json: &HfConfig<'_>) -> Result<usize, ConfigError> {
    let older = json.has("max_sequence_length") && !json.has("max_position_embeddings");
    json.size_or(if older { "max_sequence_length" } else { "max_position_embeddings" }, 2048)
}

/// Reads the scaling; `newer` means that the settings come from `rope_parameters`.
fn read_scaling(json: &HfConfig<'_>, scaling: &HfConfig<'_>, newer: bool) -> Result<RopeScaling, ConfigError> {
    let kind = scaling.text("rope_type", scaling.text("type", "default")?)?;
    if !newer && !scaling.has("rope_type") && !scaling.has("type") {
        return Err(json.unsupported("rope_scaling"));
    }
    // Older files of Phi 3 use `su` or `yarn` for what is now called LongRoPE.
    let kind = match kind {
        "yarn" if json.is_of(&phi3::FAMILY) || json.is_of(&phi3::MULTIMODAL) => "longrope",
        kind => kind,
    };
    let factor = match kind {
        "linear" | "dynamic" | "llama3" | "yarn" | "deepseek_yarn" => scaling.needed_number("factor")?,
        _ => 1.0,
    };
    const ORIGINAL: &str = "original_max_position_embeddings";
    let given = |of: &HfConfig<'_>| of.has(ORIGINAL).then(|| of.size(ORIGINAL)).transpose();
    let original = match (given(scaling)?, given(&json.given())?) {
        // Which of the two fields is used depends on the version of transformers.
        (Some(within), Some(beside)) if within != beside => {
            let reason = format!("it is {beside}, but {within} in the rotary settings");
            return Err(ConfigError::Contradiction { field: ORIGINAL, reason });
        }
        (Some(context), _) => Some(context),
        (None, _) => given(json)?,
    };
    let longest = context(json)?;
    let original_context = original.unwrap_or(longest);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        // The original context length in the settings is ignored.
        "dynamic" => Ok(RopeScaling::Dynamic { factor, original_context: longest }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor: scaling.number("low_freq_factor", 1.0)?,
            high_freq_factor: scaling.number("high_freq_factor", 4.0)?,
            original_context,
        }),
        "yarn" | "deepseek_yarn" => {
            let magnitude = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
            let mscale = scaling.maybe_number("mscale")?.unwrap_or(0.0);
            let mscale_all = scaling.maybe_number("mscale_all_dim")?.unwrap_or(0.0);
            let by_default = match mscale != 0.0 && mscale_all != 0.0 {
                true => magnitude(mscale) / magnitude(mscale_all),
                false => magnitude(1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                attention_factor: scaling.maybe_number("attention_factor")?.unwrap_or(by_default),
                beta_fast: scaling.maybe_number("beta_fast")?.unwrap_or(32.0),
                beta_slow: scaling.maybe_number("beta_slow")?.unwrap_or(1.0),
                original_context,
                truncate: scaling.flag("truncate", true)?,
            })
        }
        "longrope" | "su" => {
            let ratio = original.map(|context| longest as f64 / context.max(1) as f64);
            let factor = scaling.maybe_number("factor")?;
            // The precedence differs between old and new files.
            let stretch = if newer { factor.or(ratio) } else { ratio.or(factor) }.unwrap_or(1.0);
            let root = (1.0 + stretch.ln() / (original_context.max(2) as f64).ln()).sqrt();
            Ok(RopeScaling::Long {
                short_factor: scaling.numbers("short_factor")?,
                long_factor: scaling.numbers("long_factor")?,
                attention_factor: scaling.maybe_number("attention_factor")?.unwrap_or(if stretch <= 1.0 {
                    1.0
                } else {
                    root
                }),
                original_context,
            })
        }
        other => Err(ConfigError::UnknownValue {
            field: "rope_scaling.rope_type",
            given: other.to_string(),
            known: "default, dynamic, linear, llama3, longrope, yarn",
        }),
    }
}
