//! Points selected by name or pattern, before a closure is attached.

use burn::tensor::Tensor;

use super::{At, Hook, IntoEdit, IntoRead, failed};
use crate::activation::Activation;
use crate::error::BoxError;
use crate::selection::Selection;

/// A selection of points that has no closure yet. See [`at`].
///
/// ```
/// use burn::tensor::Tensor;
/// use hooklens_hooks::{Hook, Target, at};
/// let heads: Target = at(["z0", "z1"]);
/// let zero: Hook<'_> = heads.edit(|z: Tensor<4>, _| z.zeros_like());
/// assert_eq!(format!("{zero:?}"), "Hook(edit [\"z0\", \"z1\"])");
/// ```
#[derive(Debug, Clone)]
pub struct Target(Selection);

/// Starts a hook at the points that a name, glob, or shorthand selects. Text does not specify a rank, so annotate the
/// closure's argument: `|z: Tensor<4>, _|`. A typed [`Point`](crate::Point) knows its rank.
///
/// ```
/// use burn::tensor::Tensor;
/// use hooklens_hooks::{Point, at};
/// let by_text = at("z0").edit(|z: Tensor<4>, _| z.zeros_like()); // [batch, pos, head, d_head]
/// let by_point = Point::<4>::in_layer(0, "attn.hook_z").edit(|z, _| z.zeros_like());
/// let double = at("blocks.*.hook_mlp_out").edit(|x: Tensor<3>, _| x * 2.0);
/// let mut shapes = vec![];
/// let look = at(("q", 3)).read(|q: Tensor<4>, at| shapes.push((at.name().to_string(), q.dims())));
/// ```
pub fn at(target: impl Into<Selection>) -> Target {
    Target(target.into())
}

impl Target {
    /// Replaces the tensor with the closure's return value; see [`IntoEdit`] for the supported types. The closure's
    /// argument determines the rank: `at("z0").edit(|z: Tensor<4>, _| z * 2.0)`. A closure created in a loop must move
    /// its captures: `edit(move |z: Tensor<4>, _| z * scale)`.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// // The closure returns a tensor, an `Option` of one (`None` keeps the old tensor), or a `Result` of either.
    /// let mut first_run = at("hook_embed").edit(|x: Tensor<3>, at| (at.offset() == 0).then(|| x.zeros_like()));
    /// let mut wary = at("hook_embed").edit(|x: Tensor<3>, _| {
    ///     if x.dims()[1] > 1 { Ok(x * 0.5) } else { Err("a single token") }
    /// });
    /// let (point, ones) = (catalog.info(ids[0]), Tensor::<3>::ones([1, 1, 4], &Device::flex()));
    /// assert_eq!(first_run.call(point, ones.clone().into())?.to_ndarray()?.sum(), 0.0);
    /// let message = wary.call(point, ones.into()).unwrap_err();
    /// assert_eq!(message.to_string(), "the hook at `hook_embed` failed");
    /// let why = std::error::Error::source(&message).map(ToString::to_string);
    /// assert_eq!(why.as_deref(), Some("a single token"));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn edit<'a, const D: usize, F, R>(self, mut edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        let action = move |activation: Activation, at: &At<'_>| {
            let tensor = activation.into_tensor::<D>(at.name())?;
            let edited = edit(tensor, at).into_edit();
            edited.map(|kept| kept.map(Activation::from)).map_err(|source| failed(at, source))
        };
        Hook { rank: Some(D), edits: true, ..Hook::new(self.0, action) }
    }

    /// Passes the tensor to the closure; the run continues with the tensor unchanged.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut norms = vec![];
    /// let mut read = at("*hook_resid_post").read(|x: Tensor<3>, at| {
    ///     norms.push((at.layer(), x.square().sum().sqrt().into_scalar::<f32>()));
    /// });
    /// read.call(catalog.info(ids[1]), Tensor::<3>::ones([1, 1, 4], &Device::flex()).into())?;
    /// drop(read);
    /// assert_eq!(norms, [(Some(0), 2.0)]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn read<'a, const D: usize, F, R>(self, mut read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        let action = move |activation: Activation, at: &At<'_>| {
            let tensor = activation.into_tensor::<D>(at.name())?;
            read(tensor, at).into_read().map_err(|source| failed(at, source))?;
            Ok(None)
        };
        Hook { rank: Some(D), edits: false, ..Hook::new(self.0, action) }
    }

    /// Replaces the gradient at the point with the closure's return value. Requires a run with gradients.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::{HookDetails, at};
    /// let stopped = at("*hook_mlp_out").edit_grad(|grad: Tensor<3>, _| grad.zeros_like());
    /// assert!(stopped.is_backward() && stopped.edits());
    /// ```
    pub fn edit_grad<'a, const D: usize, F, R>(self, edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        Hook { backward: true, ..self.edit(edit) }
    }

    /// Passes the gradient at the point to the closure. Requires a run with gradients.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut names = vec![];
    /// let mut look = at("*hook_resid_post").read_grad(|_: Tensor<3>, at| names.push(at.name().to_string()));
    /// assert!(look.is_backward() && !look.edits());
    /// look.call(catalog.info(ids[2]), Tensor::<3>::ones([1, 1, 4], &Device::flex()).into())?;
    /// drop(look);
    /// assert_eq!(names, ["blocks.1.hook_resid_post"]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn read_grad<'a, const D: usize, F, R>(self, read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        Hook { backward: true, ..self.read(read) }
    }

    /// Like [`Target::edit`], for points of any rank or kind; `None` keeps the tensor.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut zeroed = at("*").edit_any(|x, _| Ok(x.dtype().is_float().then(|| x.zeros_like()))); // floats only
    /// let ones = Tensor::<3>::ones([1, 1, 4], &Device::flex());
    /// assert_eq!(zeroed.call(catalog.info(ids[0]), ones.into())?.to_ndarray()?.sum(), 0.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn edit_any<'a>(
        self,
        mut edit: impl FnMut(Activation, &At<'_>) -> Result<Option<Activation>, BoxError> + 'a,
    ) -> Hook<'a> {
        let action = move |activation: Activation, at: &At<'_>| edit(activation, at).map_err(|e| failed(at, e));
        Hook::new(self.0, action)
    }

    /// Like [`Target::read`], for points of any rank or kind.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut shapes = vec![];
    /// let mut look = at("*").read_any(|x, at| shapes.push(format!("{} {:?}", at.name(), x.shape())));
    /// look.call(catalog.info(ids[0]), Tensor::<3>::ones([1, 1, 4], &Device::flex()).into())?;
    /// drop(look);
    /// assert_eq!(shapes, ["hook_embed [1, 1, 4]"]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn read_any<'a, R: IntoRead>(self, mut read: impl FnMut(Activation, &At<'_>) -> R + 'a) -> Hook<'a> {
        let action = move |activation: Activation, at: &At<'_>| {
            read(activation, at).into_read().map_err(|source| failed(at, source))?;
            Ok(None)
        };
        Hook { edits: false, ..Hook::new(self.0, action) }
    }
}
