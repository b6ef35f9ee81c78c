//! Activations of the neurons of an MLP, or of a mixture's experts, in one run.

use burn::tensor::Tensor;

use super::held_norm::HeldNorm;
use super::host;
use super::secant_slopes::{Routed, SecantSlopes};
use hooklens_model::config::{Experts, TransformerConfig};
use hooklens_model::error::Result;
use hooklens_model::model::{DenseMlp, Expert, Linear, Moe, SharedMlp};

/// The linear maps before and after the neurons.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps<'m> {
    pub(super) input: &'m Linear,
    pub(super) gate: Option<&'m Linear>,
    pub(super) output: &'m Linear,
}

/// The neurons of an MLP, or of one expert, in one run.
#[derive(Debug)]
pub(super) struct MlpRun<'m> {
    pub(super) maps: Maps<'m>,
    pub(super) slopes: SecantSlopes,
    /// Activations that multiply the output weights, `[row, neuron]`. For experts, multiplied by the routing weight.
    pub(super) post: Vec<f32>,
    /// Pre-activations, `[row, neuron]`. For gated neurons, which are products of two factors, the same as `post`.
    pub(super) pre: Vec<f32>,
    /// Multiplier of each row's output, such as the routing weight.
    pub(super) shares: Vec<f32>,
    /// The norm over the neurons, if there is one.
    pub(super) inner: Option<HeldNorm>,
}

impl MlpRun<'_> {
    pub(super) fn neurons(&self) -> usize {
        self.maps.input.shape()[1]
    }

    /// Activations and pre-activations at a position; `None` if the neurons are not used there.
    pub(super) fn at(&self, pos: usize) -> Option<[&[f32]; 2]> {
        let (row, count) = (self.slopes.row(pos)?, self.neurons());
        Some([&self.post, &self.pre].map(|values| &values[row * count..][..count]))
    }
}

impl<'m> From<&'m DenseMlp> for Maps<'m> {
    fn from(DenseMlp { input, gate, output, .. }: &'m DenseMlp) -> Self {
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

/// The experts of a mixture, followed by the shared expert, given the mixture's input `[pos, d_model]` and the router
/// weights `[pos, expert]`. Routing and routing weights are held fixed.
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
        let slopes = match mixture.clipped.filter(|_| !shared) {
            None => SecantSlopes::new(&gate, &post, maps.gate.map(|_| &linear[..]), neurons),
            Some(clipped) => SecantSlopes::clipped(&gate, &post, &linear, clipped.limit as f32, neurons),
        };
        let pre = post.clone();
        MlpRun { maps, slopes: slopes.routed(routed), post, pre, shares, inner: None }
    };
    Ok(maps.zip(runs).enumerate().map(of).collect())
}
