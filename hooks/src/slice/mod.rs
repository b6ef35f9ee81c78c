//! Hooks on a slice of a point's tensor: selected heads, positions, rows, or units.

mod actions;
mod mean;
mod pieces;
mod replace;

use std::ops::Range;

use crate::activation::{Activation, BlockAccess};
use crate::error::{BoxError, HookError};
use crate::hook::{At, Hook, at};
use crate::ordinal::Ordinal;
use crate::point::Point;
use crate::positions::{Counting, Positions};
use pieces::{AxisIndices, pieces, within};

/// A slice of a point's tensor along named axes: `hook::z(0).head(1)`, `hook::resid_post(3).positions(-1)`.
///
/// An action turns it into a hook: [`zero`](Slice::zero), [`scale`](Slice::scale), [`add`](Slice::add),
/// [`replace`](Slice::replace), [`mean`](Slice::mean), [`edit`](Slice::edit), or [`read`](Slice::read). A [`Point`] has
/// the same actions for its whole tensor.
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
/// let message = Point::<3>::new("hook_embed").head(2).zero().call(point, Tensor::<3>::ones([1, 3, 4], &Device::flex()).into());
/// assert_eq!(message.unwrap_err().to_string(), "`hook_embed` [batch, pos, d_model] of shape [1, 3, 4] has no head 2");
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

impl<const D: usize> From<&Point<D>> for Slice<D> {
    fn from(point: &Point<D>) -> Self {
        Self { point: point.clone(), cuts: Vec::new() }
    }
}

macro_rules! slices {
    ($($(#[$doc:meta])* fn $name:ident($arg:ident: $type:ty) => $cut:expr;)*) => {
        impl<const D: usize> Point<D> {
            $($(#[$doc])* pub fn $name(&self, $arg: $type) -> Slice<D> {
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
    /// Several heads; negative numbers count from the last.
    fn heads(heads: impl IntoIterator<Item = impl Ordinal>) => AxisIndices::Heads(heads.into_iter().map(Ordinal::number).collect());
    /// Selected positions, counted over each row's text, including tokens in a key-value cache. The slice has no effect
    /// on a run that does not compute these positions (they are cached, or come in a later step).
    fn positions(positions: impl Into<Positions>) => AxisIndices::Positions(positions.into(), Counting::Text);
    /// Selected positions of the run's own tokens, counted from the first token after the key-value cache.
    fn new_positions(positions: impl Into<Positions>) => AxisIndices::Positions(positions.into(), Counting::Run);
    /// A range of batch rows, or of examples in a sweep.
    fn rows(rows: Range<usize>) => AxisIndices::Rows(rows);
    /// One unit of the last axis: a neuron of `mlp.hook_post`, a latent of an SAE, a dimension of the residual stream.
    fn unit(unit: impl Ordinal) => AxisIndices::Units(vec![unit.number()]);
    /// Several units of the last axis.
    fn units(units: impl IntoIterator<Item = impl Ordinal>) => AxisIndices::Units(units.into_iter().map(Ordinal::number).collect());
}

impl<const D: usize> Slice<D> {
    /// Builds a hook that applies `act` to each contiguous piece.
    fn with<'a>(
        self,
        mut act: impl FnMut(Activation, &At<'_>, &[Range<usize>]) -> Result<Activation, HookError> + 'a,
    ) -> Hook<'a> {
        let Slice { point, cuts } = self;
        let positions = pieces::positions(&cuts);
        let slice = pieces::described(&cuts);
        let heads = pieces::heads(&cuts);
        let by_row = cuts.iter().any(AxisIndices::is_by_row);
        let by_position = cuts.iter().any(|cut| matches!(cut, AxisIndices::Positions(..)));
        let mut hook = at(point).edit_any(move |tensor, at| {
            let mut edited = Vec::new();
            for ranges in pieces(&cuts, at, tensor.shape())? {
                let own = within(&ranges, at);
                let piece = act(tensor.block(&own), at, &ranges)?;
                let wanted: Vec<usize> = ranges.iter().map(Range::len).collect();
                if piece.shape() != wanted {
                    let (point, given, axes) = (at.name().to_string(), piece.shape().to_vec(), at.point.axes_label());
                    return Err(BoxError::from(HookError::Shape { point, expected: wanted, given, axes }));
                }
                edited.push((own, piece));
            }
            Ok(Some(tensor.with_blocks(edited)))
        });
        hook.rank = Some(D);
        hook.by_position = by_position || by_row;
        hook.by_row = by_row;
        hook.heads = heads;
        hook.positions = positions;
        hook.description.slice = slice;
        hook
    }
}
