//! The context passed to a hook.

use crate::error::{BoxError, HookError};
use crate::point::{Axis, PointInfo};
use crate::rows::Rows;

/// The context of a hook call: the point, and the positions that its tensor covers.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
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
    /// The run's rows; `None` outside a run.
    pub(crate) rows: Option<Rows<'a>>,
    /// The encoder's rows, in an encoder-decoder model.
    pub(crate) encoder: Option<Rows<'a>>,
    /// Number of cached positions at the start of the tensor.
    pub(crate) cached: usize,
    /// The heads in the tensor; `None` if it has all heads of the point.
    pub(crate) heads: Option<SomeHeads<'a>>,
}

/// Some of a point's heads.
#[derive(Debug, Clone, Copy)]
pub struct SomeHeads<'a> {
    /// Indices of the heads, in ascending order.
    pub heads: &'a [usize],
    /// Total number of heads of the point.
    pub of: usize,
}

impl At<'_> {
    /// Full name of the point.
    pub fn name(&self) -> &str {
        &self.point.name
    }

    /// Layer of the point, if it is inside a block.
    pub fn layer(&self) -> Option<usize> {
        self.point.layer
    }

    /// Meaning of each axis of the tensor.
    pub fn axes(&self) -> &[Axis] {
        self.point.axes
    }

    /// Absolute position of the tensor's first token: the number of positions before it.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

pub(crate) fn failed(at: &At<'_>, source: BoxError) -> HookError {
    match source.downcast::<HookError>() {
        Ok(known) => *known,
        Err(source) => HookError::Failed { point: at.name().to_string(), source },
    }
}
