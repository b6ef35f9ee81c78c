//! Products of two `bf16` matrices by the instruction that some processors have for them: it multiplies pairs that lie
//! side by side along the inner axis, and adds both products in `f32`.

use half::bf16;

use crate::isa::Isa;
use crate::micro::Shape;
use crate::pack::{pack_b, packed_len};
use crate::view::View2;

/// Two neighbors along the inner axis, the first in the low half: bits, of no meaning as a number.
pub(crate) type Pair = f32;

/// Rows of `a` as rows of pairs, if they can be taken so.
pub(crate) fn pairs_of<'a>(a: View2<'a, bf16>) -> Option<View2<'a, Pair>> {
    let even = a.rows_contiguous() && a.cols().is_multiple_of(2) && a.row_stride().is_multiple_of(2);
    if !even || a.rows() == 0 || a.cols() == 0 {
        return None;
    }
    let elements = (a.rows() - 1) * a.row_stride() + a.cols();
    let first = a.ptr(0, 0);
    if !first.cast::<Pair>().is_aligned() {
        return None;
    }
    // SAFETY: the view reaches these elements (its bounds), of which two make one of 32 bits, aligned (checked); every
    // pattern of bits is an `f32`, and nothing writes them while the view lives.
    let pairs = unsafe { std::slice::from_raw_parts::<'a, Pair>(first.cast(), elements / 2) };
    Some(View2::new(pairs, 0, (a.rows(), a.cols() / 2), (a.row_stride() / 2, 1)))
}

/// Whether a matrix can be packed as pairs of its rows.
pub(crate) fn can_pack(b: View2<bf16>) -> bool {
    b.rows().is_multiple_of(2) && (b.rows_contiguous() || pairs_of(b.t()).is_some())
}

/// Packs `b` `[2 k, n]` as `k` rows of pairs, as [`pack_b`] packs rows of numbers.
pub(crate) fn pack_pairs(isa: Isa, shape: Shape, b: View2<bf16>, out: &mut [Pair]) {
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
