//! Backward pass of attention: gradients of queries, keys and values from the gradient of the output.
//!
//! With the pattern `P = softmax(S)`, `S = scale Q Kᵀ` and `Z = P V`: `dV = Pᵀ dZ`, `dP = dZ Vᵀ`, `dS = P (dP - Σ P
//! dP)`, `dQ = scale dS K`, `dK = scale dSᵀ Q`. Patterns are recomputed block by block.

use crate::attention::{Attention, Head, HeadsView};
use crate::gemm::gemm_tile;
use crate::isa::{Isa, multiversion};
use crate::tasks::each;
use crate::view::{OutTile, View2};

/// Query rows per block.
const ROWS: usize = 64;

/// Computes the gradients of `q` `[batch, queries, heads, dh]`, `k` and `v` `[batch, keys, kv_heads, dh]`, all
/// contiguous, from the gradient `dz` `[batch, queries, heads, dh]` of [`attention`](crate::attention::attention)'s
/// output.
///
/// # Panics
/// As for [`attention`](crate::attention::attention).
pub fn attention_back(attention: Attention, [q, k, v, dz]: [HeadsView; 4], [dq, dk, dv]: [&mut [f32]; 3]) {
    let Attention { batch, dh, .. } = attention;
    let (queries, keys, heads, kv_heads) = (q.tokens, k.tokens, q.heads, k.heads);
    assert!(k.tokens == v.tokens && k.heads == v.heads, "keys and values differ in shape");
    assert!(dz.tokens == queries && dz.heads == heads, "the gradient has the wrong shape");
    assert_eq!(dq.len(), batch * queries * heads * dh, "`dq` has the wrong length");
    assert!(dk.len() == batch * keys * kv_heads * dh && dv.len() == dk.len(), "`dk` or `dv` has the wrong length");
    dk.fill(0.0);
    dv.fill(0.0);
    // Without keys, nothing depends on the queries.
    if dq.is_empty() || keys == 0 {
        return dq.fill(0.0);
    }
    assert!(kv_heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads are not a multiple of {kv_heads} key heads");
    attention.check(queries, keys, heads);
    let (isa, group) = (Isa::current(), heads / kv_heads);
    let dq = OutTile::new(dq, (batch * queries, heads * dh), heads * dh);
    let dk = OutTile::new(dk, (batch * keys, kv_heads * dh), kv_heads * dh);
    let dv = OutTile::new(dv, (batch * keys, kv_heads * dh), kv_heads * dh);
    each(batch * kv_heads, |task| {
        let (b, kv_head) = (task / kv_heads, task % kv_heads);
        let columns = (kv_head * dh, dh);
        // SAFETY: each task uses only the columns of its own key head, in its own batch row, of these handles.
        let mut dk = unsafe { dk.alias() }.tile((b * keys, keys), columns);
        // SAFETY: as above.
        let mut dv = unsafe { dv.alias() }.tile((b * keys, keys), columns);
        let mut scratch = Scratch::default();
        for h in kv_head * group..(kv_head + 1) * group {
            let head = Head { attention, isa, b, h, keys, queries };
            for start in (0..queries).step_by(ROWS) {
                let count = ROWS.min(queries - start);
                // SAFETY: each task uses only the columns of its own heads, in its own batch row, of this handle.
                let dq = unsafe { dq.alias() }.tile((b * queries + start, count), (h * dh, dh));
                let block = Block { head, kv_head, rows: (start, count) };
                block.back([q, k, v, dz], dq, &mut dk, &mut dv, &mut scratch);
            }
        }
    });
}

/// Scratch buffers of one task.
#[derive(Default)]
struct Scratch {
    pattern: Vec<f32>,
    slopes: Vec<f32>,
    raw: Vec<f32>,
    turned: Vec<f32>,
    part: Vec<f32>,
}

/// A block of queries of one head.
struct Block<'a> {
    head: Head<'a>,
    kv_head: usize,
    rows: (usize, usize),
}

impl Block<'_> {
    fn back(
        &self,
        [q, k, v, dz]: [HeadsView; 4],
        mut dq: OutTile,
        dk: &mut OutTile,
        dv: &mut OutTile,
        scratch: &mut Scratch,
    ) {
        let Head { attention, isa, b, h, .. } = self.head;
        let (start, count) = self.rows;
        let (low, high) = self.head.visible(start, count);
        if low == high {
            (0..count).for_each(|r| dq.row_mut(r).fill(0.0));
            return;
        }
        let (dh, span) = (attention.dh, high - low);
        let (q, dz) = (q.matrix(b, h, (start, count), dh), dz.matrix(b, h, (start, count), dh));
        let (k, v) = (k.matrix(b, self.kv_head, (low, span), dh), v.matrix(b, self.kv_head, (low, span), dh));
        let Scratch { pattern, slopes, raw, turned, part } = scratch;
        for buffer in [&mut *pattern, &mut *slopes, &mut *turned] {
            buffer.resize(count * span, 0.0);
        }
        part.resize(span * dh, 0.0);
        gemm_tile(isa, q, k.t(), None, OutTile::new(pattern, (count, span), span));
        if attention.soft_cap.is_some() {
            raw.clone_from(pattern);
        }
        self.head.pattern(self.rows, (low, span), pattern);
        gemm_tile(isa, dz, v.t(), None, OutTile::new(slopes, (count, span), span));
        for (r, (pattern, slopes)) in pattern.chunks_exact(span).zip(slopes.chunks_exact_mut(span)).enumerate() {
            slope_row(isa, pattern, slopes, attention.scale);
            if let Some(cap) = attention.soft_cap {
                for (slope, raw) in slopes.iter_mut().zip(&raw[r * span..]) {
                    let share = (raw * attention.scale / cap).tanh();
                    *slope *= 1.0 - share * share;
                }
            }
        }
        gemm_tile(isa, View2::row_major(slopes, count, span), k, None, dq);
        let mut add = |by_query: &[f32], other: View2, sums: &mut OutTile| {
            for (r, row) in by_query.chunks_exact(span).enumerate() {
                row.iter().enumerate().for_each(|(column, x)| turned[column * count + r] = *x);
            }
            let turned = View2::row_major(turned, span, count);
            gemm_tile(isa, turned, other, None, OutTile::new(part, (span, dh), dh));
            for (column, part) in part.chunks_exact(dh).enumerate() {
                sums.row_mut(low + column).iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
        };
        add(slopes, q, dk);
        add(pattern, dz, dv);
    }
}

multiversion! {
    /// Turns `dP` into `scale P (dP - Σ P dP)`.
    fn slope_row(pattern: &[f32], slopes: &mut [f32], scale: f32) = slope_row_body
}

#[inline(always)]
fn slope_row_body<const FMA: bool>(pattern: &[f32], slopes: &mut [f32], scale: f32) {
    let sum = crate::math::sum_of(pattern, slopes, |p, s| p * s);
    slopes.iter_mut().zip(pattern).for_each(|(s, p)| *s = scale * p * (*s - sum));
}
