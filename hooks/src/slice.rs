//! Hooks on a slice of a point's tensor: some heads, positions or units.

use std::ops::Range;

use burn::tensor::Tensor;

use crate::activation::Activation;
use crate::cache::ActivationCache;
use crate::error::HookError;
use crate::hook::{At, BoxError, Hook, IntoEdit, IntoRead, at, failed};
use crate::ordinal::Ordinal;
use crate::point::{Axis, Point, PointInfo};
use crate::positions::Positions;

/// A slice of a point's tensor, by named axes: `hook::z(0).head(1)`, `hook::resid_post(3).positions(-1)`.
///
/// It is made a hook by an action: [`zero`](Slice::zero), [`scale`](Slice::scale), [`add`](Slice::add),
/// [`replace`](Slice::replace), [`mean`](Slice::mean), [`edit`](Slice::edit) or [`read`](Slice::read). A point whole
/// has the same actions.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let point = catalog.info(ids[0]);
/// let mut last = Point::<3>::new("hook_embed").positions(-1).zero();
/// let ones = Tensor::<3>::ones([1, 3, 4], &Device::flex());
/// let seen = last.call(point, ones.into())?.to_ndarray()?;
/// assert_eq!((seen[[0, 1, 0]], seen[[0, 2, 0]]), (1.0, 0.0));
/// let told = Point::<3>::new("hook_embed").head(2).zero().call(point, Tensor::<3>::ones([1, 3, 4], &Device::flex()).into());
/// assert_eq!(told.unwrap_err().to_string(), "`hook_embed` [batch, pos, d_model] of shape [1, 3, 4] has no head 2");
/// # Ok::<(), HookError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Slice<const D: usize> {
    point: Point<D>,
    cuts: Vec<AxisIndices>,
}

/// A range of neighboring indices on an axis, and its row if it is not of all rows.
type IndexRun = (Option<usize>, Range<usize>);

/// Indices on one axis.
#[derive(Debug, Clone)]
enum AxisIndices {
    Heads(Vec<isize>),
    Positions(Positions),
    Rows(Range<usize>),
    Units(Vec<isize>),
}

impl<const D: usize> From<Point<D>> for Slice<D> {
    fn from(point: Point<D>) -> Self {
        Self { point, cuts: Vec::new() }
    }
}

macro_rules! slices {
    ($($(#[$doc:meta])* fn $name:ident($arg:ident: $type:ty) => $cut:expr;)*) => {
        impl<const D: usize> Point<D> {
            $($(#[$doc])* pub fn $name(self, $arg: $type) -> Slice<D> {
                Slice::from(self).$name($arg)
            })*
        }

        impl<const D: usize> Slice<D> {
            $($(#[$doc])* #[must_use] pub fn $name(mut self, $arg: $type) -> Self {
                self.cuts.push($cut);
                self
            })*
        }
    };
}

slices! {
    /// One head; negative numbers count from the last.
    fn head(head: impl Ordinal) => AxisIndices::Heads(vec![head.number()]);
    /// Some heads.
    fn heads(heads: impl IntoIterator<Item = impl Ordinal>) => AxisIndices::Heads(heads.into_iter().map(Ordinal::number).collect());
    /// Some positions, counted as in [`Record::positions`](crate::Record::positions): over a row's real tokens.
    fn positions(positions: impl Into<Positions>) => AxisIndices::Positions(positions.into());
    /// Some rows of the batch.
    fn rows(rows: Range<usize>) => AxisIndices::Rows(rows);
    /// One unit of the last axis: a neuron of `mlp.hook_post`, a feature of a dictionary, a dimension of the stream.
    fn unit(unit: impl Ordinal) => AxisIndices::Units(vec![unit.number()]);
    /// Some units of the last axis.
    fn units(units: impl IntoIterator<Item = impl Ordinal>) => AxisIndices::Units(units.into_iter().map(Ordinal::number).collect());
}

macro_rules! acts {
    ($($(#[$doc:meta])* fn $name:ident<$l:lifetime>($($arg:ident: $type:ty),*) => $body:expr;)*) => {
        impl<const D: usize> Point<D> {
            $($(#[$doc])*
            #[allow(clippy::should_implement_trait, reason = "`add` gives a hook, no sum")]
            pub fn $name<$l>(self $(, $arg: $type)*) -> Hook<$l> {
                Slice::from(self).$name($($arg),*)
            })*
        }

        impl<const D: usize> Slice<D> {
            $($(#[$doc])*
            #[allow(clippy::should_implement_trait, reason = "`add` gives a hook, no sum")]
            pub fn $name<$l>(self $(, $arg: $type)*) -> Hook<$l> {
                #[allow(clippy::redundant_closure_call, reason = "the body is written as a closure")]
                ($body)(self $(, $arg)*)
            })*
        }
    };
}

acts! {
    /// Sets it to zero: zero ablation.
    fn zero<'a>() => |slice: Self| slice.with(|piece, _, _| Ok(piece.zeros_like()));
    /// Multiplies it by a number.
    fn scale<'a>(factor: f64) => |slice: Self, factor: f64| slice.with(move |piece, at, _| {
        Ok((piece.into_tensor::<D>(at.name())? * factor).into())
    });
    /// Adds a vector along its last axis, `[d]`: steering.
    fn add<'a>(vector: Tensor<1>) => |slice: Self, vector: Tensor<1>| slice.with(move |piece, at, _| {
        let width = vector.dims()[0];
        if piece.shape().last() != Some(&width) {
            return Err(sliced(at.point, piece.shape(), format!("last axis of {width}, as the vector added")));
        }
        let x = piece.into_tensor::<D>(at.name())?;
        let mut shape = [1; D];
        shape[D - 1] = width;
        Ok((x.clone() + vector.clone().reshape(shape).cast(x.dtype()).to_device(&x.device())).into())
    });
    /// Puts what a cache holds of the same point in its place: activation patching. The cache is of a run of as many
    /// rows and positions.
    fn replace<'a>(cache: &'a ActivationCache) => |slice: Self, cache: &'a ActivationCache| {
        slice.with(move |piece, at, ranges| {
            let held = cache.activation(at.name())?;
            let outside = || sliced(at.point, held.shape(), format!("place {ranges:?}, which is to be replaced"));
            let fits = held.rank() == ranges.len() && held.shape().iter().zip(ranges).all(|(len, range)| range.end <= *len);
            if !fits { return Err(outside()) }
            let new = held.block(ranges).to_device(&piece.device()).into_tensor::<D>(at.name())?;
            Ok(new.cast(piece.dtype()).into())
        })
    };
    /// Puts the mean over the rows and positions that a cache holds of the same point in its place: mean ablation.
    fn mean<'a>(cache: &'a ActivationCache) => |slice: Self, cache: &'a ActivationCache| {
        slice.with(move |piece, at, ranges| {
            let mut mean = cache.activation(at.name())?.clone().into_tensor::<D>(at.name())?;
            for (axis, _) in at.axes().iter().enumerate().filter(|(_, axis)| matches!(axis, Axis::Batch | Axis::Pos | Axis::Query)) {
                mean = mean.mean_dim(axis);
            }
            // One place on the axes that the mean is over, the piece's own on the others.
            let place = |(len, range): (usize, &Range<usize>)| if len == 1 { 0..1 } else { range.clone() };
            let own: Vec<Range<usize>> = mean.dims().into_iter().zip(ranges).map(place).collect();
            let mean = Activation::from(mean).block(&own).to_device(&piece.device()).into_tensor::<D>(at.name())?;
            let x = piece.into_tensor::<D>(at.name())?;
            Ok(mean.cast(x.dtype()).expand(x.dims()).into())
        })
    };
}

impl<const D: usize> Slice<D> {
    /// Replaces the slice by what the closure returns; it is called once for each contiguous piece.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut first = Point::<3>::new("hook_embed").positions(0).edit(|x, _| x * 5.0);
    /// let seen = first.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 2, 1], &Device::flex()).into())?.to_ndarray()?;
    /// assert_eq!((seen[[0, 0, 0]], seen[[0, 1, 0]]), (5.0, 1.0));
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn edit<'a, F, R>(self, mut edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        self.with(move |piece, at, _| {
            let edited = edit(piece.clone().into_tensor(at.name())?, at).into_edit();
            Ok(edited.map_err(|source| failed(at, source))?.map_or(piece, Activation::from))
        })
    }

    /// Shows the slice to the closure, once for each contiguous piece.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut shapes = vec![];
    /// let mut look = Point::<3>::new("hook_embed").units([0, 1, 3]).read(|x, _| shapes.push(x.dims()));
    /// look.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 2, 4], &Device::flex()).into())?;
    /// drop(look);
    /// assert_eq!(shapes, [[1, 2, 2], [1, 2, 1]]);
    /// # Ok::<(), HookError>(())
    /// ```
    pub fn read<'a, F, R>(self, mut read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        let mut hook = self.with(move |piece, at, _| {
            read(piece.clone().into_tensor(at.name())?, at).into_read().map_err(|source| failed(at, source))?;
            Ok(piece)
        });
        hook.edits = false;
        hook
    }

    /// A hook that does something to each contiguous piece.
    fn with<'a>(
        self,
        mut act: impl FnMut(Activation, &At<'_>, &[Range<usize>]) -> Result<Activation, HookError> + 'a,
    ) -> Hook<'a> {
        let Slice { point, cuts } = self;
        let by_position = cuts.iter().any(|cut| matches!(cut, AxisIndices::Positions(_)));
        let mut hook = at(point).edit_any(move |tensor, at| {
            let mut edited = Vec::new();
            for ranges in pieces(&cuts, at, tensor.shape())? {
                let piece = act(tensor.block(&ranges), at, &ranges)?;
                let wanted: Vec<usize> = ranges.iter().map(Range::len).collect();
                if piece.shape() != wanted {
                    let (point, given, axes) = (at.name().to_string(), piece.shape().to_vec(), at.point.axes_label());
                    return Err(BoxError::from(HookError::Shape { point, expected: wanted, given, axes }));
                }
                edited.push((ranges, piece));
            }
            Ok(Some(tensor.with_blocks(edited)))
        });
        (hook.rank, hook.by_position) = (Some(D), by_position);
        hook
    }
}

fn sliced(point: &PointInfo, shape: &[usize], asked: String) -> HookError {
    HookError::Slice { point: point.name.to_string(), axes: point.axes_label(), shape: shape.to_vec(), asked }
}

/// The contiguous pieces of a tensor that the cuts leave: a range an axis each.
fn pieces(cuts: &[AxisIndices], at: &At<'_>, shape: &[usize]) -> Result<Vec<Vec<Range<usize>>>, HookError> {
    let mut pieces = vec![shape.iter().map(|len| 0..*len).collect::<Vec<_>>()];
    for cut in cuts {
        let lacks = |asked: String| sliced(at.point, shape, asked);
        let axis_of = |is: &dyn Fn(&Axis) -> bool| at.axes().iter().position(is);
        // Runs of neighboring places, and the row they are of.
        let (axis, runs): (usize, Vec<IndexRun>) = match cut {
            AxisIndices::Heads(heads) => {
                let asked = || format!("head {}", heads.iter().map(isize::to_string).collect::<Vec<_>>().join(", "));
                let axis = axis_of(&|axis| matches!(axis, Axis::Head | Axis::KvHead)).ok_or_else(|| lacks(asked()))?;
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
                if rows.start >= rows.end || rows.end > shape[axis] {
                    return Err(asked());
                }
                (axis, vec![(None, rows.clone())])
            }
            AxisIndices::Positions(positions) => {
                let axis = axis_of(&|axis| matches!(axis, Axis::Pos | Axis::Query));
                let axis = axis.ok_or_else(|| lacks(format!("positions {positions}")))?;
                (axis, position_runs(positions, at, shape, axis)?)
            }
        };
        let with = |piece: &Vec<Range<usize>>| {
            let (piece, runs) = (piece.clone(), runs.clone());
            runs.into_iter().filter_map(move |(row, run)| {
                let mut piece = piece.clone();
                if let Some(row) = row {
                    piece[0] = if piece[0].contains(&row) { row..row + 1 } else { return None };
                }
                piece[axis] = run;
                Some(piece)
            })
        };
        pieces = pieces.iter().flat_map(with).collect();
    }
    Ok(pieces)
}

/// Runs of positions, of all rows or of each.
fn position_runs(positions: &Positions, at: &At<'_>, shape: &[usize], axis: usize) -> Result<Vec<IndexRun>, HookError> {
    let (batch, len) = at.rows.map_or((shape[0], shape[axis]), |rows| (rows.batch, rows.len));
    let real = at.rows.and_then(|rows| rows.real);
    let neighbors = |places: &[usize]| -> Vec<Range<usize>> {
        places.chunk_by(|a, b| a + 1 == *b).map(|run| at.cached + run[0]..at.cached + run[run.len() - 1] + 1).collect()
    };
    if real.is_none()
        && let Ok(range) = positions.resolve(len)
    {
        return Ok(vec![(None, at.cached + range.start..at.cached + range.end)]);
    }
    let rows = positions.rows_of([batch, len], real)?;
    let of_row = |(row, places): (usize, &Vec<usize>)| {
        neighbors(places).into_iter().map(move |run| (Some(row), run)).collect::<Vec<_>>()
    };
    Ok(rows.iter().enumerate().flat_map(of_row).collect())
}

/// Runs of neighbors among places that may count from the end; none if the axis lacks one.
fn runs(places: &[isize], len: usize) -> Option<Vec<IndexRun>> {
    let place = |at: &isize| usize::try_from(if *at < 0 { at + len as isize } else { *at }).ok().filter(|at| *at < len);
    let mut places = places.iter().map(place).collect::<Option<Vec<_>>>()?;
    places.sort_unstable();
    places.dedup();
    Some(places.chunk_by(|a, b| a + 1 == *b).map(|run| (None, run[0]..run[run.len() - 1] + 1)).collect())
}
