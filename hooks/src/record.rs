//! Options of a recording: which points and positions to keep, in which type, where.

use burn::tensor::Device;

use crate::convert::DType;
use crate::ordinal::Ordinal;
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
    /// Records these points at all positions, in their own element type and on their own device.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// let record = Record::new(["hook_embed", "resid_post1"]);
    /// let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// assert_eq!(run.finish()?.names().collect::<Vec<_>>(), ["hook_embed", "blocks.1.hook_resid_post"]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn new(selection: impl Into<Selection>) -> Self {
        Self { selection: selection.into(), ..Self::default() }
    }

    /// Whether nothing is recorded.
    ///
    /// ```
    /// use hooklens_hooks::Record;
    /// assert!(Record::default().selects_nothing() && !Record::all().selects_nothing());
    /// ```
    pub fn selects_nothing(&self) -> bool {
        self.selection.is_empty()
    }

    /// Records every point that costs nothing to make.
    ///
    /// ```
    /// use hooklens_hooks::Record;
    /// assert!(Record::all().keeps_all() && !Record::all().positions(-1).keeps_all());
    /// ```
    pub fn all() -> Self {
        Self::new(Selection::all())
    }

    /// Keeps these positions only (query positions for scores and patterns). They count real
    /// tokens; a choice that has more positions in one row than in another is an error.
    /// Behind a key-value cache they are the run's own, and `hook_rot_k`, which otherwise shows
    /// the keys of the cache too, is kept at those only.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// let record = Record::new("hook_embed").positions(-2..-1); // the last but one
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.activation("hook_embed")?.shape(), [1, 1, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        self.positions = positions.into();
        self
    }

    /// Keeps one position of each row only: the first row's, the second's, and so on, for instance where a name stands in
    /// each prompt. They count as in [`Record::positions`]; the axis stays, with length one.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, [id, ..]) = example::points();
    /// # let rows = Rows { batch: 2, len: 3, real: None, offset: 0 };
    /// let record = Record::new("hook_embed").positions_of_rows([2, 0]);
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # let columns = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::flex());
    /// # run.fire(Some(id), columns.unsqueeze_dim::<3>(2)).ok();
    /// # let cache = run.finish()?;
    /// // The rows were 1, 2, 3 and 4, 5, 6.
    /// let kept = cache.activation("hook_embed")?.to_ndarray()?;
    /// assert_eq!((kept.shape(), kept[[0, 0, 0]], kept[[1, 0, 0]]), (&[2, 1, 1][..], 3.0, 4.0));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn positions_of_rows<P: Ordinal>(self, rows: impl IntoIterator<Item = P>) -> Self {
        self.positions(Positions::of_rows(rows))
    }

    /// Stores floats in this type.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// let record = Record::new("hook_embed").dtype(DType::BF16); // half the memory
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.activation("hook_embed")?.dtype(), DType::BF16.burn());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Stores tensors on this device.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// let record = Record::new("hook_embed").device(&Device::flex()); // this machine's memory
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.activation("hook_embed")?.device(), Device::flex());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Drops the batch dimension. A run with more than one row is refused.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// let record = Record::new("hook_embed").remove_batch();
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.activation("hook_embed")?.shape(), [3, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
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
