//! What can go wrong with a sweep.

use thiserror::Error;

/// A sweep that can't be made as asked.
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let told = Patching::new(&model, clean, "When Mary and John", metric).map(drop).unwrap_err().to_string();
/// assert_eq!(told, "example 0 has 15 clean and 5 corrupted tokens; the prompts of a pair must be of one length");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PatchError {
    /// Clean and corrupted prompts of different lengths: their positions do not correspond.
    #[error(
        "example {example} has {clean} clean and {corrupted} corrupted tokens; the prompts of a pair must be of one length"
    )]
    Lengths {
        /// The example.
        example: usize,
        /// Tokens of the clean prompt.
        clean: usize,
        /// Tokens of the corrupted prompt.
        corrupted: usize,
    },
    /// Results that can't be joined.
    #[error("the results are no shares of one sweep: {what}")]
    Shares {
        /// What is wrong.
        what: &'static str,
    },
    /// More prompts of one kind than of the other.
    #[error("{clean} clean prompts, but {corrupted} corrupted ones")]
    Examples {
        /// Clean prompts.
        clean: usize,
        /// Corrupted prompts.
        corrupted: usize,
    },
    /// A sweep over positions needs examples of one length.
    #[error(
        "example {example} has {given} tokens where the first has {expected}; a sweep over {axis} needs one length"
    )]
    Uneven {
        /// The axis swept over.
        axis: String,
        /// The example.
        example: usize,
        /// Tokens of the first.
        expected: usize,
        /// Tokens of this one.
        given: usize,
    },
    /// A metric of an encoder reads the logits of the one masked token.
    #[error(
        "the prompt has {given} masked tokens; a metric reads the logits of one (`Metric::all` reads those of every position)"
    )]
    Masks {
        /// Masked tokens of the prompt.
        given: usize,
    },
    /// A point without such an axis.
    #[error("`{point}` has no axis `{axis}`; its axes are {axes}")]
    Axis {
        /// The point.
        point: String,
        /// The axis asked for.
        axis: &'static str,
        /// Those it has.
        axes: String,
    },
    /// A point whose tensor can't be patched example by example.
    #[error("`{point}` can't be patched: {reason}")]
    Point {
        /// The point.
        point: String,
        /// Why not.
        reason: &'static str,
    },
    /// Points of different shapes in one sweep.
    #[error("`{point}` has {given} places where `{first}` has {expected}; sweep over them apart")]
    Shapes {
        /// The first point.
        first: String,
        /// Places it is swept over at.
        expected: usize,
        /// Another point.
        point: String,
        /// Places of that one.
        given: usize,
    },
    /// The metric gave no number.
    #[error("the metric is {value} for example {example} {site}")]
    NotANumber {
        /// Where the patch was: `with blocks.3.attn.hook_z head 2 patched`.
        site: String,
        /// The example.
        example: usize,
        /// What it gave.
        value: f64,
    },
    /// The metric gave another number of values than there were rows.
    #[error("the metric gave {given} values for {rows} rows of logits")]
    MetricShape {
        /// Rows of logits it was given.
        rows: usize,
        /// Values it gave.
        given: usize,
    },
    /// Runs between which no share of a difference can be told.
    #[error("no share of the difference: the metric is {unpatched} unpatched{}", beside(*clean))]
    NoDifference {
        /// The metric without a patch: the mean over examples.
        unpatched: f64,
        /// That of the run patches come from; none of ablations, whose effect is a share of the unpatched metric.
        clean: Option<f64>,
    },
    /// A metric for another number of examples.
    #[error("the metric names tokens for {given} examples, but there are {examples}")]
    MetricExamples {
        /// Examples it names tokens for.
        given: usize,
        /// Examples there are.
        examples: usize,
    },
    /// A dataset to take means of that does not fit.
    #[error("the mean of `{point}` can't be taken: {reason}")]
    Mean {
        /// The point.
        point: String,
        /// Why not.
        reason: String,
    },
}

/// The metric of the run patches come from, beside the unpatched one.
fn beside(clean: Option<f64>) -> String {
    clean.map_or(String::new(), |clean| format!(" and {clean} in the run that patches come from"))
}
