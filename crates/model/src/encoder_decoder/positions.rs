//! Positions of an encoder-decoder: position embeddings, relative position biases or rotary embeddings.

use serde::{Deserialize, Serialize};

use super::sinusoids::Sinusoids;
use crate::config::{RopeScaling, Rotary};
use crate::error::ConfigError;

/// How the stacks of an encoder-decoder represent positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StackPositions {
    /// Learned score bias per head and distance bucket (T5).
    Distances {
        /// Number of distance buckets.
        buckets: usize,
        /// Positions at this distance or farther share the last bucket.
        max_distance: usize,
        /// Whether each layer has its own biases (UMT5) rather than sharing the first layer's.
        each_layer: bool,
    },
    /// Position embedding added to token embeddings.
    Table {
        /// Number of positions.
        n_ctx: usize,
        /// Source of the table.
        source: PositionTable,
    },
    /// Rotary embeddings of queries and keys, separate for each stack (T5Gemma). Cross-attention is not rotated.
    Rotary {
        /// Rotary embedding of the encoder.
        encoder: Rotary,
        /// Rotary embedding of the decoder.
        decoder: Rotary,
    },
}

/// Source of a position table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PositionTable {
    /// Learned, loaded from the files.
    Learned,
    /// Sinusoids with angles `position / 10000^(2 i / d_model)`, sines first, unless the files contain a table (Marian,
    /// Pegasus).
    Sinusoids,
    /// Sinusoids with angles `(first + position) / 10000^(i / (d_model / 2 - 1))`, sines first (M2M-100).
    SinusoidsFrom(usize),
}

impl StackPositions {
    /// Maximum sequence length.
    pub fn n_ctx(&self) -> usize {
        match self {
            // Relative and rotary positions have no limit.
            StackPositions::Distances { .. } | StackPositions::Rotary { .. } => 1 << 28,
            StackPositions::Table { n_ctx, .. } => *n_ctx,
        }
    }

    pub(super) fn validate(&self, d_model: usize) -> Result<(), ConfigError> {
        match *self {
            // Length-dependent scaling would require rotating cached keys again as the text grows.
            StackPositions::Rotary { ref encoder, ref decoder } => {
                let by_length =
                    |scaling: &RopeScaling| matches!(scaling, RopeScaling::Dynamic { .. } | RopeScaling::Long { .. });
                match by_length(&encoder.scaling) || by_length(&decoder.scaling) {
                    true => Err(ConfigError::Contradiction {
                        field: "rope_scaling",
                        reason: "scaling that depends on the length is not supported in encoder-decoders".into(),
                    }),
                    false => Ok(()),
                }
            }
            // Half the buckets are for later keys, and half of each half is for exact distances.
            StackPositions::Distances { buckets, .. } if !(4..=1 << 16).contains(&buckets) => {
                Err(ConfigError::BadSize { field: "buckets", given: buckets })
            }
            StackPositions::Distances { buckets, max_distance, .. } if max_distance <= buckets / 2 => {
                let reason =
                    format!("it must be greater than {}, the number of distances with their own buckets", buckets / 2);
                Err(ConfigError::Contradiction { field: "max_distance", reason })
            }
            // A computed table needs memory regardless of the size of the files.
            StackPositions::Table { n_ctx, source }
                if source != PositionTable::Learned && n_ctx > Sinusoids::LARGEST / d_model.max(1) =>
            {
                Err(ConfigError::BadSize { field: "n_ctx", given: n_ctx })
            }
            StackPositions::Table { source: PositionTable::SinusoidsFrom(first), .. } => match d_model {
                0..4 => Err(ConfigError::BadSize { field: "d_model", given: d_model }),
                // `first` is a token id plus one.
                _ if first > 1 << 24 => Err(ConfigError::BadSize { field: "first", given: first }),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl PositionTable {
    /// Computes the table row by row, `[n_ctx, d_model]`; `None` if it is learned.
    pub fn computed(self, n_ctx: usize, d_model: usize) -> Option<Vec<f32>> {
        let half = d_model / 2;
        match self {
            PositionTable::Learned => None,
            PositionTable::Sinusoids => Some(Sinusoids::Exact.rows(n_ctx, d_model)),
            PositionTable::SinusoidsFrom(first) => {
                let row = |position: usize| -> Vec<f32> {
                    // In `f32`, as in training.
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
