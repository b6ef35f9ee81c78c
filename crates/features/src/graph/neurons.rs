//! Neurons as features: the neurons of an MLP or, concatenated, of all experts in a mixture of experts.

use super::host;
use super::mlp_run::MlpRun;
use super::secant_slopes::SecantSlopes;
use super::stacked::Stacked;
use hooklens_model::model::Linear;

/// The neurons of a layer.
#[derive(Debug)]
pub(super) struct Neurons {
    /// Input weights, `[neuron, d_model]`.
    input: Stacked,
    gate: Option<Stacked>,
    /// Biases of inputs and gates, `[neuron]`.
    biases: [Vec<f32>; 2],
    /// Secant slopes of gated neurons, for each expert.
    slopes: Option<Vec<SecantSlopes>>,
    experts: bool,
}

impl Neurons {
    pub(super) fn new(runs: &[MlpRun<'_>], experts: bool) -> Self {
        let rows = |linear: &Linear| linear.matrix().transpose();
        let bias = |linear: Option<&Linear>, neurons: usize| match linear.and_then(|linear| linear.bias.as_ref()) {
            Some(bias) => host(bias.val()),
            None => vec![0.0; neurons],
        };
        let gates: Option<Vec<_>> = runs.iter().map(|run| run.maps.gate.map(rows)).collect();
        let slopes = gates.is_some().then(|| runs.iter().map(|run| run.slopes.clone()).collect());
        Self {
            input: Stacked::new(runs.iter().map(|run| rows(run.maps.input)).collect()),
            gate: gates.map(Stacked::new),
            biases: [
                runs.iter().flat_map(|run| bias(Some(run.maps.input), run.neurons())).collect(),
                runs.iter().flat_map(|run| bias(run.maps.gate, run.neurons())).collect(),
            ],
            slopes,
            experts,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.input.rows()
    }

    /// Whether the neurons belong to a mixture of experts.
    pub(super) fn experts(&self) -> bool {
        self.experts
    }

    /// The secant slopes of a dense gated MLP; `None` for other MLPs.
    pub(super) fn slopes(&self) -> Option<&SecantSlopes> {
        self.slopes.as_ref().filter(|_| !self.experts)?.first()
    }

    /// The expert of a neuron, and its index in the expert.
    pub(super) fn expert(&self, neuron: usize) -> (usize, usize) {
        self.input.place(neuron)
    }

    /// Vectors `[feature, d_model]` whose dot products with the MLP's input are the pre-activations, and the constants
    /// added to them.
    pub(super) fn reads(&self, latents: &[u32], positions: &[usize]) -> (Vec<f32>, Vec<f64>) {
        let mut rows = self.input.gather(latents);
        let width = rows.len() / latents.len().max(1);
        let bias = |which: usize, latent: u32| f64::from(self.biases[which][latent as usize]);
        let mut constants: Vec<f64> = latents.iter().map(|latent| bias(0, *latent)).collect();
        let (Some(gates), Some(slopes)) = (&self.gate, &self.slopes) else { return (rows, constants) };
        let gates = gates.gather(latents);
        for (place, (row, gate)) in rows.chunks_exact_mut(width).zip(gates.chunks_exact(width)).enumerate() {
            let (part, own) = self.input.place(latents[place] as usize);
            let [input, by_gate] = slopes[part].at(positions[place], own);
            row.iter_mut().zip(gate).for_each(|(x, g)| *x = *x * input + g * by_gate);
            constants[place] = constants[place] * f64::from(input) + bias(1, latents[place]) * f64::from(by_gate);
        }
        (rows, constants)
    }

    /// Frozen pre-activations of expert neurons, `[pos, neuron]`, given the mixture's input `[pos, d_model]`.
    pub(super) fn held(&self, x: &[f32], positions: usize) -> Vec<f32> {
        let (count, width) = (self.count(), x.len() / positions.max(1));
        let mut all = vec![0.0; positions * count];
        let Some(slopes) = &self.slopes else { return all };
        for (pos, row) in x.chunks_exact(width.max(1)).enumerate() {
            for (part, range) in self.input.parts().enumerate() {
                if slopes[part].row(pos).is_none() {
                    continue;
                }
                let latents: Vec<u32> = range.map(|neuron| neuron as u32).collect();
                let (reads, constants) = self.reads(&latents, &vec![pos; latents.len()]);
                for ((latent, read), constant) in latents.iter().zip(reads.chunks_exact(width)).zip(constants) {
                    let dot: f64 = read.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    all[pos * count + *latent as usize] = (dot + constant) as f32;
                }
            }
        }
        all
    }
}
