//! [`Adversary`]: searches for the edges outside a circuit whose ablation lowers faithfulness most.

use ndarray::Array2;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::CircuitRuns;
use crate::circuits::Circuit;
use crate::circuits::edge_run::{EdgeRunner, Group, mask_of};
use crate::error::CircuitError;
use crate::patching::Patching;
use crate::statistics::mean;
use hooklens_model::error::Result;

/// Settings of a search for the edges outside a circuit whose ablation lowers faithfulness most.
///
/// If everything outside a circuit is ablated at once, parts that matter can cancel each other, so that a circuit that
/// leaves them out appears faithful. Ablating only some of them reveals this.
///
/// ```
/// use hooklens::circuits::Adversary;
/// let thorough = Adversary::new().random_subsets(100).steps(50).seed(1);
/// # let _ = thorough;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adversary {
    subsets: usize,
    steps: usize,
    seed: u64,
}

impl Default for Adversary {
    fn default() -> Self {
        Self::new()
    }
}

impl Adversary {
    /// Default settings: 16 random subsets and 20 steps of projected gradient descent, with seed 0.
    pub fn new() -> Self {
        Self { subsets: 16, steps: 20, seed: 0 }
    }

    /// Sets the number of random subsets. Each edge outside the circuit is in a subset with probability 1/2.
    #[must_use]
    pub fn random_subsets(mut self, count: usize) -> Self {
        self.subsets = count;
        self
    }

    /// Sets the number of steps of projected gradient descent from each of the two starting points.
    #[must_use]
    pub fn steps(mut self, count: usize) -> Self {
        self.steps = count;
        self
    }

    /// Sets the seed of the random subsets.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Faithfulness of a circuit when only some of the edges outside it are ablated, the same edges in all examples.
///
/// ```
/// use hooklens::attribution::Gradient;
/// use hooklens::circuits::{Adversary, Circuit};
/// use hooklens::patching::{Ablation, Metric, Patching};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = "When Mary and John went to the store, John gave a drink to";
/// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;
/// let circuit = Circuit::top(&patching.edges(Gradient::Integrated(5))?, 60)?;
/// let found = patching.adversarial_ablation(&circuit, &Adversary::new().steps(3))?;
/// assert!(found.worst <= found.all);
/// println!("all ablated: {:.2}, worst: {:.2} ({} edges)", found.all, found.worst, found.ablated.len());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AdversarialAblation {
    /// Faithfulness with all edges outside the circuit ablated.
    pub all: f64,
    /// Faithfulness for each random subset.
    pub random: Vec<f64>,
    /// The smallest faithfulness found by random subsets or gradient descent.
    pub worst: f64,
    /// The edges whose ablation gives [`AdversarialAblation::worst`].
    pub ablated: Circuit,
}

impl Patching<'_> {
    /// Searches for edges outside a circuit whose ablation makes the model least faithful: random subsets, then projected
    /// gradient descent on how much of each edge is ablated, starting from full and from half ablation. All reported
    /// values are measured with each edge either fully ablated or fully kept.
    ///
    /// For each batch of examples, takes one forward pass per subset, plus two forward passes and one backward pass per
    /// step.
    ///
    /// # Errors
    /// [`CircuitError::NoDifference`] if the mean metric is the same with all and with no edges ablated; otherwise, same
    /// as [`Patching::run_circuits`].
    pub fn adversarial_ablation(&self, circuit: &Circuit, settings: &Adversary) -> Result<AdversarialAblation> {
        let runner = EdgeRunner::new(self)?;
        runner.graph().check_same(circuit.graph())?;
        let outside: Vec<(usize, usize)> = circuit.complement().places().collect();
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        let mut masks = vec![mask_of(circuit)];
        for _ in 0..settings.subsets {
            let chosen = outside.iter().filter(|_| random.random_bool(0.5)).copied();
            masks.push(mask_of(&Circuit::of_places(circuit.graph(), chosen).complement()));
        }
        let runs = self.run_masks(&runner, masks.iter().cloned())?;
        let faithfulness = runs.faithfulness()?;
        let mut search = Search::new(&runner, &runs)?;
        for (mask, own) in masks.into_iter().zip(&faithfulness) {
            search.found(*own, mask);
        }
        for start in [1.0, 0.5] {
            search.descend(&outside, start, settings.steps)?;
        }
        let (worst, mask) = search.worst.ok_or(CircuitError::NoDifference { clean: mean(&runs.clean) })?;
        let ablated = outside.into_iter().filter(|place| mask[*place] > 0.5);
        Ok(AdversarialAblation {
            all: faithfulness[0],
            random: faithfulness[1..].to_vec(),
            worst,
            ablated: Circuit::of_places(circuit.graph(), ablated),
        })
    }
}

/// The search by gradients, and the worst mask so far.
struct Search<'s, 'p, 'm> {
    runner: &'s EdgeRunner<'p, 'm>,
    groups: Vec<Group>,
    clean: f64,
    ablated: f64,
    worst: Option<(f64, Array2<f32>)>,
}

impl<'s, 'p, 'm> Search<'s, 'p, 'm> {
    fn new(runner: &'s EdgeRunner<'p, 'm>, runs: &CircuitRuns) -> Result<Self> {
        Ok(Self {
            runner,
            groups: runner.groups()?,
            clean: mean(&runs.clean),
            ablated: mean(&runs.ablated),
            worst: None,
        })
    }

    fn found(&mut self, faithfulness: f64, mask: Array2<f32>) {
        if self.worst.as_ref().is_none_or(|(worst, _)| faithfulness < *worst) {
            self.worst = Some((faithfulness, mask));
        }
    }

    /// Projected gradient descent on the mean metric, in steps of equal size for all edges.
    fn descend(&mut self, outside: &[(usize, usize)], start: f32, steps: usize) -> Result<()> {
        let (senders, receivers) = (self.runner.graph().senders().len(), self.runner.graph().receivers().len());
        let mut mask = Array2::zeros((senders, receivers));
        for place in outside {
            mask[*place] = start;
        }
        let sign = if self.clean >= self.ablated { 1.0 } else { -1.0 };
        for step in 0..steps {
            let mut slopes = Array2::<f64>::zeros((senders, receivers));
            for group in &self.groups {
                for (_, own) in self.runner.gradient(group, &mask)? {
                    slopes += &own;
                }
            }
            // Shrink the steps over time, so that masks settle.
            let size = 0.5 * 0.5_f32.powf(2.0 * step as f32 / steps as f32);
            for place in outside {
                let moved = mask[*place] - size * (sign * slopes[*place]).signum() as f32;
                mask[*place] = moved.clamp(0.0, 1.0);
            }
            let whole = mask.mapv(|weight: f32| if weight > 0.5 { 1.0 } else { 0.0 });
            let faithfulness = self.faithfulness(&whole)?;
            self.found(faithfulness, whole);
        }
        Ok(())
    }

    fn faithfulness(&self, mask: &Array2<f32>) -> Result<f64> {
        let metric = self.runner.mean_metric(&self.groups, mask)?;
        Ok((metric - self.ablated) / (self.clean - self.ablated))
    }
}
