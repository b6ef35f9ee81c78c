//! What to keep of a run, and in which form.

use burn::tensor::Device;

use crate::convert::DType;
use crate::positions::Positions;
use crate::selection::Selection;

/// Points to record, and how to store them. Anything that names points converts into one.
///
/// ```
/// use hooklens_hooks::{DType, Record};
/// let record = Record::new("blocks.*.hook_resid_post").positions(-1).dtype(DType::F16);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub(crate) selection: Selection,
    pub(crate) positions: Positions,
    pub(crate) dtype: Option<DType>,
    pub(crate) device: Option<Device>,
    pub(crate) remove_batch: bool,
}

impl Record {
    /// Records the points asked for, whole, where and as they are made.
    pub fn new(selection: impl Into<Selection>) -> Self {
        Self { selection: selection.into(), ..Self::default() }
    }

    /// Records every point that costs nothing to make.
    pub fn all() -> Self {
        Self::new(Selection::all())
    }

    /// Keeps these positions only (query positions for scores and patterns). They count real
    /// tokens; a choice that comes to more positions in one row than in another is an error.
    /// Behind a key-value cache they are the run's own, and `hook_rot_k`, which otherwise shows
    /// the keys of the cache too, is kept at those only.
    #[must_use]
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.positions = positions.into();
        self
    }

    /// Stores floats in this type.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Stores tensors on this device.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Drops the batch dimension. A run with more than one row is refused.
    #[must_use]
    pub fn remove_batch(mut self) -> Self {
        self.remove_batch = true;
        self
    }

    /// Whether activations are kept whole, where and as they are made.
    pub fn keeps_all(&self) -> bool {
        self.positions == Positions::All && self.dtype.is_none() && self.device.is_none() && !self.remove_batch
    }

    /// The points asked for.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }
}

impl<T: Into<Selection>> From<T> for Record {
    fn from(selection: T) -> Self {
        Record::new(selection)
    }
}
