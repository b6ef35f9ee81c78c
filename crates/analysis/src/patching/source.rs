//! Where patches come from.

use std::collections::HashMap;

use hooklens_hooks::{Activation, Axis, PointId, PointInfo, Record, Selection};
use ndarray::{ArrayD, Axis as Along};

use super::model::Patchable;
use crate::error::PatchError;
use hooklens_model::driver::{ForwardOptions, Input, Logits, RunOutput};
use hooklens_model::error::Result;

/// What an activation is replaced by when it is ablated.
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
/// assert!(zeros.source().is_none() && means.source().is_none() && others.source().is_some());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Ablation<I = Input> {
    /// Zeros. (Of attention scores, where a query may look.)
    Zero,
    /// Its mean over all rows and positions of these prompts. Scores and patterns, whose rows
    /// mean something else at every position, want [`Ablation::MeanByPosition`].
    Mean(I),
    /// Its mean over these prompts, position by position; they must be of the examples' length.
    MeanByPosition(I),
    /// What it is in these prompts' runs, one for each example (resampling).
    Resample(I),
}

/// Patches of one sweep.
pub(super) enum Source<P> {
    /// What a run of another prompt makes, one for each example.
    Run(Vec<P>),
    /// Zeros.
    Zero,
    /// Means of prompts.
    Mean { prompts: Vec<P>, by_position: bool },
}

/// Means of the points of one sweep.
pub(super) type Means = HashMap<PointId, Activation>;

/// The mean of each point over prompts.
pub(super) fn means<M: Patchable>(
    model: &M,
    prompts: &[M::Prompt],
    by_position: bool,
    points: &[PointId],
) -> Result<Means> {
    let catalog = model.catalog();
    let mut sums: HashMap<PointId, (ArrayD<f64>, f64)> = HashMap::new();
    let names: Vec<&str> = points.iter().map(|id| &*catalog.info(*id).name).collect();
    for (number, prompt) in prompts.iter().enumerate() {
        // One by one: padding has no part in a mean.
        let options = ForwardOptions::new().logits(Logits::None).copies_of(number, prompts.len());
        let options = options.record(Record::new(Selection::from(names.as_slice())));
        let recorded = model.run(M::copies(prompt, 1)?, options)?.cache().take();
        for id in points {
            let point = catalog.info(*id);
            let fails = |reason: &str| PatchError::Mean { point: point.name.to_string(), reason: reason.into() };
            let mut values = recorded.activation(&*point.name)?.to_ndarray()?.mapv(f64::from);
            let mut count = 1.0;
            if !by_position {
                if point.axes.contains(&Axis::Query) {
                    return Err(fails("scores and patterns have another meaning at each position").into());
                }
                let axis = point.axes.iter().position(|axis| *axis == Axis::Pos);
                let axis = Along(axis.ok_or_else(|| fails("it has no positions"))?);
                count = values.len_of(axis) as f64;
                values = values.sum_axis(axis).insert_axis(axis);
            }
            match sums.get_mut(id) {
                None => {
                    sums.insert(*id, (values, count));
                }
                Some((sum, _)) if sum.shape() != values.shape() => {
                    return Err(fails("the prompts differ in length").into());
                }
                Some((sum, all)) => {
                    *sum += &values;
                    *all += count;
                }
            }
        }
    }
    let device = model.devices().first().cloned().unwrap_or_default();
    let mean = |(sum, count): (ArrayD<f64>, f64)| {
        let values: Vec<f32> = sum.iter().map(|value| (value / count) as f32).collect();
        let len = values.len();
        let flat = burn::tensor::Tensor::<1>::from_data(burn::tensor::TensorData::new(values, [len]), &device);
        Activation::from(flat).reshape(sum.shape())
    };
    Ok(sums.into_iter().map(|(id, sum)| (id, mean(sum))).collect())
}

/// The mean at every place of an activation of this shape.
pub(super) fn mean_like(mean: &Activation, like: &Activation, point: &PointInfo) -> Result<Activation, PatchError> {
    if mean.shape() == like.shape() {
        return Ok(mean.clone());
    }
    let axis = point.axes.iter().position(|axis| *axis == Axis::Pos).filter(|axis| mean.shape()[*axis] == 1);
    let Some(axis) = axis else {
        let reason = format!("the prompts give {:?}, the examples {:?}", mean.shape(), like.shape());
        return Err(PatchError::Mean { point: point.name.to_string(), reason });
    };
    Ok(Activation::cat(&vec![mean.clone(); like.shape()[axis]], axis))
}
