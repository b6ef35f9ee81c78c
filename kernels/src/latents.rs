//! Activation functions of dictionaries (sparse autoencoders, transcoders), applied to rows of latents in place.

use crate::isa::{Isa, multiversion};
use crate::tasks::each_item;

/// Number of elements that are compared with the bound together.
const TOGETHER: usize = 16;

/// Which latents of a row keep their pre-activation; the others become zero. NaN is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep<'a> {
    /// Latents above zero (ReLU).
    Positive,
    /// Latents above their threshold (JumpReLU).
    Above {
        /// Thresholds, `[latents]`.
        thresholds: &'a [f32],
        /// Whether latents must also be above zero.
        positive: bool,
    },
    /// The k largest latents, dropping any that are not above zero (TopK). Ties go to the latent that comes first.
    Largest(usize),
    /// The k latents with the largest magnitude, keeping their signs. Ties go to the latent that comes first.
    Furthest(usize),
    /// The largest latent of each group, dropped if it is not above zero. The row is divided into the given number of
    /// groups of equal length.
    LargestOfEach(usize),
}

/// Applies the activation function to rows of `latents` elements.
///
/// ```
/// use hooklens_kernels::latents::{Keep, keep};
/// let mut acts = [3.0, -1.0, 2.0, 5.0];
/// keep(Keep::Largest(2), 4, &mut acts);
/// assert_eq!(acts, [3.0, 0.0, 0.0, 5.0]);
/// ```
///
/// # Panics
/// If `acts` does not consist of whole rows, there is not one threshold per latent, or the number of groups does not
/// divide `latents`.
pub fn keep(which: Keep<'_>, latents: usize, acts: &mut [f32]) {
    if acts.is_empty() {
        return;
    }
    assert_eq!(acts.len() % latents, 0, "`acts` must consist of whole rows");
    match which {
        Keep::Above { thresholds, .. } => assert_eq!(thresholds.len(), latents, "`thresholds` has the wrong length"),
        Keep::LargestOfEach(groups) => assert!(groups > 0 && latents.is_multiple_of(groups), "groups differ in length"),
        _ => {}
    }
    let isa = Isa::current();
    let rows = (acts.len() / latents).div_ceil(4 * rayon::current_num_threads()).max(1);
    each_item(acts.chunks_mut(rows * latents), |rows| {
        for row in rows.chunks_exact_mut(latents) {
            match which {
                Keep::Positive => positive(isa, row),
                Keep::Above { thresholds, positive } => above(isa, row, thresholds, positive),
                Keep::Largest(count) => largest(isa, row, count),
                Keep::Furthest(count) => furthest(isa, row, count),
                Keep::LargestOfEach(groups) => {
                    row.chunks_exact_mut(latents / groups).for_each(|group| largest(isa, group, 1));
                }
            }
        }
    });
}

multiversion! {
    fn positive(row: &mut [f32]) = positive_body
}

#[inline(always)]
fn positive_body<const FMA: bool>(row: &mut [f32]) {
    row.iter_mut().for_each(|x| *x = if *x <= 0.0 { 0.0 } else { *x });
}

multiversion! {
    fn above(row: &mut [f32], thresholds: &[f32], positive: bool) = above_body
}

#[inline(always)]
fn above_body<const FMA: bool>(row: &mut [f32], thresholds: &[f32], positive: bool) {
    let least = if positive { 0.0 } else { f32::NEG_INFINITY };
    for (x, threshold) in row.iter_mut().zip(thresholds) {
        *x = if *x <= threshold.max(least) { 0.0 } else { *x };
    }
}

/// The `count`-th largest of the positive values, or zero if there are fewer. NaN counts as larger than any number.
///
/// ```
/// use hooklens_kernels::latents::bound;
/// assert_eq!(bound(&[1.0, 5.0, -2.0, 3.0], 2), 3.0);
/// assert_eq!(bound(&[1.0, 5.0, -2.0, 3.0], 4), 0.0);
/// ```
pub fn bound(values: &[f32], count: usize) -> f32 {
    if count == 0 {
        return f32::INFINITY;
    }
    let (isa, mut bound) = (Isa::current(), 0.0);
    let mut candidates = Vec::with_capacity(2 * count + TOGETHER);
    for chunk in values.chunks(64 * TOGETHER) {
        bound = candidates_above(isa, chunk, count, bound, &mut candidates);
    }
    match candidates.len() < count {
        true => 0.0,
        false => nth(&mut candidates, count),
    }
}

/// The `count`-th largest magnitude of at least `count` values.
fn nth(values: &mut [f32], count: usize) -> f32 {
    *values.select_nth_unstable_by(count - 1, |a, b| b.abs().total_cmp(&a.abs())).1
}

multiversion! {
    /// Collects values above the bound. Once there are `2 * count`, only the largest are kept and the bound is raised.
    fn candidates_above(values: &[f32], count: usize, bound: f32, candidates: &mut Vec<f32>) -> f32 = candidates_body
}

#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN exceeds any bound")]
fn candidates_body<const FMA: bool>(values: &[f32], count: usize, bound: f32, candidates: &mut Vec<f32>) -> f32 {
    let mut bound = bound;
    for chunk in values.chunks(TOGETHER) {
        if chunk.iter().fold(true, |none, x| none & (*x <= bound)) {
            continue;
        }
        candidates.extend(chunk.iter().filter(|x| !(**x <= bound)));
        if candidates.len() >= 2 * count {
            bound = nth(candidates, count);
            candidates.truncate(count);
        }
    }
    bound
}

multiversion! {
    fn largest(row: &mut [f32], count: usize) = largest_body
}

#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN exceeds any bound")]
fn largest_body<const FMA: bool>(row: &mut [f32], count: usize) {
    let least = bound(row, count);
    if least == 0.0 {
        return positive_body::<FMA>(row);
    }
    let more = row.iter().map(|x| usize::from(!(*x <= least))).sum::<usize>();
    let mut equal = count - more.min(count);
    for x in row.iter_mut() {
        // NaN equals nothing. If the bound is NaN, all numbers are zeroed.
        if *x == least && equal > 0 {
            equal -= 1;
        } else if *x <= least || (least.is_nan() && !x.is_nan()) {
            *x = 0.0;
        }
    }
}

/// Finds the largest magnitudes, then restores the signs.
fn furthest(isa: Isa, row: &mut [f32], count: usize) {
    let mut sizes: Vec<f32> = row.iter().map(|x| x.abs()).collect();
    largest(isa, &mut sizes, count);
    for (x, size) in row.iter_mut().zip(sizes) {
        *x = if size == 0.0 { 0.0 } else { *x };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::with_isa;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Draws from few distinct values, so that some are equal.
            ((state >> 24) as f32 - 128.0) / 16.0
        };
        (0..count).map(next).collect()
    }

    /// Reference by sorting: the largest positive values; among equal ones, the first.
    fn sorted(row: &[f32], count: usize) -> Vec<f32> {
        let mut order: Vec<usize> = (0..row.len()).filter(|at| row[*at] > 0.0).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        let mut kept = vec![0.0; row.len()];
        order.iter().take(count).for_each(|at| kept[*at] = row[*at]);
        kept
    }

    #[test]
    fn the_largest_are_those_that_sorting_finds() {
        for (latents, count) in [(1, 1), (7, 3), (300, 5), (300, 200), (300, 1000), (2000, 32), (64, 0)] {
            let given = numbers(3 * latents, latents as u32);
            let expected: Vec<f32> = given.chunks_exact(latents).flat_map(|row| sorted(row, count)).collect();
            for isa in Isa::available() {
                let mut acts = given.clone();
                with_isa(*isa, || keep(Keep::Largest(count), latents, &mut acts));
                assert_eq!(acts, expected, "{count} of {latents}");
            }
        }
        let (given, mut acts) = (numbers(60, 1), numbers(60, 1));
        keep(Keep::LargestOfEach(5), 30, &mut acts);
        let expected: Vec<f32> = given.chunks_exact(6).flat_map(|group| sorted(group, 1)).collect();
        assert_eq!(acts, expected);
    }

    #[test]
    fn the_furthest_keep_their_signs() {
        let mut acts = [3.0, -4.0, 0.5, -0.5, f32::NAN, 0.0];
        keep(Keep::Furthest(3), 6, &mut acts);
        assert_eq!(acts.map(f32::to_bits), [3.0, -4.0, 0.0, 0.0, f32::NAN, 0.0].map(f32::to_bits));
    }

    #[test]
    fn thresholds_are_strict_and_nan_is_kept() {
        let given = [-1.0, 0.0, 0.5, 0.6, f32::NAN, -0.1];
        let run = |which| {
            let mut acts = given;
            keep(which, 6, &mut acts);
            acts.map(|x| x.to_bits())
        };
        let bits = |acts: [f32; 6]| acts.map(f32::to_bits);
        let thresholds = [0.5, 0.5, 0.5, 0.5, 0.5, -0.2];
        let nan = f32::NAN;
        assert_eq!(run(Keep::Positive), bits([0.0, 0.0, 0.5, 0.6, nan, 0.0]));
        let above = |positive| Keep::Above { thresholds: &thresholds, positive };
        assert_eq!(run(above(true)), bits([0.0, 0.0, 0.0, 0.6, nan, 0.0]));
        assert_eq!(run(above(false)), bits([0.0, 0.0, 0.0, 0.6, nan, -0.1]));
        assert_eq!(run(Keep::Largest(2)), bits([0.0, 0.0, 0.0, 0.6, nan, 0.0]));
        assert_eq!(run(Keep::Largest(1)), bits([0.0, 0.0, 0.0, 0.0, nan, 0.0]));
    }
}
