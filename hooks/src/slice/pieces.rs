//! The contiguous pieces of a tensor selected by a slice.

use std::fmt;
use std::ops::Range;

use crate::error::HookError;
use crate::hook::At;
use crate::point::{Axis, PointInfo};
use crate::positions::{Counting, PositionSlice, Positions};
use crate::rows::Rows;

/// A range of consecutive indices on an axis, restricted to one row if a row is given.
type IndexRun = (Option<usize>, Range<usize>);

/// Indices on one axis.
#[derive(Debug, Clone)]
pub(super) enum AxisIndices {
    Heads(Vec<isize>),
    Positions(Positions, Counting),
    Rows(Range<usize>),
    Units(Vec<isize>),
}

impl AxisIndices {
    /// Whether the indices depend on row numbers.
    pub(super) fn is_by_row(&self) -> bool {
        match self {
            AxisIndices::Rows(_) => true,
            AxisIndices::Positions(positions, _) => matches!(positions, Positions::OfRows(_) | Positions::Columns(_)),
            AxisIndices::Heads(_) | AxisIndices::Units(_) => false,
        }
    }
}

impl fmt::Display for AxisIndices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[isize]| numbers.iter().map(isize::to_string).collect::<Vec<_>>().join(" ");
        match self {
            AxisIndices::Heads(heads) => write!(f, "head {}", list(heads)),
            AxisIndices::Units(units) => write!(f, "unit {}", list(units)),
            AxisIndices::Rows(rows) => write!(f, "rows {rows:?}"),
            AxisIndices::Positions(positions, Counting::Text) => write!(f, "positions {positions}"),
            AxisIndices::Positions(positions, Counting::Run) => write!(f, "new positions {positions}"),
        }
    }
}

/// Description of the cuts: `head 1, positions -1`.
pub(super) fn described(cuts: &[AxisIndices]) -> String {
    cuts.iter().map(AxisIndices::to_string).collect::<Vec<_>>().join(", ")
}

/// The heads that the cuts select, if exactly one cut selects heads.
pub(super) fn heads(cuts: &[AxisIndices]) -> Option<Vec<isize>> {
    let mut all = cuts.iter().filter_map(|cut| match cut {
        AxisIndices::Heads(heads) => Some(heads.clone()),
        _ => None,
    });
    all.next().filter(|_| all.next().is_none())
}

/// The text positions that the cuts select, if any.
pub(super) fn positions(cuts: &[AxisIndices]) -> Option<Positions> {
    cuts.iter().find_map(|cut| match cut {
        AxisIndices::Positions(positions, Counting::Text) => Some(positions.clone()),
        _ => None,
    })
}

pub(super) fn sliced(point: &PointInfo, shape: &[usize], asked: String) -> HookError {
    HookError::Slice { point: point.name.to_string(), axes: point.axes_label(), shape: shape.to_vec(), asked }
}

/// Converts a piece's ranges from head indices among all heads to indices in a tensor that has only some heads. The
/// tensor must have the piece's heads.
pub(super) fn within(ranges: &[Range<usize>], at: &At<'_>) -> Vec<Range<usize>> {
    let mut ranges = ranges.to_vec();
    if let Some(some) = at.heads
        && let Some(axis) = head_axis(at)
    {
        let start = some.heads.partition_point(|head| *head < ranges[axis].start);
        ranges[axis] = start..start + ranges[axis].len();
    }
    ranges
}

fn head_axis(at: &At<'_>) -> Option<usize> {
    at.axes().iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead))
}

/// The contiguous pieces of a tensor selected by the cuts, each as one range per axis. Heads have their indices among
/// all heads of the point, even if the tensor has only some of them.
pub(super) fn pieces(cuts: &[AxisIndices], at: &At<'_>, shape: &[usize]) -> Result<Vec<Vec<Range<usize>>>, HookError> {
    let mut shape = shape.to_vec();
    if let (Some(some), Some(axis)) = (at.heads, head_axis(at)) {
        shape[axis] = some.of;
    }
    let shape = &shape[..];
    let mut pieces = vec![shape.iter().map(|len| 0..*len).collect::<Vec<_>>()];
    for cut in cuts {
        let lacks = |asked: String| sliced(at.point, shape, asked);
        let axis_of = |is: &dyn Fn(&Axis) -> bool| at.axes().iter().position(is);
        // Ranges of consecutive indices, and the row each belongs to.
        let (axis, runs): (usize, Vec<IndexRun>) = match cut {
            AxisIndices::Heads(heads) => {
                let asked = || format!("head {}", heads.iter().map(isize::to_string).collect::<Vec<_>>().join(", "));
                let axis = head_axis(at).ok_or_else(|| lacks(asked()))?;
                (axis, runs(heads, shape[axis]).ok_or_else(|| lacks(asked()))?)
            }
            AxisIndices::Units(units) => {
                let axis = shape.len().saturating_sub(1);
                let asked = || format!("unit {}", units.iter().map(isize::to_string).collect::<Vec<_>>().join(", "));
                (axis, runs(units, shape[axis]).ok_or_else(|| lacks(asked()))?)
            }
            AxisIndices::Rows(rows) => {
                let asked = || lacks(format!("rows {rows:?}"));
                let axis = axis_of(&|axis| *axis == Axis::Batch).ok_or_else(asked)?;
                let users_rows = at.rows.map_or(shape[axis], |of| of.users_rows());
                if rows.start >= rows.end || rows.end > users_rows {
                    return Err(asked());
                }
                // In a sweep, all rows are copies of one of the user's rows.
                match at.rows.and_then(|of| of.copies) {
                    Some([row, _]) if rows.contains(&row) => (axis, vec![(None, 0..shape[axis])]),
                    Some(_) => (axis, Vec::new()),
                    None => (axis, vec![(None, rows.clone())]),
                }
            }
            AxisIndices::Positions(positions, counting) => {
                let axis = axis_of(&|axis| matches!(axis, Axis::Pos | Axis::Query));
                let axis = axis.ok_or_else(|| lacks(format!("positions {positions}")))?;
                (axis, position_runs(positions, *counting, at, shape, axis)?)
            }
        };
        let with = |piece: &Vec<Range<usize>>| {
            let (piece, runs) = (piece.clone(), runs.clone());
            runs.into_iter().filter_map(move |(row, run)| {
                let mut piece = piece.clone();
                if let Some(row) = row {
                    piece[0] = if piece[0].contains(&row) { row..row + 1 } else { return None };
                }
                // An earlier cut may have narrowed this axis.
                piece[axis] = piece[axis].start.max(run.start)..piece[axis].end.min(run.end);
                (!piece[axis].is_empty()).then_some(piece)
            })
        };
        pieces = pieces.iter().flat_map(with).collect();
    }
    Ok(pieces)
}

/// Ranges of positions, shared by all rows or per row.
fn position_runs(
    positions: &Positions,
    counting: Counting,
    at: &At<'_>,
    shape: &[usize],
    axis: usize,
) -> Result<Vec<IndexRun>, HookError> {
    let rows = at.rows.unwrap_or(Rows::new(shape[0], shape[axis]));
    // A tensor that includes cached positions can also be sliced at cached positions.
    let past = at.point.with_past;
    // Index of the first column that the run computes.
    let own = if past { 0 } else { at.cached };
    Ok(match positions.columns(&rows, counting, past)? {
        PositionSlice::All => vec![(None, own..shape[axis])],
        PositionSlice::Range(range) if range.is_empty() => Vec::new(),
        PositionSlice::Range(range) => vec![(None, own + range.start..own + range.end)],
        PositionSlice::ByRow(chosen) => {
            // Explicit columns refer to the columns that the run computes.
            let own = if matches!(positions, Positions::Columns(_)) { at.cached } else { own };
            let of_row = |(row, places): (usize, &Vec<usize>)| {
                let runs = places.chunk_by(|a, b| a + 1 == *b);
                runs.map(|run| (Some(row), own + run[0]..own + run[run.len() - 1] + 1)).collect::<Vec<_>>()
            };
            chosen.iter().enumerate().flat_map(of_row).collect()
        }
    })
}

/// Groups indices, which may count from the end, into consecutive runs. `None` if an index is out of bounds.
fn runs(places: &[isize], len: usize) -> Option<Vec<IndexRun>> {
    let place = |at: &isize| usize::try_from(if *at < 0 { at + len as isize } else { *at }).ok().filter(|at| *at < len);
    let mut places = places.iter().map(place).collect::<Option<Vec<_>>>()?;
    places.sort_unstable();
    places.dedup();
    Some(places.chunk_by(|a, b| a + 1 == *b).map(|run| (None, run[0]..run[run.len() - 1] + 1)).collect())
}
