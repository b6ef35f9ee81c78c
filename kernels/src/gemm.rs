//! Matrix products `C = A · B (+ bias)`.
//!
//! B is copied block by block into panels that stay in the second-level cache while every row of A passes over them, so
//! each weight is read from memory once. If A has only a handful of rows, B is not copied (see `gemv`).

use std::fmt;

use crate::element::Element;
use crate::gemv;
use crate::isa::Isa;
use crate::matrix::{Matrix, with_view};
use crate::micro::{self, Shape};
use crate::micro_tile::Tile;
use crate::operands::{Bias, check};
use crate::pack::pack_b;
use crate::packed::{self, Rounding, rounded_rows};
use crate::panels::in_panels;
use crate::tasks::each;
use crate::view::{OutTile, View2};

/// Number of multiply-adds below which a product stays on the calling thread; smaller under Miri, so that tests there
/// also cover parallel products.
const SERIAL: usize = if cfg!(miri) { 1 << 10 } else { 1 << 17 };
/// Maximum number of columns of B for which a row of C stays in the first-level cache.
const WIDE: usize = 4096;
/// Rows of each B that are read before moving on to the next B.
const DEPTH: usize = 32;
/// Maximum number of elements of a B that stays in a core's cache. Up to this size, reading whole rows gains nothing.
const CACHED: usize = 1 << 17;
/// Number of tasks per thread, for load balance.
const TASKS: usize = 4;

/// One of several products with the same A.
pub struct Product<'a> {
    /// Matrix `[k, n]`. Products are fastest with contiguous rows (`[k, n]` row-major) or contiguous columns (a
    /// transposed `[n, k]` row-major matrix).
    pub b: Matrix<'a>,
    /// Vector `[n]` added to every row of the result.
    pub bias: Option<&'a [f32]>,
    /// Result `[m, n]`: row `i` is `c[i * ldc..i * ldc + n]`; the gaps between rows are untouched.
    pub c: &'a mut [f32],
    /// Elements from one row of `c` to the next.
    pub ldc: usize,
}

impl fmt::Debug for Product<'_> {
    /// Shows sizes, but no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Product");
        shown.field("b", &self.b).field("bias", &self.bias.map(<[f32]>::len)).field("ldc", &self.ldc);
        shown.finish_non_exhaustive()
    }
}

/// A product whose C can be written in tiles.
pub(crate) struct TiledProduct<'a> {
    b: Matrix<'a>,
    bias: Bias<'a>,
    c: OutTile<'a>,
}

/// `c[m, n] = a[m, k] · b[k, n] (+ bias[n])`, on all threads; arguments as in [`Product`].
///
/// # Panics
/// If the shapes disagree, rows of `a` are not contiguous, or `c` or `bias` is
/// too short.
///
/// ```
/// use hooklens_kernels::gemm::gemm;
/// use hooklens_kernels::view::View2;
/// let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 0.0, 1.0]);
/// let mut c = [0.0; 4];
/// gemm(View2::row_major(&a, 2, 2), View2::row_major(&b, 2, 2), Some(&[10.0, 20.0]), &mut c, 2);
/// assert_eq!(c, [11.0, 23.0, 13.0, 27.0]);
/// ```
pub fn gemm<'a>(a: View2, b: impl Into<Matrix<'a>>, bias: Option<&'a [f32]>, c: &'a mut [f32], ldc: usize) {
    gemm_each(a, vec![Product { b: b.into(), bias, c, ldc }]);
}

/// Computes [`gemm()`] of one A with several matrices B, such as the weights of queries, keys and values. All products
/// are distributed over the threads together.
///
/// # Panics
/// As for [`gemm()`].
///
/// ```
/// use hooklens_kernels::gemm::{Product, gemm_each};
/// use hooklens_kernels::view::View2;
/// let (doubled, negated) = (&mut [0.0; 2], &mut [0.0; 2]);
/// let of = |b| View2::<f32>::row_major(b, 1, 1).into();
/// gemm_each(
///     View2::row_major(&[3.0, 4.0], 2, 1),
///     vec![
///         Product { b: of(&[2.0]), bias: None, c: doubled, ldc: 1 },
///         Product { b: of(&[-1.0]), bias: None, c: negated, ldc: 1 },
///     ],
/// );
/// assert_eq!((doubled, negated), (&mut [6.0, 8.0], &mut [-3.0, -4.0]));
/// ```
pub fn gemm_each(a: View2, products: Vec<Product>) {
    let (m, k) = (a.rows(), a.cols());
    let isa = Isa::current();
    if m > gemv::MAX_ROWS && products.iter().any(|product| rounds_rows(isa, m, &product.b).is_some()) {
        return of_rounded(isa, a, products);
    }
    let products = tiled(a, products, 1);
    #[cfg(target_arch = "x86_64")]
    let inputs = packed::Converted::new(isa, a, products.iter().filter_map(|product| product.b.packed()));
    #[cfg(target_arch = "x86_64")]
    let products: Vec<_> = products
        .into_iter()
        .map(|product| match product.b {
            Matrix::Packed(b) => TiledProduct { b: inputs.given_to(isa, m, b).into(), ..product },
            _ => product,
        })
        .collect();
    let threads = rayon::current_num_threads();
    let columns = products.iter().map(|product| product.b.cols()).sum::<usize>();
    if threads == 1 || m * columns * k.max(1) < SERIAL {
        return products
            .into_iter()
            .for_each(|TiledProduct { b, bias, c }| matrix_tile(isa, a, b, (0, b.cols()), bias, c));
    }
    let shape = micro::shape(isa);
    // One thread adds up the partial sums. That must take less time than a thread spends on reading its part of B.
    let few_sums = 2 * threads * threads * m <= k;
    if m <= shape.whole
        && few_sums
        && k * columns > CACHED
        && products.iter().all(|TiledProduct { b, .. }| {
            // Rows of f16 are slow to widen without the tile's instructions.
            b.rows_contiguous() && b.cols() <= WIDE && (m == 1 || !matches!(b, Matrix::F16(_)))
        })
    {
        return whole_rows(isa, a, products, threads);
    }
    in_blocks(shape, m, products, threads, |b, bias, c, (i, mt), (j, nt)| {
        let a = a.block((i, mt), (0, k));
        matrix_tile(isa, a, b.starting_at(i), (j, nt), bias, c);
    });
}

/// How rows of A are rounded before the product is computed in floats; `None` if they are not rounded.
fn rounds_rows(isa: Isa, rows: usize, b: &Matrix) -> Option<Rounding> {
    #[cfg(target_arch = "x86_64")]
    if b.packed().is_some_and(|b| packed::Kind::of(isa, rows, &b).is_some()) {
        return None;
    }
    b.rounding().filter(|rounding| !rounding.half_sums)
}

/// For many rows of A: if some products round the rows, rounds the rows once instead of in every task.
fn of_rounded(isa: Isa, a: View2, products: Vec<Product>) {
    let mut by_rounding: Vec<(Option<Rounding>, Vec<Product>)> = Vec::new();
    for Product { b, bias, c, ldc } in products {
        let rounding = rounds_rows(isa, a.rows(), &b);
        let b = if rounding.is_some() { b.exact() } else { b };
        let product = Product { b, bias, c, ldc };
        match by_rounding.iter_mut().find(|(other, _)| *other == rounding) {
            Some((_, products)) => products.push(product),
            None => by_rounding.push((rounding, vec![product])),
        }
    }
    for (rounding, products) in by_rounding {
        match rounding {
            None => gemm_each(a, products),
            Some(rounding) => {
                let rounded = rounded_rows(a, rounding);
                gemm_each(View2::row_major(&rounded, a.rows(), a.cols()), products);
            }
        }
    }
}

/// Checks that the products fit A and makes their C writable in tiles. Each element of A corresponds to `rows`
/// rows of B.
pub(crate) fn tiled<'a>(a: View2, products: Vec<Product<'a>>, rows: usize) -> Vec<TiledProduct<'a>> {
    let tiled = |Product { b, bias, c, ldc }| {
        let c = OutTile::new(c, (a.rows(), b.cols()), ldc);
        check(a, (b.rows() / rows, b.cols()), bias, &c);
        TiledProduct { b, bias, c }
    };
    products.into_iter().map(tiled).collect()
}

/// Computes the products in blocks of C, on all threads.
pub(crate) fn in_blocks<'a>(
    shape: Shape,
    m: usize,
    products: Vec<TiledProduct<'a>>,
    threads: usize,
    block: impl Fn(Matrix<'a>, Bias, OutTile, (usize, usize), (usize, usize)) + Send + Sync,
) {
    let columns = products.iter().map(|product| product.b.cols()).sum::<usize>();
    let (mt, nt) = task_shape(shape, m, columns, threads);
    let rows = m.div_ceil(mt);
    let tasks_of: Vec<usize> = products.iter().map(|product| rows * product.b.cols().div_ceil(nt)).collect();
    each(tasks_of.iter().sum(), |mut task| {
        let mut number = 0;
        while task >= tasks_of[number] {
            task -= tasks_of[number];
            number += 1;
        }
        let &TiledProduct { b, bias, ref c } = &products[number];
        let (i, j) = (task % rows * mt, task / rows * nt);
        let (mt, nt) = (mt.min(m - i), nt.min(b.cols() - j));
        let bias = bias.map(|bias| &bias[j..j + nt]);
        // SAFETY: each task uses only its own block of this handle, and the blocks of all tasks partition every C.
        let c = unsafe { c.alias() }.tile((i, mt), (j, nt));
        block(b, bias, c, (i, mt), (j, nt));
    });
}

/// For a few rows of A: every task reads whole rows of every B, which are often adjacent in memory, and the partial
/// sums are added up at the end.
fn whole_rows(isa: Isa, a: View2, products: Vec<TiledProduct>, threads: usize) {
    let (m, k) = (a.rows(), a.cols());
    let depth = k.div_ceil(2 * threads).next_multiple_of(DEPTH);
    let count = k.div_ceil(depth);
    let columns: usize = products.iter().map(|product| product.b.cols()).sum();
    let mut sums = vec![0.0; count * m * columns];
    let all = OutTile::new(&mut sums, (count * m, columns), columns);
    each(count, |task| {
        let (start, end) = (task * depth, k.min((task + 1) * depth));
        for p in (start..end).step_by(DEPTH) {
            let depth = DEPTH.min(end - p);
            let mut first = 0;
            for TiledProduct { b, .. } in &products {
                let n = b.cols();
                // SAFETY: each task uses only its own rows of this handle.
                let part = unsafe { all.alias() }.tile((task * m, m), (first, n));
                let a = a.block((0, m), (p, depth));
                with_view!(b, b => gemv::add_rows(isa, a, b.block((p, depth), (0, n)), part),
                    _packed => unreachable!("packed rows are not rows of B"));
                first += n;
            }
        }
    });
    let mut first = 0;
    for TiledProduct { b, bias, mut c } in products {
        gemv::fill(&mut c, bias);
        for i in 0..m {
            let row = c.row_mut(i);
            for sums in sums.chunks_exact(columns).skip(i).step_by(m) {
                row.iter_mut().zip(&sums[first..]).for_each(|(sum, part)| *sum += part);
            }
        }
        first += b.cols();
    }
}

/// [`gemm()`] on the calling thread only, for callers that run many small
/// products in parallel (attention: one per batch and head).
///
/// # Panics
/// As for [`gemm()`].
pub fn gemm_serial<'a>(a: View2, b: impl Into<Matrix<'a>>, bias: Option<&[f32]>, c: &mut [f32], ldc: usize) {
    let b = b.into();
    let c = OutTile::new(c, (a.rows(), b.cols()), ldc);
    matrix_tile(Isa::current(), a, b, (0, b.cols()), bias, c);
}

/// Rows and columns of C per task: all rows and a block's columns, unless that leaves threads without work.
fn task_shape(shape: Shape, m: usize, n: usize, threads: usize) -> (usize, usize) {
    let wanted = threads * TASKS;
    if m <= gemv::MAX_ROWS {
        // Long contiguous reads matter more than equal tasks.
        let nt = n.div_ceil(2 * threads).next_multiple_of(48).clamp(48, 960);
        return (m, nt);
    }
    let mut nt = shape.block.1;
    while n.div_ceil(nt) < wanted && nt > 2 * shape.cols {
        nt -= shape.cols;
    }
    let parts = wanted.div_ceil(n.div_ceil(nt));
    let mt = m.div_ceil(parts).next_multiple_of(shape.rows).max(8 * shape.rows);
    (mt, nt)
}

/// `c = a · b (+ bias)` for columns `j..j + n` of B, on the calling thread.
fn matrix_tile(isa: Isa, a: View2, b: Matrix, (j, n): (usize, usize), bias: Bias, c: OutTile) {
    with_view!(b, b => gemm_tile(isa, a, b.block((0, b.rows()), (j, n)), bias, c),
        b => packed::tile(isa, a, b.columns((j, n)), bias, c));
}

/// `c = a · b (+ bias)` on the calling thread.
pub(crate) fn gemm_tile<T: Element>(isa: Isa, a: View2, b: View2<T>, bias: Bias, mut c: OutTile) {
    check(a, (b.rows(), b.cols()), bias, &c);
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    if m == 0 || n == 0 {
        return;
    }
    let shape = micro::shape(isa);
    let few = m <= gemv::MAX_ROWS;
    if k == 0 || (b.rows_contiguous() && (m == 1 || (few && n < shape.lanes))) {
        return gemv::rows(isa, a, b, bias, c);
    } else if few && b.cols_contiguous() {
        return gemv::columns(isa, a, b, bias, c);
    }
    // Read whole vectors of B in place, without packing. 16-bit elements are widened again in each pass, so this pays
    // off for fewer rows of A.
    let most = if size_of::<T>() == 4 { shape.direct } else { shape.direct.min(8 * shape.rows) };
    let direct = if m <= most && b.rows_contiguous() { n - n % shape.lanes } else { 0 };
    let (kc, nc) = shape.block;
    for j in (0..direct).step_by(nc) {
        let nc = nc.min(direct - j);
        let bias = bias.map(|bias| &bias[j..j + nc]);
        let mut c = c.reborrow().tile((0, m), (j, nc));
        for p in (0..k).step_by(kc) {
            let kc = kc.min(k - p);
            let (a, b) = (a.block((0, m), (p, kc)), b.block((p, kc), (j, nc)));
            multiply_direct(isa, shape, a, b, bias.filter(|_| p == 0), p > 0, &mut c);
        }
    }
    let (b, bias) = (b.block((0, k), (direct, n - direct)), bias.map(|bias| &bias[direct..]));
    let pack = |rows, cols, packed: &mut [f32]| pack_b(isa, shape, b.block(rows, cols), packed);
    // SAFETY: `in_panels` upholds the contract of `Tile`.
    let run = |rows, vectors, tile| unsafe { micro::run(isa, rows, vectors, tile) };
    in_panels(shape, a, bias, c.tile((0, m), (direct, n - direct)), pack, run);
}

/// `c (+)= a · b (+ bias)`, reading B in place. Rows of B must be contiguous and hold whole vectors.
fn multiply_direct<T: Element>(
    isa: Isa,
    shape: Shape,
    a: View2,
    b: View2<T>,
    bias: Bias,
    accumulate: bool,
    c: &mut OutTile,
) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    assert!(b.rows() == k && n % shape.lanes == 0 && c.rows() == m && c.cols() == n && k > 0);
    // A single pass over B is limited by memory, so prefetch the next panel.
    let ahead = if m <= shape.rows { shape.cols } else { 0 };
    for j in (0..n).step_by(shape.cols) {
        for i in (0..m).step_by(shape.rows) {
            let (rows, cols) = (shape.rows.min(m - i), shape.cols.min(n - j));
            let mut c = c.reborrow().tile((i, rows), (j, cols));
            let tile = Tile {
                k,
                a: a.ptr(i, 0),
                lda: a.row_stride(),
                b: b.ptr(0, j),
                ldb: b.row_stride(),
                ahead,
                c: c.as_mut_ptr(),
                ldc: c.row_stride(),
                cols,
                bias: bias.map_or(std::ptr::null(), |bias| bias[j..j + cols].as_ptr()),
                accumulate,
            };
            // SAFETY: `a` has rows i.. of k contiguous floats and `b` k rows
            // with columns j..j + cols, whole vectors (checked views); C has
            // these rows and columns; the bias slice has `cols` floats.
            unsafe { micro::run(isa, rows, cols / shape.lanes, tile) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test does not depend on the machine's number of threads, or on whether `gemm_each` would choose this path.
    #[test]
    fn whole_rows_are_the_product() {
        let numbers = |len: usize, seed: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0).collect()
        };
        let shapes = [(1, 1, 1), (3, 65, 4), (1, 700, 2), (8, 300, 2), (5, 1000, 9)];
        // The last shapes are too large for Miri.
        for &(m, k, threads) in &shapes[..if cfg!(miri) { 2 } else { 5 }] {
            let (a, bias) = (numbers(m * k, 1), numbers(90, 2));
            let weights = [numbers(k * 90, 3), numbers(k * 7, 4)];
            let a = View2::row_major(&a, m, k);
            let [one, two] = [(&weights[0], 90), (&weights[1], 7)].map(|(b, n)| View2::row_major(b, k, n));
            let (mut c, mut d) = (vec![7.0; m * 90], vec![7.0; m * 7]);
            let parts = vec![
                TiledProduct { b: one.into(), bias: Some(&bias), c: OutTile::new(&mut c, (m, 90), 90) },
                TiledProduct { b: two.into(), bias: None, c: OutTile::new(&mut d, (m, 7), 7) },
            ];
            whole_rows(Isa::current(), a, parts, threads);
            for (given, b, bias) in [(&c, one, Some(&bias[..])), (&d, two, None)] {
                let mut alone = vec![0.0; given.len()];
                gemm_serial(a, b, bias, &mut alone, b.cols());
                for (given, alone) in given.iter().zip(alone) {
                    assert!(
                        (given - alone).abs() <= 1e-4 * (1.0 + alone.abs()),
                        "{m}x{k}: got {given}, expected {alone}"
                    );
                }
            }
        }
    }
}
