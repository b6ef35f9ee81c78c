//! Hooks: closures that read or change a tensor where it is made.

mod at;
mod returned;
mod target;
mod typed;

use std::fmt;

pub use at::At;
pub(crate) use at::failed;
pub use returned::{IntoEdit, IntoRead};
pub use target::{Target, at};

use crate::activation::Activation;
use crate::error::HookError;
use crate::point::PointInfo;
use crate::run::{check_edit, check_rank};
use crate::selection::Selection;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Action<'a> = Box<dyn FnMut(Activation, &At<'_>) -> Result<Option<Activation>, HookError> + 'a>;

/// A closure bound to the points it runs at.
///
/// Made by [`Point::edit`](crate::Point::edit) and [`Point::read`](crate::Point::read), or for names and patterns by
/// [`at`]. The closure may borrow from its surroundings: a hook lives as long as the run it is given to.
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

    /// The same hook with a shorter lifetime: what a scope passes to each of its runs.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::at;
    /// let mut seen = 0;
    /// let mut count = at("*hook_z").read(|_: Tensor<4>, _| seen += 1);
    /// for _run in 0..2 {
    ///     let lent = count.reborrow(); // for one run
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
