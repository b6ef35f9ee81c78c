//! Hooks: closures that read or change a tensor at the point that produces it.

mod at;
mod check;
mod description;
mod details;
mod naming;
mod returned;
mod target;
mod typed;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use at::failed;
pub use at::{At, SomeHeads};
pub(crate) use check::{check_edit, check_rank};
pub use details::HookDetails;
pub use returned::{IntoEdit, IntoRead};
pub use target::{Target, at};

use crate::activation::Activation;
use crate::cache::ActivationCache;
use crate::error::HookError;
use crate::model_identity::ModelIdentity;
use crate::point::PointInfo;
use crate::positions::Positions;
use crate::rows::Rows;
use crate::selection::Selection;
use description::Description;

/// Checks that a hook can act at a point, before a run over the given rows.
pub(crate) type Check<'a> = Rc<dyn Fn(&PointInfo, &Rows<'_>) -> Result<(), HookError> + 'a>;
type Action<'a> = Box<dyn FnMut(Activation, &At<'_>) -> Result<Option<Activation>, HookError> + 'a>;

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a hook or part has panicked on this thread since the last call.
#[doc(hidden)]
pub fn panicked_in_hook() -> bool {
    PANICKED.replace(false)
}

/// Guard that records a panic unwinding through it.
pub(crate) struct NotesPanic;

impl Drop for NotesPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            PANICKED.set(true);
        }
    }
}

/// A closure bound to the points it runs at.
///
/// Created by [`Point::edit`](crate::Point::edit) and [`Point::read`](crate::Point::read), or by [`at`] for names and
/// patterns. The closure may borrow from its environment: a hook only needs to outlive the run it is passed to.
///
/// ```
/// use burn::tensor::Tensor;
/// use hooklens_hooks::at;
/// let double = at("mlp_out3").edit(|x: Tensor<3>, _| x * 2.0);
/// assert_eq!(format!("{double:?}"), "Hook(edit [\"mlp_out3\"])");
/// ```
pub struct Hook<'a> {
    /// Identifies the hook; shared with its reborrows and unique otherwise.
    pub(crate) id: u64,
    pub(crate) target: Selection,
    pub(crate) rank: Option<usize>,
    pub(crate) edits: bool,
    pub(crate) backward: bool,
    /// Whether the hook needs to know which positions are padding.
    pub(crate) by_position: bool,
    /// The positions that the hook acts at, if restricted.
    pub(crate) positions: Option<Positions>,
    /// Whether the hook depends on row numbers.
    pub(crate) by_row: bool,
    /// The heads that the hook acts on, if restricted; negative numbers count from the last.
    pub(crate) heads: Option<Vec<isize>>,
    /// The model that produced a value the hook uses, such as a steering vector.
    pub(crate) model: Option<Arc<ModelIdentity>>,
    /// The recording that provides the hook's values.
    pub(crate) recording: Option<&'a ActivationCache>,
    pub(crate) check: Option<Check<'a>>,
    /// Whether the hook's edits leave the values unchanged.
    pub(crate) neutral: bool,
    pub(crate) description: Description<'a>,
    pub(crate) action: Action<'a>,
}

impl<'a> Hook<'a> {
    /// Creates a hook with default settings: it edits tensors, and accepts points of any rank.
    pub(crate) fn new(
        target: Selection,
        action: impl FnMut(Activation, &At<'_>) -> Result<Option<Activation>, HookError> + 'a,
    ) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        Hook {
            id: MADE.fetch_add(1, Ordering::Relaxed),
            target,
            rank: None,
            edits: true,
            backward: false,
            by_position: false,
            positions: None,
            by_row: false,
            heads: None,
            model: None,
            recording: None,
            check: None,
            neutral: false,
            description: Description::default(),
            action: Box::new(action),
        }
    }
}

impl Hook<'_> {
    /// Runs the closure.
    pub(crate) fn act(&mut self, tensor: Activation, at: &At<'_>) -> Result<Option<Activation>, HookError> {
        let _noted = NotesPanic;
        (self.action)(tensor, at)
    }

    /// Verb and points of the hook: `edit ["blocks.0.attn.hook_z"]`.
    fn verb(&self, target: &Selection) -> String {
        let verb = if self.edits { "edit" } else { "read" };
        let what = if self.backward { " the gradient of" } else { "" };
        format!("{verb}{what} {target:?}")
    }

    /// Borrows the hook with a shorter lifetime, as a scope does for each of its runs.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// use hooklens_hooks::{HookDetails, at};
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
            id: self.id,
            target: self.target.clone(),
            rank: self.rank,
            edits: self.edits,
            backward: self.backward,
            by_position: self.by_position,
            positions: self.positions.clone(),
            by_row: self.by_row,
            heads: self.heads.clone(),
            model: self.model.clone(),
            recording: self.recording,
            check: self.check.clone(),
            neutral: self.neutral,
            description: self.description.clone(),
            action: Box::new(move |activation, at| action(activation, at)),
        }
    }
}

impl fmt::Debug for Hook<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({}{})", self.verb(&self.target), self.description)
    }
}
