//! Evaluation of a trained dictionary, in the form in which it is saved, on held-out tokens.

use std::fmt;

use burn::tensor::{Device, Tensor, TensorData};
use serde::Serialize;

use super::source::{Rows, Source};
use super::trainer::Trainer;
use crate::evaluation::{Sums, add_reconstructions, defined};
use crate::opened::Opened;
use crate::transcoders::Transcoders;
use hooklens_io::numerals::grouped;
use hooklens_model::error::Result;

/// Number of tokens on which thresholds are calibrated.
const CALIBRATED: usize = 16_384;
/// Minimum and maximum number of tokens evaluated. Within these bounds, a tenth of the number of training tokens is
/// evaluated.
const MEASURED: [usize; 2] = [16_384, 65_536];
/// Number of tokens encoded at a time.
const TOGETHER: usize = 1024;

/// How well a trained dictionary, as it is saved, reconstructs tokens that follow its training data. Metrics are
/// defined as in [`Evaluation`](crate::Evaluation).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HeldOut {
    /// Number of tokens evaluated.
    tokens: usize,
    /// Whether none of the tokens were used in training. False if the prompts have too few tokens for that.
    unseen: bool,
    /// Mean number of active latents per token.
    pub l0: f64,
    /// `1 − E‖x − x̂‖² / (E‖x‖² − ‖E x‖²)`; NaN if all activations are equal.
    pub explained_variance: f64,
    /// Mean of `‖x − x̂‖²`.
    mse: f64,
    /// Fraction of latents that are active at none of the tokens.
    pub dead: f64,
}

/// Formats one line: `explained variance 0.6200, L0 16.00, dead 1.2 % (as saved, on 16,384 further tokens)`.
impl fmt::Display for HeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (explained, l0, dead) = (defined(self.explained_variance, 4), self.l0, 100.0 * self.dead);
        let (tokens, which) =
            (grouped(self.tokens), if self.unseen { "further tokens" } else { "tokens seen in training" });
        write!(f, "explained variance {explained}, L0 {l0:.2}, dead {dead:.1} % (as saved, on {tokens} {which})")
    }
}

impl HeldOut {
    fn new(sums: &Sums, unseen: bool) -> Self {
        let density = sums.density();
        Self {
            tokens: sums.tokens(),
            unseen,
            l0: sums.l0(),
            explained_variance: sums.explained_variance(),
            mse: sums.mse(),
            dead: density.iter().filter(|density| **density == 0.0).count() as f64 / density.len().max(1) as f64,
        }
    }
}

/// Calibrates thresholds on the first tokens that follow the training data, builds the dictionaries, and evaluates each
/// layer on those and further tokens. If the run was stopped, nothing is evaluated.
pub(super) fn finished(
    trainers: &mut [Trainer],
    left_out: &[u32],
    source: &mut dyn Source,
) -> Result<Vec<(Opened, Vec<HeldOut>)>> {
    let total = trainers.iter().map(|trainer| trainer.settings.total).max().unwrap_or(0);
    let is_stopped = trainers.iter().any(|trainer| trainer.tokens < trainer.settings.total);
    let most = (total / 10).clamp(MEASURED[0], MEASURED[1]);
    let by_batch = trainers.iter().any(|trainer| trainer.settings.objective.by_batch().is_some());
    let (mut first, mut tokens) = (Vec::new(), 0);
    while tokens < CALIBRATED && (by_batch || !is_stopped) {
        let Some(rows) = source.further(most)? else { break };
        tokens += trainers[0].rows(&rows);
        first.push(rows);
    }
    let mut made = Vec::new();
    for trainer in trainers.iter_mut() {
        trainer.calibrate(&first);
        made.push(trainer.trained()?.exclude_tokens(left_out));
    }
    if is_stopped {
        return Ok(made.into_iter().map(|one| (one, Vec::new())).collect());
    }
    let mut measured: Vec<(Transcoders, Vec<Sums>)> = made.iter().map(layers).collect();
    for rows in first {
        measured.iter_mut().try_for_each(|one| add(one, &rows))?;
    }
    while let Some(rows) = source.further(most)? {
        measured.iter_mut().try_for_each(|one| add(one, &rows))?;
    }
    let unseen = source.is_unseen();
    let measures = measured.iter().map(|(_, sums)| sums.iter().map(|sums| HeldOut::new(sums, unseen)).collect());
    Ok(made.into_iter().zip(measures).collect())
}

/// The layers of a trained dictionary, with empty sums.
fn layers(one: &Opened) -> (Transcoders, Vec<Sums>) {
    let all = match one {
        Opened::Dictionary(one) => Transcoders::new(one.name(), vec![one.clone()]),
        Opened::Transcoders(all) => all.clone(),
    };
    let sums = vec![Sums::default(); all.layers().len()];
    (all, sums)
}

fn add((all, sums): &mut (Transcoders, Vec<Sums>), rows: &Rows) -> Result<()> {
    let Some(one) = all.layers().first() else { return Ok(()) };
    let [read, _] = one.points()?;
    let tokens = rows[read].len() / one.d_in().max(1);
    for first in (0..tokens).step_by(TOGETHER) {
        let count = TOGETHER.min(tokens - first);
        let some = |point: &str, width: usize| {
            let values = rows[point][first * width..][..count * width].to_vec();
            Ok(Tensor::<2>::from_data(TensorData::new(values, [count, width]), &Device::flex()))
        };
        add_reconstructions(all, sums, &some, (&vec![true; count], count), &[])?;
    }
    Ok(())
}
