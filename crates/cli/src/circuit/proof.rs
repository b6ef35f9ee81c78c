//! Measurements of a circuit.

use clap::Args;

use crate::Failure;
use hooklens_analysis::attribution::{EdgeScores, Sender};
use hooklens_analysis::circuits::{
    AdversarialAblation, Adversary, Circuit, Completeness, FaithfulnessCurve, MIB_SHARES, Selection, Stability,
};
use hooklens_analysis::patching::{Patching, Receiver};
use hooklens_analysis::statistics::{Interval, Statistics};
use hooklens_model::error::Error;

#[derive(Debug, Args)]
pub(super) struct ProofArgs {
    /// Number of random subsets of edges: for measuring completeness, and for ablating some of the edges outside the
    /// circuit; with --nodes, number of random subsets of the nodes outside the circuit
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) subsets: usize,
    /// Number of steps of the search for the worst edges to ablate outside the circuit
    #[arg(long, value_name = "N", default_value_t = 20)]
    adversary_steps: usize,
    /// Measure how much faithfulness the circuit loses without each of its edges (one pass per edge and prompt)
    #[arg(long)]
    pub(super) minimality: bool,
    /// Seed of random subsets and resampled prompts
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(super) seed: u64,
}

/// The measurements.
pub(super) struct Proof {
    /// Faithfulness of the circuit.
    pub(super) faithfulness: f64,
    pub(super) interval: Option<Interval>,
    /// Mean metric in the whole model, in the circuit, and with all edges ablated.
    pub(super) metrics: [f64; 3],
    pub(super) curve: Option<Curve>,
    pub(super) stability: Option<Stability>,
    pub(super) adversary: AdversarialAblation,
    pub(super) completeness: Completeness,
    pub(super) minimality: Option<Vec<(Sender, Receiver, f64)>>,
}

/// A faithfulness curve of circuits of edges or nodes, with what is reported about it.
pub(super) struct Curve<C = Circuit> {
    pub(super) curve: FaithfulnessCurve<C>,
    pub(super) faithfulness: Vec<f64>,
    pub(super) intervals: Option<Vec<Interval>>,
    pub(super) cpr: f64,
    pub(super) cmd: f64,
    pub(super) cpr_interval: Option<Interval>,
    pub(super) cmd_interval: Option<Interval>,
}

impl ProofArgs {
    /// About how many passes over a prompt the proof of a circuit of at most `edges` edges needs.
    pub(super) fn passes(&self, edges: usize, examples: usize) -> usize {
        let minimality = if self.minimality { edges + 1 } else { 0 };
        let steps = self.adversary_steps.saturating_mul(2 * 4);
        let runs = [MIB_SHARES.len() + 1 + 4 * 2, self.subsets.saturating_mul(3), steps, minimality];
        runs.into_iter().fold(0, usize::saturating_add).saturating_mul(examples)
    }

    /// Measures a circuit. `resampled` is the number of edges to choose with resampled prompts.
    pub(super) fn prove(
        &self,
        patching: &Patching<'_>,
        scores: Option<&EdgeScores>,
        resampled: Option<usize>,
        circuit: &Circuit,
        selection: Selection,
        statistics: &Statistics,
    ) -> Result<Proof, Failure> {
        let several = patching.examples() > 1;
        let runs = patching.run_circuits(std::slice::from_ref(circuit))?;
        let faithfulness = runs.faithfulness().map_err(Error::from)?[0];
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let own: Vec<f64> = runs.metric.values().iter().copied().collect();
        let metrics = [mean(&runs.clean), mean(&own), mean(&runs.ablated)];
        let intervals = several.then(|| runs.intervals(statistics)).transpose().map_err(Error::from)?;
        let adversary = Adversary::new().random_subsets(self.subsets).steps(self.adversary_steps).seed(self.seed);
        let stability = scores.zip(resampled).filter(|_| several && !circuit.is_empty());
        Ok(Proof {
            faithfulness,
            interval: intervals.and_then(|intervals| intervals.first().copied()),
            metrics,
            curve: scores
                .map(|scores| {
                    let curve = patching.faithfulness(scores, selection, &MIB_SHARES)?;
                    Curve::of(curve, several.then_some(statistics))
                })
                .transpose()?,
            stability: stability.map(|(scores, count)| scores.stability(statistics, count)).transpose()?,
            adversary: patching.adversarial_ablation(circuit, &adversary)?,
            completeness: patching.completeness(circuit, self.subsets, self.seed)?,
            minimality: self.minimality.then(|| patching.minimality(circuit)).transpose()?,
        })
    }
}

impl<C> Curve<C> {
    /// Computes the numbers that are reported. `statistics` is `None` for a single prompt, which has no intervals.
    pub(super) fn of(curve: FaithfulnessCurve<C>, statistics: Option<&Statistics>) -> Result<Self, Failure> {
        let interval = |of: &dyn Fn(&Statistics) -> Result<Interval, hooklens_analysis::error::StatisticsError>| {
            statistics.map(of).transpose().map_err(Error::from)
        };
        Ok(Self {
            faithfulness: curve.runs.faithfulness().map_err(Error::from)?,
            intervals: statistics.map(|own| curve.runs.intervals(own)).transpose().map_err(Error::from)?,
            cpr: curve.cpr().map_err(Error::from)?,
            cmd: curve.cmd().map_err(Error::from)?,
            cpr_interval: interval(&|own| curve.cpr_interval(own))?,
            cmd_interval: interval(&|own| curve.cmd_interval(own))?,
            curve,
        })
    }
}
