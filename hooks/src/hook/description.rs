//! Descriptions of hooks: texts and hashes.

use std::fmt;
use std::rc::Rc;

use xxhash_rust::xxh3::Xxh3;

use crate::error::HookError;
use crate::point::PointInfo;

/// Adds the tensors that a hook uses at a point to a hash.
type Values<'a> = Rc<dyn Fn(&PointInfo, &mut Xxh3) -> Result<(), HookError> + 'a>;

/// What a hook does to the tensor of a point.
#[derive(Clone, Default)]
pub(crate) struct Description<'a> {
    /// The selected part of the tensor, such as `head 1, positions -1`; empty for the whole tensor.
    pub(crate) slice: String,
    /// The action, such as `scale 2.0`; `None` for a closure.
    pub(super) action: Option<String>,
    /// The name given by the caller.
    pub(super) name: Option<String>,
    /// Hashes the tensors in use. Reading them may block on a device, so they are hashed only on demand.
    pub(super) values: Option<Values<'a>>,
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.slice.is_empty() {
            write!(f, " {}", self.slice)?;
        }
        match (&self.action, &self.name) {
            (Some(action), Some(name)) => write!(f, ": {action}, {name:?}"),
            (Some(action), None) => write!(f, ": {action}"),
            (None, Some(name)) => write!(f, ": {name:?}"),
            (None, None) => Ok(()),
        }
    }
}
