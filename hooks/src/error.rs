//! Errors from hooks, selections, and recordings.

use thiserror::Error;

/// Any error that a closure or a device returned.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error from a hook, a selection, or a recorded activation. The message names the point, if there is one. Errors
/// from hooks, parts, or the operating system are available as the [`source`](std::error::Error::source), and the
/// message does not repeat them.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let message = |asked: &str| Selection::from(asked).resolve(&catalog).unwrap_err().to_string();
/// assert!(message("hook_embd").starts_with("no hook point is called `hook_embd` in this model of 2 layers"));
/// assert!(message("*hook_mlp_out").starts_with("the pattern `*hook_mlp_out` matches no hook point"));
/// let layers = "names a layer that this model does not have: its layers are 0 to 1";
/// assert_eq!(message("blocks.9.hook_resid_post"), format!("`blocks.9.hook_resid_post` {layers}"));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HookError {
    /// No point has this name.
    #[error("no hook point is called `{name}` in this model of {n_layers} layers{}", did_you_mean(nearest))]
    UnknownPoint {
        /// The requested name.
        name: String,
        /// Number of blocks in the model.
        n_layers: usize,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// The model has no such layer.
    #[error(
        "`{asked}` names a layer that this model does not have: its layers are 0 to {}",
        n_layers.saturating_sub(1)
    )]
    Layer {
        /// The requested name or pattern.
        asked: String,
        /// The layer number in the name or pattern.
        layer: isize,
        /// Number of blocks in the model.
        n_layers: usize,
    },
    /// A hook has an unnamed closure, but the hook's identity must be comparable across processes.
    #[error(
        "{hook} has a closure, which can't be compared between processes; give it a name with `.named(\"..\")` that \
         identifies everything its result depends on"
    )]
    Unnamed {
        /// The hook.
        hook: String,
    },
    /// Exactly one point was expected, but the selection names several or none.
    #[error("{}; expected exactly one", named(asked, *count))]
    NotOne {
        /// The requested selection.
        asked: String,
        /// Number of points that the selection names.
        count: usize,
    },
    /// A pattern matches no point of this model.
    #[error("the pattern `{pattern}` matches no hook point of this model{}", did_you_mean(nearest))]
    NoMatch {
        /// The requested pattern.
        pattern: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// A pattern is not a valid glob.
    #[error("`{pattern}` is not a valid pattern: {reason}")]
    BadPattern {
        /// The requested pattern.
        pattern: String,
        /// What is wrong with the pattern.
        reason: String,
    },
    /// The point is known, but this model never computes it or this run does not reach it.
    #[error("`{point}` does not fire: {reason}")]
    CannotFire {
        /// The requested point.
        point: String,
        /// The reason.
        reason: &'static str,
    },
    /// Two requests in the same run are mutually exclusive.
    #[error("`{point}` cannot be edited in the same run as `{other}`: {reason}")]
    Conflict {
        /// The requested point.
        point: String,
        /// The point of the conflicting request.
        other: String,
        /// The reason.
        reason: &'static str,
    },
    /// A typed hook or look-up expects a different rank than the point has.
    #[error("`{point}` has rank {rank} {axes}, but rank {asked} was requested")]
    Rank {
        /// The point.
        point: String,
        /// Rank of the point.
        rank: usize,
        /// Axes of the point, for instance `[batch, pos, d_model]`.
        axes: String,
        /// The requested rank.
        asked: usize,
    },
    /// The tensor does not hold the requested kind of element (floats or integers).
    #[error("`{point}` holds {held}, but {asked} were requested")]
    Kind {
        /// The point.
        point: String,
        /// The kind that the tensor holds.
        held: &'static str,
        /// The requested kind.
        asked: &'static str,
    },
    /// A hook returned a tensor of the wrong shape.
    #[error("the hook at `{point}` returned shape {given:?}; the point's shape is {expected:?} {axes}")]
    Shape {
        /// The point.
        point: String,
        /// Shape of the point's tensor in this run.
        expected: Vec<usize>,
        /// The shape the hook returned.
        given: Vec<usize>,
        /// The axes, for instance `[batch, pos, d_model]`.
        axes: String,
    },
    /// A hook returned a tensor of the wrong element type.
    #[error("the hook at `{point}` returned element type {given}; the point's element type is {expected}")]
    DType {
        /// The point.
        point: String,
        /// Element type of the point's tensor in this run.
        expected: String,
        /// The element type the hook returned.
        given: String,
    },
    /// A hook failed.
    #[error("the hook at `{point}` failed")]
    Failed {
        /// The point.
        point: String,
        /// The hook's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A part failed.
    #[error("the part `{part}` at `{point}` failed")]
    Part {
        /// The part's name.
        part: String,
        /// The point where the part is spliced in.
        point: String,
        /// The part's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A part can't be spliced in at a point.
    #[error("the part `{part}` can't be spliced in at `{point}`: {reason}")]
    Splice {
        /// The part's name.
        part: String,
        /// The point.
        point: String,
        /// The reason.
        reason: String,
    },
    /// A slice names an axis that the point does not have, or indices outside that axis.
    #[error("`{point}` {axes} of shape {shape:?} has no {asked}")]
    Slice {
        /// The point.
        point: String,
        /// Axes of the point, for instance `[batch, pos, head, d_head]`.
        axes: String,
        /// Shape of the point's tensor in this run.
        shape: Vec<usize>,
        /// The requested slice, for instance `head 12`.
        asked: String,
    },
    /// A hook on gradients was used in a run without gradients.
    #[error("{hook} needs a run with gradients; use `run_with_gradients`")]
    Backward {
        /// The hook.
        hook: String,
    },
    /// The differentiated scalar does not depend on any recorded activation.
    #[error("the scalar does not depend on a recorded activation; compute it from the run's output, without detaching")]
    NoGradient,
    /// A record slices, converts or moves activations, but gradients need whole, unchanged activations.
    #[error("a run with gradients records whole activations; slice, convert or move them afterwards")]
    GradientsOfParts,
    /// The model's own forward pass failed.
    #[error("the model's forward pass failed")]
    Model {
        /// The model's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The activation is not in the cache.
    #[error("`{name}` was not recorded; the cache holds {held} points{}", did_you_mean(nearest))]
    NotRecorded {
        /// The requested name.
        name: String,
        /// Number of points in the cache.
        held: usize,
        /// Nearest recorded names, best first.
        nearest: Vec<String>,
    },
    /// The batch dimension can only be removed from a batch of one.
    #[error("the batch dimension can't be removed: the batch has {batch} rows, not 1")]
    Batch {
        /// Number of rows in the batch.
        batch: usize,
    },
    /// The requested rows are outside the recorded batch.
    #[error("rows {asked:?} are not within the recorded batch of {batch} rows")]
    Rows {
        /// The requested rows.
        asked: std::ops::Range<usize>,
        /// Number of rows in the batch.
        batch: usize,
    },
    /// The requested positions are outside the run.
    #[error(
        "{} not within the {len} positions of {}{}{}",
        positions_are(asked),
        run_or(*row),
        cached_of_them(*cached),
        positions_there(asked, *len)
    )]
    Positions {
        /// The requested positions.
        asked: String,
        /// The row without these positions; `None` if no row has them.
        row: Option<usize>,
        /// Number of positions.
        len: usize,
        /// Number of positions that are already cached and not recomputed.
        cached: usize,
    },
    /// Positions were given for a different number of rows than the run has.
    #[error("positions were given for {given} rows, but the batch has {batch}")]
    PositionsOfRows {
        /// Number of rows with given positions.
        given: usize,
        /// Number of rows in the batch.
        batch: usize,
    },
    /// A range of positions was expected.
    #[error("positions {asked} are not a range; expected N, A..B, A.. or ..B")]
    NoRange {
        /// The requested positions.
        asked: String,
    },
    /// The selection has a different number of positions in different rows of a padded batch.
    #[error(
        "positions {asked} are {least} tokens in one row but {most} in another; record all positions, or use rows of \
         equal length"
    )]
    UnevenPositions {
        /// The requested positions.
        asked: String,
        /// Fewest positions in a row.
        least: usize,
        /// Most positions in a row.
        most: usize,
    },
    /// A recording was looked up at a point whose positions the run did not compute.
    #[error(
        "`{name}` was not recorded: the run did not compute positions {asked}, only those after the {cached} in its \
         key-value cache"
    )]
    NotComputed {
        /// The point.
        name: String,
        /// The requested positions.
        asked: String,
        /// Number of positions in the key-value cache.
        cached: usize,
    },
    /// The recording does not hold this position.
    #[error("position {position} of row {row} was not recorded")]
    NoPosition {
        /// The position.
        position: usize,
        /// The row.
        row: usize,
    },
    /// The operation needs to know the recording's texts, but the recording was not made by a run.
    #[error("{what} needs to know the texts of the recording, but the recording was not made by a run")]
    NoOrigin {
        /// The operation.
        what: &'static str,
    },
    /// The recording was made by a different model.
    #[error(
        "the recording was made by a different model ({recorded}) than the one using it ({model}); \
         `recording.for_any_model()` allows patching across models"
    )]
    OtherModel {
        /// The model that made the recording.
        recorded: String,
        /// The model that the recording was used with.
        model: String,
    },
    /// A hook uses a value made by a different model, such as a steering vector.
    #[error("{hook} was made for a different model ({given}) than the one running ({model})")]
    MadeForOtherModel {
        /// The hook.
        hook: String,
        /// The model that the value was made for.
        given: String,
        /// The model that runs.
        model: String,
    },
    /// The recording has a different number of rows than the run.
    #[error(
        "the recording of `{point}` has {recorded} rows, but the run has {run}; each row is replaced by the \
         recording's row with the same index, so select rows with `recording.rows(a..b)`"
    )]
    OtherRows {
        /// The point.
        point: String,
        /// Number of rows in the recording.
        recorded: usize,
        /// Number of rows in the run.
        run: usize,
    },
    /// The recording's text has a different length than the run's.
    #[error(
        "row {row} has {run} tokens in the run but {recorded} in the recording of `{point}`, so their positions can't \
         be matched; use positions counted from the start, such as `.positions(0..4)`"
    )]
    OtherLength {
        /// The point.
        point: String,
        /// The row.
        row: usize,
        /// Number of tokens in the run's text.
        run: usize,
        /// Number of tokens in the recording's text.
        recorded: usize,
    },
    /// The recording does not hold a position that is to be replaced.
    #[error("the recording of `{point}` does not hold position {position} of row {row}, which is to be replaced")]
    Unmatched {
        /// The point.
        point: String,
        /// The row.
        row: usize,
        /// The position.
        position: usize,
    },
    /// An action is not defined at a point.
    #[error("`{action}` is not defined at `{point}`: {reason}")]
    Undefined {
        /// The requested action, for instance `mean`.
        action: &'static str,
        /// The point.
        point: String,
        /// The reason.
        reason: &'static str,
    },
    /// A run ended without firing a watched point.
    #[error("the run ended without firing `{point}`, which a hook, recording or part uses")]
    NotFired {
        /// The point.
        point: String,
    },
    /// A hook returned a tensor on the wrong device.
    #[error("the hook at `{point}` returned a tensor on {given}; the point's tensor is on {expected}")]
    Device {
        /// The point.
        point: String,
        /// Device of the point's tensor.
        expected: String,
        /// Device of the hook's tensor.
        given: String,
    },
    /// Recordings of several layers can't be stacked because their shapes differ.
    #[error("can't stack layers of different shapes: `{point}` has shape {given:?}, the first layer has {expected:?}")]
    Stack {
        /// The point.
        point: String,
        /// Shape in the first layer.
        expected: Vec<usize>,
        /// Shape in this layer.
        given: Vec<usize>,
    },
    /// Recordings can't be concatenated.
    #[error("can't concatenate the recordings of `{point}`: {reason}")]
    Stitch {
        /// The point.
        point: String,
        /// The reason.
        reason: &'static str,
    },
    /// A recorded tensor could not be read back from its device or written to a file.
    #[error("`{name}` could not be read or written")]
    Io {
        /// The tensor or file.
        name: String,
        /// The error from the operating system, the device, or the file writer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HookError {
    /// Attributes an error about positions to one row; leaves other errors unchanged.
    pub(crate) fn of_row(self, row: usize) -> Self {
        match self {
            HookError::Positions { asked, len, cached, .. } => {
                HookError::Positions { asked, row: Some(row), len, cached }
            }
            other => other,
        }
    }
}

/// The requested positions as the subject of a sentence.
fn positions_are(asked: &str) -> String {
    match asked.parse::<isize>() {
        Ok(_) => format!("position {asked} is"),
        _ => format!("positions {asked} are"),
    }
}

/// The valid positions, in parentheses; empty if there are none.
fn positions_there(asked: &str, len: usize) -> String {
    match len.checked_sub(1) {
        None => String::new(),
        Some(last) if asked.contains("..") => format!(" (0 to {last}; the end of a range is exclusive)"),
        Some(last) => format!(" (0 to {last})"),
    }
}

fn run_or(row: Option<usize>) -> String {
    row.map_or("the run".to_string(), |row| format!("row {row}"))
}

fn cached_of_them(count: usize) -> String {
    match count {
        0 => String::new(),
        count => format!(", of which {count} are cached"),
    }
}

fn named(asked: &str, count: usize) -> String {
    match count {
        0 => "the selection names no point".to_string(),
        count => format!("`{asked}` names {count} points"),
    }
}

/// `; did you mean ...?`, or nothing without suggestions.
fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => {
            let quoted: Vec<_> = names.iter().map(|n| format!("`{n}`")).collect();
            format!("; did you mean {}?", quoted.join(", "))
        }
    }
}
