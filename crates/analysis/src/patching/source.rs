//! The source of patches: a different run, zeros or means.

use std::collections::HashMap;

use burn::tensor::{DType, Device, Tensor, TensorData};
use hooklens_hooks::{Activation, Axis, PointId, PointInfo, Record, Selection};
use ndarray::{ArrayD, Axis as Along};

use super::model::Patchable;
use crate::error::PatchError;
use hooklens_model::driver::{ForwardOptions, Input, Logits, RunOutput, for_copies};
use hooklens_model::error::Result;

/// What replaces an ablated activation.
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let heads = |ablation| {
///     Patching::ablating(&model, clean, ablation, metric.clone())?.attn_head_out_all_pos()
/// };
/// let zeros = heads(Ablation::Zero)?;
/// let means = heads(Ablation::Mean([clean, corrupted].into()))?;
/// let others = heads(Ablation::Resample(corrupted.into()))?; // the other prompt's activations
/// assert!(zeros.source.is_none() && means.source.is_none() && others.source.is_some());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Ablation<I = Input> {
    /// Zeros. Masked attention scores stay minus infinity.
    Zero,
    /// The mean over all rows and positions of these prompts. Attention scores and patterns, whose rows mean something
    /// different at each position, require [`Ablation::MeanByPosition`].
    Mean(I),
    /// The mean over these prompts at each position. The prompts must have the same length as the examples.
    MeanByPosition(I),
    /// Activations from runs on these prompts, one prompt per example (resample ablation).
    Resample(I),
}

/// The source of a sweep's patches.
pub(crate) enum Source<P> {
    /// Activations from runs on these prompts, one prompt per example.
    Run(Vec<P>),
    /// Zeros.
    Zero,
    /// Means over prompts.
    Mean { prompts: Vec<P>, by_position: bool },
}

/// Mean activations of the points of one sweep.
pub(super) type Means = HashMap<PointId, Activation>;

/// A sum over prompts.
struct Sum {
    values: ArrayD<f64>,
    count: f64,
    /// Device and element type of the activation.
    of: (Device, DType),
}

/// Computes the mean activation of each point over prompts.
pub(super) fn means<M: Patchable>(
    model: &M,
    prompts: &[M::Prompt],
    by_position: bool,
    points: &[PointId],
) -> Result<Means> {
    let catalog = model.catalog();
    let mut sums: HashMap<PointId, Sum> = HashMap::new();
    let names: Vec<&str> = points.iter().map(|id| &*catalog.info(*id).name).collect();
    for (number, prompt) in prompts.iter().enumerate() {
        // One prompt at a time, so that padding does not enter the mean.
        let options = for_copies(ForwardOptions::new().logits(Logits::None), number, prompts.len());
        let options = options.record(Record::new(Selection::from(names.as_slice())));
        let recorded = std::mem::take(model.run(M::copies(prompt, 1)?, options)?.cache());
        for id in points {
            let point = catalog.info(*id);
            let fails = |reason: &str| PatchError::Mean { point: point.name.to_string(), reason: reason.into() };
            let activation = recorded.activation(&*point.name)?;
            let mut values = activation.to_ndarray()?.mapv(f64::from);
            let mut count = 1.0;
            if !by_position {
                if point.axes.contains(&Axis::Query) {
                    return Err(fails(
                        "attention scores and patterns are not comparable across positions; use \
                         `Ablation::MeanByPosition`",
                    )
                    .into());
                }
                let axis = point.axes.iter().position(|axis| *axis == Axis::Pos);
                let axis = Along(axis.ok_or_else(|| fails("it has no position axis"))?);
                count = values.len_of(axis) as f64;
                values = values.sum_axis(axis).insert_axis(axis);
            }
            match sums.get_mut(id) {
                None => {
                    let of = (activation.device(), activation.dtype());
                    sums.insert(*id, Sum { values, count, of });
                }
                Some(sum) if sum.values.shape() != values.shape() => {
                    return Err(fails("the prompts differ in length").into());
                }
                Some(sum) => {
                    sum.values += &values;
                    sum.count += count;
                }
            }
        }
    }
    let mean = |Sum { values, count, of: (device, dtype) }: Sum| {
        let means: Vec<f64> = values.iter().map(|value| value / count).collect();
        let len = means.len();
        let flat = Tensor::<1>::from_data(TensorData::new(means, [len]), (&device, dtype));
        Activation::from(flat).reshape(values.shape())
    };
    Ok(sums.into_iter().map(|(id, sum)| (id, mean(sum))).collect())
}

/// Expands a mean to the shape of an activation.
pub(super) fn mean_like(mean: &Activation, like: &Activation, point: &PointInfo) -> Result<Activation, PatchError> {
    if mean.shape() == like.shape() {
        return Ok(mean.clone());
    }
    let axis = point.axes.iter().position(|axis| *axis == Axis::Pos).filter(|axis| mean.shape()[*axis] == 1);
    let Some(axis) = axis else {
        let reason = format!("the mean has shape {:?}, but the examples have {:?}", mean.shape(), like.shape());
        return Err(PatchError::Mean { point: point.name.to_string(), reason });
    };
    Ok(Activation::cat(&vec![mean.clone(); like.shape()[axis]], axis))
}
