//! Errors of analyses.

use thiserror::Error;

/// A recording that can't be analyzed as asked.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", "*hook_resid_post")?;
/// let analysis = model.analyze(&cache)?;
/// let told = analysis.stack_head_results(hooklens::activations::Stage::Final).err();
/// assert_eq!(
///     told.map(|error| error.to_string()).as_deref(),
///     Some("this needs `blocks.0.attn.hook_z`, which was not recorded; record `*attn.hook_z` as well"),
/// );
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// The point this needs is not in the recording.
    #[error("this needs `{point}`, which was not recorded; record `{record}` as well")]
    NotRecorded {
        /// The point.
        point: String,
        /// A selection that would hold it.
        record: String,
    },
    /// The recording was made by a model with other points, or with weights processed otherwise.
    #[error("the recording is of another model: {what}")]
    OtherModel {
        /// How the two differ.
        what: String,
    },
    /// Components of one recording, row or position, with an analysis of another.
    #[error("the components are of {components}, and the analysis is of {analysis}{}; make the components by this analysis", other_recording(*same_places))]
    OtherPlaces {
        /// Rows and positions of the components.
        components: String,
        /// Rows and positions that the analysis looks at.
        analysis: String,
        /// Whether these are the same, in different recordings.
        same_places: bool,
    },
    /// A hook changed what a norm gave, so that its readers saw something else than the stream through the norm.
    #[error("a hook edited `{point}`: what was read there is not made of these components")]
    EditedNorm {
        /// The point.
        point: String,
    },
    /// Tensors that were to be combined differ in shape.
    #[error("{what} is {given:?}; expected {expected}")]
    Shape {
        /// What has the wrong shape.
        what: String,
        /// Its shape.
        given: Vec<usize>,
        /// What was expected.
        expected: String,
    },
    /// No component fits.
    #[error("no component is called `{label}`; there are {}", some(labels))]
    UnknownComponent {
        /// The label asked for.
        label: String,
        /// Those there are.
        labels: Vec<String>,
    },
    /// Nothing is left, or nothing has written to the stream yet.
    #[error("there is no such component: nothing of the kind has written to the stream there")]
    Nothing,
    /// Components that a norm was applied to already.
    #[error("a norm was applied to these components already")]
    Normed,
}

/// What to say if the places are the same.
fn other_recording(same_places: bool) -> &'static str {
    if same_places { ", of another recording" } else { "" }
}

/// The first few of many.
fn some(labels: &[String]) -> String {
    match labels.len() {
        0..=12 => labels.join(", "),
        more => format!("{}, ... ({more} in all)", labels[..12].join(", ")),
    }
}
