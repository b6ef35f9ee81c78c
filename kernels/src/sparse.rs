//! Sparse rows, and their products with a matrix.

use crate::element::Element;
use crate::isa::{Isa, multiversion};
use crate::matrix::{Matrix, with_view};
use crate::tasks::each_item;
use crate::view::View2;

/// Number of elements that are tested together for being zero.
const TOGETHER: usize = 16;

/// Sparse matrix in CSR format. The entries of row `r` are at `offsets[r]..offsets[r + 1]`, ordered by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparse {
    /// Start of each row, and the end of the last one.
    pub offsets: Vec<usize>,
    /// Column of each entry.
    pub columns: Vec<u32>,
    /// Value of each entry.
    pub values: Vec<f32>,
}

impl Sparse {
    /// Collects the nonzero entries of contiguous rows of `cols` elements. NaN counts as nonzero.
    ///
    /// ```
    /// use hooklens_kernels::sparse::Sparse;
    /// let rows = Sparse::of(&[0.0, 2.0, 0.0, 0.0, 0.0, -1.0], 3);
    /// assert_eq!(rows, Sparse { offsets: vec![0, 1, 2], columns: vec![1, 2], values: vec![2.0, -1.0] });
    /// ```
    ///
    /// # Panics
    /// If `dense` does not consist of whole rows.
    pub fn of(dense: &[f32], cols: usize) -> Self {
        let rows = dense.len().checked_div(cols).unwrap_or(0);
        assert_eq!(rows * cols, dense.len(), "`dense` must consist of whole rows");
        let isa = Isa::current();
        let size = rows.div_ceil(rayon::current_num_threads()).max(1);
        let mut parts = vec![Sparse::default(); rows.div_ceil(size)];
        each_item(dense.chunks(size * cols.max(1)).zip(&mut parts), |(rows, part)| {
            for row in rows.chunks_exact(cols) {
                entries(isa, row, part);
                part.offsets.push(part.values.len());
            }
        });
        let mut all = Sparse { offsets: vec![0], ..Sparse::default() };
        for part in parts {
            let before = all.values.len();
            all.offsets.extend(part.offsets.iter().map(|end| end + before));
            all.columns.extend(part.columns);
            all.values.extend(part.values);
        }
        all
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The transpose of a matrix with `cols` columns.
    ///
    /// ```
    /// use hooklens_kernels::sparse::Sparse;
    /// let turned = Sparse::of(&[0.0, 2.0, 0.0, 3.0, 0.0, -1.0], 3).transposed(3);
    /// assert_eq!((turned.row(0), turned.row(1)), ((&[1][..], &[3.0][..]), (&[0][..], &[2.0][..])));
    /// ```
    ///
    /// # Panics
    /// If an entry's column is not below `cols`.
    pub fn transposed(&self, cols: usize) -> Self {
        let mut offsets = vec![0; cols + 1];
        self.columns.iter().for_each(|column| offsets[*column as usize + 1] += 1);
        (0..cols).for_each(|column| offsets[column + 1] += offsets[column]);
        let mut next = offsets.clone();
        let (mut columns, mut values) = (vec![0; self.values.len()], vec![0.0; self.values.len()]);
        for row in 0..self.rows() {
            let (own, entries) = self.row(row);
            for (column, value) in own.iter().zip(entries) {
                let at = &mut next[*column as usize];
                (columns[*at], values[*at]) = (row as u32, *value);
                *at += 1;
            }
        }
        Self { offsets, columns, values }
    }

    /// The entries in a range of columns; column numbers do not change.
    pub fn columns_in(&self, columns: std::ops::Range<usize>) -> Self {
        let mut some = Self { offsets: vec![0], ..Self::default() };
        for row in 0..self.rows() {
            let (own, values) = self.row(row);
            for (column, value) in own.iter().zip(values).filter(|(column, _)| columns.contains(&(**column as usize))) {
                some.columns.push(*column);
                some.values.push(*value);
            }
            some.offsets.push(some.values.len());
        }
        some
    }

    /// Columns and values of a row's entries.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let range = self.offsets[row]..self.offsets[row + 1];
        (&self.columns[range.clone()], &self.values[range])
    }
}

multiversion! {
    /// Appends a row's entries.
    fn entries(row: &[f32], to: &mut Sparse) = entries_body
}

#[inline(always)]
fn entries_body<const FMA: bool>(row: &[f32], to: &mut Sparse) {
    for (place, chunk) in row.chunks(TOGETHER).enumerate() {
        // The shift ignores the sign of a zero.
        if chunk.iter().fold(0, |any, x| any | (x.to_bits() << 1)) == 0 {
            continue;
        }
        for (within, x) in chunk.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            to.columns.push((place * TOGETHER + within) as u32);
            to.values.push(*x);
        }
    }
}

/// `output[r] = bias + Σ values · matrix[columns]` over the entries of row `r`. Rows of the matrix without an entry are
/// not read.
///
/// # Shapes
/// - matrix: `[cols, width]`; bias: `[width]`; output: `[rows, width]`
///
/// ```
/// use hooklens_kernels::sparse::{Sparse, times};
/// use hooklens_kernels::view::View2;
/// let rows = Sparse { offsets: vec![0, 1, 1], columns: vec![1], values: vec![2.0] };
/// let mut output = [0.0; 4];
/// times(&rows, View2::row_major(&[9.0, 9.0, 1.0, 3.0], 2, 2).into(), Some(&[0.5, 0.0]), &mut output);
/// assert_eq!(output, [2.5, 6.0, 0.5, 0.0]);
/// ```
///
/// # Panics
/// If lengths disagree, a column is outside the matrix, or the matrix is packed.
pub fn times(rows: &Sparse, matrix: Matrix<'_>, bias: Option<&[f32]>, output: &mut [f32]) {
    with_view!(matrix, view => times_view(rows, view, bias, output), _packed => panic!("the matrix is packed"))
}

fn times_view<T: Element>(rows: &Sparse, matrix: View2<'_, T>, bias: Option<&[f32]>, output: &mut [f32]) {
    let width = matrix.cols();
    assert_eq!(output.len(), rows.rows() * width, "`output` must have one row per row of `rows`");
    assert!(rows.columns.iter().all(|column| (*column as usize) < matrix.rows()), "an entry is outside the matrix");
    assert!(bias.is_none_or(|bias| bias.len() == width), "`bias` must have one value per column");
    if width == 0 {
        return;
    }
    let isa = Isa::current();
    let size = rows.rows().div_ceil(4 * rayon::current_num_threads()).max(1);
    each_item(output.chunks_mut(size * width).enumerate(), |(block, output)| {
        for (within, output) in output.chunks_exact_mut(width).enumerate() {
            match bias {
                Some(bias) => output.copy_from_slice(bias),
                None => output.fill(0.0),
            }
            let (columns, values) = rows.row(block * size + within);
            add_rows(isa, columns, values, matrix, output);
        }
    });
}

/// The products `left[row] · right[column]` at each entry of `places`, in the order of the entries: selected entries of
/// the product `left · rightᵀ`.
///
/// # Shapes
/// - left: `[rows, width]`; right: `[cols, width]`, both row-major
///
/// ```
/// use hooklens_kernels::sparse::{Sparse, products_at};
/// let places = Sparse { offsets: vec![0, 1, 2], columns: vec![1, 0], values: vec![1.0, 1.0] };
/// let products = products_at(&places, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], 2);
/// assert_eq!(products, [1.0 * 7.0 + 2.0 * 8.0, 3.0 * 5.0 + 4.0 * 6.0]);
/// ```
///
/// # Panics
/// If lengths disagree or an entry is outside the matrices.
pub fn products_at(places: &Sparse, left: &[f32], right: &[f32], width: usize) -> Vec<f32> {
    assert_eq!(left.len(), places.rows() * width, "`left` must have one row per row of `places`");
    let mut products = vec![0.0; places.columns.len()];
    let isa = Isa::current();
    let size = places.rows().div_ceil(4 * rayon::current_num_threads()).max(1);
    let mut rest = &mut products[..];
    let mut blocks = Vec::new();
    for start in (0..places.rows()).step_by(size) {
        let end = (start + size).min(places.rows());
        let (own, others) = rest.split_at_mut(places.offsets[end] - places.offsets[start]);
        blocks.push((start..end, own));
        rest = others;
    }
    each_item(blocks.into_iter(), |(rows, mut products)| {
        for row in rows {
            let (columns, _) = places.row(row);
            let (own, others) = products.split_at_mut(columns.len());
            dots(isa, columns, &left[row * width..][..width], right, own);
            products = others;
        }
    });
    products
}

multiversion! {
    /// Computes the products of one row.
    fn dots(columns: &[u32], left: &[f32], right: &[f32], products: &mut [f32]) = dots_body
}

#[inline(always)]
fn dots_body<const FMA: bool>(columns: &[u32], left: &[f32], right: &[f32], products: &mut [f32]) {
    for (column, product) in columns.iter().zip(products) {
        let row = &right[*column as usize * left.len()..][..left.len()];
        // Independent sums, held in registers.
        let mut sums = [0f32; 2 * TOGETHER];
        let (left, right) = (left.as_chunks::<{ 2 * TOGETHER }>(), row.as_chunks::<{ 2 * TOGETHER }>());
        for (x, y) in left.0.iter().zip(right.0) {
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum = if FMA { x.mul_add(*y, *sum) } else { x * y + *sum };
            }
        }
        let rest: f32 = left.1.iter().zip(right.1).map(|(x, y)| x * y).sum();
        *product = sums.iter().sum::<f32>() + rest;
    }
}

multiversion! {
    /// Adds scaled rows of the matrix, four at a time.
    fn add_rows<T: Element>(columns: &[u32], values: &[f32], matrix: View2<T>, output: &mut [f32]) = add_rows_body
}

#[inline(always)]
fn add_rows_body<const FMA: bool, T: Element>(
    columns: &[u32],
    values: &[f32],
    matrix: View2<'_, T>,
    output: &mut [f32],
) {
    let sum = |x: f32, y: f32, to: f32| if FMA { x.mul_add(y, to) } else { x * y + to };
    let width = output.len();
    if !matrix.rows_contiguous() {
        for (row, value) in columns.iter().zip(values) {
            for (column, to) in output.iter_mut().enumerate() {
                *to = sum(*value, matrix.at(*row as usize, column).widened(), *to);
            }
        }
        return;
    }
    let row = |column: u32| matrix.row(column as usize, 0, width);
    let four = columns.len() / 4 * 4;
    for (columns, v) in columns[..four].chunks_exact(4).zip(values.chunks_exact(4)) {
        let [a, b, c, d] = [row(columns[0]), row(columns[1]), row(columns[2]), row(columns[3])];
        for ((((to, a), b), c), d) in output.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let two = sum(v[0], a.widened(), sum(v[1], b.widened(), *to));
            *to = sum(v[2], c.widened(), sum(v[3], d.widened(), two));
        }
    }
    for (column, value) in columns[four..].iter().zip(&values[four..]) {
        row(*column).iter().zip(output.iter_mut()).for_each(|(x, to)| *to = sum(*value, x.widened(), *to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::with_isa;

    /// Pseudorandom numbers, most of them zero.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 30 == 0 { (state >> 8) as f32 / 8_388_608.0 - 1.0 } else { 0.0 }
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn products_are_those_of_dense_rows() {
        for (rows, cols, width) in [(1, 1, 1), (3, 70, 5), (9, 64, 33), (2, 5, 0), (0, 4, 3)] {
            let (dense, matrix, bias) = (numbers(rows * cols, 1), numbers(cols * width, 2), numbers(width, 3));
            let turned: Vec<f32> = (0..cols * width).map(|at| matrix[at % cols * width + at / cols]).collect();
            for isa in Isa::available() {
                with_isa(*isa, || {
                    let sparse = Sparse::of(&dense, cols);
                    assert_eq!(sparse.values.len(), dense.iter().filter(|x| **x != 0.0).count());
                    let by_rows = View2::row_major(&matrix, cols, width);
                    let by_columns = View2::new(&turned, 0, (cols, width), (1, cols));
                    for view in [by_rows, by_columns] {
                        let mut output = vec![f32::NAN; rows * width];
                        times(&sparse, view.into(), Some(&bias), &mut output);
                        for (at, given) in output.iter().enumerate() {
                            let (row, column) = (at / width, at % width);
                            let expected = (0..cols).fold(bias[column], |sum, of| {
                                sum + dense[row * cols + of] * matrix[of * width + column]
                            });
                            assert!((given - expected).abs() < 1e-5, "got {given}, expected {expected}");
                        }
                    }
                });
            }
        }
    }
}
