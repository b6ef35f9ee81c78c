//! What was done to a model's weights, by what they are.

use burn::tensor::DType;
use serde_json::{Map, Value};

use super::Step;
use crate::model::HookedTransformer;

/// How far the means of centered vectors of one number are from zero, as a share of their root mean square. It falls with the
/// root of the width, as the mean of rounding does and the mean of vectors that are not centered, which is about a hundred
/// times as large.
const CENTERED: f64 = 0.01;
/// Rows of the embedding that are looked at.
const ROWS: usize = 32;

impl HookedTransformer {
    /// Whether what is written to the residual stream has mean zero, and the stream has. Nothing where norms do not take
    /// means away: then no such model is made of one that is not centered.
    pub fn is_centered(&self) -> Option<bool> {
        if !self.config.norm.centers() {
            return None;
        }
        let count = self.config.d_vocab;
        let ids: Vec<u32> = (0..ROWS.min(count)).map(|row| (row * count / ROWS.min(count)) as u32).collect();
        let rows = self.weights.embed.rows(&ids, DType::F32);
        let limit = CENTERED / (self.config.d_model as f64).sqrt();
        let mean = rows.clone().mean_dim(1).square().mean().into_scalar::<f64>().sqrt();
        Some(mean <= limit * rows.square().mean().into_scalar::<f64>().sqrt())
    }

    /// Whether norms' weights were moved into what reads them: a model published without is not of these.
    pub fn has_folded_norms(&self) -> bool {
        self.was_changed_by(Step::FoldNorm)
    }

    /// Whether value biases were moved into attention's output bias.
    pub fn has_folded_value_biases(&self) -> bool {
        self.was_changed_by(Step::FoldValueBiases)
    }

    /// Which steps of [`Processing::standard`](super::Processing::standard) changed its weights, by name, as SAELens's
    /// `model_from_pretrained_kwargs` has them. Steps that were applied before the model was saved are not known.
    pub(crate) fn processing_options(&self) -> Map<String, Value> {
        let steps = [Step::FoldNorm, Step::CenterWriting, Step::CenterUnembed, Step::FoldValueBiases];
        steps.into_iter().map(|step| (step.name().to_string(), self.was_changed_by(step).into())).collect()
    }

    fn was_changed_by(&self, step: Step) -> bool {
        self.report.processed.contains(&step.name())
    }
}
