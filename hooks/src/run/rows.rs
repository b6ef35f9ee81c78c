//! The rows a run is over.

/// The rows a run is over.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// // Two rows of three columns, the second padded at the left.
/// let real = [true, true, true, false, true, true];
/// let rows = Rows { batch: 2, len: 3, real: Some(&real), offset: 0 };
/// let mut run = Run::new(&catalog, &mut [], Record::new("hook_embed").positions(0), rows, &|_| None)?;
/// let columns = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::flex());
/// run.fire(Some(ids[0]), columns.unsqueeze_dim::<3>(2)).ok();
/// let first = run.finish()?.activation("hook_embed")?.to_ndarray()?;
/// assert_eq!((first[[0, 0, 0]], first[[1, 0, 0]]), (1.0, 5.0)); // each row's first real one
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rows<'m> {
    /// Number of rows.
    pub batch: usize,
    /// Columns of each.
    pub len: usize,
    /// Which of them are no padding, row by row; `None` when all are.
    pub real: Option<&'m [bool]>,
    /// Absolute position of the first column.
    pub offset: usize,
}
