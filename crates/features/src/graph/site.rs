//! Where features are read, and what their pre-activations are linear functions of.

use super::held_norm::HeldNorm;
use super::neurons::Neurons;
use crate::Dictionary;
use hooklens_model::error::Result;

/// Steps of a layer, from below: the stream before it, attention, the stream between, the MLP, the stream behind.
pub(super) const STEPS: usize = 5;
pub(super) const PRE: usize = 0;
pub(super) const ATTENTION: usize = 1;
pub(super) const MID: usize = 2;
pub(super) const MLP: usize = 3;
pub(super) const POST: usize = 4;

/// What features are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Transcoder,
    Latent,
    Neuron,
}

/// The features of one layer and point.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) layer: usize,
    pub(super) sort: Sort,
    pub(super) coder: Coder,
    /// What is done to each position's input before it is read.
    pub(super) scaling: Option<HeldNorm>,
    /// The norm between the stream and the point.
    pub(super) before: Option<HeldNorm>,
    /// The step that a gradient at the point comes to first on its way down; nothing where that is the embedding.
    pub(super) start: Option<usize>,
    /// The length of what is read at each position, `[pos]`.
    pub(super) lengths: Vec<f32>,
    /// Tokens at which the site has no features: its dictionary was trained without them.
    pub(super) left_out: Vec<u32>,
}

#[derive(Debug)]
pub(super) enum Coder {
    Dictionary(Box<Dictionary>),
    Neurons(Box<Neurons>),
}

impl Site {
    /// Whether the site has features at a token.
    pub(super) fn is_used_at(&self, token: u32) -> bool {
        !self.left_out.contains(&token)
    }

    /// What pre-activations of these latents at these positions are products of the residual stream with,
    /// `[feature, d_model]`, and what is added to them.
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

    /// The same at the point itself.
    pub(super) fn reads_at_point(&self, latents: &[u32], positions: &[usize]) -> Result<(Vec<f32>, Vec<f64>)> {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.reads(latents),
            Coder::Neurons(neurons) => Ok(neurons.reads(latents, positions)),
        }
    }

    /// How large pre-activations of these latents at these positions are where nothing cancels: the lengths of both factors of
    /// the product, over the root of their width.
    pub(super) fn sizes(&self, latents: &[u32], positions: &[usize]) -> Result<Vec<f64>> {
        let (rows, _) = self.reads_at_point(latents, positions)?;
        let width = (rows.len() / latents.len().max(1)).max(1);
        let lengths = positions.iter().map(|pos| f64::from(self.lengths.get(*pos).copied().unwrap_or(0.0)));
        Ok(rows.chunks_exact(width).zip(lengths).map(|(row, input)| usual(row, input)).collect())
    }
}

/// How large a product with a vector of this length usually is.
pub(super) fn usual(row: &[f32], length: f64) -> f64 {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    (squares / row.len().max(1) as f64).sqrt() * length
}

/// The length of each row of a width.
pub(super) fn lengths(values: &[f32], width: usize) -> Vec<f32> {
    let length = |row: &[f32]| row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32;
    values.chunks_exact(width.max(1)).map(length).collect()
}
