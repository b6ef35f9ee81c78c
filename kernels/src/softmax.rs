//! Row softmax and the masking of attention scores.

use crate::isa::{Isa, multiversion};
use crate::math;
use crate::tasks::{CHUNK, each_chunk, each_item};

/// Number of partial sums of a reduction over a row.
const LANES: usize = 16;

multiversion! {
    /// [`softmax`] of one row.
    fn softmax_row(row: &mut [f32]) = softmax_row_body
}
multiversion! {
    /// Part of a softmax over several parts of a row: `exp(x - max)` for the elements of one part, where `max` is the
    /// largest element of this part and the earlier ones (`before`). Returns `max` and the sum of the results.
    fn softmax_part(row: &mut [f32], before: f32) -> (f32, f32) = softmax_part_body
}
multiversion! {
    /// [`mask_scores`] on one row.
    fn mask_row(row: &mut [f32], scores: Scores, mask: RowMask) = mask_row_body
}

/// Replaces each row of `x` `[rows, cols]` by its softmax.
///
/// `-inf` entries become 0; a row of only `-inf` becomes all 0. A NaN makes
/// the finite entries of its row NaN.
///
/// # Panics
/// If `x.len()` is not a multiple of `cols`.
///
/// ```
/// use hooklens_kernels::softmax::softmax;
/// let hidden = f32::NEG_INFINITY;
/// let mut x = [0.0, 0.0, hidden, hidden, hidden, hidden];
/// softmax(&mut x, 3);
/// assert_eq!(x, [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
/// ```
pub fn softmax(x: &mut [f32], cols: usize) {
    if x.is_empty() {
        return;
    }
    let isa = Isa::current();
    each_item(x.chunks_mut(per_task(x.len(), cols)), |x| {
        x.chunks_exact_mut(cols).for_each(|row| softmax_row(isa, row))
    });
}

/// Writes the softmax of each row of `x` `[rows, cols]` to `to`, as [`softmax`] computes it.
///
/// # Panics
/// If the lengths differ or are not a multiple of `cols`.
///
/// ```
/// use hooklens_kernels::softmax::softmax_into;
/// let mut to = [f32::NAN; 4];
/// softmax_into(&[0.0, 0.0, 1.0, f32::NEG_INFINITY], &mut to, 2);
/// assert_eq!(to, [0.5, 0.5, 1.0, 0.0]);
/// ```
pub fn softmax_into(x: &[f32], to: &mut [f32], cols: usize) {
    if x.is_empty() && to.is_empty() {
        return;
    }
    let isa = Isa::current();
    each_chunk(x, to, per_task(x.len(), cols), |x, to| {
        for (x, to) in x.chunks_exact(cols).zip(to.chunks_exact_mut(cols)) {
            to.copy_from_slice(x);
            softmax_row(isa, to);
        }
    });
}

/// Elements per task, in whole rows. Panics if `len` is not a multiple of `cols`.
fn per_task(len: usize, cols: usize) -> usize {
    assert!(cols > 0 && len.is_multiple_of(cols), "the length {len} is not a multiple of {cols}");
    (CHUNK / cols).max(1) * cols
}

#[inline(always)]
fn softmax_row_body<const FMA: bool>(row: &mut [f32]) {
    let (_, sum) = softmax_part_body::<FMA>(row, f32::NEG_INFINITY);
    let scale = reciprocal(sum);
    for x in row {
        *x *= scale;
    }
}

/// Factor that normalizes elements with this sum. A row of only `-inf` has a sum of 0, and stays 0.
pub(crate) fn reciprocal(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}

#[inline(always)]
fn softmax_part_body<const FMA: bool>(row: &mut [f32], before: f32) -> (f32, f32) {
    // A NaN is skipped here, but makes the sum NaN.
    let max = math::larger(before, math::reduce(row, f32::NEG_INFINITY, math::larger, math::larger));
    if max == f32::NEG_INFINITY {
        let hidden = row.iter().all(|&x| x == max);
        let value = if hidden { 0.0 } else { f32::NAN };
        row.fill(value);
        return (max, value);
    }
    let mut acc = [0.0; LANES];
    let (lanes, rest) = row.as_chunks_mut::<LANES>();
    for x in lanes {
        for l in 0..LANES {
            x[l] = math::exp_negative::<FMA>(x[l] - max);
            acc[l] += x[l];
        }
    }
    let mut sum = math::sum_lanes(acc);
    for x in rest {
        *x = math::exp_negative::<FMA>(*x - max);
        sum += *x;
    }
    (max, sum)
}

/// How a raw score (a dot product of query and key) becomes a logit:
/// `s = raw * scale`, then `cap * tanh(s / cap)`, then `+ slope * (kpos - qpos)`.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    /// Factor on the raw score, usually `1 / √dh`.
    pub scale: f32,
    /// Soft cap on the magnitude of the scaled score.
    pub soft_cap: Option<f32>,
    /// ALiBi: slope, position of the query, positions of the keys `[kv]`.
    pub alibi: Option<(f32, i32, &'a [i32])>,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug)]
pub struct RowMask<'a> {
    /// Hides keys in columns from here on (causal mask); `usize::MAX` hides none.
    pub limit: usize,
    /// Which keys are real rather than padding, `[kv]`.
    pub valid: Option<&'a [bool]>,
    /// Sliding window: the oldest position that the query sees, and the positions of the keys `[kv]`; keys before the
    /// window are hidden.
    pub oldest: Option<(i32, &'a [i32])>,
}

impl RowMask<'_> {
    /// Everything is visible.
    pub const NONE: RowMask<'static> = RowMask { limit: usize::MAX, valid: None, oldest: None };
}

/// Turns one row of raw scores `[kv]` into masked logits in place: hidden keys
/// get `-inf`.
///
/// # Panics
/// If a slice in `scores` or `mask` is shorter than `row`.
pub fn mask_scores(row: &mut [f32], scores: Scores, mask: RowMask) {
    mask_row(Isa::current(), row, scores, mask);
}

#[inline(always)]
fn mask_row_body<const FMA: bool>(row: &mut [f32], scores: Scores, mask: RowMask) {
    let kv = row.len();
    let (row, hidden) = row.split_at_mut(mask.limit.min(kv));
    hidden.fill(f32::NEG_INFINITY);
    match scores.soft_cap {
        None => row.iter_mut().for_each(|x| *x *= scores.scale),
        Some(cap) => {
            let inner = scores.scale / cap;
            row.iter_mut().for_each(|x| *x = cap * math::tanh::<FMA>(*x * inner));
        }
    }
    if let Some((slope, query, keys)) = scores.alibi {
        for (x, &key) in row.iter_mut().zip(&keys[..kv]) {
            *x += slope * key.wrapping_sub(query) as f32;
        }
    }
    if let Some(valid) = mask.valid {
        for (x, &valid) in row.iter_mut().zip(&valid[..kv]) {
            *x = if valid { *x } else { f32::NEG_INFINITY };
        }
    }
    if let Some((oldest, keys)) = mask.oldest {
        for (x, &key) in row.iter_mut().zip(&keys[..kv]) {
            *x = if key >= oldest { *x } else { f32::NEG_INFINITY };
        }
    }
}
