//! Products of two `bf16` matrices with AVX-512 BF16 instructions, which multiply pairs of adjacent elements along the
//! inner axis and add both products in `f32`.

use half::bf16;

use crate::element::Pair;
use crate::gemm::{Product, in_blocks, tiled};
use crate::gemv;
use crate::isa::Isa;
use crate::matrix::Matrix;
use crate::micro::{self, Shape};
use crate::operands::Bias;
use crate::pack::{pack_b, packed_len};
use crate::panels::in_panels;
use crate::view::{OutTile, View2};

/// Computes products of a `bf16` A and `bf16` B with AVX-512 BF16 instructions: products are exact, sums are `f32`.
/// Returns `products` unchanged as an error if the instructions are unavailable or not worth it (with a few rows of A,
/// reading B dominates anyway).
///
/// # Panics
/// As for [`gemm()`](crate::gemm::gemm).
pub fn gemm_each_bf16<'a>(a: View2<bf16>, products: Vec<Product<'a>>) -> Result<(), Vec<Product<'a>>> {
    let isa = Isa::current();
    let packs = |b: &Matrix| matches!(b, Matrix::Bf16(b) if can_pack(*b));
    let able = isa.has_bf16() && a.rows() > gemv::MAX_ROWS && products.iter().all(|product| packs(&product.b));
    let Some(pairs) = pairs_of(a).filter(|_| able) else { return Err(products) };
    let (shape, threads) = (micro::shape(isa), rayon::current_num_threads());
    in_blocks(shape, a.rows(), tiled(pairs, products, 2), threads, |b, bias, c, (i, mt), (j, nt)| {
        let a = pairs.block((i, mt), (0, pairs.cols()));
        if let Matrix::Bf16(b) = b {
            pairs_tile(isa, a, b.block((0, b.rows()), (j, nt)), bias, c);
        }
    });
    Ok(())
}

/// `c = a · b (+ bias)` on the calling thread, where an element of A is a pair and corresponds to two rows of B.
#[cfg(target_arch = "x86_64")]
fn pairs_tile(isa: Isa, a: View2<Pair>, b: View2<bf16>, bias: Bias, c: OutTile) {
    assert!(isa.has_bf16(), "the processor does not support bf16 products");
    let shape = micro::shape(isa);
    let pack = |(p, kc), cols, packed: &mut [Pair]| pack_pairs(isa, shape, b.block((2 * p, 2 * kc), cols), packed);
    // SAFETY: `in_panels` upholds the contract of `Tile`, and the CPU has the instruction (asserted).
    let run = |rows, vectors, tile| unsafe { micro::run_pairs(rows, vectors, tile) };
    in_panels(shape, a, bias, c, pack, run);
}

#[cfg(not(target_arch = "x86_64"))]
fn pairs_tile(_: Isa, _: View2<Pair>, _: View2<bf16>, _: Bias, _: OutTile) {
    unreachable!("only x86 processors have these instructions");
}

/// Views rows of `a` as rows of pairs, if length, stride and alignment allow it.
fn pairs_of<'a>(a: View2<'a, bf16>) -> Option<View2<'a, Pair>> {
    let even = a.rows_contiguous() && a.cols().is_multiple_of(2) && a.row_stride().is_multiple_of(2);
    if !even || a.rows() == 0 || a.cols() == 0 {
        return None;
    }
    let elements = (a.rows() - 1) * a.row_stride() + a.cols();
    let first = a.ptr(0, 0);
    if !first.cast::<Pair>().is_aligned() {
        return None;
    }
    // SAFETY: the view covers these elements (its bounds), two of which make one aligned 32-bit element (checked).
    // Every bit pattern is a valid `f32`, and nothing writes to them while the view lives.
    let pairs = unsafe { std::slice::from_raw_parts::<'a, Pair>(first.cast(), elements / 2) };
    Some(View2::new(pairs, 0, (a.rows(), a.cols() / 2), (a.row_stride() / 2, 1)))
}

/// Whether a matrix can be packed as pairs of rows.
fn can_pack(b: View2<bf16>) -> bool {
    b.rows().is_multiple_of(2) && (b.rows_contiguous() || pairs_of(b.t()).is_some())
}

/// Packs `b` `[2 k, n]` as `k` rows of pairs, in the layout of [`pack_b`].
fn pack_pairs(isa: Isa, shape: Shape, b: View2<bf16>, out: &mut [Pair]) {
    if let Some(turned) = (!b.rows_contiguous()).then(|| pairs_of(b.t())).flatten() {
        return pack_b(isa, shape, turned.t(), out);
    }
    let (k, n) = (b.rows() / 2, b.cols());
    assert!(out.len() >= packed_len(shape, k, n));
    for p in 0..k {
        let (low, high) = (b.row(2 * p, 0, n), b.row(2 * p + 1, 0, n));
        let mut start = 0;
        for (low, high) in low.chunks(shape.cols).zip(high.chunks(shape.cols)) {
            let width = low.len().next_multiple_of(shape.lanes);
            let row = &mut out[start + p * width..][..low.len()];
            for ((slot, low), high) in row.iter_mut().zip(low).zip(high) {
                *slot = Pair::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16);
            }
            start += width * k;
        }
    }
}
