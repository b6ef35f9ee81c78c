//! Errors of analyses.

use thiserror::Error;

/// An error in an analysis of recorded activations.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", "*hook_resid_post")?;
/// let analysis = model.analyze(&cache)?;
/// let message = analysis.stack_head_results(hooklens::activations::Stage::Final).err();
/// assert_eq!(
///     message.map(|error| error.to_string()).as_deref(),
///     Some("this analysis needs `blocks.0.attn.hook_z`, which was not recorded; record `*attn.hook_z` as well"),
/// );
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// The recording lacks a hook point that the analysis needs.
    #[error("this analysis needs `{point}`, which was not recorded; record `{record}` as well")]
    NotRecorded {
        /// Name of the point.
        point: String,
        /// A selection that would record it.
        record: String,
    },
    /// The recording comes from a model with different hook points or differently processed weights.
    #[error("the recording comes from a different model: {what}")]
    OtherModel {
        /// How the two models differ.
        what: String,
    },
    /// The components and the analysis cover different recordings, rows or positions.
    #[error(
        "the components cover {components}, but the analysis covers {analysis}{}; compute the components with this \
         analysis",
        other_recording(*same_places)
    )]
    OtherPlaces {
        /// Rows and positions of the components.
        components: String,
        /// Rows and positions of the analysis.
        analysis: String,
        /// Whether the rows and positions are equal, so that only the recordings differ.
        same_places: bool,
    },
    /// A hook edited a norm's output, so the layers that read it saw something other than the normalized stream.
    #[error("a hook edited `{point}`, so these components do not sum to its value")]
    EditedNorm {
        /// Name of the point.
        point: String,
    },
    /// A tensor has the wrong shape, or a list or range the wrong length.
    #[error("{what} is {given:?}; expected {expected}")]
    Shape {
        /// Name of the value that has the wrong shape.
        what: String,
        /// Actual shape.
        given: Vec<usize>,
        /// Expected shape.
        expected: String,
    },
    /// No component has this label.
    #[error("no component is named `{label}`; available: {}", some(labels))]
    UnknownComponent {
        /// The requested label.
        label: String,
        /// Available labels.
        labels: Vec<String>,
    },
    /// No component of the requested kind, or with a matching label, has written to the stream before this stage.
    #[error(
        "there are no components to return: no component of this kind or with a matching label has written to the \
         residual stream before this stage"
    )]
    Nothing,
    /// A norm has already been applied to the components.
    #[error("a norm was already applied to these components")]
    Normed,
}

/// Message suffix if the rows and positions are equal but the recordings differ.
fn other_recording(same_places: bool) -> &'static str {
    if same_places { " of a different recording" } else { "" }
}

/// Lists the first few labels.
fn some(labels: &[String]) -> String {
    match labels.len() {
        0..=12 => labels.join(", "),
        more => format!("{}, ... ({more} in all)", labels[..12].join(", ")),
    }
}
