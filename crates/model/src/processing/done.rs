//! Detects which processing a model's weights have undergone.

use burn::tensor::DType;
use serde_json::{Map, Value};

use super::Step;
use crate::config::NormDetails;
use crate::model::HookedTransformer;

/// Maximum mean of a centered vector, relative to its root mean square and multiplied by sqrt(width): the mean of
/// rounding errors and the mean of an uncentered vector are both proportional to `1 / sqrt(width)`. The mean of an
/// uncentered vector is about a hundred times this maximum.
const CENTERED: f64 = 0.01;
/// Number of embedding rows that are examined.
const ROWS: usize = 32;

/// Whether the weights that write to a model's residual stream are centered, so that the stream has mean zero. `None`
/// if the model's norms do not subtract the mean, because centering does not apply to such models.
pub fn is_centered(model: &HookedTransformer) -> Option<bool> {
    if !model.config.norm.centers() {
        return None;
    }
    let count = model.config.d_vocab;
    let ids: Vec<u32> = (0..ROWS.min(count)).map(|row| (row * count / ROWS.min(count)) as u32).collect();
    let rows = model.weights.parts.embed.rows(&ids, DType::F32);
    let limit = CENTERED / (model.config.d_model as f64).sqrt();
    let mean = rows.clone().mean_dim(1).square().mean().into_scalar::<f64>().sqrt();
    Some(mean <= limit * rows.square().mean().into_scalar::<f64>().sqrt())
}

/// Whether processing folded a model's norm weights into the layers that read them. False for a model that was
/// published without norm weights.
pub fn has_folded_norms(model: &HookedTransformer) -> bool {
    was_changed_by(model, Step::FoldNorm)
}

/// Whether processing folded a model's value biases into the attention's output bias.
pub fn has_folded_value_biases(model: &HookedTransformer) -> bool {
    was_changed_by(model, Step::FoldValueBiases)
}

/// Whether each step of [`Processing::standard`](super::Processing::standard) changed a model's weights, by step name,
/// in the form of SAELens's `model_from_pretrained_kwargs`. Steps applied before the model was saved are not known.
pub fn processing_options(model: &HookedTransformer) -> Map<String, Value> {
    let steps = [Step::FoldNorm, Step::CenterWriting, Step::CenterUnembed, Step::FoldValueBiases];
    steps.into_iter().map(|step| (step.name().to_string(), was_changed_by(model, step).into())).collect()
}

fn was_changed_by(model: &HookedTransformer, step: Step) -> bool {
    model.report.processed.contains(&step.name())
}
