//! Fused attention: scores, masked softmax and weighted values, one block of
//! queries of one head at a time, so that scores never leave the cache.

use std::fmt;
use std::ops::Range;

use crate::gemm::gemm_tile;
use crate::isa::Isa;
use crate::scratch::{MIXED, SCORES, with_scratch};
use crate::softmax::{RowMask, Scores, mask_row, reciprocal, softmax_part, softmax_row};
use crate::tasks::each;
use crate::view::{OutTile, View2};

/// Query rows per block.
const ROWS: usize = 64;
/// Maximum number of scores that a block holds at a time, so that they stay in the second-level cache. With more keys, a
/// block goes over them in parts.
const SCORES_AT_ONCE: usize = 128 * 1024;

/// A read-only `[batch, tokens, heads, dh]` tensor: element `(b, s, h, d)` is
/// `data[b * batch_stride + s * token_stride + h * head_stride + d]`.
#[derive(Clone, Copy)]
pub struct HeadsView<'a> {
    /// The storage.
    pub data: &'a [f32],
    /// Number of tokens per batch row.
    pub tokens: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements from one batch row to the next.
    pub batch_stride: usize,
    /// Elements from one token to the next.
    pub token_stride: usize,
    /// Elements from one head to the next.
    pub head_stride: usize,
}

impl fmt::Debug for HeadsView<'_> {
    /// Shows sizes and strides, but no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HeadsView");
        shown.field("tokens", &self.tokens).field("heads", &self.heads).field("batch_stride", &self.batch_stride);
        shown.field("token_stride", &self.token_stride).field("head_stride", &self.head_stride);
        shown.finish_non_exhaustive()
    }
}

impl<'a> HeadsView<'a> {
    /// All of `data` as a contiguous `[batch, tokens, heads, dh]` tensor.
    pub fn contiguous(data: &'a [f32], tokens: usize, heads: usize, dh: usize) -> Self {
        let token_stride = heads * dh;
        Self { data, tokens, heads, batch_stride: tokens * token_stride, token_stride, head_stride: dh }
    }

    /// Tokens `start..start + count` of one head as a `[count, dh]` matrix.
    pub(crate) fn matrix(&self, b: usize, h: usize, (start, count): (usize, usize), dh: usize) -> View2<'a> {
        let offset = b * self.batch_stride + h * self.head_stride + start * self.token_stride;
        View2::new(self.data, offset, (count, dh), (self.token_stride, 1))
    }
}

/// Sizes, score settings and mask of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Number of batch rows.
    pub batch: usize,
    /// Width of a head.
    pub dh: usize,
    /// Factor on the dot products, usually `1 / √dh`.
    pub scale: f32,
    /// Soft cap: scaled scores become `cap * tanh(s / cap)`.
    pub soft_cap: Option<f32>,
    /// ALiBi slopes `[heads]`: adds `slope * (kpos - qpos)` to the logits.
    pub alibi: Option<&'a [f32]>,
    /// Causal mask: query row `i` sees key columns `0..=i + offset` (the offset is the number of cached keys).
    pub causal: Option<usize>,
    /// Sliding window: the oldest position that each query sees, `[batch, queries]`.
    pub oldest: Option<&'a [i32]>,
    /// Which keys are real rather than padding, `[batch, keys]`.
    pub valid: Option<&'a [bool]>,
    /// Positions of the queries `[batch, queries]`, needed by `alibi` only.
    pub query_pos: &'a [i32],
    /// Positions of the keys `[batch, keys]`, needed by `alibi` and `oldest`
    /// only.
    pub key_pos: &'a [i32],
}

impl Attention<'_> {
    /// Asserts that every slice has the length that its axes imply.
    pub(crate) fn check(&self, queries: usize, keys: usize, heads: usize) {
        let batch = self.batch;
        assert!(self.valid.is_none_or(|valid| valid.len() == batch * keys), "`valid` has the wrong length");
        assert!(self.oldest.is_none_or(|oldest| oldest.len() == batch * queries), "`oldest` has the wrong length");
        if self.alibi.is_some() {
            assert_eq!(self.query_pos.len(), batch * queries, "`query_pos` has the wrong length");
        }
        if self.alibi.is_some() || self.oldest.is_some() {
            assert_eq!(self.key_pos.len(), batch * keys, "`key_pos` has the wrong length");
        }
        assert!(self.alibi.is_none_or(|slopes| slopes.len() == heads), "`alibi` has the wrong length");
    }
}

/// Attention of `q` `[batch, queries, heads, dh]` over `k` and `v`
/// `[batch, keys, kv_heads, dh]`; head `h` uses key head
/// `h / (heads / kv_heads)`. Writes `z` `[batch, queries, heads, dh]`
/// (contiguous); a query that sees no key gets 0.
///
/// # Panics
/// If sizes disagree or a slice is too short.
///
/// ```
/// use hooklens_kernels::attention::{Attention, HeadsView, attention};
/// // One row, two tokens, one head of width one; the first query sees only itself.
/// let request = Attention {
///     batch: 1, dh: 1, scale: 1.0, soft_cap: None, alibi: None, causal: Some(0), oldest: None,
///     valid: None, query_pos: &[], key_pos: &[],
/// };
/// let (q, v) = ([0.0, 0.0], [2.0, 4.0]);
/// let mut z = [0.0; 2];
/// attention(request, HeadsView::contiguous(&q, 2, 1, 1), HeadsView::contiguous(&q, 2, 1, 1), HeadsView::contiguous(&v, 2, 1, 1), &mut z);
/// assert_eq!(z, [2.0, 3.0]);
/// ```
pub fn attention(attention: Attention, q: HeadsView, k: HeadsView, v: HeadsView, z: &mut [f32]) {
    let Attention { batch, dh, .. } = attention;
    let (queries, keys, heads) = (q.tokens, k.tokens, q.heads);
    assert!(k.tokens == v.tokens && k.heads == v.heads, "keys and values differ in shape");
    assert_eq!(z.len(), batch * queries * heads * dh, "the output has the wrong length");
    if z.is_empty() {
        return;
    }
    assert!(k.heads > 0 && heads.is_multiple_of(k.heads), "{heads} heads are not a multiple of {} key heads", k.heads);
    attention.check(queries, keys, heads);

    let isa = Isa::current();
    let group = heads / k.heads;
    let blocks = queries.div_ceil(ROWS);
    let z = OutTile::new(z, (batch * queries, heads * dh), heads * dh);
    // Blocks of one head are consecutive, so they share its keys in cache. The last blocks, which are the longest under
    // a causal mask, come first.
    each(batch * heads * blocks, |task| {
        let (b, h) = (task / blocks / heads, task / blocks % heads);
        let start = (blocks - 1 - task % blocks) * ROWS;
        let count = ROWS.min(queries - start);
        // SAFETY: each task uses only its own queries and the columns of one head of this handle.
        let z = unsafe { z.alias() }.tile((b * queries + start, count), (h * dh, dh));
        let head = Head { attention, isa, b, h, keys, queries };
        head.block(q, k, v, h / group, (start, count), z);
    });
}

/// One head of one batch row.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) attention: Attention<'a>,
    pub(crate) isa: Isa,
    pub(crate) b: usize,
    pub(crate) h: usize,
    pub(crate) keys: usize,
    pub(crate) queries: usize,
}

impl Head<'_> {
    /// Computes `z` for the query rows `start..start + count`.
    fn block(
        self,
        q: HeadsView,
        k: HeadsView,
        v: HeadsView,
        kv_head: usize,
        (start, count): (usize, usize),
        mut z: OutTile,
    ) {
        let Self { attention, b, h, .. } = self;
        let (low, high) = self.visible(start, count);
        if low == high {
            for r in 0..count {
                z.row_mut(r).fill(0.0);
            }
            return;
        }
        let dh = attention.dh;
        let q = q.matrix(b, h, (start, count), dh);
        if count * (high - low) > SCORES_AT_ONCE {
            return self.in_parts(q, (k, v, kv_head), (start, count), low..high, z);
        }
        let span = (low, high - low);
        with_scratch(&SCORES, count * span.1, |scores| {
            self.dot_products(q, k.matrix(b, kv_head, span, dh), scores);
            self.pattern((start, count), span, scores);
            self.weighted_sums(scores, v.matrix(b, kv_head, span, dh), z);
        });
    }

    /// Like [`Head::block`], with running sums over parts of the visible keys, as in FlashAttention
    /// (<https://arxiv.org/abs/2205.14135>): the sums for the keys so far are scaled down when a later key has a larger
    /// score.
    fn in_parts(
        self,
        q: View2,
        (k, v, kv_head): (HeadsView, HeadsView, usize),
        (start, count): (usize, usize),
        visible: Range<usize>,
        mut z: OutTile,
    ) {
        let Self { attention: Attention { dh, .. }, isa, b, .. } = self;
        let most = SCORES_AT_ONCE / count;
        let (mut largest, mut sums) = ([f32::NEG_INFINITY; ROWS], [0.0; ROWS]);
        (0..count).for_each(|r| z.row_mut(r).fill(0.0));
        for low in visible.clone().step_by(most) {
            let span = (low, most.min(visible.end - low));
            with_scratch(&SCORES, count * span.1, |scores| {
                let mut kept = [0.0; ROWS];
                self.dot_products(q, k.matrix(b, kv_head, span, dh), scores);
                self.each_row((start, count), span, scores, |r, seen| {
                    let (max, sum) = softmax_part(isa, seen, largest[r]);
                    kept[r] = if largest[r] == f32::NEG_INFINITY { 0.0 } else { (largest[r] - max).exp() };
                    (largest[r], sums[r]) = (max, sums[r] * kept[r] + sum);
                });
                with_scratch(&MIXED, count * dh, |own| {
                    self.weighted_sums(scores, v.matrix(b, kv_head, span, dh), OutTile::new(own, (count, dh), dh));
                    for (r, own) in own.chunks_exact(dh).enumerate() {
                        z.row_mut(r).iter_mut().zip(own).for_each(|(z, own)| *z = *z * kept[r] + own);
                    }
                });
            });
        }
        for (r, sum) in sums[..count].iter().enumerate() {
            let scale = reciprocal(*sum);
            z.row_mut(r).iter_mut().for_each(|z| *z *= scale);
        }
    }

    /// Dot products of queries and keys, `[query, key]`.
    fn dot_products(self, q: View2, k: View2, scores: &mut [f32]) {
        let span = k.rows();
        gemm_tile(self.isa, q, k.t(), None, OutTile::new(scores, (q.rows(), span), span));
    }

    /// Sums of values, weighted by a pattern `[query, key]`.
    fn weighted_sums(self, pattern: &[f32], v: View2, z: OutTile) {
        gemm_tile(self.isa, View2::row_major(pattern, z.rows(), v.rows()), v, None, z);
    }

    /// Turns raw scores `[count, span]` into the attention pattern, for query rows `start..` and key columns `low..`.
    pub(crate) fn pattern(self, rows: (usize, usize), columns: (usize, usize), scores: &mut [f32]) {
        self.each_row(rows, columns, scores, |_, seen| softmax_row(self.isa, seen));
    }

    /// Scales and masks raw scores `[count, span]`, for query rows `start..` and key columns `low..`, passes the part of
    /// each row that the causal mask leaves to `normalize`, and sets the rest to 0.
    fn each_row(
        self,
        (start, count): (usize, usize),
        (low, span): (usize, usize),
        scores: &mut [f32],
        mut normalize: impl FnMut(usize, &mut [f32]),
    ) {
        let Self { attention, isa, b, h, .. } = self;
        let key_pos = self.row_of(attention.key_pos, self.keys, low, span);
        for (r, row) in scores[..count * span].chunks_exact_mut(span).enumerate() {
            let query_pos = self.row_of(attention.query_pos, self.queries, start + r, 1).first().copied();
            let position = query_pos.unwrap_or_default();
            let limit = attention.causal.map_or(span, |offset| (start + r + offset + 1).saturating_sub(low).min(span));
            let logits = Scores {
                scale: attention.scale,
                soft_cap: attention.soft_cap,
                alibi: attention.alibi.map(|slopes| (slopes[h], position, key_pos)),
            };
            let mask = RowMask {
                limit: usize::MAX,
                valid: attention.valid.map(|valid| &valid[b * self.keys + low..][..limit]),
                oldest: attention.oldest.map(|oldest| (oldest[b * self.queries + start + r], key_pos)),
            };
            let (seen, hidden) = row.split_at_mut(limit);
            mask_row(isa, seen, logits, mask);
            normalize(r, seen);
            hidden.fill(0.0);
        }
    }

    /// Elements `start..start + count` of this batch row in a `[batch, len]` slice, or the slice itself if it is empty.
    fn row_of<T>(self, slice: &[T], len: usize, start: usize, count: usize) -> &[T] {
        if slice.is_empty() { slice } else { &slice[self.b * len + start..][..count] }
    }

    /// The smallest range of key columns that contains every key visible to the query rows `start..start + count`. The
    /// ends of an empty range are equal.
    pub(crate) fn visible(self, start: usize, count: usize) -> (usize, usize) {
        let attention = self.attention;
        let limit = attention.causal.map_or(self.keys, |offset| (start + count + offset).min(self.keys));
        let valid = attention.valid.map(|valid| &valid[self.b * self.keys..][..self.keys]);
        let oldest = attention.oldest.map(|oldest| {
            let oldest = self.row_of(oldest, self.queries, start, count).iter().copied().min();
            (oldest.unwrap_or_default(), self.row_of(attention.key_pos, self.keys, 0, self.keys))
        });
        let seen = |&key: &usize| {
            valid.is_none_or(|valid| valid[key]) && oldest.is_none_or(|(oldest, keys)| keys[key] >= oldest)
        };
        match (0..limit).find(seen) {
            Some(low) => (low, (0..limit).rfind(seen).map_or(low, |last| last + 1)),
            None => (0, 0),
        }
    }
}
