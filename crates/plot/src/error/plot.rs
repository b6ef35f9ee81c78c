//! Errors of plots.

use std::path::PathBuf;

use thiserror::Error;

/// A picture that can't be drawn or written.
///
/// ```
/// use hooklens::plot::{Heatmap, PlotError};
/// use hooklens::{LabeledArray, LabeledAxis};
/// let axes = ["batch", "layer", "query", "key"].map(|name| LabeledAxis::numbered(name, 2));
/// let array = LabeledArray::from_values(axes, [0.0; 16])?;
/// let error = Heatmap::of(&array).unwrap_err();
/// assert!(matches!(error, PlotError::Axes { .. }));
/// assert!(error.to_string().ends_with(r#"choose a place by `.at("batch", ..)`"#));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// What is to be shown could not be computed.
    #[error("it can't be shown: {reason}")]
    Shown {
        /// Why.
        reason: String,
    },
    /// An array with too many or too few axes.
    #[error("a heatmap shows two axes, or three as panels; this array has {}", choice(axes, 3))]
    Axes {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// More places than a picture or a table can show.
    #[error("{places} cells are more than the {most} that are shown; choose fewer along {}", axes.join(" or "))]
    TooMany {
        /// Cells there would be.
        places: usize,
        /// Cells there may be.
        most: usize,
        /// The axes.
        axes: Vec<String>,
    },
    /// An array that is no lines.
    #[error("a line plot shows one axis, or two as a line a row; this array has {}", choice(axes, 2))]
    Lines {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// More lines than can be told apart.
    #[error(
        "{lines} lines are more than the {most} that can be told apart; choose fewer{}",
        axis.as_ref().map(|axis| format!(" along `{axis}`, or draw a heatmap")).unwrap_or_default()
    )]
    TooManyLines {
        /// Lines there would be.
        lines: usize,
        /// Lines there may be.
        most: usize,
        /// The axis that has a line a place, if they are of an array.
        axis: Option<String>,
    },
    /// Tokens of another text than the one that the values are of.
    #[error("these are not the tokens that row {row} of the recording was made from")]
    OtherText {
        /// The row.
        row: usize,
    },
    /// No number: an array without places, no line with a point.
    #[error("there is nothing to draw: not one number")]
    Nothing,
    /// An array that is no bars.
    #[error("bars show one axis; this array has {}", choice(axes, 1))]
    Bars {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// A number that has no place on an axis.
    #[error("{what} is {value}; only finite numbers can be drawn, so leave it out")]
    NotFinite {
        /// Which number.
        what: String,
        /// The number: infinite, or none.
        value: f64,
    },
    /// Not one for each.
    #[error("{given} {what} were given for {expected} {of}")]
    Lengths {
        /// What was given: `labels`, `groups`, `errors`.
        what: &'static str,
        /// How many.
        given: usize,
        /// What each is for: `points`, `bars`.
        of: &'static str,
        /// How many of those there are.
        expected: usize,
    },
    /// More groups of points, or series of numbers, than can be told apart.
    #[error("{given} {what} are more than the {most} that can be told apart; choose fewer")]
    TooManySeries {
        /// What there are too many of: `groups`, `series`.
        what: &'static str,
        /// How many there would be.
        given: usize,
        /// How many there may be.
        most: usize,
    },
    /// A histogram of no bins, or of too many.
    #[error("{given} bins; a histogram has 1 to {most}")]
    Bins {
        /// Bins asked for.
        given: usize,
        /// Bins there may be.
        most: usize,
    },
    /// A range of error that ends before it begins.
    #[error("the error of `{label}` is {error}; it may be 0 or more")]
    NegativeError {
        /// The bar.
        label: String,
        /// The error given.
        error: f64,
    },
    /// Nothing to show: no recorded pattern, no token.
    #[error("there is no attention pattern; record `*hook_pattern`")]
    NoPattern,
    /// A pattern of other tokens than those given.
    #[error(
        "the pattern of layer {layer} is {given:?}, not of {tokens} queries by {tokens} keys; record all positions of \
         the whole text"
    )]
    Pattern {
        /// The layer.
        layer: usize,
        /// Shape of the pattern.
        given: Vec<usize>,
        /// Tokens there are.
        tokens: usize,
    },
    /// A value of a pattern that is no attention weight: negative, above one, or NaN.
    #[error("L{layer}H{head} attends from {query} to {key} by {value}; what is shown are numbers from zero up")]
    Attention {
        /// The layer.
        layer: usize,
        /// The head.
        head: usize,
        /// The query's position.
        query: usize,
        /// The key's position.
        key: usize,
        /// The number.
        value: f32,
    },
    /// A layer or head that there is nothing of.
    #[error("there is no {what} {asked} among {}", held.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))]
    Absent {
        /// What was chosen.
        what: &'static str,
        /// The one asked for.
        asked: usize,
        /// Those there are.
        held: Vec<usize>,
    },
    /// A text of more tokens than a page can show.
    #[error("{tokens} tokens are more than the {most} that are shown; choose positions")]
    TooLong {
        /// Tokens there are.
        tokens: usize,
        /// Tokens there may be.
        most: usize,
    },
    /// A page that would be too large to open.
    #[error(
        "{what} of {tokens} tokens make a page of {:.0} MB, and one has {:.0} MB at most; choose fewer layers, heads or \
         positions", *bytes as f64 / 1e6, *most as f64 / 1e6
    )]
    TooLarge {
        /// What there is of each token, counted: `144 heads`.
        what: String,
        /// Tokens.
        tokens: usize,
        /// Bytes of the page.
        bytes: usize,
        /// Bytes it may have.
        most: usize,
    },
    /// Not a value for each token.
    #[error("{values} values `{name}` were given for {tokens} tokens")]
    Values {
        /// What the values are.
        name: String,
        /// Values given.
        values: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// Tokens that are not those a lens was read at.
    #[error("a lens read at {positions} positions and {tokens} tokens were given; give the tokens at its positions")]
    OtherTokens {
        /// Positions of the reading.
        positions: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// A file name that names no kind of picture.
    #[error("{}: the name ends in {endings}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// How it may end.
        endings: &'static str,
    },
    /// Drawing failed.
    #[error("the picture could not be drawn: {reason}")]
    Draw {
        /// What the drawing library reported.
        reason: String,
    },
    /// Writing failed.
    #[error("can't write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

impl PlotError {
    /// An error if a number has no place on an axis; `what` it is is asked only then.
    pub(crate) fn finite(value: f64, what: impl FnOnce() -> String) -> Result<(), Self> {
        if value.is_finite() { Ok(()) } else { Err(Self::NotFinite { what: what(), value }) }
    }
}

/// How many axes there are, and along which of them to choose before so many are left.
fn choice(axes: &[String], most: usize) -> String {
    let listed = if axes.is_empty() { "0".into() } else { format!("{} ({})", axes.len(), axes.join(", ")) };
    if axes.len() <= most {
        return listed;
    }
    let chosen: Vec<String> = axes[..axes.len() - most].iter().map(|axis| format!("`.at({axis:?}, ..)`")).collect();
    format!("{listed}; choose a place by {}", chosen.join(" and "))
}
