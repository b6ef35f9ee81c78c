//! Hooks on a slice of a point's tensor: some heads, positions or units.

mod mean;
mod pieces;
mod replace;

use std::ops::Range;

use burn::tensor::Tensor;

use crate::activation::Activation;
use crate::cache::ActivationCache;
use crate::error::HookError;
use crate::hook::{At, BoxError, Hook, IntoEdit, IntoRead, at, failed};
use crate::ordinal::Ordinal;
use crate::point::Point;
use crate::positions::{Counting, Positions};
use mean::MeanOfRecording;
use pieces::{AxisIndices, pieces, sliced};
use replace::Replacement;

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
    /// Some positions, counted over the tokens of a row's text, those in a key-value cache included. A run that does not
    /// compute them, since they are cached or come in a later step, is left as it is.
    fn positions(positions: impl Into<Positions>) => AxisIndices::Positions(positions.into(), Counting::Text);
    /// Some of the positions that a run computes itself, counted from the first after its key-value cache.
    fn new_positions(positions: impl Into<Positions>) => AxisIndices::Positions(positions.into(), Counting::Run);
    /// Some rows of the batch; in a sweep, some examples.
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
    fn zero<'a>() => |slice: Self| slice.with(|piece, _, _| Ok(piece.zeros_like())).described("zero");
    /// Multiplies it by a number.
    fn scale<'a>(factor: f64) => |slice: Self, factor: f64| slice.with(move |piece, at, _| {
        Ok((piece.into_tensor::<D>(at.name())? * factor).into())
    }).described(format!("scale {factor:?}"));
    /// Adds a vector along its last axis, `[d]`: steering.
    fn add<'a>(vector: Tensor<1>) => |slice: Self, vector: Tensor<1>| {
        let added = vector.clone();
        let hook = slice.with(move |piece, at, _| {
            let width = vector.dims()[0];
            if piece.shape().last() != Some(&width) {
                return Err(sliced(at.point, piece.shape(), format!("last axis of {width}, as the vector added")));
            }
            let x = piece.into_tensor::<D>(at.name())?;
            let mut shape = [1; D];
            shape[D - 1] = width;
            Ok((x.clone() + vector.clone().reshape(shape).cast(x.dtype()).to_device(&x.device())).into())
        });
        hook.that_uses("add", &added)
    };
    /// Replaces it by the values that a recording holds of the same point, row and position: activation patching.
    ///
    /// The recording is of this model ([`ActivationCache::for_any_model`] allows another) and has the run's rows; positions
    /// are matched by each row's own tokens, so that padding and a key-value cache may differ. Texts of different lengths
    /// can be matched at positions counted from the start only. In generation, and in a run with a cache that grows,
    /// positions that the recording does not hold are left as they are; elsewhere they are an error.
    fn replace<'a>(recording: &'a ActivationCache) => Replacement::hook;
    /// Replaces it by the mean that a recording holds of the same point, over the tokens of all its rows and positions:
    /// mean ablation. Scores and patterns, whose entries mean something else at each position, have none.
    fn mean<'a>(recording: &'a ActivationCache) => MeanOfRecording::hook;
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
        let positions = pieces::positions(&cuts);
        let slice = pieces::described(&cuts);
        let by_row = cuts.iter().any(AxisIndices::is_by_row);
        let by_position = cuts.iter().any(|cut| matches!(cut, AxisIndices::Positions(..)));
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
        hook.rank = Some(D);
        hook.by_position = by_position || by_row;
        hook.by_row = by_row;
        hook.positions = positions;
        hook.description.slice = slice;
        hook
    }
}
