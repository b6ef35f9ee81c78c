//! The batch rows of a run.

/// The rows of a run: their columns, which columns hold tokens, and each token's position in its row's text.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// // Two rows of three columns, the second padded at the left.
/// let (visible, positions) = ([true, true, true, false, true, true], [0, 1, 2, 0, 0, 1]);
/// let rows = Rows { visible: Some(&visible), positions: Some(&positions), ..Rows::new(2, 3) };
/// let mut run = Run::new(&catalog, &mut [], Record::new("hook_embed").positions(0), rows, &|_| None)?;
/// let columns = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::flex());
/// run.fire(Some(ids[0]), columns.unsqueeze_dim::<3>(2)).ok();
/// let first = run.finish()?.activation("hook_embed")?.to_ndarray()?;
/// assert_eq!((first[[0, 0, 0]], first[[1, 0, 0]]), (1.0, 5.0)); // each row's first token
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Rows<'m> {
    /// Number of rows.
    pub batch: usize,
    /// Number of columns that the run computes, per row.
    pub len: usize,
    /// Number of earlier columns, stored in a key-value cache.
    pub offset: usize,
    /// Attention mask `[batch, offset + len]` over cached and new columns: true for tokens that can be attended to.
    /// `None` if all tokens can be attended to.
    pub visible: Option<&'m [bool]>,
    /// Text position of each column's token, cached columns first, `[batch, offset + len]`; `None` if it equals the
    /// column index. A padding column has the position of the token before it.
    pub positions: Option<&'m [u32]>,
    /// Whether later runs may continue the text, with a growing key-value cache.
    pub open: bool,
    /// Set in a sweep, where all rows are copies of one of the user's rows: the index of that row, and the number of
    /// rows in the user's batch.
    pub copies: Option<[usize; 2]>,
}

impl Rows<'_> {
    /// Creates rows without padding and without a key-value cache.
    pub fn new(batch: usize, len: usize) -> Self {
        Self { batch, len, offset: 0, visible: None, positions: None, open: false, copies: None }
    }

    /// Number of cached and new columns per row.
    pub(crate) fn columns(&self) -> usize {
        self.offset + self.len
    }

    /// Whether each column's index equals its token's position.
    pub(crate) fn is_plain(&self) -> bool {
        self.visible.is_none() && self.positions.is_none()
    }

    /// Text position of the token in a column, counting cached columns first; `None` for padding.
    pub(crate) fn position(&self, row: usize, column: usize) -> Option<usize> {
        let at = row * self.columns() + column;
        let visible = self.visible.is_none_or(|visible| visible[at]);
        visible.then(|| self.positions.map_or(column, |positions| positions[at] as usize))
    }

    /// Column of the token at a text position, counting cached columns first; `None` if the token can't be attended to.
    pub(crate) fn column(&self, row: usize, position: usize) -> Option<usize> {
        let Some(positions) = self.positions else {
            return (position < self.columns())
                .then_some(position)
                .filter(|column| self.position(row, *column).is_some());
        };
        // Positions never decrease from one column to the next.
        let own = &positions[row * self.columns()..(row + 1) * self.columns()];
        let begin = own.partition_point(|at| (*at as usize) < position);
        let there = |column: &usize| own[*column] as usize == position;
        (begin..self.columns()).take_while(there).find(|column| self.position(row, *column).is_some())
    }

    /// Number of tokens in a row's text, including cached tokens.
    pub(crate) fn text_len(&self, row: usize) -> usize {
        let columns = row * self.columns()..(row + 1) * self.columns();
        // Search from the end, where most rows have tokens.
        if self.visible.is_some_and(|visible| !visible[columns.clone()].iter().rev().any(|seen| *seen)) {
            return 0;
        }
        match self.positions {
            Some(positions) => positions[columns].last().map_or(0, |last| *last as usize + 1),
            None => self.columns(),
        }
    }

    /// Number of rows in the user's batch, which differs from `batch` in a sweep.
    pub(crate) fn users_rows(&self) -> usize {
        self.copies.map_or(self.batch, |[_, of]| of)
    }

    /// The user's row that this row is a copy of.
    pub(crate) fn users_row(&self, row: usize) -> usize {
        self.copies.map_or(row, |[row, _]| row)
    }
}

/// Rows that own copies of their masks, for the duration of a run.
#[derive(Debug, Clone)]
pub(crate) struct OwnedRows {
    plain: Rows<'static>,
    visible: Option<Vec<bool>>,
    positions: Option<Vec<u32>>,
}

impl OwnedRows {
    /// Copies the rows; copies the masks only if requested.
    pub(crate) fn of(rows: &Rows<'_>, with_masks: bool) -> Self {
        let Rows { batch, len, offset, open, copies, .. } = *rows;
        Self {
            plain: Rows { batch, len, offset, open, copies, visible: None, positions: None },
            visible: rows.visible.filter(|_| with_masks).map(<[bool]>::to_vec),
            positions: rows.positions.filter(|_| with_masks).map(<[u32]>::to_vec),
        }
    }

    pub(crate) fn get(&self) -> Rows<'_> {
        Rows { visible: self.visible.as_deref(), positions: self.positions.as_deref(), ..self.plain }
    }
}
