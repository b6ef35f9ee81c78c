//! Products with packed panels of B, for any packing function.

use crate::micro::Shape;
use crate::micro_tile::Tile;
use crate::operands::Bias;
use crate::pack::packed_len;
use crate::scratch::{PACKED, with_scratch};
use crate::view::{OutTile, View2};

/// `c = a · b (+ bias)` in blocks of B, each of which is packed once and stays in the second-level cache while every
/// row of A passes over it. `pack` packs the given rows and columns of B, each given as start and count. `run` is
/// passed to [`multiply_packed`].
pub(crate) fn in_panels(
    shape: Shape,
    a: View2,
    bias: Bias,
    mut c: OutTile,
    pack: impl Fn((usize, usize), (usize, usize), &mut [f32]),
    run: impl Fn(usize, usize, Tile),
) {
    let (m, k, n) = (a.rows(), a.cols(), c.cols());
    let (kc, nc) = shape.block;
    for j in (0..n).step_by(nc) {
        let nc = nc.min(n - j);
        let bias = bias.map(|bias| &bias[j..j + nc]);
        let mut c = c.reborrow().tile((0, m), (j, nc));
        for p in (0..k).step_by(kc) {
            let kc = kc.min(k - p);
            with_scratch(&PACKED, packed_len(shape, kc, nc), |packed| {
                pack((p, kc), (j, nc), packed);
                multiply_packed(shape, a.block((0, m), (p, kc)), packed, bias.filter(|_| p == 0), p > 0, &mut c, &run);
            });
        }
    }
}

/// `c (+)= a · b (+ bias)` with B `[a.cols(), c.cols()]` packed. `run` computes a register tile with the given numbers
/// of rows and vectors.
fn multiply_packed(
    shape: Shape,
    a: View2,
    packed: &[f32],
    bias: Bias,
    accumulate: bool,
    c: &mut OutTile,
    run: impl Fn(usize, usize, Tile),
) {
    let (m, k, n) = (a.rows(), a.cols(), c.cols());
    assert!(packed.len() >= packed_len(shape, k, n) && c.rows() == m);
    let mut i = 0;
    while i < m {
        // The last two tiles split their rows evenly, since a tile of a row or two would leave registers idle.
        let rows = match m - i {
            left if left <= shape.rows => left,
            left if left < 2 * shape.rows => left.div_ceil(2),
            _ => shape.rows,
        };
        for j in (0..n).step_by(shape.cols) {
            let cols = shape.cols.min(n - j);
            let mut c = c.reborrow().tile((i, rows), (j, cols));
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
            // The tile's contract: `a` has rows i.. of k contiguous floats (checked view); the panel at j * k has k
            // groups of `cols` padded to whole vectors (asserted length); C has these rows and columns; the bias
            // slice has `cols` floats.
            run(rows, cols.div_ceil(shape.lanes), tile);
        }
        i += rows;
    }
}
