//! Checkpoints of masks in training, from which training resumes as if it had not been interrupted.

use std::path::Path;

use hooklens_hooks::write_file;
use hooklens_io::regular;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::learned_masks::{LearnedMasks, Masked};
use crate::circuits::edge_run::EdgeRunner;
use crate::error::CircuitError;
use crate::patching::{Patching, Source};
use hooklens_model::error::{Result, load_errors};

const FORMAT: &str = "hooklens learned masks 1";

/// Contents of a checkpoint file.
#[derive(Serialize, Deserialize)]
struct File {
    format: String,
    /// Hash of `state`.
    checksum: String,
    /// A [`State`] as JSON.
    state: String,
}

/// State of the training. Floats are stored as their bits, so that training resumes with exactly the same values.
#[derive(Serialize, Deserialize)]
struct State {
    task: Task,
    step: usize,
    logits: Vec<u64>,
    first: Vec<u64>,
    second: Vec<u64>,
    multipliers: [u64; 2],
    /// Position of the random number generator in its stream, as a decimal number.
    drawn: String,
}

/// The settings, model, prompts and metric of a training run. Training resumes only from a checkpoint of the same task.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Task {
    keep: u64,
    steps: usize,
    learning_rate: u64,
    seed: u64,
    /// Hash of the model's weights, if known.
    model: Option<String>,
    edges: usize,
    /// Hash of the prompts, including the prompts that the values of ablated edges are computed from.
    prompts: String,
    /// The metric of each prompt in the whole model and with all edges ablated, rounded to `f32`.
    metrics: Vec<[f32; 2]>,
}

impl Task {
    pub(super) fn of(
        settings: &LearnedMasks,
        patching: &Patching<'_>,
        runner: &EdgeRunner<'_, '_>,
        metrics: [&[f64]; 2],
    ) -> Self {
        let (kind, others): (&str, &[Vec<u32>]) = match &patching.source {
            Source::Run(prompts) => ("run", prompts),
            Source::Zero => ("zero", &[]),
            Source::Mean { prompts, by_position: false } => ("mean", prompts),
            Source::Mean { prompts, by_position: true } => ("mean by position", prompts),
        };
        let prompts = format!("{kind} {:?} {others:?}", patching.base);
        Self {
            keep: settings.keep.to_bits(),
            steps: settings.steps,
            learning_rate: settings.learning_rate.to_bits(),
            seed: settings.seed,
            model: runner.graph().model().map(str::to_string),
            edges: runner.graph().len(),
            prompts: format!("{:032x}", xxh3_128(prompts.as_bytes())),
            metrics: metrics[0]
                .iter()
                .zip(metrics[1])
                .map(|(clean, ablated)| [*clean as f32, *ablated as f32])
                .collect(),
        }
    }

    /// The first difference from a checkpoint's task, if any. Metrics that differ only by rounding, as between
    /// machines, count as equal.
    fn differs_from(&self, other: &Self) -> Option<&'static str> {
        let far = |own: &f32, other: &f32| (own - other).abs() > 1e-3 * own.abs().max(1.0);
        let mut metrics = self.metrics.iter().flatten().zip(other.metrics.iter().flatten());
        if self.keep != other.keep {
            Some("it was saved for a different fraction of edges to keep")
        } else if self.steps != other.steps {
            Some("it was saved for a different number of steps")
        } else if (self.learning_rate, self.seed) != (other.learning_rate, other.seed) {
            Some("it was saved for a different learning rate or seed")
        } else if self.edges != other.edges
            || self.model.as_ref().zip(other.model.as_ref()).is_some_and(|(a, b)| a != b)
        {
            Some("it was saved for a different model")
        } else if self.prompts != other.prompts {
            Some("it was saved for different prompts")
        } else if self.metrics.len() != other.metrics.len() || metrics.any(|(own, other)| far(own, other)) {
            Some("it was saved for a different metric")
        } else {
            None
        }
    }
}

/// Saves the state after `step` steps, atomically.
pub(super) fn save(path: &Path, task: &Task, masks: &Masked, step: usize) -> Result<()> {
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>();
    let state = State {
        task: task.clone(),
        step,
        logits: bits(&masks.logits),
        first: bits(&masks.first),
        second: bits(&masks.second),
        multipliers: masks.multipliers.map(f64::to_bits),
        drawn: masks.random.get_word_pos().to_string(),
    };
    let state = serde_json::to_string(&state).unwrap_or_default();
    let checksum = format!("{:032x}", xxh3_128(state.as_bytes()));
    let file = File { format: FORMAT.into(), checksum, state };
    let text = serde_json::to_string(&file).unwrap_or_default();
    Ok(write_file(path, text.as_bytes()).map_err(load_errors::cant_write(path))?)
}

/// Restores the masks from a checkpoint, if there is one. Returns the number of finished steps.
///
/// # Errors
/// Fails if the file is damaged or is a checkpoint of a different task.
pub(super) fn restore(path: &Path, task: &Task, masks: &mut Masked) -> Result<usize> {
    if !path.try_exists().map_err(load_errors::cant_read(path))? {
        return Ok(0);
    }
    let wrong = |reason: String| CircuitError::Checkpoint { path: path.into(), reason };
    let unknown = || wrong("it is not a checkpoint of learned masks, or it is damaged".into());
    // The file has three numbers per edge and two per example, each of at most 21 characters including a comma.
    let largest = (1 << 20) + 64 * task.edges as u64 + 48 * task.metrics.len() as u64;
    if regular::check(path).map_err(load_errors::cant_read(path))?.len() > largest {
        return Err(unknown().into());
    }
    let bytes = regular::read(path).map_err(load_errors::cant_read(path))?;
    let file: File = serde_json::from_slice(&bytes).map_err(|_| unknown())?;
    if file.format != FORMAT || file.checksum != format!("{:032x}", xxh3_128(file.state.as_bytes())) {
        return Err(unknown().into());
    }
    let state: State = serde_json::from_str(&file.state).map_err(|_| unknown())?;
    if let Some(difference) = task.differs_from(&state.task) {
        return Err(wrong(format!("{difference}; remove the file to start over")).into());
    }
    let numbers = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect::<Vec<f64>>();
    let (logits, first, second) = (numbers(state.logits), numbers(state.first), numbers(state.second));
    if [&logits, &first, &second].iter().any(|values| values.len() != task.edges) || state.step > task.steps {
        return Err(unknown().into());
    }
    let drawn: u128 = state.drawn.parse().map_err(|_| unknown())?;
    masks.random.set_word_pos(drawn);
    (masks.logits, masks.first, masks.second) = (logits, first, second);
    masks.multipliers = state.multipliers.map(f64::from_bits);
    Ok(state.step)
}
