//! Hooks: closures that read or change a tensor where it is made.

use std::fmt;

use burn::tensor::Tensor;

use crate::activation::Activation;
use crate::error::HookError;
use crate::point::{Axis, Point, PointInfo};
use crate::run::{Rows, check_edit, check_rank};
use crate::selection::Selection;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Action<'a> = Box<dyn FnMut(Activation, &At<'_>) -> Result<Option<Activation>, HookError> + 'a>;

/// Where a hook was called: the point, and which positions its tensor covers.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
/// let look = at("blocks.*.hook_resid_post").read(|x: Tensor<3>, at: &At<'_>| {
///     println!("{} from position {}: {:?} {:?}", at.name(), at.offset(), at.axes(), x.dims());
/// });
/// let mut hooks = [look];
/// let mut run = Run::new(&catalog, &mut hooks, Record::new("blocks.1.*"), rows, &|_| None)?;
/// for id in ids {
///     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// }
/// assert_eq!(run.finish()?.names().collect::<Vec<_>>(), ["blocks.1.hook_resid_post"]);
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    pub(crate) point: &'a PointInfo,
    pub(crate) offset: usize,
    /// The run's rows; unknown outside a run.
    pub(crate) rows: Option<Rows<'a>>,
    /// Positions of a cache that the tensor begins with.
    pub(crate) cached: usize,
}

impl At<'_> {
    /// Full name of the point.
    pub fn name(&self) -> &str {
        &self.point.name
    }

    /// Layer of the point, if it lies within a block.
    pub fn layer(&self) -> Option<usize> {
        self.point.layer
    }

    /// Meaning of each axis of the tensor.
    pub fn axes(&self) -> &[Axis] {
        self.point.axes
    }

    /// Absolute position of the tensor's first row: 0, or the length of what came before.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// A closure bound to the points it runs at.
///
/// Made by [`Point::edit`] and [`Point::read`], or for names and patterns by [`at`]. The
/// closure may borrow from its surroundings: a hook lives as long as the run it is given to.
///
/// ```
/// use burn::tensor::Tensor;
/// use hooklens_hooks::at;
/// let double = at("mlp_out3").edit(|x: Tensor<3>, _| x * 2.0);
/// assert!(double.edits() && !double.is_backward());
/// assert_eq!(format!("{double:?}"), "Hook(edit [\"mlp_out3\"])");
/// ```
pub struct Hook<'a> {
    pub(crate) target: Selection,
    pub(crate) rank: Option<usize>,
    pub(crate) edits: bool,
    pub(crate) backward: bool,
    /// Whether it needs to know which positions are real.
    pub(crate) by_position: bool,
    pub(crate) action: Action<'a>,
}

impl Hook<'_> {
    /// The points it runs at.
    pub fn target(&self) -> &Selection {
        &self.target
    }

    /// Whether the hook sees gradients on the way back, and not tensors on the way forth.
    pub fn is_backward(&self) -> bool {
        self.backward
    }

    /// Runs the hook at a point outside a forward pass, as a backward pass does, and gives the
    /// tensor as the hook left it.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut double = at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0);
    /// let point = catalog.info(catalog.find("hook_embed")?);
    /// let ones = Tensor::<3>::ones([1, 1, 1], &Device::flex());
    /// assert_eq!(double.call(point, ones.into())?.to_ndarray()?[[0, 0, 0]], 2.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// What the hook reports, [`HookError::Rank`] if it is for another rank, or that it returned
    /// another shape or element type.
    pub fn call(&mut self, point: &PointInfo, tensor: Activation) -> Result<Activation, HookError> {
        check_rank(self, point)?;
        let at = At { point, offset: 0, rows: None, cached: 0 };
        match (self.action)(tensor.clone(), &at)? {
            Some(edited) if self.edits => {
                check_edit(point, &tensor, &edited)?;
                Ok(edited)
            }
            _ => Ok(tensor),
        }
    }

    /// Whether the hook may change tensors.
    pub fn edits(&self) -> bool {
        self.edits
    }

    /// The same hook for a shorter while: what a scope lends to each of its runs.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::at;
    /// let mut seen = 0;
    /// let mut count = at("*hook_z").read(|_: Tensor<4>, _| seen += 1);
    /// for _run in 0..2 {
    ///     let lent = count.reborrow(); // for one run; the hook itself stays
    ///     assert!(!lent.edits());
    /// }
    /// ```
    pub fn reborrow(&mut self) -> Hook<'_> {
        let action = &mut self.action;
        Hook {
            target: self.target.clone(),
            rank: self.rank,
            edits: self.edits,
            backward: self.backward,
            by_position: self.by_position,
            action: Box::new(move |activation, at| action(activation, at)),
        }
    }
}

impl fmt::Debug for Hook<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.edits { "edit" } else { "read" };
        let what = if self.backward { " the gradient of" } else { "" };
        write!(f, "Hook({verb}{what} {:?})", self.target)
    }
}

/// Points named by text, waiting for a closure. See [`at`].
///
/// ```
/// use burn::tensor::Tensor;
/// use hooklens_hooks::{Hook, Target, at};
/// let heads: Target = at(["z0", "z1"]);
/// let zero: Hook<'_> = heads.edit(|z: Tensor<4>, _| z.zeros_like());
/// assert!(zero.edits());
/// ```
#[derive(Debug, Clone)]
pub struct Target(Selection);

/// Begins a hook at the points that a name, glob or shorthand asks for. A text has no rank: say it by the closure's
/// argument, `|z: Tensor<4>, _|`. A typed [`Point`] knows its own.
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
    /// Replaces the tensor by what the closure returns; see [`IntoEdit`] for what it may be. Its argument tells the rank:
    /// `at("z0").edit(|z: Tensor<4>, _| z * 2.0)`. A hook made in a loop takes what it uses with it:
    /// `edit(move |z: Tensor<4>, _| z * scale)`.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// // The closure gives a tensor, an option of one (`None` keeps the old), or a result of either.
    /// let mut first_run = at("hook_embed").edit(|x: Tensor<3>, at| (at.offset() == 0).then(|| x.zeros_like()));
    /// let mut wary = at("hook_embed").edit(|x: Tensor<3>, _| {
    ///     if x.dims()[1] > 1 { Ok(x * 0.5) } else { Err("a single token") }
    /// });
    /// let (point, ones) = (catalog.info(ids[0]), Tensor::<3>::ones([1, 1, 4], &Device::flex()));
    /// assert_eq!(first_run.call(point, ones.clone().into())?.to_ndarray()?.sum(), 0.0);
    /// let told = wary.call(point, ones.into()).unwrap_err();
    /// assert_eq!(told.to_string(), "the hook at `hook_embed` failed");
    /// let why = std::error::Error::source(&told).map(ToString::to_string);
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
        Hook {
            target: self.0,
            rank: Some(D),
            edits: true,
            backward: false,
            by_position: false,
            action: Box::new(action),
        }
    }

    /// Shows the tensor to the closure; the run goes on with the tensor as it was.
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
        Hook {
            target: self.0,
            rank: Some(D),
            edits: false,
            backward: false,
            by_position: false,
            action: Box::new(action),
        }
    }

    /// Replaces the gradient that goes back from the point. For runs with gradients.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::at;
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

    /// Shows the gradient at the point to the closure. For runs with gradients.
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

    /// Like [`Target::edit`] for points of any rank or kind; `None` keeps the tensor.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let mut zeroed = at("*").edit_any(|x, _| Ok((!x.is_integer()).then(|| x.zeros_like()))); // floats only
    /// let ones = Tensor::<3>::ones([1, 1, 4], &Device::flex());
    /// assert_eq!(zeroed.call(catalog.info(ids[0]), ones.into())?.to_ndarray()?.sum(), 0.0);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn edit_any<'a>(
        self,
        mut edit: impl FnMut(Activation, &At<'_>) -> Result<Option<Activation>, BoxError> + 'a,
    ) -> Hook<'a> {
        let action = move |activation: Activation, at: &At<'_>| edit(activation, at).map_err(|e| failed(at, e));
        Hook { target: self.0, rank: None, edits: true, backward: false, by_position: false, action: Box::new(action) }
    }

    /// Like [`Target::read`] for points of any rank or kind.
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
        Hook { target: self.0, rank: None, edits: false, backward: false, by_position: false, action: Box::new(action) }
    }
}

impl<const D: usize> Point<D> {
    /// Replaces the point's tensor by what the closure returns. A hook made in a loop takes what it uses with it: `move`.
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
    pub fn edit<'a, F, R>(self, edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        at(self).edit(edit)
    }

    /// Shows the point's tensor to the closure; the run goes on with the tensor as it was.
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
    pub fn read<'a, F, R>(self, read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        at(self).read(read)
    }

    /// Replaces the gradient that goes back from the point. For runs with gradients.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// let frozen = Point::<4>::in_layer(0, "attn.hook_pattern").edit_grad(|grad, _| grad.zeros_like());
    /// assert!(frozen.is_backward()); // attention is taken as given
    /// ```
    pub fn edit_grad<'a, F, R>(self, edit: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoEdit<D>,
    {
        at(self).edit_grad(edit)
    }

    /// Shows the gradient at the point to the closure. For runs with gradients.
    ///
    /// ```
    /// use hooklens_hooks::Point;
    /// let mut sizes = vec![];
    /// let look = Point::<3>::in_layer(-1, "hook_resid_post").read_grad(|grad, _| sizes.push(grad.dims()));
    /// assert!(look.is_backward() && !look.edits());
    /// ```
    pub fn read_grad<'a, F, R>(self, read: F) -> Hook<'a>
    where
        F: FnMut(Tensor<D>, &At<'_>) -> R + 'a,
        R: IntoRead,
    {
        at(self).read_grad(read)
    }
}

pub(crate) fn failed(at: &At<'_>, source: BoxError) -> HookError {
    match source.downcast::<HookError>() {
        Ok(known) => *known,
        Err(source) => HookError::Failed { point: at.name().to_string(), source },
    }
}

/// What an editing closure may return: a tensor, nothing (keep the old one), or either as an
/// option or a result.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::IntoEdit;
/// let ones = Tensor::<1>::ones([2], &Device::flex());
/// assert!(ones.clone().into_edit()?.is_some());
/// assert!(IntoEdit::<1>::into_edit(())?.is_none()); // nothing given: the tensor stays
/// let failed: Result<Tensor<1>, &str> = Err("too small");
/// assert_eq!(failed.into_edit().unwrap_err().to_string(), "too small"); // the run ends with this
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that edits gives `Tensor<{D}>`, and not `{Self}`",
    label = "this closure gives `{Self}`",
    note = "a hook gives the tensor in the place of the old one: `hook::z(0).edit(|z, _| z * 2.0)`",
    note = "it may also give an `Option` of it (`None` keeps the old one), `()`, or a `Result` of any of these",
    note = "of a point that is named by text, say the rank: `at(\"z0\").edit(|z: Tensor<4>, _| z * 2.0)`"
)]
pub trait IntoEdit<const D: usize> {
    /// The replacement, or `None` to keep the tensor.
    ///
    /// # Errors
    /// Whatever the closure reported; it stops the run.
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError>;
}

impl<const D: usize> IntoEdit<D> for Tensor<D> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(Some(self))
    }
}

impl<const D: usize> IntoEdit<D> for Option<Tensor<D>> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(self)
    }
}

impl<const D: usize> IntoEdit<D> for () {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        Ok(None)
    }
}

impl<const D: usize, T: IntoEdit<D>, E: Into<BoxError>> IntoEdit<D> for Result<T, E> {
    fn into_edit(self) -> Result<Option<Tensor<D>>, BoxError> {
        self.map_err(Into::into)?.into_edit()
    }
}

/// What a reading closure may return: nothing, or a result of nothing.
///
/// ```
/// use hooklens_hooks::IntoRead;
/// assert!(().into_read().is_ok());
/// assert!(Err::<(), _>("seen enough").into_read().is_err()); // the run ends with this
/// ```
#[diagnostic::on_unimplemented(
    message = "a hook that reads gives nothing, and not `{Self}`",
    label = "this closure gives `{Self}`",
    note = "end it with a semicolon: `hook::z(0).read(|z, _| {{ shapes.push(z.dims()); }})`",
    note = "it may give `()` or a `Result<(), _>`; a hook that changes the tensor is made by `edit`"
)]
pub trait IntoRead {
    /// Whether the run may go on.
    ///
    /// # Errors
    /// Whatever the closure reported; it stops the run.
    fn into_read(self) -> Result<(), BoxError>;
}

impl IntoRead for () {
    fn into_read(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> IntoRead for Result<(), E> {
    fn into_read(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}
