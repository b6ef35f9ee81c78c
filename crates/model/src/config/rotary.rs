//! Rotary embeddings and their scaling to longer contexts.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Rotary position embeddings (Su et al. 2021).
///
/// ```
/// use hooklens::{RopeScaling, Rotary, TransformerConfig};
/// use hooklens_model::config::Layers;
/// let rotary = Rotary { dim: 8, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
/// let config = TransformerConfig::new(2, 64, 4, 100, 32).with_positional(rotary.clone());
/// assert_eq!(config.rotary(1), Some(&rotary)); // rotates half of each head's 16 dimensions
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    /// Number of rotated dimensions at the start of a head; the others are left as they are.
    pub dim: usize,
    /// Base of the rotary frequencies (`rope_theta`).
    pub base: f64,
    /// Whether rotated pairs are adjacent (GPT-J) or half the rotary dimensions apart (NeoX, Llama).
    pub adjacent_pairs: bool,
    /// Scaling to longer contexts.
    pub scaling: RopeScaling,
}

impl Rotary {
    /// Checks the sizes, for heads of width `d_head`.
    pub(super) fn check(&self, d_head: usize) -> Result<(), ConfigError> {
        let Self { dim, base, ref scaling, .. } = *self;
        if dim == 0 || dim > d_head || !dim.is_multiple_of(2) {
            let reason = format!("{dim} is not a positive even number up to d_head ({d_head})");
            return ConfigError::refuse("rotary.dim", reason);
        }
        if !(base.is_finite() && base > 0.0) {
            return ConfigError::refuse("rotary.base", format!("{base} is not a positive number"));
        }
        scaling.validate(dim)
    }
}

/// How rotary wavelengths are scaled for longer contexts.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{RopeScaling, Rotary};
/// let model = |scaling| {
///     let rotary = Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling };
///     let config = TransformerConfig::new(1, 16, 2, 20, 64).with_positional(rotary);
///     HookedTransformer::random(config, 0, &Device::flex())
/// };
/// let [near, far] = [model(RopeScaling::None)?, model(RopeScaling::Linear { factor: 4.0 })?];
/// let [near, far] = [near, far].map(|model| model.record([1, 2, 3], "rot_k0"));
/// let gap = near?.get(hook::rot_k(0))? - far?.get(hook::rot_k(0))?;
/// assert!(gap.abs().max().into_scalar::<f32>() > 0.0); // keys are rotated less
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All wavelengths are multiplied by `factor`.
    Linear {
        /// Scaling factor.
        factor: f64,
    },
    /// Dynamic NTK: unscaled within the original context; beyond it, the base grows with the length of the text.
    Dynamic {
        /// Scaling factor.
        factor: f64,
        /// Context length before scaling.
        original_context: usize,
    },
    /// Only the first `pairs` pairs are rotated, at the frequencies they would have if all pairs were rotated, divided
    /// by `factor` (Gemma 4).
    Proportional {
        /// Number of rotated pairs.
        pairs: usize,
        /// Scaling factor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths are multiplied by `factor`, short ones are unchanged, with a ramp in between.
    Llama3 {
        /// Scaling factor.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_context: usize,
    },
    /// YaRN: long wavelengths are multiplied by `factor`, short ones are unchanged, with a ramp over dimensions in
    /// between. Rotated vectors are multiplied by `attention_factor`.
    Yarn {
        /// Scaling factor.
        factor: f64,
        /// Factor applied to sines and cosines.
        attention_factor: f64,
        /// Dimensions that complete more rotations than this within the original context are not scaled.
        beta_fast: f64,
        /// Dimensions that complete fewer rotations than this within the original context are fully scaled.
        beta_slow: f64,
        /// Context length before scaling.
        original_context: usize,
        /// Whether the ends of the ramp are rounded outward to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Phi 3): each wavelength has its own factor, and a second one for texts longer than the original
    /// context. Rotated vectors are multiplied by `attention_factor`.
    Long {
        /// Factor per rotated pair within the original context.
        short_factor: Vec<f64>,
        /// Factor per rotated pair beyond the original context.
        long_factor: Vec<f64>,
        /// Factor applied to sines and cosines.
        attention_factor: f64,
        /// Context length before scaling.
        original_context: usize,
    },
}

impl RopeScaling {
    /// Checks that the scaling is valid for `dim` rotated dimensions.
    pub(super) fn validate(&self, dim: usize) -> Result<(), ConfigError> {
        let fails =
            |reason: &str| Err(ConfigError::Contradiction { field: "rope_scaling", reason: reason.to_string() });
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match *self {
            RopeScaling::Dynamic { factor, original_context }
                if !(factor >= 1.0 && factor.is_finite()) || original_context == 0 =>
            {
                fails("`factor` must be at least 1, and `original_context` must be positive")
            }
            RopeScaling::Dynamic { .. } if dim <= 2 => fails("dynamic scaling requires more than one rotated pair"),
            RopeScaling::Linear { factor } if !positive(factor) => fails("factor must be positive"),
            RopeScaling::Proportional { pairs, factor } if !positive(factor) || pairs > dim / 2 => fails(&format!(
                "`factor` must be positive, and the number of rotated pairs ({pairs}) must be at most {}",
                dim / 2
            )),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                if !positive(factor)
                    || !positive(low_freq_factor)
                    || !high_freq_factor.is_finite()
                    || original_context == 0
                {
                    fails("factors and the original context must be positive")
                } else if high_freq_factor < low_freq_factor {
                    fails("high_freq_factor must not be less than low_freq_factor")
                } else {
                    Ok(())
                }
            }
            RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_context, .. }
                if !(positive(factor) && positive(attention_factor) && positive(beta_fast) && positive(beta_slow))
                    || original_context == 0 =>
            {
                fails("factors, betas and the original context must be positive")
            }
            RopeScaling::Long { ref short_factor, ref long_factor, attention_factor, original_context } => {
                let pairs = dim / 2;
                if short_factor.len() != pairs || long_factor.len() != pairs {
                    return fails(&format!(
                        "there are {} short and {} long factors, but {pairs} rotated pairs",
                        short_factor.len(),
                        long_factor.len()
                    ));
                }
                if !short_factor.iter().chain(long_factor).all(|factor| positive(*factor))
                    || !positive(attention_factor)
                    || original_context == 0
                {
                    return fails("factors and the original context must be positive");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
