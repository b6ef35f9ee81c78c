//! Copying a block of B into panels that the register tile reads in order.

use crate::element::Element;
use crate::isa::{Isa, Level, multiversion};
use crate::micro::Shape;
use crate::view::View2;

/// Number of floats that [`pack_b`] writes for a `k × n` block.
pub(crate) fn packed_len(shape: Shape, k: usize, n: usize) -> usize {
    k * n.next_multiple_of(shape.lanes)
}

/// Packs `b` `[k, n]` into `out` as consecutive panels of `shape.cols` columns, each stored row by row. The last panel
/// may be narrower, padded to whole vectors. The padding holds arbitrary values, which only reach columns that the
/// register tile does not store.
pub(crate) fn pack_b<T: Element>(isa: Isa, shape: Shape, b: View2<T>, out: &mut [f32]) {
    if b.rows_contiguous() {
        pack_rows(isa, shape, b, out);
    } else {
        pack_columns(isa, shape, b, out);
    }
}

/// Number of rows of B to prefetch ahead of the one being packed. Each row is short and may be on a different page, and
/// hardware prefetchers do not cross page boundaries.
const AHEAD: usize = 6;

/// Prefetches a row.
#[inline(always)]
fn fetch<T>(row: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in row.chunks(64 / size_of::<T>()) {
        // SAFETY: a hint that every CPU of this architecture supports; no memory is read.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

multiversion! {
    /// Packs B row by row, across all panels, so that memory is read in the longest possible runs. Used when B's rows
    /// are contiguous.
    fn pack_rows<T: Element>(shape: Shape, b: View2<T>, out: &mut [f32]) = pack_rows_body
}

#[inline(always)]
fn pack_rows_body<const FMA: bool, T: Element>(shape: Shape, b: View2<T>, out: &mut [f32]) {
    // Constant widths let the copies become plain vector moves.
    match shape.cols {
        48 => pack_rows_of::<48, T>(shape, b, out),
        16 => pack_rows_of::<16, T>(shape, b, out),
        8 => pack_rows_of::<8, T>(shape, b, out),
        width => unreachable!("no register tile is {width} wide"),
    }
}

#[inline(always)]
fn pack_rows_of<const W: usize, T: Element>(shape: Shape, b: View2<T>, out: &mut [f32]) {
    let (k, n) = (b.rows(), b.cols());
    let (full, rest) = (n / W, n % W);
    let width = rest.next_multiple_of(shape.lanes);
    let (panels, tail) = out.split_at_mut(full * W * k);
    let (panels, _) = panels.as_chunks_mut::<W>();
    for p in 0..k {
        if p + AHEAD < k {
            fetch(b.row(p + AHEAD, 0, n));
        }
        let (head, last) = b.row(p, 0, n).as_chunks::<W>();
        for (panel, group) in head.iter().enumerate() {
            panels[panel * k + p] = group.map(T::widened);
        }
        tail[p * width..].iter_mut().zip(last).for_each(|(slot, x)| *slot = x.widened());
    }
}

/// Packs B by transposing blocks of `lanes × lanes`. Used when B's rows are not contiguous, whether or not its columns
/// are.
fn pack_columns<T: Element>(isa: Isa, shape: Shape, b: View2<T>, out: &mut [f32]) {
    let (k, n, lanes) = (b.rows(), b.cols(), shape.lanes);
    let mut panels = out;
    let mut j = 0;
    while j < n {
        let cols = shape.cols.min(n - j);
        let width = cols.next_multiple_of(lanes);
        let (panel, others) = panels.split_at_mut(width * k);
        panels = others;
        for v in (0..cols).step_by(lanes) {
            let here = lanes.min(cols - v);
            let mut p = 0;
            if b.cols_contiguous() {
                while p + lanes <= k {
                    let source = b.block((p, lanes), (j + v, here)).t();
                    transpose(isa, source, &mut panel[p * width + v..], width);
                    p += lanes;
                }
            }
            for p in p..k {
                let group = &mut panel[p * width + v..][..here];
                for (c, slot) in group.iter_mut().enumerate() {
                    *slot = b.at(p, j + v + c).widened();
                }
            }
        }
        j += cols;
    }
}

/// Writes the transpose of `source` `[1..=lanes, lanes]` (one vector wide) as
/// `lanes` rows `stride` apart in `out`; missing columns get arbitrary values.
fn transpose<T: Element>(isa: Isa, source: View2<T>, out: &mut [f32], stride: usize) {
    let (rows, lanes) = (source.rows(), source.cols());
    assert!(rows >= 1 && rows <= lanes && source.rows_contiguous());
    assert!(out.len() >= (lanes - 1) * stride + lanes);
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if lanes == 16 => {
            let from = source.ptr(0, 0);
            // SAFETY: the source has `rows >= 1` rows of 16 elements and `out` 16
            // (the view's bounds and the assertions); AVX-512 was detected.
            unsafe { transpose16(from, source.row_stride(), rows, out.as_mut_ptr(), stride) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if lanes == 8 => {
            let from = source.ptr(0, 0);
            // SAFETY: the source has `rows >= 1` rows of 8 elements and `out` 8;
            // AVX2 was detected.
            unsafe { transpose8(from, source.row_stride(), rows, out.as_mut_ptr(), stride) }
        }
        _ => {
            for r in 0..rows {
                for (c, &x) in source.row(r, 0, lanes).iter().enumerate() {
                    out[c * stride + r] = x.widened();
                }
            }
        }
    }
}

/// # Safety
/// `from` points to `rows >= 1` rows of 16 elements, `ld` apart, and `to` points to 16 rows
/// of 16 floats, `stride` apart; the CPU has AVX-512 F, VL and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw")]
unsafe fn transpose16<T: Element>(from: *const T, ld: usize, rows: usize, to: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let mut r = [_mm512_setzero_ps(); 16];
    for (i, r) in r.iter_mut().enumerate() {
        // SAFETY: a row of the source (the last one stands in for missing ones).
        *r = unsafe { T::load16(from.wrapping_add(i.min(rows - 1) * ld), 0xffff) };
    }
    // Transpose 4 × 4 blocks inside each 128-bit quarter …
    let mut q = r;
    for g in (0..16).step_by(4) {
        let ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(r[g], r[g + 1]));
        let ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(r[g], r[g + 1]));
        let cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(r[g + 2], r[g + 3]));
        let cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(r[g + 2], r[g + 3]));
        q[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_lo, cd_lo));
        q[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_lo, cd_lo));
        q[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_hi, cd_hi));
        q[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_hi, cd_hi));
    }
    // … then the 4 × 4 arrangement of those quarters.
    for i in 0..4 {
        let lo01 = _mm512_shuffle_f32x4::<0x88>(q[i], q[i + 4]);
        let hi01 = _mm512_shuffle_f32x4::<0xdd>(q[i], q[i + 4]);
        let lo23 = _mm512_shuffle_f32x4::<0x88>(q[i + 8], q[i + 12]);
        let hi23 = _mm512_shuffle_f32x4::<0xdd>(q[i + 8], q[i + 12]);
        let rows = [
            _mm512_shuffle_f32x4::<0x88>(lo01, lo23),
            _mm512_shuffle_f32x4::<0x88>(hi01, hi23),
            _mm512_shuffle_f32x4::<0xdd>(lo01, lo23),
            _mm512_shuffle_f32x4::<0xdd>(hi01, hi23),
        ];
        for (quarter, row) in rows.into_iter().enumerate() {
            // SAFETY: row 4 * quarter + i < 16 of the destination.
            unsafe { _mm512_storeu_ps(to.wrapping_add((quarter * 4 + i) * stride), row) };
        }
    }
}

/// # Safety
/// `from` points to `rows >= 1` rows of 8 elements, `ld` apart, and `to` points to 8 rows
/// of 8 floats, `stride` apart; the CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn transpose8<T: Element>(from: *const T, ld: usize, rows: usize, to: *mut f32, stride: usize) {
    use std::arch::x86_64::*;
    let mut r = [_mm256_setzero_ps(); 8];
    for (i, r) in r.iter_mut().enumerate() {
        // SAFETY: a row of the source (the last one stands in for missing ones).
        *r = unsafe { T::load8(from.wrapping_add(i.min(rows - 1) * ld)) };
    }
    let mut q = r;
    for g in [0, 4] {
        let ab_lo = _mm256_castps_pd(_mm256_unpacklo_ps(r[g], r[g + 1]));
        let ab_hi = _mm256_castps_pd(_mm256_unpackhi_ps(r[g], r[g + 1]));
        let cd_lo = _mm256_castps_pd(_mm256_unpacklo_ps(r[g + 2], r[g + 3]));
        let cd_hi = _mm256_castps_pd(_mm256_unpackhi_ps(r[g + 2], r[g + 3]));
        q[g] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_lo, cd_lo));
        q[g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_lo, cd_lo));
        q[g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_hi, cd_hi));
        q[g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_hi, cd_hi));
    }
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(q[i], q[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(q[i], q[i + 4]);
        // SAFETY: row i < 8 of the destination.
        unsafe { _mm256_storeu_ps(to.wrapping_add(i * stride), low) };
        // SAFETY: row i + 4 < 8 of the destination.
        unsafe { _mm256_storeu_ps(to.wrapping_add((i + 4) * stride), high) };
    }
}
