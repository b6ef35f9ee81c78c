//! Errors of hooks, selections and recordings.

use thiserror::Error;

/// An error of a hook, a selection or a recorded activation. Every variant names the point. What a hook, a part or the
/// system reported is the [`source`](std::error::Error::source), which the message does not repeat.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let told = |asked: &str| Selection::from(asked).resolve(&catalog).unwrap_err().to_string();
/// assert!(told("hook_embd").starts_with("no hook point is called `hook_embd` in this model of 2 layers"));
/// assert!(told("*hook_mlp_out").starts_with("the pattern `*hook_mlp_out` matches no hook point"));
/// let layers = "is in no layer of this model: its layers are 0 to 1";
/// assert_eq!(told("blocks.9.hook_resid_post"), format!("`blocks.9.hook_resid_post` {layers}"));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HookError {
    /// No point has this name.
    #[error("no hook point is called `{name}` in this model of {n_layers} layers{}", did_you_mean(nearest))]
    UnknownPoint {
        /// The name asked for.
        name: String,
        /// Blocks of the model.
        n_layers: usize,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// Points of a layer the model lacks.
    #[error("`{asked}` is in no layer of this model: its layers are 0 to {}", n_layers.saturating_sub(1))]
    Layer {
        /// The name or pattern asked for.
        asked: String,
        /// The layer in it.
        layer: isize,
        /// Blocks of the model.
        n_layers: usize,
    },
    /// A hook whose closure has no name, where another process has to know what it does.
    #[error(
        "{hook} has a closure, and what it does can't be compared: give it a name, `.named(\"..\")`, that says all that \
         its result depends on"
    )]
    Unnamed {
        /// The hook.
        hook: String,
    },
    /// Several points, or none, where one is wanted.
    #[error("{} where one is wanted", named(asked, *count))]
    NotOne {
        /// What was asked for.
        asked: String,
        /// How many points it names.
        count: usize,
    },
    /// A pattern matches no point of this model.
    #[error("the pattern `{pattern}` matches no hook point of this model{}", did_you_mean(nearest))]
    NoMatch {
        /// The pattern asked for.
        pattern: String,
        /// Nearest names, best first.
        nearest: Vec<String>,
    },
    /// A pattern is not a glob.
    #[error("`{pattern}` is not a pattern: {reason}")]
    BadPattern {
        /// The pattern asked for.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The point is a known one, but this model never computes it, or this run does not reach it.
    #[error("`{point}` does not fire: {reason}")]
    CannotFire {
        /// The point asked for.
        point: String,
        /// Why.
        reason: &'static str,
    },
    /// Two requests of one run exclude each other.
    #[error("`{point}` cannot be edited in the same run as `{other}`: {reason}")]
    Conflict {
        /// The point asked for.
        point: String,
        /// The point it excludes.
        other: String,
        /// Why.
        reason: &'static str,
    },
    /// A typed hook or look-up expects another rank than the point has.
    #[error("`{point}` has rank {rank} {axes}, but rank {asked} was asked for")]
    Rank {
        /// The point.
        point: String,
        /// Its rank.
        rank: usize,
        /// Its axes, for instance `[batch, pos, d_model]`.
        axes: String,
        /// The rank asked for.
        asked: usize,
    },
    /// The tensor is not of the kind (floats or integers) asked for.
    #[error("`{point}` holds {held}, but {asked} were asked for")]
    Kind {
        /// The point.
        point: String,
        /// What it holds.
        held: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A hook returned a tensor of another shape.
    #[error("the hook at `{point}` returned shape {given:?}; the point's shape is {expected:?} {axes}")]
    Shape {
        /// The point.
        point: String,
        /// Its shape in this run.
        expected: Vec<usize>,
        /// The shape the hook returned.
        given: Vec<usize>,
        /// The axes, for instance `[batch, pos, d_model]`.
        axes: String,
    },
    /// A hook returned a tensor of another element type.
    #[error("the hook at `{point}` returned {given}; the point's element type is {expected}")]
    DType {
        /// The point.
        point: String,
        /// Its element type in this run.
        expected: String,
        /// The element type the hook returned.
        given: String,
    },
    /// A hook failed.
    #[error("the hook at `{point}` failed")]
    Failed {
        /// The point.
        point: String,
        /// What the hook reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A part failed.
    #[error("the part `{part}` at `{point}` failed")]
    Part {
        /// The part's name.
        part: String,
        /// The point it is put at.
        point: String,
        /// What the part reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A part can't be put at a point.
    #[error("the part `{part}` can't be put at `{point}`: {reason}")]
    Splice {
        /// The part's name.
        part: String,
        /// The point.
        point: String,
        /// Why not.
        reason: String,
    },
    /// A slice of an axis that the point lacks, or of places that the axis lacks.
    #[error("`{point}` {axes} of shape {shape:?} has no {asked}")]
    Slice {
        /// The point.
        point: String,
        /// Its axes, for instance `[batch, pos, head, d_head]`.
        axes: String,
        /// Its shape in this run.
        shape: Vec<usize>,
        /// What was asked for, for instance `head 12`.
        asked: String,
    },
    /// A hook on gradients in a run that has none.
    #[error("{hook} needs a run with gradients: `run_with_gradients`")]
    Backward {
        /// The hook.
        hook: String,
    },
    /// The activation is not in the cache.
    #[error("`{name}` was not recorded; the cache holds {held} points{}", did_you_mean(nearest))]
    NotRecorded {
        /// The name asked for.
        name: String,
        /// How many points the cache holds.
        held: usize,
        /// Nearest recorded names, best first.
        nearest: Vec<String>,
    },
    /// The batch dimension can only be removed from a batch of one.
    #[error("the batch dimension can't be removed: the batch has {batch} rows, not 1")]
    Batch {
        /// Rows of the batch.
        batch: usize,
    },
    /// Rows were asked for that the recording does not have.
    #[error("rows {asked:?} are not within a recorded batch of {batch}")]
    Rows {
        /// The rows asked for.
        asked: std::ops::Range<usize>,
        /// Rows of the batch.
        batch: usize,
    },
    /// Positions were asked for that the run does not have.
    #[error("positions {asked} are not within the {len} positions of {}{}", run_or(*row), cached_of_them(*cached))]
    Positions {
        /// The positions asked for.
        asked: String,
        /// The row that lacks them; none where all rows do.
        row: Option<usize>,
        /// Number of positions.
        len: usize,
        /// How many of them are cached, and not computed again.
        cached: usize,
    },
    /// Positions of other rows than the run's.
    #[error("positions of {given} rows, but there are {batch}")]
    PositionsOfRows {
        /// Rows that positions are given of.
        given: usize,
        /// Rows of the batch.
        batch: usize,
    },
    /// Positions that are no range, where one is wanted.
    #[error("positions {asked} are no range, which is wanted here: N, A..B, A.. or ..B")]
    NoRange {
        /// The positions asked for.
        asked: String,
    },
    /// A selection of positions that has more in one row of a padded batch than in another.
    #[error("positions {asked} are {least} tokens in one row and {most} in another; record all, or rows of one length")]
    UnevenPositions {
        /// The positions asked for.
        asked: String,
        /// Fewest positions in a row.
        least: usize,
        /// Most positions in a row.
        most: usize,
    },
    /// A recording looked up at a point whose positions the run did not compute.
    #[error(
        "`{name}` was not recorded: positions {asked} are not among those that the run computed, after the {cached} \
         in its key-value cache"
    )]
    NotComputed {
        /// The point.
        name: String,
        /// The positions asked for.
        asked: String,
        /// Positions in the cache.
        cached: usize,
    },
    /// A position that the recording does not hold.
    #[error("position {position} of row {row} was not recorded")]
    NoPosition {
        /// The position.
        position: usize,
        /// The row.
        row: usize,
    },
    /// Something that needs to know the texts that a recording is of.
    #[error("{what} need a recording made by a run")]
    NoOrigin {
        /// What needs it.
        what: &'static str,
    },
    /// A recording of another model.
    #[error(
        "the recording is of another model ({recorded}) than the one that uses it ({model}); \
         `recording.for_any_model()` allows patching across models"
    )]
    OtherModel {
        /// The model that made the recording.
        recorded: String,
        /// The model that it was used with.
        model: String,
    },
    /// A hook that uses something made by another model, such as a steering vector.
    #[error("{hook} was made for another model ({given}) than the one that runs ({model})")]
    MadeForOtherModel {
        /// The hook.
        hook: String,
        /// The model it was made for.
        given: String,
        /// The model that runs.
        model: String,
    },
    /// A recording whose rows are not the run's.
    #[error(
        "the recording of `{point}` has {recorded} rows and the run {run}: each row is replaced by the recording's row \
         of the same number; `recording.rows(a..b)` takes some"
    )]
    OtherRows {
        /// The point.
        point: String,
        /// Rows of the recording.
        recorded: usize,
        /// Rows of the run.
        run: usize,
    },
    /// A recording of texts of another length.
    #[error(
        "row {row} has {run} tokens, and {recorded} in the recording of `{point}`, so that they can't be matched; positions \
         counted from the start, such as `.positions(0..4)`, can"
    )]
    OtherLength {
        /// The point.
        point: String,
        /// The row.
        row: usize,
        /// Tokens of the run's text.
        run: usize,
        /// Tokens of the recording's text.
        recorded: usize,
    },
    /// A position whose value is to be replaced, and that the recording lacks.
    #[error("the recording of `{point}` does not hold position {position} of row {row}, which is to be replaced")]
    Unmatched {
        /// The point.
        point: String,
        /// The row.
        row: usize,
        /// The position.
        position: usize,
    },
    /// An action that makes no sense at a point.
    #[error("`{action}` is not defined at `{point}`: {reason}")]
    Undefined {
        /// What was asked for, for instance `mean`.
        action: &'static str,
        /// The point.
        point: String,
        /// Why.
        reason: &'static str,
    },
    /// A watched point that a run passed without firing it.
    #[error("the run ended without firing `{point}`, which it was to watch")]
    NotFired {
        /// The point.
        point: String,
    },
    /// A hook returned a tensor on another device.
    #[error("the hook at `{point}` returned a tensor on {given}; the point's is on {expected}")]
    Device {
        /// The point.
        point: String,
        /// Where the point's tensor lives.
        expected: String,
        /// Where the hook's lives.
        given: String,
    },
    /// Recordings of layers that differ in shape, where one tensor of all is wanted.
    #[error("`{point}` has shape {given:?}, and the first layer's {expected:?}: they can't be one tensor")]
    Stack {
        /// The point.
        point: String,
        /// Shape in the first layer.
        expected: Vec<usize>,
        /// Shape in this one.
        given: Vec<usize>,
    },
    /// Recordings that can't be concatenated.
    #[error("the recordings of `{point}` can't be put one behind the other: {reason}")]
    Stitch {
        /// The point.
        point: String,
        /// Why not.
        reason: &'static str,
    },
    /// A recorded tensor could not be read back from its device or written to a file.
    #[error("`{name}` could not be read or written")]
    Io {
        /// The tensor or file.
        name: String,
        /// What the system, the device or the format's writer reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HookError {
    /// The same of one row, where it is about positions.
    pub(crate) fn of_row(self, row: usize) -> Self {
        match self {
            HookError::Positions { asked, len, cached, .. } => {
                HookError::Positions { asked, row: Some(row), len, cached }
            }
            other => other,
        }
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
        0 => "no point is named".to_string(),
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
