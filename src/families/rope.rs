//! Rotary embedding as Hugging Face configurations describe it.

use super::hf_config::HfConfig;
use crate::config::{RopeScaling, Rotary, Window};
use crate::error::ConfigError;

/// Reads base and scaling; `dim` is the number of rotated coordinates. Newer files keep all of
/// it in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
pub(super) fn read(json: &HfConfig<'_>, dim: usize, base_field: &str) -> Result<Rotary, ConfigError> {
    let parameters = parameters(json, "full_attention")?;
    let base = match &parameters {
        Some(parameters) => parameters.number("rope_theta", json.number(base_field, 10_000.0)?)?,
        None => json.number(base_field, 10_000.0)?,
    };
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => json.object("rope_scaling")?,
    };
    let scaling = match scaling {
        Some(scaling) => read_scaling(json, &scaling)?,
        None => RopeScaling::None,
    };
    Ok(Rotary { dim, base, adjacent_pairs: false, scaling })
}

/// What newer files keep of the rotation; of a family with windows, for layers of this type.
pub(super) fn parameters<'j>(json: &HfConfig<'j>, layers: &str) -> Result<Option<HfConfig<'j>>, ConfigError> {
    let Some(all) = json.object("rope_parameters")? else { return Ok(None) };
    Ok(Some(all.object(layers)?.unwrap_or(all)))
}

/// Each layer's rotation: `near` where it has a window, else `far`.
pub(super) fn by_window(windows: &[Option<Window>], near: &Rotary, far: &Rotary) -> Vec<Option<Rotary>> {
    windows.iter().map(|window| Some(if window.is_some() { near } else { far }.clone())).collect()
}

/// The share of each head that is rotated.
pub(super) fn share(json: &HfConfig<'_>, default: f64) -> Result<f64, ConfigError> {
    let newer = match parameters(json, "full_attention")? {
        Some(parameters) => parameters.maybe_number("partial_rotary_factor")?,
        None => None,
    };
    Ok(newer.unwrap_or(json.number("partial_rotary_factor", default)?))
}

/// The longest text, which a model without position vectors only tells.
pub(super) fn context(json: &HfConfig<'_>) -> Result<usize, ConfigError> {
    let older = json.maybe_size("max_sequence_length")?.unwrap_or(2048);
    Ok(json.maybe_size("max_position_embeddings")?.unwrap_or(older))
}

fn read_scaling(json: &HfConfig<'_>, scaling: &HfConfig<'_>) -> Result<RopeScaling, ConfigError> {
    scaling.not_null("rope_type")?;
    let kind = scaling.text("rope_type", scaling.text("type", "default")?)?;
    let factor = match kind {
        "linear" | "llama3" | "yarn" => scaling.needed_number("factor")?,
        _ => 1.0,
    };
    let original = match scaling.maybe_size("original_max_position_embeddings")? {
        Some(context) => Some(context),
        None => json.maybe_size("original_max_position_embeddings")?,
    };
    let longest = context(json)?;
    let original_context = original.unwrap_or(longest);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor: scaling.number("low_freq_factor", 1.0)?,
            high_freq_factor: scaling.number("high_freq_factor", 4.0)?,
            original_context,
        }),
        "yarn" => {
            let magnitude = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
            let mscale = scaling.number("mscale", 0.0)?;
            let mscale_all = scaling.number("mscale_all_dim", 0.0)?;
            let by_default = match mscale != 0.0 && mscale_all != 0.0 {
                true => magnitude(mscale) / magnitude(mscale_all),
                false => magnitude(1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                attention_factor: scaling.number("attention_factor", by_default)?,
                beta_fast: scaling.number("beta_fast", 32.0)?,
                beta_slow: scaling.number("beta_slow", 1.0)?,
                original_context,
                truncate: scaling.flag("truncate", true)?,
            })
        }
        // Older files of Phi 3 say `su`.
        "longrope" | "su" => {
            let stretch = match original {
                Some(context) => longest as f64 / context.max(1) as f64,
                None => scaling.number("factor", 1.0)?,
            };
            let root = (1.0 + stretch.ln() / (original_context.max(2) as f64).ln()).sqrt();
            Ok(RopeScaling::Long {
                short_factor: scaling.numbers("short_factor")?,
                long_factor: scaling.numbers("long_factor")?,
                attention_factor: scaling.number("attention_factor", if stretch <= 1.0 { 1.0 } else { root })?,
                original_context,
            })
        }
        other => Err(ConfigError::UnknownValue {
            field: "rope_scaling.rope_type",
            given: other.to_string(),
            known: "default, linear, llama3, longrope, yarn",
        }),
    }
}
