//! Matrix products `C = A · B (+ bias)`.
//!
//! B is copied block by block into panels that stay in the second-level cache
//! while every row of A passes over them, so each weight is read from memory
//! once; a handful of rows of A skips the copy (see `gemv`).

use crate::gemv;
use crate::isa::Isa;
use crate::micro::{self, Shape, Tile};
use crate::pack::{pack_b, packed_len};
use crate::scratch::{PACKED, with_scratch};
use crate::tasks::each;
use crate::view::{OutTile, View2};

/// Optional vector added to every row of the product.
pub(crate) type Bias<'a> = Option<&'a [f32]>;

/// Multiply-adds below which a product stays on the calling thread.
const SERIAL: usize = 1 << 17;
/// Columns of B up to which a row of C stays in the first-level cache.
const WIDE: usize = 4096;
/// Tasks per thread wanted for balance.
const TASKS: usize = 4;

/// `c[m, n] = a[m, k] · b[k, n] (+ bias[n])`, over all threads.
///
/// Row `i` of the result is `c[i * ldc..i * ldc + n]`; the gaps are untouched.
/// `b` is fastest with contiguous rows (`[k, n]` row-major) or contiguous
/// columns (a transposed `[n, k]` row-major matrix).
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
pub fn gemm(a: View2, b: View2, bias: Option<&[f32]>, c: &mut [f32], ldc: usize) {
    let c = OutTile::new(c, (a.rows(), b.cols()), ldc);
    check(a, b, bias, c);
    let isa = Isa::current();
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    let threads = rayon::current_num_threads();
    if threads == 1 || m * n * k.max(1) < SERIAL {
        return gemm_tile(isa, a, b, bias, c);
    }
    let shape = micro::shape(isa);
    if m <= shape.whole && b.rows_contiguous() && n <= WIDE {
        return whole_rows(isa, a, b, bias, c);
    }
    let (mt, nt) = task_shape(shape, m, n, threads);
    let (rows, cols) = (m.div_ceil(mt), n.div_ceil(nt));
    each(rows * cols, |task| {
        let (i, j) = (task % rows * mt, task / rows * nt);
        let (mt, nt) = (mt.min(m - i), nt.min(n - j));
        let bias = bias.map(|bias| &bias[j..j + nt]);
        // SAFETY: the tasks' blocks partition C.
        let c = unsafe { c.tile((i, mt), (j, nt)) };
        gemm_tile(isa, a.block((i, mt), (0, k)), b.block((0, k), (j, nt)), bias, c);
    });
}

/// A few rows of A: every task reads whole rows of B, one run of memory, and the sums are put together after.
fn whole_rows(isa: Isa, a: View2, b: View2, bias: Bias, mut c: OutTile) {
    let (m, k, n) = (a.rows(), b.rows(), b.cols());
    let depth = k.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(8);
    let count = k.div_ceil(depth);
    let mut parts = vec![0.0; count * m * n];
    let part = OutTile::new(&mut parts, (count * m, n), n);
    each(count, |task| {
        let (start, depth) = (task * depth, depth.min(k - task * depth));
        // SAFETY: each task has rows of its own.
        let part = unsafe { part.tile((task * m, m), (0, n)) };
        gemv::rows(isa, a.block((0, m), (start, depth)), b.block((start, depth), (0, n)), None, part);
    });
    for i in 0..m {
        let c = c.row_mut(i);
        match bias {
            Some(bias) => c.copy_from_slice(bias),
            None => c.fill(0.0),
        }
        for part in parts.chunks_exact(n).skip(i).step_by(m) {
            c.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// [`gemm`] on the calling thread only, for callers that run many small
/// products in parallel (attention: one per batch and head).
///
/// # Panics
/// As for [`gemm`].
pub fn gemm_serial(a: View2, b: View2, bias: Option<&[f32]>, c: &mut [f32], ldc: usize) {
    let c = OutTile::new(c, (a.rows(), b.cols()), ldc);
    gemm_tile(Isa::current(), a, b, bias, c);
}

/// Asserts that the operands of `c = a · b + bias` agree.
fn check(a: View2, b: View2, bias: Bias, c: OutTile) {
    assert_eq!(a.cols(), b.rows(), "inner dimensions differ");
    assert!(a.rows_contiguous(), "rows of A must be contiguous");
    assert!(c.rows() == a.rows() && c.cols() == b.cols(), "C has another shape");
    assert!(bias.is_none_or(|bias| bias.len() == b.cols()), "bias has another length");
}

/// Rows and columns of C for one task: all rows and a block's columns, unless that
/// leaves threads without work.
fn task_shape(shape: Shape, m: usize, n: usize, threads: usize) -> (usize, usize) {
    let wanted = threads * TASKS;
    if m <= gemv::MAX_ROWS {
        // Long runs matter more than equal tasks.
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

/// `c = a · b (+ bias)` on the calling thread.
pub(crate) fn gemm_tile(isa: Isa, a: View2, b: View2, bias: Bias, c: OutTile) {
    check(a, b, bias, c);
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
    // Whole vectors of B that are read where they lie.
    let direct = if m <= shape.direct && b.rows_contiguous() { n - n % shape.lanes } else { 0 };
    let (kc, nc) = shape.block;
    let mut j = 0;
    while j < n {
        let nc = if j < direct { direct.min(j + nc) - j } else { nc.min(n - j) };
        let bias = bias.map(|bias| &bias[j..j + nc]);
        // SAFETY: a part of the caller's own tile.
        let c = unsafe { c.tile((0, m), (j, nc)) };
        for p in (0..k).step_by(kc) {
            let kc = kc.min(k - p);
            let (a, b) = (a.block((0, m), (p, kc)), b.block((p, kc), (j, nc)));
            let bias = bias.filter(|_| p == 0);
            if j < direct {
                multiply_direct(isa, shape, a, b, bias, p > 0, c);
            } else {
                with_scratch(&PACKED, packed_len(shape, kc, nc), |packed| {
                    pack_b(isa, shape, b, packed);
                    multiply_packed(isa, shape, a, packed, bias, p > 0, c);
                });
            }
        }
        j += nc;
    }
}

/// `c (+)= a · b (+ bias)` with B `[a.cols(), c.cols()]` packed.
fn multiply_packed(isa: Isa, shape: Shape, a: View2, packed: &[f32], bias: Bias, accumulate: bool, c: OutTile) {
    let (m, k, n) = (a.rows(), a.cols(), c.cols());
    assert!(packed.len() >= packed_len(shape, k, n) && c.rows() == m);
    let mut i = 0;
    while i < m {
        // The last two tiles share their rows: one of a row or two would leave the registers idle.
        let rows = match m - i {
            left if left <= shape.rows => left,
            left if left < 2 * shape.rows => left.div_ceil(2),
            _ => shape.rows,
        };
        for j in (0..n).step_by(shape.cols) {
            let cols = shape.cols.min(n - j);
            // SAFETY: a part of the caller's own tile.
            let mut c = unsafe { c.tile((i, rows), (j, cols)) };
            let tile = Tile {
                k,
                a: a.ptr(i, 0),
                lda: a.row_stride(),
                b: packed[j * k..].as_ptr(),
                ldb: cols.next_multiple_of(shape.lanes),
                ahead: 0,
                c: c.as_mut_ptr(),
                ldc: c.row_stride(),
                cols,
                bias: bias.map_or(std::ptr::null(), |bias| bias[j..j + cols].as_ptr()),
                accumulate,
            };
            // SAFETY: `a` has rows i.. of k contiguous floats (checked view);
            // the panel at j * k has k groups of `cols` padded to whole vectors
            // (asserted length); C has these rows and columns; the bias slice
            // has `cols` floats.
            unsafe { micro::run(isa, rows, cols.div_ceil(shape.lanes), tile) };
        }
        i += rows;
    }
}

/// `c (+)= a · b (+ bias)` reading B in place: its rows are contiguous and hold
/// whole vectors.
fn multiply_direct(isa: Isa, shape: Shape, a: View2, b: View2, bias: Bias, accumulate: bool, c: OutTile) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    assert!(b.rows() == k && n % shape.lanes == 0 && c.rows() == m && c.cols() == n && k > 0);
    // With a single pass over B memory is the limit: fetch the next panel early.
    let ahead = if m <= shape.rows { shape.cols } else { 0 };
    for j in (0..n).step_by(shape.cols) {
        for i in (0..m).step_by(shape.rows) {
            let (rows, cols) = (shape.rows.min(m - i), shape.cols.min(n - j));
            // SAFETY: a part of the caller's own tile.
            let mut c = unsafe { c.tile((i, rows), (j, cols)) };
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
