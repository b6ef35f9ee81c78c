//! Strided views of matrices inside slices.

use crate::element::Element;
use std::fmt;
use std::marker::PhantomData;

/// A read-only `rows × cols` matrix: element `(r, c)` is
/// `data[offset + r * row_stride + c * col_stride]`.
#[derive(Clone, Copy)]
pub struct View2<'a, T = f32> {
    data: &'a [T],
    offset: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<T> fmt::Debug for View2<'_, T> {
    /// Shows sizes and strides, but no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("View2");
        shown.field("rows", &self.rows).field("cols", &self.cols);
        shown.field("row_stride", &self.row_stride).field("col_stride", &self.col_stride);
        shown.finish_non_exhaustive()
    }
}

/// One past the largest index a non-empty matrix reaches, `None` on overflow.
fn end(offset: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    let last_row = (rows - 1).checked_mul(row_stride)?;
    let last_col = (cols - 1).checked_mul(col_stride)?;
    offset.checked_add(last_row)?.checked_add(last_col)?.checked_add(1)
}

impl<'a, T: Element> View2<'a, T> {
    /// A view with arbitrary strides (in elements).
    ///
    /// # Panics
    /// If any element is outside `data`.
    pub fn new(
        data: &'a [T],
        offset: usize,
        (rows, cols): (usize, usize),
        (row_stride, col_stride): (usize, usize),
    ) -> Self {
        let end = end(offset, rows, cols, row_stride, col_stride);
        assert!(
            end.is_some_and(|end| end <= data.len()),
            "a {rows}x{cols} view at {offset} with strides ({row_stride}, {col_stride}) exceeds {} elements",
            data.len()
        );
        Self { data, offset, rows, cols, row_stride, col_stride }
    }

    /// All of `data` as a row-major `[rows, cols]` matrix.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::new(data, 0, (rows, cols), (cols, 1))
    }

    /// The `[cols, rows]` transpose of this view (no data moves).
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// Rows `r..r + rows` and columns `c..c + cols`.
    ///
    /// # Panics
    /// If the block exceeds the view.
    pub fn block(self, (r, rows): (usize, usize), (c, cols): (usize, usize)) -> Self {
        assert!(r <= self.rows && rows <= self.rows - r && c <= self.cols && cols <= self.cols - c);
        let offset = self.offset + r * self.row_stride + c * self.col_stride;
        Self { offset, rows, cols, ..self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// Whether each row is contiguous.
    pub fn rows_contiguous(&self) -> bool {
        self.col_stride == 1 || self.cols <= 1
    }

    /// Whether each column is contiguous.
    pub fn cols_contiguous(&self) -> bool {
        self.row_stride == 1 || self.rows <= 1
    }

    /// Element `(r, c)`.
    pub fn at(&self, r: usize, c: usize) -> T {
        self.data[self.offset + r * self.row_stride + c * self.col_stride]
    }

    /// Pointer to element `(r, c)`, valid for the whole view.
    pub(crate) fn ptr(&self, r: usize, c: usize) -> *const T {
        self.data.as_ptr().wrapping_add(self.offset + r * self.row_stride + c * self.col_stride)
    }

    /// Columns `c..c + len` of row `r`, where rows are contiguous.
    pub(crate) fn row(&self, r: usize, c: usize, len: usize) -> &'a [T] {
        debug_assert!(self.rows_contiguous() && c + len <= self.cols);
        let start = self.offset + r * self.row_stride + c * self.col_stride;
        if len == 0 { &[] } else { &self.data[start..start + len] }
    }
}

/// A writable `rows × cols` matrix with contiguous rows. Like `&mut [f32]`, it is an exclusive borrow.
#[derive(Debug)]
pub(crate) struct OutTile<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: an exclusive borrow of plain floats, like `&mut [f32]`.
unsafe impl Send for OutTile<'_> {}
// SAFETY: a shared `OutTile` gives access to elements only through `alias`, whose caller promises exclusive use.
unsafe impl Sync for OutTile<'_> {}

impl<'a> OutTile<'a> {
    /// The matrix whose element `(r, c)` is `data[r * row_stride + c]`.
    ///
    /// # Panics
    /// If the matrix exceeds `data` or its rows overlap.
    pub(crate) fn new(data: &'a mut [f32], (rows, cols): (usize, usize), row_stride: usize) -> Self {
        let end = end(0, rows, cols, row_stride, 1);
        assert!(end.is_some_and(|end| end <= data.len()), "the output slice is too short");
        assert!(rows <= 1 || row_stride >= cols, "output rows overlap");
        Self { ptr: data.as_mut_ptr(), rows, cols, row_stride, life: PhantomData }
    }

    /// A second handle to the same matrix, so that another thread can take a tile of it.
    ///
    /// # Safety
    /// Elements accessed through this handle or its tiles must not be accessed through any other handle while this
    /// handle or the tile lives.
    pub(crate) unsafe fn alias(&self) -> Self {
        Self { life: PhantomData, ..*self }
    }

    /// The block of rows `r..r + rows`, columns `c..c + cols`.
    ///
    /// # Panics
    /// If the block exceeds the matrix.
    pub(crate) fn tile(self, (r, rows): (usize, usize), (c, cols): (usize, usize)) -> Self {
        assert!(r <= self.rows && rows <= self.rows - r && c <= self.cols && cols <= self.cols - c);
        if rows == 0 || cols == 0 {
            return Self { rows, cols, ..self };
        }
        // SAFETY: the block is not empty and is inside the matrix, which is inside one slice.
        let ptr = unsafe { self.ptr.add(r * self.row_stride + c) };
        Self { ptr, rows, cols, ..self }
    }

    /// The same matrix, borrowed from this handle for a while.
    pub(crate) fn reborrow(&mut self) -> OutTile<'_> {
        OutTile { life: PhantomData, ..*self }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Address of element `(0, 0)` (dangling when empty).
    pub(crate) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.ptr
    }

    /// Row `r`.
    pub(crate) fn row_mut(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        let start = self.ptr.wrapping_add(r * self.row_stride);
        // SAFETY: the row is inside the matrix, which this handle borrows exclusively (or the caller of `alias`
        // promised so).
        unsafe { std::slice::from_raw_parts_mut(start, self.cols) }
    }
}
