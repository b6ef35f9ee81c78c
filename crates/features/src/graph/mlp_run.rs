//! What the neurons of an MLP, or of a mixture's experts, did in one run.

use burn::tensor::Tensor;

use super::frozen_mlp::Ratios;
use super::held_norm::HeldNorm;
use super::host;
use hooklens_model::config::{Experts, TransformerConfig};
use hooklens_model::error::Result;
use hooklens_model::model::{Expert, Linear, Mlp, Moe, SharedMlp};

/// The linear maps before and behind neurons.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps<'m> {
    pub(super) input: &'m Linear,
    pub(super) gate: Option<&'m Linear>,
    pub(super) output: &'m Linear,
}

/// The neurons of an MLP, or of one expert.
#[derive(Debug)]
pub(super) struct MlpRun<'m> {
    pub(super) maps: Maps<'m>,
    pub(super) ratios: Ratios,
    /// What each writes by, `[row, neuron]`: of an expert's, times its share.
    pub(super) post: Vec<f32>,
    /// Before the function, `[row, neuron]`; of gated neurons, which are products of two numbers, `post`.
    pub(super) pre: Vec<f32>,
    /// By what the output of each row is multiplied.
    pub(super) shares: Vec<f32>,
    /// The norm over the neurons.
    pub(super) inner: Option<HeldNorm>,
}

/// The rows that positions have among those of an expert; every position has its own where nothing is chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Routed(Option<Vec<Option<usize>>>);

impl Routed {
    pub(super) fn new(routes: &[(usize, f32)], positions: usize) -> Self {
        let mut rows = vec![None; positions];
        routes.iter().enumerate().for_each(|(row, (pos, _))| rows[*pos] = Some(row));
        Self(Some(rows))
    }

    pub(super) fn row(&self, pos: usize) -> Option<usize> {
        match &self.0 {
            None => Some(pos),
            Some(rows) => rows.get(pos).copied().flatten(),
        }
    }
}

impl MlpRun<'_> {
    pub(super) fn neurons(&self) -> usize {
        self.maps.input.shape()[1]
    }

    /// What neurons write by at a position, and what they are before their function; nothing where they are not used.
    pub(super) fn at(&self, pos: usize) -> Option<[&[f32]; 2]> {
        let (row, count) = (self.ratios.row(pos)?, self.neurons());
        Some([&self.post, &self.pre].map(|values| &values[row * count..][..count]))
    }
}

impl<'m> From<&'m Mlp> for Maps<'m> {
    fn from(Mlp { input, gate, output, .. }: &'m Mlp) -> Self {
        Self { input, gate: gate.as_ref(), output }
    }
}

impl<'m> From<&'m Expert> for Maps<'m> {
    fn from(Expert { input, gate, output }: &'m Expert) -> Self {
        Self { input, gate: gate.as_ref(), output }
    }
}

impl<'m> From<&'m SharedMlp> for Maps<'m> {
    fn from(SharedMlp { input, gate, output, .. }: &'m SharedMlp) -> Self {
        Self { input, gate: gate.as_ref(), output }
    }
}

/// The experts of a mixture, then the shared one, of what the mixture reads `[pos, d_model]` and the router's weights
/// `[pos, expert]`. The routing and the experts' shares are held as they are there.
pub(super) fn experts<'m>(
    moe: &'m Moe,
    x: &Tensor<2>,
    weights: Tensor<2>,
    mixture: Experts,
    config: &TransformerConfig,
) -> Result<Vec<MlpRun<'m>>> {
    let maps = moe.experts.iter().map(Maps::from).chain(moe.shared.as_ref().map(Maps::from));
    let runs = moe.taken_apart(x, weights, mixture, config)?;
    let of = |(number, (maps, run)): (usize, (Maps<'m>, hooklens_model::model::ExpertRun))| {
        let routed = Routed::new(&run.routes, x.dims()[0]);
        let shares: Vec<f32> = run.routes.iter().map(|(_, share)| *share).collect();
        let [gate, linear, mut post] = run.neurons.map(|all| all.map(host)).unwrap_or_default();
        let neurons = maps.input.shape()[1];
        for (row, share) in post.chunks_exact_mut(neurons.max(1)).zip(&shares) {
            row.iter_mut().for_each(|x| *x *= share);
        }
        let shared = number == moe.experts.len();
        let ratios = match mixture.clipped.filter(|_| !shared) {
            None => Ratios::new(&gate, &post, maps.gate.map(|_| &linear[..]), neurons),
            Some(clipped) => Ratios::clipped(&gate, &post, &linear, clipped.limit as f32, neurons),
        };
        let pre = post.clone();
        MlpRun { maps, ratios: ratios.routed(routed), post, pre, shares, inner: None }
    };
    Ok(maps.zip(runs).enumerate().map(of).collect())
}
