//! [`LearnedMasks`]: a mask over edges, trained by gradient descent.

use std::path::PathBuf;

use ndarray::Array2;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::mask_checkpoint::{self, Task};
use crate::attribution::EdgeScores;
use crate::circuits::CircuitRuns;
use crate::circuits::edge_run::EdgeRunner;
use crate::error::CircuitError;
use crate::patching::Patching;
use crate::statistics::mean;
use hooklens_model::error::Result;

/// Bounds and temperature of the hard-concrete distribution (Louizos et al. 2018).
const LOW: f64 = -0.1;
const HIGH: f64 = 1.1;
const TEMPERATURE: f64 = 2.0 / 3.0;

/// Settings for training masks over edges so that few edges are kept and the metric is preserved (edge pruning, Bhaskar
/// et al. 2024). Each edge's mask is drawn from a hard-concrete distribution; a Lagrangian drives the expected fraction
/// of kept edges to a target.
///
/// ```
/// use hooklens::circuits::{Discovery, LearnedMasks};
/// let method = Discovery::LearnedMasks(LearnedMasks::new().keep(0.02).steps(300).seed(1));
/// # let _ = method;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedMasks {
    pub(super) keep: f64,
    pub(super) steps: usize,
    pub(super) learning_rate: f64,
    pub(super) seed: u64,
    checkpoint: Option<(PathBuf, usize)>,
}

impl Default for LearnedMasks {
    fn default() -> Self {
        Self::new()
    }
}

impl LearnedMasks {
    /// Default settings: keeps 5 % of the edges, and trains for 300 steps at learning rate 0.1 with seed 0.
    pub fn new() -> Self {
        Self { keep: 0.05, steps: 300, learning_rate: 0.1, seed: 0, checkpoint: None }
    }

    /// Sets the expected fraction of edges to keep.
    #[must_use]
    pub fn keep(mut self, share: f64) -> Self {
        self.keep = share;
        self
    }

    /// Sets the number of steps. Each step uses one batch of examples of equal length.
    #[must_use]
    pub fn steps(mut self, count: usize) -> Self {
        self.steps = count;
        self
    }

    /// Sets Adam's learning rate for the logits of the masks.
    #[must_use]
    pub fn learning_rate(mut self, rate: f64) -> Self {
        self.learning_rate = rate;
        self
    }

    /// Sets the random seed for drawing the masks.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Saves the state of the training to a file every `steps` steps and at the end, and continues from the file if it
    /// exists. The result is the same as without interruption.
    #[must_use]
    pub fn checkpoint(mut self, path: impl Into<PathBuf>, steps: usize) -> Self {
        self.checkpoint = Some((path.into(), steps.max(1)));
        self
    }

    pub(super) fn step_count(&self) -> usize {
        self.steps
    }

    fn check(&self) -> Result<(), CircuitError> {
        if !(self.keep > 0.0 && self.keep <= 1.0) {
            return Err(CircuitError::Share { given: self.keep });
        }
        if !(self.learning_rate > 0.0 && self.learning_rate.is_finite()) {
            let (name, given) = ("the learning rate", self.learning_rate.to_string());
            return Err(CircuitError::Setting { name, given, expected: "a positive number" });
        }
        Ok(())
    }
}

impl Patching<'_> {
    /// Trains masks. The scores are the masks' logits minus the lowest logit, and are the same for every example.
    pub(super) fn learned_masks(&self, settings: &LearnedMasks) -> Result<EdgeScores> {
        settings.check()?;
        let runner = EdgeRunner::new(self)?;
        let graph = runner.graph();
        let shape = (graph.senders().len(), graph.receivers().len());
        let edges: Vec<(usize, usize)> = graph.places().collect();
        let groups = runner.groups()?;
        let CircuitRuns { clean, ablated, .. } = self.run_masks(&runner, std::iter::empty())?;
        let gap = mean(&clean) - mean(&ablated);
        if gap == 0.0 {
            return Err(CircuitError::NoDifference { clean: mean(&clean) }.into());
        }
        let mut masks = Masked::new(edges.len(), settings);
        let checkpoint = settings.checkpoint.as_ref();
        let checkpoint = checkpoint.map(|own| (own, Task::of(settings, self, &runner, [&clean, &ablated])));
        let done = match &checkpoint {
            Some(((path, _), task)) => mask_checkpoint::restore(path, task, &mut masks)?,
            None => 0,
        };
        for step in done..settings.steps {
            let group = &groups[step % groups.len()];
            let drawn = masks.draw();
            let mut mask = Array2::zeros(shape);
            for (edge, kept) in edges.iter().zip(&drawn) {
                mask[*edge] = (1.0 - kept) as f32;
            }
            let mut slopes = vec![0.0; edges.len()];
            let runs = runner.gradient(group, &mask)?;
            let count = runs.len() as f64;
            for (example, (value, own)) in group.examples.iter().zip(runs) {
                // Loss: the squared difference from the clean metric, relative to the gap between clean and ablated.
                let slope = 2.0 * (value - clean[*example]) / (gap * gap) / count;
                for (sum, edge) in slopes.iter_mut().zip(&edges) {
                    *sum -= slope * own[*edge];
                }
            }
            masks.step(&drawn, &slopes, step);
            if let Some(((path, every), task)) = &checkpoint
                && ((step + 1) % every == 0 || step + 1 == settings.steps)
            {
                mask_checkpoint::save(path, task, &masks, step + 1)?;
            }
            self.tell(step + 1, settings.steps);
        }
        let mut scores = Array2::zeros(shape);
        let least = masks.logits.iter().copied().fold(f64::INFINITY, f64::min);
        for (edge, logit) in edges.iter().zip(&masks.logits) {
            // Circuits take the largest magnitudes, so scores must not be negative.
            scores[*edge] = logit - least;
        }
        Ok(EdgeScores::of_graph(graph, &vec![scores; self.examples()]))
    }
}

/// State of the training: the masks' logits, Adam's moments, and the Lagrange multipliers of the sparsity constraint.
pub(super) struct Masked {
    settings: LearnedMasks,
    pub(super) logits: Vec<f64>,
    pub(super) first: Vec<f64>,
    pub(super) second: Vec<f64>,
    pub(super) multipliers: [f64; 2],
    uniform: Vec<f64>,
    pub(super) random: ChaCha8Rng,
}

impl Masked {
    fn new(edges: usize, settings: &LearnedMasks) -> Self {
        Self {
            settings: settings.clone(),
            logits: vec![2.0; edges],
            first: vec![0.0; edges],
            second: vec![0.0; edges],
            multipliers: [0.0; 2],
            uniform: vec![0.0; edges],
            random: ChaCha8Rng::seed_from_u64(settings.seed),
        }
    }

    /// Draws a mask: the kept fraction of each edge, from 0 to 1.
    fn draw(&mut self) -> Vec<f64> {
        let random = &mut self.random;
        self.uniform.iter_mut().for_each(|own| *own = random.random_range(1e-6..1.0 - 1e-6));
        let drawn = |(logit, uniform): (&f64, &f64)| stretched(*logit, *uniform).clamp(0.0, 1.0);
        self.logits.iter().zip(&self.uniform).map(drawn).collect()
    }

    /// One step of Adam. `slopes` are gradients of the loss with respect to the drawn masks.
    fn step(&mut self, drawn: &[f64], slopes: &[f64], step: usize) {
        let edges = self.logits.len() as f64;
        let shift = TEMPERATURE * (-LOW / HIGH).ln();
        let present: Vec<f64> = self.logits.iter().map(|logit| sigmoid(logit - shift)).collect();
        let share = mean(&present);
        // The target falls linearly over the first 60 % of the steps.
        let progress = ((step + 1) as f64 / (0.6 * self.settings.steps as f64)).min(1.0);
        let target = 1.0 - (1.0 - self.settings.keep) * progress;
        let over = share - target;
        let pressure = (self.multipliers[0] + 2.0 * self.multipliers[1] * over) / edges;
        let (decay, decay_square) = (0.9_f64, 0.999_f64);
        let [bias, bias_square] = [decay, decay_square].map(|decay| 1.0 - decay.powi(step as i32 + 1));
        for edge in 0..self.logits.len() {
            let inner = (stretched(self.logits[edge], self.uniform[edge]) - LOW) / (HIGH - LOW);
            // Where the mask is clamped, its gradient is zero.
            let open = drawn[edge] > 0.0 && drawn[edge] < 1.0;
            let by_mask = if open { (HIGH - LOW) * inner * (1.0 - inner) / TEMPERATURE } else { 0.0 };
            let slope = slopes[edge] * by_mask + pressure * present[edge] * (1.0 - present[edge]);
            self.first[edge] = decay * self.first[edge] + (1.0 - decay) * slope;
            self.second[edge] = decay_square * self.second[edge] + (1.0 - decay_square) * slope * slope;
            let size = (self.second[edge] / bias_square).sqrt() + 1e-12;
            self.logits[edge] -= self.settings.learning_rate * self.first[edge] / bias / size;
        }
        // Gradient ascent on the multipliers.
        self.multipliers[0] += over;
        self.multipliers[1] += over * over;
    }
}

/// A draw from the stretched concrete distribution.
fn stretched(logit: f64, uniform: f64) -> f64 {
    let noise = uniform.ln() - (1.0 - uniform).ln();
    LOW + (HIGH - LOW) * sigmoid((noise + logit) / TEMPERATURE)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
