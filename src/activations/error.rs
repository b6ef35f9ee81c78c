//! What can go wrong between a recording and an answer.

use thiserror::Error;

/// A recording that can't be analysed as asked.
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

/// The first few of many.
fn some(labels: &[String]) -> String {
    match labels.len() {
        0..=12 => labels.join(", "),
        more => format!("{}, ... ({more} in all)", labels[..12].join(", ")),
    }
}
