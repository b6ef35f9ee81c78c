//! Steering vectors (Turner et al. 2023), function vectors (Todd et al. 2024) and directional ablation.

use crate::activations::Analyze;
use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Hook, HookDetails, HookError, ModelIdentity, Record, ResolveOne, Selection, SelectionText, at};

use crate::activations::{AnalysisError, Stage};
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, Identified};

/// A steering vector: the difference between the activations of two kinds of prompts at a point of the residual stream,
/// to be added in other runs (Turner et al. 2023).
///
/// ```
/// use hooklens::experiments::SteeringVector;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let john_gives = "When Mary and John went to the store, John gave a drink to";
/// let mary_gives = "When Mary and John went to the store, Mary gave a drink to";
/// let to_mary = SteeringVector::between(&model, john_gives, mary_gives, "resid_post2")?;
/// let steered = model.run_with_hooks(mary_gives, [to_mary.hook(1.0)])?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SteeringVector {
    /// The full name of the point at which the vector is added.
    pub point: String,
    /// The direction, `[d_model]`.
    pub vector: Tensor<1>,
    /// The model whose residual stream the direction belongs to, if known.
    model: Option<Arc<ModelIdentity>>,
}

impl SteeringVector {
    /// Subtracts the mean activation at the last token of the `away_from` prompts from the mean at the last token of
    /// the `towards` prompts, at a point of shape `[batch, pos, d]`.
    ///
    /// ```
    /// use hooklens::experiments::SteeringVector;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let there = ["When Mary and John", "When Tom and John"];
    /// let vector = SteeringVector::between(&model, there, "After Mary and John", "resid_post0")?;
    /// assert_eq!((&*vector.point, vector.vector.dims()), ("blocks.0.hook_resid_post", [64]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::record`]; [`HookError::Rank`] for a point of a different rank.
    pub fn between(
        model: &HookedTransformer,
        towards: impl Into<Input>,
        away_from: impl Into<Input>,
        point: &str,
    ) -> Result<Self> {
        let mean = |input: Input| -> Result<(String, Tensor<1>)> {
            let recorded = model.record(input, Record::new(point).positions(-1))?;
            let name = recorded.names().next().unwrap_or(point).to_string();
            let last: Tensor<3> = recorded.get(point)?;
            let [_, _, width] = last.dims();
            Ok((name, last.mean_dim(0).reshape([width])))
        };
        let (name, towards) = mean(towards.into())?;
        let (_, away_from) = mean(away_from.into())?;
        Ok(Self { point: name, vector: towards - away_from, model: Some(model.identity()) })
    }

    /// A function vector (Todd et al. 2024): the outputs of some heads, given as `(layer, head)`, at the last tokens of
    /// prompts, averaged over prompts and summed over heads. Meant to be added to the residual stream after a layer.
    ///
    /// ```
    /// use hooklens::experiments::{SteeringVector, ioi_prompts};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompts: Vec<String> = ioi_prompts(10, 0).into_iter().map(|prompt| prompt.text).collect();
    /// let vector = SteeringVector::of_heads(&model, prompts, &[(1, 2), (1, 3)], "resid_post1")?;
    /// let steered = model.run_with_hooks("When Mary and John", [vector.hook(1.0)])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::record`]; [`AnalysisError::UnknownComponent`] for a head that does not exist.
    pub fn of_heads(
        model: &HookedTransformer,
        prompts: impl Into<Input>,
        heads: &[(usize, usize)],
        point: &str,
    ) -> Result<Self> {
        let mut points = vec!["*attn.hook_z"];
        if model.catalog().find("blocks.0.ln1_post.hook_scale").is_ok() {
            points.push("*ln1_post.hook_scale");
        }
        let recorded = model.record(prompts, Record::new(points).positions(-1))?;
        let all = model.analyze(&recorded)?.stack_head_results(Stage::Final)?;
        let width = model.config().d_model();
        let mut sum = Tensor::zeros([width], (&model.device(), model.dtype().burn()));
        for (layer, head) in heads {
            sum = sum + all.vector(&format!("L{layer}H{head}"))?.mean_dim(0).reshape([width]);
        }
        let point = Selection::from(point).resolve_one(model.catalog())?;
        let name = model.catalog().info(point).name.to_string();
        Ok(Self { point: name, vector: sum, model: Some(model.identity()) })
    }

    /// A steering vector from a given direction, `[d]`, for a point of shape `[batch, pos, d]`.
    ///
    /// ```
    /// use hooklens::experiments::SteeringVector;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let mary = model.tokens_to_residual_directions("Mary")?.reshape([64]);
    /// let push = SteeringVector::new("resid_post3", mary);
    /// let logit = |hooks: Vec<_>| {
    ///     let logits = model.forward_with("When", ForwardOptions::new().logits(Logits::Last).hooks(hooks))?;
    ///     Ok::<_, hooklens::Error>(logits.slice([0..1, 0..1, 1..2]).into_scalar::<f32>())
    /// };
    /// assert!(logit(vec![push.hook(5.0)])? > logit(vec![])?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn new(point: impl Into<Selection>, vector: Tensor<1>) -> Self {
        Self { point: point.into().full_name(), vector, model: None }
    }

    /// The direction, `[d]`.
    pub fn vector(&self) -> &Tensor<1> {
        &self.vector
    }

    /// Name of the point where the vector is added.
    pub fn point(&self) -> &str {
        &self.point
    }

    /// A hook that adds the direction times `strength` at every position.
    ///
    /// ```
    /// use hooklens::experiments::SteeringVector;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let vector = SteeringVector::new("resid_post0", Tensor::ones([64], &model.device()));
    /// let (plain, steered) = (hook::resid_pre(1), model.hooks([vector.hook(0.5)]));
    /// let gap = steered.record("When", &plain)?.get(&plain)? - model.record("When", &plain)?.get(&plain)?;
    /// assert!((gap - 0.5).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn hook(&self, strength: f64) -> Hook<'static> {
        let vector = self.vector.clone() * strength;
        let added = vector.clone();
        let hook = at(self.point.as_str()).edit(move |stream: Tensor<3>, _| -> Result<Tensor<3>, AnalysisError> {
            check_width("the steering vector", &vector, &stream)?;
            let added = like(&vector, &stream);
            Ok(stream + added)
        });
        self.for_its_model(hook.that_uses(format!("add a direction of strength {strength:?}"), &added))
    }

    /// A hook that removes the component along the direction at every position (directional ablation).
    ///
    /// ```
    /// use hooklens::experiments::SteeringVector;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let direction: Tensor<1> = model.w_u().narrow(1, 1, 1).reshape([64]);
    /// let without = model.hooks([SteeringVector::new("resid_post0", direction.clone()).ablation()?]);
    /// let stream = without.record("When Mary", hook::resid_post(0))?.get(hook::resid_post(0))?;
    /// let along = (stream * direction.unsqueeze()).sum_dim(2);
    /// assert!(along.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Failed`] if the direction is zero or not finite.
    pub fn ablation(&self) -> Result<Hook<'static>> {
        let vector = self.vector.clone().cast(DType::F32);
        let size = vector.clone().square().sum().sqrt();
        let length = hooklens_hooks::Activation::from(size.clone()).to_ndarray()?[[0]];
        if length == 0.0 || !length.is_finite() {
            let source = format!("the direction has length {length}; it must be nonzero and finite").into();
            return Err(HookError::Failed { point: self.point.clone(), source }.into());
        }
        let unit = vector / size;
        let hook = at(self.point.as_str()).edit(move |stream: Tensor<3>, _| -> Result<Tensor<3>, AnalysisError> {
            check_width("the direction", &unit, &stream)?;
            let unit = like(&unit, &stream);
            let along = (stream.clone() * unit.clone()).sum_dim(2);
            Ok(stream - along * unit)
        });
        Ok(self.for_its_model(hook.that_uses("take out a direction", &self.vector)))
    }

    /// Restricts a hook to the vector's model, because the direction means something else under different weights or
    /// processing.
    fn for_its_model(&self, hook: Hook<'static>) -> Hook<'static> {
        match &self.model {
            Some(model) => hook.for_model(model),
            None => hook,
        }
    }
}

/// A direction in the element type and on the device of a stream, `[1, 1, d]`.
fn like(direction: &Tensor<1>, stream: &Tensor<3>) -> Tensor<3> {
    direction.clone().cast(stream.dtype()).to_device(&stream.device()).unsqueeze()
}

/// Fails unless the vector is as wide as the hooked stream.
fn check_width(what: &str, vector: &Tensor<1>, stream: &Tensor<3>) -> Result<(), AnalysisError> {
    let [_, _, width] = stream.dims();
    if vector.dims() == [width] {
        return Ok(());
    }
    let expected = format!("[{width}], the width of the activation");
    Err(AnalysisError::Shape { what: what.into(), given: vector.dims().to_vec(), expected })
}
