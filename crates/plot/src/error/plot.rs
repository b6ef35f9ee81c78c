//! Errors of plots.

use std::path::PathBuf;

use hooklens_analysis::error::CircuitError;
use hooklens_model::error::InputError;
use thiserror::Error;

/// An error in drawing or writing a plot.
///
/// ```
/// use hooklens::plot::{Heatmap, PlotError};
/// use hooklens::{LabeledArray, LabeledAxis};
/// let axes = ["batch", "layer", "head", "query", "key"].map(|name| LabeledAxis::numbered(name, 2));
/// let array = LabeledArray::from_values(axes, [0.0; 32])?;
/// let error = Heatmap::of(&array).unwrap_err();
/// assert!(matches!(error, PlotError::Axes { .. }));
/// assert!(error.to_string().ends_with(r#"choose an index with `.at("batch", ..)`"#));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The values to show could not be computed.
    #[error("cannot compute the values to display: {reason}")]
    Shown {
        /// Why the values could not be computed.
        reason: String,
    },
    /// The array has too many or too few axes for a heatmap.
    #[error("a heatmap needs two axes, or up to four (with panels); this array has {}", choice(axes, 4))]
    Axes {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// There are more values than a plot or table can show.
    #[error("there are {places} values, more than the maximum of {most}; choose fewer along {}", axes.join(" or "))]
    TooMany {
        /// Number of values.
        places: usize,
        /// Maximum number of values.
        most: usize,
        /// Names of the axes.
        axes: Vec<String>,
    },
    /// The array has too many or too few axes for a line plot.
    #[error("a line plot needs one axis, or two (one line per row); this array has {}", choice(axes, 2))]
    Lines {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// There are more lines than can be told apart.
    #[error(
        "{lines} lines are more than the {most} that can be told apart; choose fewer{}",
        axis.as_ref().map(|axis| format!(" along `{axis}`, or draw a heatmap")).unwrap_or_default()
    )]
    TooManyLines {
        /// Number of lines.
        lines: usize,
        /// Maximum number of lines.
        most: usize,
        /// The axis with one line per index, if the lines come from an array.
        axis: Option<String>,
    },
    /// The tokens and the values belong to different texts.
    #[error("row {row} of the recording was made from different tokens than the ones given")]
    OtherText {
        /// Row of the recording.
        row: usize,
    },
    /// There is nothing to draw: no values, no line with a point, or a circuit without edges.
    #[error("there is nothing to draw: no finite values or edges")]
    Nothing,
    /// The array has too many or too few axes for bars.
    #[error("a bar plot needs one axis; this array has {}", choice(axes, 1))]
    Bars {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// A value is not finite and cannot be drawn.
    #[error("{what} is {value}; only finite numbers can be drawn, so leave it out")]
    NotFinite {
        /// Description of the value.
        what: String,
        /// The value: infinite or NaN.
        value: f64,
    },
    /// Two lists that must have the same length have different lengths.
    #[error("{given} {what} were given for {expected} {of}")]
    Lengths {
        /// What was given: `labels`, `groups` or `errors`.
        what: &'static str,
        /// Number given.
        given: usize,
        /// What the given values belong to: `points` or `bars`.
        of: &'static str,
        /// Number of points or bars.
        expected: usize,
    },
    /// A picture is too large for PNG, because there are many more columns than rows, or the other way round.
    #[error(
        "the picture would have {width} x {height} pixels, more than {most} in all; save it as SVG, or draw a part of it"
    )]
    Large {
        /// Width in pixels, at scale 1.
        width: u32,
        /// Height in pixels, at scale 1.
        height: u32,
        /// Maximum number of pixels.
        most: u64,
    },
    /// The bounds of intervals do not have the axes of the values.
    #[error("the bounds of the intervals do not have the axes of the values")]
    Intervals(#[source] InputError),
    /// Scores of edges do not belong to the circuit that is drawn.
    #[error("the scores do not belong to the circuit")]
    Scores(#[source] CircuitError),
    /// There are more groups of points, or series, than can be told apart.
    #[error("{given} {what} are more than the {most} that can be told apart; choose fewer")]
    TooManySeries {
        /// What there are too many of: `groups` or `series`.
        what: &'static str,
        /// Number given.
        given: usize,
        /// Maximum number.
        most: usize,
    },
    /// The number of histogram bins is zero or too large.
    #[error("{given} bins were requested; a histogram can have 1 to {most}")]
    Bins {
        /// Number of bins requested.
        given: usize,
        /// Maximum number of bins.
        most: usize,
    },
    /// An error bar is negative.
    #[error("the error of `{label}` is {error}; it must be at least 0")]
    NegativeError {
        /// Label of the bar.
        label: String,
        /// The error given.
        error: f64,
    },
    /// No attention pattern was recorded, or there are no tokens.
    #[error("there is no attention pattern; record `*hook_pattern`")]
    NoPattern,
    /// The attention pattern does not match the tokens.
    #[error(
        "the pattern of layer {layer} has shape {given:?}; expected {tokens} queries by {tokens} keys: record all \
         positions of the text"
    )]
    Pattern {
        /// Index of the layer.
        layer: usize,
        /// Shape of the pattern.
        given: Vec<usize>,
        /// Number of tokens.
        tokens: usize,
    },
    /// A value is not a valid attention weight: negative or not finite.
    #[error("the attention of L{layer}H{head} from {query} to {key} is {value}; it must be finite and at least 0")]
    Attention {
        /// Index of the layer.
        layer: usize,
        /// Index of the head.
        head: usize,
        /// Position of the query.
        query: usize,
        /// Position of the key.
        key: usize,
        /// The value.
        value: f32,
    },
    /// There are no values for this layer or head.
    #[error(
        "there is no {what} {asked}; available: {}",
        held.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    )]
    Absent {
        /// What was requested: `layer` or `head`.
        what: &'static str,
        /// The requested index.
        asked: usize,
        /// Available indices.
        held: Vec<usize>,
    },
    /// The text has more tokens than a page can show.
    #[error("{tokens} tokens exceed the maximum of {most}; choose fewer positions")]
    TooLong {
        /// Number of tokens.
        tokens: usize,
        /// Maximum number of tokens.
        most: usize,
    },
    /// The page would be too large to open.
    #[error(
        "{what} of {tokens} tokens make a page of {:.0} MB, more than the maximum of {:.0} MB; choose fewer layers, \
         heads or positions", *bytes as f64 / 1e6, *most as f64 / 1e6
    )]
    TooLarge {
        /// What the page shows for each token, such as `144 heads`.
        what: String,
        /// Number of tokens.
        tokens: usize,
        /// Size of the page in bytes.
        bytes: usize,
        /// Maximum size in bytes.
        most: usize,
    },
    /// The number of values differs from the number of tokens.
    #[error("`{name}` has {values} values for {tokens} tokens; expected one per token")]
    Values {
        /// Name of the values.
        name: String,
        /// Number of values given.
        values: usize,
        /// Number of tokens given.
        tokens: usize,
    },
    /// The number of tokens differs from the number of positions at which the lens was read.
    #[error(
        "the lens was read at {positions} positions, but {tokens} tokens were given; give the tokens at those positions"
    )]
    OtherTokens {
        /// Number of positions of the reading.
        positions: usize,
        /// Number of tokens given.
        tokens: usize,
    },
    /// The ends of a color scale are not in order, or not finite.
    #[error("the color range is {least} to {most}; expected two finite numbers, with the smaller one first")]
    Range {
        /// Value at the lower end.
        least: f64,
        /// Value at the upper end.
        most: f64,
    },
    /// A PNG cannot be drawn at this scale.
    #[error("a PNG can have 1, 2 or 4 pixels per unit; {given} was given")]
    Scale {
        /// Pixels per unit.
        given: u32,
    },
    /// The file name does not end in a supported extension.
    #[error("{}: the file name must end in {endings}", path.display())]
    Kind {
        /// Path of the file.
        path: PathBuf,
        /// Supported extensions.
        endings: &'static str,
    },
    /// Drawing failed.
    #[error("the picture could not be drawn: {reason}")]
    Draw {
        /// Error from the drawing library.
        reason: String,
    },
    /// Writing failed.
    #[error("can't write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Underlying I/O error.
        source: std::io::Error,
    },
}

impl PlotError {
    /// Fails if a value is not finite. `what` describes the value and is called only on failure.
    pub(crate) fn finite(value: f64, what: impl FnOnce() -> String) -> Result<(), Self> {
        if value.is_finite() { Ok(()) } else { Err(Self::NotFinite { what: what(), value }) }
    }
}

/// Lists the axes, and which of them to fix with `.at` so that at most `most` remain.
fn choice(axes: &[String], most: usize) -> String {
    let listed = if axes.is_empty() { "0".into() } else { format!("{} ({})", axes.len(), axes.join(", ")) };
    if axes.len() <= most {
        return listed;
    }
    let chosen: Vec<String> = axes[..axes.len() - most].iter().map(|axis| format!("`.at({axis:?}, ..)`")).collect();
    format!("{listed}; choose an index with {}", chosen.join(" and "))
}
