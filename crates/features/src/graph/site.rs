//! Feature sites: the points where features are read, and the linear functions that compute their pre-activations.

use super::held_norm::HeldNorm;
use super::neurons::Neurons;
use crate::Dictionary;
use hooklens_model::error::Result;

/// Steps of a layer in forward order: stream before the layer, attention, stream after attention, MLP, stream after the
/// layer.
pub(super) const STEPS: usize = 5;
pub(super) const PRE: usize = 0;
pub(super) const ATTENTION: usize = 1;
pub(super) const MID: usize = 2;
pub(super) const MLP: usize = 3;
pub(super) const POST: usize = 4;

/// The kind of a site's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Transcoder,
    Latent,
    Neuron,
}

impl Sort {
    /// The beginning of a phrase such as `a neuron of one of the layers 0, 1`.
    pub(super) fn of(self) -> &'static str {
        match self {
            Sort::Transcoder => "a transcoder's feature of ",
            Sort::Latent => "an autoencoder's latent of ",
            Sort::Neuron => "a neuron of ",
        }
    }
}

/// The features of one layer and point.
#[derive(Debug)]
pub(super) struct FeatureSite {
    pub(super) layer: usize,
    pub(super) sort: Sort,
    pub(super) coder: Coder,
    /// Normalization of each position's input before the dictionary reads it.
    pub(super) scaling: Option<HeldNorm>,
    /// The norm between the stream and the point.
    pub(super) before: Option<HeldNorm>,
    /// The first step that a gradient at the point reaches on its way backward; `None` if only the embedding precedes
    /// the point.
    pub(super) start: Option<usize>,
    /// Norm of the input at each position, `[pos]`.
    pub(super) lengths: Vec<f32>,
    /// Token ids at which the site has no features, because they were excluded from its dictionary's training.
    pub(super) left_out: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum Coder {
    Dictionary(Box<Dictionary>),
    Neurons(Box<Neurons>),
}

impl FeatureSite {
    /// Whether the site has features at a token.
    pub(super) fn is_used_at(&self, token: u32) -> bool {
        !self.left_out.contains(&token)
    }

    /// Vectors `[feature, d_model]` whose dot products with the residual stream are the pre-activations of `latents` at
    /// `positions`, and the constants added to them.
    pub(super) fn reads(&self, latents: &[u32], positions: &[usize]) -> Result<(Vec<f32>, Vec<f64>)> {
        let (mut rows, mut constants) = self.reads_at_point(latents, positions)?;
        let width = rows.len() / latents.len().max(1);
        for ((row, pos), constant) in rows.chunks_exact_mut(width.max(1)).zip(positions).zip(&mut constants) {
            if let Some(scaling) = &self.scaling {
                scaling.back(row, *pos);
            }
            if let Some(norm) = &self.before {
                if let Some(bias) = norm.bias() {
                    *constant += row.iter().zip(bias).map(|(x, b)| f64::from(*x) * f64::from(*b)).sum::<f64>();
                }
                norm.back(row, *pos);
            }
        }
        Ok((rows, constants))
    }

    /// The vectors and constants of [`FeatureSite::reads`], relative to the input at the point itself.
    pub(super) fn reads_at_point(&self, latents: &[u32], positions: &[usize]) -> Result<(Vec<f32>, Vec<f64>)> {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.reads(latents),
            Coder::Neurons(neurons) => Ok(neurons.reads(latents, positions)),
        }
    }

    /// Typical magnitudes of the pre-activations of `latents` at `positions` if nothing cancels: the norm of the weight
    /// vector times the norm of the input, divided by the square root of their width.
    pub(super) fn sizes(&self, latents: &[u32], positions: &[usize]) -> Result<Vec<f64>> {
        let (rows, _) = self.reads_at_point(latents, positions)?;
        let width = (rows.len() / latents.len().max(1)).max(1);
        let lengths = positions.iter().map(|pos| f64::from(self.lengths.get(*pos).copied().unwrap_or(0.0)));
        Ok(rows.chunks_exact(width).zip(lengths).map(|(row, input)| usual(row, input)).collect())
    }
}

/// Typical magnitude of a dot product of `row` with a vector of norm `length`.
pub(super) fn usual(row: &[f32], length: f64) -> f64 {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    (squares / row.len().max(1) as f64).sqrt() * length
}

/// The norm of each row.
pub(super) fn lengths(values: &[f32], width: usize) -> Vec<f32> {
    let length = |row: &[f32]| row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32;
    values.chunks_exact(width.max(1)).map(length).collect()
}
