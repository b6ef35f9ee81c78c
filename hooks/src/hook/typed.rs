//! Hooks at typed points.

use burn::tensor::Tensor;

use super::{At, Hook, IntoEdit, IntoRead, at};
use crate::point::Point;

impl<const D: usize> Point<D> {
    /// Replaces the point's tensor with the closure's return value. A closure created in a loop must `move` its
    /// captures.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// let zeroed = Point::<4>::new("blocks.0.attn.hook_z").edit(|z, _| z.zeros_like());
    /// let hooks: Vec<_> = [(0, 0.5), (1, 2.0)]
    ///     .into_iter()
    ///     .map(|(layer, scale)| Point::<4>::in_layer(layer, "attn.hook_z").edit(move |z, _| z * scale))
    ///     .collect();
    /// assert_eq!(hooks.len(), 2);
    /// ```
    pub fn edit<'a, F, R>(&self, edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        at(self).edit(edit)
    }

    /// Passes the point's tensor to the closure; the run continues with the tensor unchanged.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut most = f32::MIN;
    /// let mut look = Point::<3>::new("hook_embed").read(|x, _| most = most.max(x.max().into_scalar::<f32>()));
    /// look.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 1, 4], &Device::flex()).into())?;
    /// drop(look);
    /// assert_eq!(most, 1.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn read<'a, F, R>(&self, read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        at(self).read(read)
    }

    /// Replaces the gradient at the point with the closure's return value. Requires a run with gradients.
    ///
    /// ```
    /// use hooklens_hooks::{HookDetails, Point};
    /// let frozen = Point::<4>::in_layer(0, "attn.hook_pattern").edit_grad(|grad, _| grad.zeros_like());
    /// assert!(frozen.is_backward()); // no gradient flows through the pattern
    /// ```
    pub fn edit_grad<'a, F, R>(&self, edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        at(self).edit_grad(edit)
    }

    /// Passes the gradient at the point to the closure. Requires a run with gradients.
    ///
    /// ```
    /// use hooklens_hooks::{HookDetails, Point};
    /// let mut sizes = vec![];
    /// let look = Point::<3>::in_layer(-1, "hook_resid_post").read_grad(|grad, _| sizes.push(grad.dims()));
    /// assert!(look.is_backward() && !look.edits());
    /// ```
    pub fn read_grad<'a, F, R>(&self, read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        at(self).read_grad(read)
    }
}
