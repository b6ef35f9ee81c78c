//! Rotary position embedding and its scaling for longer contexts.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Rotary position embedding (Su et al. 2021).
///
/// ```
/// use hooklens::{Positional, RopeScaling, Rotary, TransformerConfig};
/// let rotary = Rotary { dim: 8, base: 10_000.0, adjacent_pairs: true, scaling: RopeScaling::None };
/// let config = TransformerConfig {
///     positional: Positional::Rotary(rotary.clone()),
///     ..TransformerConfig::new(2, 64, 4, 100, 32)
/// };
/// assert_eq!(config.rotary(1), Some(&rotary)); // half of each head of 16 turns
/// config.validate()?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    /// Coordinates of a head that are rotated, the first ones; the rest pass.
    pub dim: usize,
    /// Base of the wavelengths.
    pub base: f64,
    /// Whether pairs are neighbors (GPT-J) rather than halves apart (NeoX, Llama).
    pub adjacent_pairs: bool,
    /// Change of the wavelengths for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary wavelengths are stretched for longer contexts.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Positional, RopeScaling, Rotary};
/// let model = |scaling| {
///     let rotary = Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling };
///     let positional = Positional::Rotary(rotary);
///     let config = TransformerConfig { positional, ..TransformerConfig::new(1, 16, 2, 20, 64) };
///     HookedTransformer::random(config, 0, &Device::flex())
/// };
/// let [near, far] = [model(RopeScaling::None)?, model(RopeScaling::Linear { factor: 4.0 })?];
/// let [near, far] = [near, far].map(|model| model.record([1, 2, 3], "rot_k0"));
/// let gap = near?.get(hook::rot_k(0))? - far?.get(hook::rot_k(0))?;
/// assert!(gap.abs().max().into_scalar::<f32>() > 0.0); // keys turn less
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All wavelengths times `factor`.
    Linear {
        /// How many times longer.
        factor: f64,
    },
    /// Dynamic NTK: within the original context as trained; beyond it the base grows with the text's length.
    Dynamic {
        /// How many times longer.
        factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
    /// The first `pairs` of the pairs turn at the pace that they have where all turn, `factor` times slower, and the
    /// rest stand (Gemma 4).
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// How many times longer.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths times `factor`, short ones kept, a ramp between.
    Llama3 {
        /// How many times longer.
        factor: f64,
        /// Wavelengths over `original_context / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
    /// YaRN: a ramp over dimensions, and rotated vectors times `attention_factor`.
    Yarn {
        /// How many times longer.
        factor: f64,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Rotations within the original context over which a dimension is kept.
        beta_fast: f64,
        /// Rotations within the original context under which a dimension is stretched.
        beta_slow: f64,
        /// Context length before stretching.
        original_context: usize,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Phi 3): every wavelength times a factor of its own, another one when the text is longer
    /// than the original context, and rotated vectors times `attention_factor`.
    Long {
        /// A factor for each rotated pair, within the original context.
        short_factor: Vec<f64>,
        /// A factor for each rotated pair, beyond it.
        long_factor: Vec<f64>,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Context length before stretching.
        original_context: usize,
    },
}

impl RopeScaling {
    /// Whether it can scale `dim` rotated coordinates.
    pub(super) fn validate(&self, dim: usize) -> Result<(), ConfigError> {
        let fails =
            |reason: &str| Err(ConfigError::Contradiction { field: "rope_scaling", reason: reason.to_string() });
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match *self {
            RopeScaling::Dynamic { factor, original_context }
                if !(factor >= 1.0 && factor.is_finite()) || original_context == 0 =>
            {
                fails("factor must be at least 1, and the original context positive")
            }
            RopeScaling::Dynamic { .. } if dim <= 2 => fails("one pair can't be stretched by its base"),
            RopeScaling::Linear { factor } if !positive(factor) => fails("factor must be positive"),
            RopeScaling::Proportional { pairs, factor } if !positive(factor) || pairs > dim / 2 => {
                fails(&format!("factor must be positive, and {pairs} of {} pairs can't turn", dim / 2))
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                if !positive(factor)
                    || !positive(low_freq_factor)
                    || !high_freq_factor.is_finite()
                    || original_context == 0
                {
                    fails("factors and the original context must be positive")
                } else if high_freq_factor < low_freq_factor {
                    fails("high_freq_factor must not be under low_freq_factor")
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
                        "{} short and {} long factors for {pairs} rotated pairs",
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
