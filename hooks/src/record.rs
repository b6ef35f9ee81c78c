//! Recording options: which points and positions to keep, in which element type, and on which device.

use burn::tensor::Device;

use crate::dtype::DType;
use crate::error::HookError;
use crate::positions::{Counting, PositionSlice, Positions, ResolvePositions};
use crate::rows::Rows;
use crate::selection::Selection;

/// Points to record and how to store them. Anything that converts into a [`Selection`] converts into a record.
///
/// ```
/// use hooklens_hooks::{DType, Record};
/// let record = Record::new("blocks.*.hook_resid_post").positions(-1).dtype(DType::F16);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub(crate) selection: Selection,
    pub(crate) positions: Positions,
    pub(crate) counting: Counting,
    pub(crate) dtype: Option<DType>,
    pub(crate) device: Option<Device>,
    pub(crate) remove_batch: bool,
}

impl Record {
    /// Records the selected points at all positions. Tensors keep their element type and device.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
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

    /// The columns that the record keeps in a run over these rows.
    pub(crate) fn columns(&self, rows: &Rows<'_>) -> Result<PositionSlice, HookError> {
        if self.remove_batch && rows.batch != 1 {
            return Err(HookError::Batch { batch: rows.batch });
        }
        self.positions.recorded(rows, self.counting)
    }

    /// Records every point that costs nothing extra to compute.
    pub fn all() -> Self {
        Self::new(Selection::all())
    }

    /// Keeps only these positions (query positions for scores and patterns). Positions are counted over each row's
    /// text, including tokens in a key-value cache; every row must have the same number of these positions. Positions
    /// that the run does not compute, because they are cached or come in a later step, are not recorded.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// let record = Record::new("hook_embed").positions(-2..-1); // the second-to-last position
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.activation("hook_embed")?.shape(), [1, 1, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// One position per row:
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, [id, ..]) = example::points();
    /// # let rows = Rows::new(2, 3);
    /// let record = Record::new("hook_embed").positions(Positions::of_rows([2, 0]));
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
    pub fn positions(mut self, positions: impl Into<Positions>) -> Self {
        (self.positions, self.counting) = (positions.into(), Counting::Text);
        self
    }

    /// Keeps only these positions of the run's own tokens, counted from the first token after the key-value cache.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let rows = Rows { offset: 5, ..Rows::new(1, 3) }; // five positions are cached
    /// # for (record, expected) in [
    /// #     (Record::new("hook_embed").positions(5), Some(&[1, 1, 4][..])),
    /// #     (Record::new("hook_embed").new_positions(0), Some(&[1, 1, 4][..])),
    /// #     (Record::new("hook_embed").positions(0), None),
    /// # ] {
    /// # let mut run = Run::new(&catalog, &mut [], record, rows, &|_| None)?;
    /// # run.fire(Some(ids[0]), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # let cache = run.finish()?;
    /// # assert_eq!(cache.activation("hook_embed").ok().map(|held| held.shape()), expected);
    /// # }
    /// let first = Record::new("hook_embed").new_positions(0); // the same as `positions(5)`
    /// # let _ = (rows, first);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn new_positions(mut self, positions: impl Into<Positions>) -> Self {
        (self.positions, self.counting) = (positions.into(), Counting::Run);
        self
    }

    /// Casts floats to this type before storing them.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
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
    /// # let rows = Rows::new(1, 3);
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

    /// Drops the batch dimension. A run with more than one row is an error.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
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

    /// Whether activations are stored unchanged: all positions, same element type and device, with the batch axis.
    pub(crate) fn keeps_all(&self) -> bool {
        self.positions == Positions::All && self.dtype.is_none() && self.device.is_none() && !self.remove_batch
    }
}

/// What a [`Record`] requests from a run. Used by code that runs models.
pub trait RecordRequest {
    /// The selected points.
    fn selection(&self) -> &Selection;

    /// Whether nothing is recorded.
    ///
    /// ```
    /// use hooklens_hooks::{Record, RecordRequest};
    /// assert!(Record::default().selects_nothing() && !Record::all().selects_nothing());
    /// ```
    fn selects_nothing(&self) -> bool;

    /// The positions to keep.
    fn kept(&self) -> &Positions;

    /// For texts of the given lengths, the positions to keep in each text; all texts keep the same number. `None` if
    /// all positions are kept.
    ///
    /// # Errors
    /// The same errors as a run over these texts.
    fn places_in(&self, lens: impl Iterator<Item = usize>) -> Result<Option<Vec<Vec<usize>>>, HookError>;

    /// Fails if the record keeps a position that a text of `len` tokens does not have.
    ///
    /// # Errors
    /// [`HookError::Positions`] in that case.
    fn check_reach(&self, len: usize) -> Result<(), HookError>;
}

impl RecordRequest for Record {
    fn selection(&self) -> &Selection {
        &self.selection
    }

    fn selects_nothing(&self) -> bool {
        self.selection.is_empty()
    }

    fn kept(&self) -> &Positions {
        &self.positions
    }

    fn places_in(&self, lens: impl Iterator<Item = usize>) -> Result<Option<Vec<Vec<usize>>>, HookError> {
        let lens: Vec<usize> = lens.collect();
        match &self.positions {
            Positions::All => return Ok(None),
            Positions::Columns(given) if given.len() == lens.len() => return Ok(Some(given.clone())),
            Positions::Columns(given) => {
                return Err(HookError::PositionsOfRows { given: given.len(), batch: lens.len() });
            }
            _ => {}
        }
        if let Positions::OfRows(given) = &self.positions
            && given.len() != lens.len()
        {
            return Err(HookError::PositionsOfRows { given: given.len(), batch: lens.len() });
        }
        let of_row = |(row, len): (usize, &usize)| match &self.positions {
            Positions::OfRows(given) => Positions::At(given[row]).places(*len).map_err(|error| error.of_row(row)),
            other => other.places(*len).map_err(|error| error.of_row(row)),
        };
        let places = lens.iter().enumerate().map(of_row).collect::<Result<Vec<_>, _>>()?;
        self.positions.check_even(&places)?;
        Ok(Some(places))
    }

    fn check_reach(&self, len: usize) -> Result<(), HookError> {
        if self.counting == Counting::Text { self.positions.check_reach(len) } else { Ok(()) }
    }
}

impl<T: Into<Selection>> From<T> for Record {
    fn from(selection: T) -> Self {
        Record::new(selection)
    }
}
