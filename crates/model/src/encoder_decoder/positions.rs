//! Positions of an encoder-decoder: vectors of a table, biases of scores by distance, or rotations.

use serde::{Deserialize, Serialize};

use super::sinusoids::Sinusoids;
use crate::config::{RopeScaling, Rotary};
use crate::error::ConfigError;

/// How the stacks of an encoder-decoder know positions.
///
/// ```
/// # use hooklens::encoder_decoder::{HookedEncoderDecoder, StackPositions};
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// let StackPositions::Distances { buckets, max_distance, each_layer } = model.config().positions else { return Ok(()) };
/// assert_eq!((buckets, max_distance, each_layer), (32, 128, false));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StackPositions {
    /// A learned bias of scores for each head and bucket of distances (T5).
    Distances {
        /// Buckets of distances.
        buckets: usize,
        /// Distance from which on all share the last bucket.
        max_distance: usize,
        /// Whether each layer has its own biases (UMT5), or all have the first one's.
        each_layer: bool,
    },
    /// A vector a position, added to token vectors.
    Table {
        /// Number of positions.
        n_ctx: usize,
        /// Where the vectors come from.
        source: PositionTable,
    },
    /// Rotations of queries and keys, of each stack's own (T5Gemma). Attention to the encoder rotates nothing.
    Rotary {
        /// The encoder's.
        encoder: Rotary,
        /// The decoder's.
        decoder: Rotary,
    },
}

/// Where the vectors of positions come from.
///
/// ```
/// # use hooklens::encoder_decoder::{HookedEncoderDecoder, PositionTable, StackPositions};
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/marian")?;
/// let StackPositions::Table { n_ctx, source } = model.config().positions else { return Ok(()) };
/// assert_eq!((n_ctx, source), (20, PositionTable::Sinusoids));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PositionTable {
    /// From the files.
    Learned,
    /// Sines, then cosines, of `position / 10000^(2 i / d_model)`, unless the files hold a table (Marian, Pegasus).
    Sinusoids,
    /// Sines, then cosines, of `(first + position) / 10000^(i / (d_model / 2 - 1))` (M2M-100).
    SinusoidsFrom(usize),
}

impl StackPositions {
    /// The longest sequence.
    pub fn n_ctx(&self) -> usize {
        match self {
            // No distance is too long, and no rotation.
            StackPositions::Distances { .. } | StackPositions::Rotary { .. } => 1 << 28,
            StackPositions::Table { n_ctx, .. } => *n_ctx,
        }
    }

    pub(super) fn validate(&self, d_model: usize) -> Result<(), ConfigError> {
        match *self {
            // Which would rotate the keys of a cache anew.
            StackPositions::Rotary { ref encoder, ref decoder } => {
                let by_length =
                    |scaling: &RopeScaling| matches!(scaling, RopeScaling::Dynamic { .. } | RopeScaling::Long { .. });
                match by_length(&encoder.scaling) || by_length(&decoder.scaling) {
                    true => Err(ConfigError::Contradiction {
                        field: "rope_scaling",
                        reason: "behind an encoder a rotation does not change with the length".into(),
                    }),
                    false => Ok(()),
                }
            }
            // Half of them for later keys, half of those for exact distances.
            StackPositions::Distances { buckets, .. } if !(4..=1 << 16).contains(&buckets) => {
                Err(ConfigError::BadSize { field: "buckets", given: buckets })
            }
            StackPositions::Distances { buckets, max_distance, .. } if max_distance <= buckets / 2 => {
                let reason = format!("{} exact buckets reach as far", buckets / 2);
                Err(ConfigError::Contradiction { field: "max_distance", reason })
            }
            // What is computed takes room that no file has to have.
            StackPositions::Table { n_ctx, source }
                if source != PositionTable::Learned && n_ctx > Sinusoids::LARGEST / d_model.max(1) =>
            {
                Err(ConfigError::BadSize { field: "n_ctx", given: n_ctx })
            }
            StackPositions::Table { source: PositionTable::SinusoidsFrom(first), .. } => match d_model {
                0..4 => Err(ConfigError::BadSize { field: "d_model", given: d_model }),
                // As ids of tokens, of which the first is one more.
                _ if first > 1 << 24 => Err(ConfigError::BadSize { field: "first", given: first }),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl PositionTable {
    /// The table, row by row, `[n_ctx, d_model]`; none for a learned one.
    pub fn computed(self, n_ctx: usize, d_model: usize) -> Option<Vec<f32>> {
        let half = d_model / 2;
        match self {
            PositionTable::Learned => None,
            PositionTable::Sinusoids => Some(Sinusoids::Exact.rows(n_ctx, d_model)),
            PositionTable::SinusoidsFrom(first) => {
                let row = |position: usize| -> Vec<f32> {
                    // In `f32`, as the models were trained.
                    let step = (10_000f64.ln() / (half as f64 - 1.0)) as f32;
                    let angle = |i: usize| (first + position) as f32 * (i as f32 * -step).exp();
                    let both = (0..half).map(|i| angle(i).sin()).chain((0..half).map(|i| angle(i).cos()));
                    both.chain((2 * half..d_model).map(|_| 0.0)).collect()
                };
                Some((0..n_ctx).flat_map(row).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinusoids_begin_where_they_should() {
        let near = |given: &[f32], expected: &[f32]| given.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        let table = PositionTable::Sinusoids.computed(2, 5).unwrap();
        assert!(near(&table[..5], &[0.0, 0.0, 0.0, 1.0, 1.0]), "{table:?}");
        let (one, two) = (10_000f32.powf(-0.4), 10_000f32.powf(-0.8));
        assert!(near(&table[5..], &[1f32.sin(), one.sin(), two.sin(), 1f32.cos(), one.cos()]), "{table:?}");
        let table = PositionTable::SinusoidsFrom(2).computed(1, 5).unwrap();
        assert!(near(&table, &[2f32.sin(), 2e-4f32.sin(), 2f32.cos(), 2e-4f32.cos(), 0.0]), "{table:?}");
        assert_eq!(PositionTable::Learned.computed(3, 4), None);
    }
}
