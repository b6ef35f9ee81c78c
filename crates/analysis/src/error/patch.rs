//! Errors of patching sweeps.

use thiserror::Error;

/// An error in a patching sweep or in combining the results of sweeps.
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let error = Patching::new(&model, clean, "When Mary and John", metric).map(drop).unwrap_err().to_string();
/// assert_eq!(error, "example 0 has 15 clean and 5 corrupted tokens; the prompts of a pair must have the same length");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PatchError {
    /// The clean and corrupted prompts differ in length, so their positions do not correspond.
    #[error(
        "example {example} has {clean} clean and {corrupted} corrupted tokens; the prompts of a pair must have the \
         same length"
    )]
    Lengths {
        /// Index of the example.
        example: usize,
        /// Number of tokens in the clean prompt.
        clean: usize,
        /// Number of tokens in the corrupted prompt.
        corrupted: usize,
    },
    /// Results cannot be combined into one sweep.
    #[error("cannot join the results: {what}")]
    Shares {
        /// Why the results cannot be combined.
        what: &'static str,
    },
    /// There are different numbers of clean and corrupted prompts.
    #[error("{clean} clean and {corrupted} corrupted prompts were given; the numbers must be equal")]
    Examples {
        /// Number of clean prompts.
        clean: usize,
        /// Number of corrupted prompts.
        corrupted: usize,
    },
    /// A sweep over positions needs examples of equal length.
    #[error(
        "example {example} has {given} tokens but example 0 has {expected}; a sweep over {axis} needs examples of \
         equal length"
    )]
    Uneven {
        /// Name of the swept axis.
        axis: String,
        /// Index of the example.
        example: usize,
        /// Number of tokens in the first example.
        expected: usize,
        /// Number of tokens in this example.
        given: usize,
    },
    /// An encoder's metric needs exactly one masked token, whose logits it reads.
    #[error(
        "the prompt has {given} masked tokens; this metric reads the logits of exactly one (`Metric::all` reads the \
         logits of every position)"
    )]
    Masks {
        /// Number of masked tokens in the prompt.
        given: usize,
    },
    /// The pairs cannot be shuffled.
    #[error("cannot shuffle the pairs: {reason}")]
    Shuffled {
        /// Why they cannot be shuffled.
        reason: String,
    },
    /// The point lacks the axis.
    #[error("`{point}` has no axis `{axis}`; its axes are {axes}")]
    Axis {
        /// Name of the point.
        point: String,
        /// The requested axis.
        axis: &'static str,
        /// Axes of the point.
        axes: String,
    },
    /// The point's tensor cannot be patched per example.
    #[error("`{point}` can't be patched: {reason}")]
    Point {
        /// Name of the point.
        point: String,
        /// Why the point cannot be patched.
        reason: &'static str,
    },
    /// Points in one sweep differ in shape.
    #[error("`{point}` has {given} indices to sweep over but `{first}` has {expected}; sweep over them separately")]
    Shapes {
        /// Name of the first point.
        first: String,
        /// Number of indices swept over at the first point.
        expected: usize,
        /// Name of the other point.
        point: String,
        /// Number of indices swept over at the other point.
        given: usize,
    },
    /// The metric returned NaN.
    #[error("the metric of example {example} is {value} {site}")]
    NotANumber {
        /// Description of the patch, such as `with blocks.3.attn.hook_z head 2 patched`.
        site: String,
        /// Index of the example.
        example: usize,
        /// The value returned.
        value: f64,
    },
    /// The metric returned the wrong number of values.
    #[error("the metric returned {given} values for {rows} rows of logits; expected one value per row")]
    MetricShape {
        /// Number of rows of logits that the metric was given.
        rows: usize,
        /// Number of values that the metric returned.
        given: usize,
    },
    /// The effect cannot be normalized: the metrics of the two runs are equal or, for an ablation, the metric is zero.
    #[error("cannot normalize by zero: the metric is {unpatched} without a patch{}", beside(*clean))]
    NoDifference {
        /// Unpatched metric, averaged over examples.
        unpatched: f64,
        /// Metric of the run that patches come from; `None` for ablations, whose effect is normalized by the unpatched
        /// metric.
        clean: Option<f64>,
    },
    /// The metric was created for a different number of examples.
    #[error("the metric names tokens for {given} examples, but there are {examples}")]
    MetricExamples {
        /// Number of examples that the metric names tokens for.
        given: usize,
        /// Number of examples.
        examples: usize,
    },
    /// The activations of a mean ablation's prompts cannot be averaged.
    #[error("cannot average `{point}` over the prompts: {reason}")]
    Mean {
        /// Name of the point.
        point: String,
        /// Why the activations cannot be averaged.
        reason: String,
    },
}

/// Message suffix with the metric of the run that patches come from.
fn beside(clean: Option<f64>) -> String {
    clean.map_or(String::new(), |clean| {
        format!(" and {clean} in the run that patches come from, so their difference is zero")
    })
}
