//! Rows converted to integers of one or three 8-bit digits, for products with weights that are small integers.

use super::blocks::SUPERBLOCK;
use super::few_rows::Piece;
use super::rounding::{largest, rounded};

/// Number of runs in a superblock. A run has 16 values.
const RUNS: usize = 16;
/// Magnitudes are clipped to this fraction of the largest one before their mean is taken, so that a few large values do
/// not determine the mean.
const CLIP: f32 = 1.0 / 8.0;
/// Minimum mean of the clipped magnitudes, as a fraction of the largest magnitude, for which one part is exact enough.
/// The rounding errors, each at most 2⁻²³ of the largest magnitude, then add up to about 3e-7 of the sum of the
/// magnitudes.
const MEAN: f32 = 1.0 / 128.0;
/// Maximum number of parts of a superblock. Each part reduces the remainders by a factor of about 2²².
const MOST_PARTS: usize = 6;
/// Minimum of a superblock's largest magnitude: below it, the unit might not be a normal float.
const SMALLEST: f32 = 1.0 / (1_u128 << 100) as f32;

/// Values of a superblock as integers: `x = unit * (256 * (256 * digit 0 + digit 1) + digit 2)`. A superblock consists
/// of one part unless a few values are so large that the others would be rounded too much. Then the remainders of all
/// its values form further parts. All runs have the same unit, so small values are less exact if large ones are
/// multiplied only by weights near zero.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Part<const DIGITS: usize> {
    pub(crate) digits: [[i8; SUPERBLOCK]; DIGITS],
    /// Sums of each run's digits; even runs, then odd runs.
    pub(crate) digit_sums: [[i16; RUNS]; DIGITS],
    pub(crate) unit: f32,
    /// Index of the superblock.
    pub(crate) block: usize,
    /// Whether the superblock has only this part.
    pub(crate) only: bool,
}

impl<const DIGITS: usize> Part<DIGITS> {
    #[inline(always)]
    fn new(integers: &[i32; SUPERBLOCK], unit: f32, block: usize) -> Self {
        let (digits, digit_sums) = ([[0; SUPERBLOCK]; DIGITS], [[0; RUNS]; DIGITS]);
        let mut part = Self { digits, digit_sums, unit, block, only: true };
        let mut left = *integers;
        for digit in (0..DIGITS).rev() {
            take_digits(&mut left, &mut part.digits[digit]);
            for run in 0..RUNS {
                let mut sum = 0;
                for x in &part.digits[digit][16 * run..][..16] {
                    sum += i16::from(*x);
                }
                part.digit_sums[digit][place(run)] = sum;
            }
        }
        part
    }
}

impl<const DIGITS: usize> Piece for Part<DIGITS> {
    fn number(&self) -> usize {
        self.block
    }
}

/// Splits off the lowest digit of each integer.
#[inline(always)]
pub(crate) fn take_digits(left: &mut [i32], digits: &mut [i8]) {
    for (left, digit) in left.iter_mut().zip(digits) {
        *digit = *left as i8;
        *left = (*left - i32::from(*digit)) >> 8;
    }
}

/// Index of a run's sum in [`Part::digit_sums`]: even runs come first.
const fn place(run: usize) -> usize {
    run / 2 + run % 2 * 8
}

/// Rounds a row whose length is a multiple of [`SUPERBLOCK`] to 8 bits, as [`Rounding`](super::rounding::Rounding) does
/// with that block size.
#[inline(always)]
pub(crate) fn rounded_parts(x: &[f32]) -> Vec<Part<1>> {
    let mut parts = Vec::with_capacity(x.len() / SUPERBLOCK);
    for (block, x) in x.as_chunks::<SUPERBLOCK>().0.iter().enumerate() {
        let made = rounded(x);
        parts.push(Part::new(&made.integers.map(i32::from), made.scale, block));
    }
    parts
}

/// Converts a row whose length is a multiple of [`SUPERBLOCK`], for products as exact as in `f32`. `None` if a value is
/// not finite, or if the values of a superblock are too small or differ too much in magnitude.
#[inline(always)]
pub(crate) fn exact_parts(x: &[f32]) -> Option<Vec<Part<3>>> {
    let mut parts = Vec::with_capacity(x.len() / SUPERBLOCK);
    for (block, x) in x.as_chunks::<SUPERBLOCK>().0.iter().enumerate() {
        let first = parts.len();
        exact_integers(x, |integers, unit| parts.push(Part::new(integers, unit, block)))?;
        let only = parts.len() == first + 1;
        parts[first..].iter_mut().for_each(|part| part.only = only);
    }
    Some(parts)
}

/// Splits values into a sum of parts, each of which is integers times a unit, and calls `part` with the integers and
/// the unit of each. Does not call it if all values are zero. `None` if a value is not finite, or if the values are too
/// small or differ too much in magnitude.
#[inline(always)]
pub(crate) fn exact_integers<const N: usize>(x: &[f32; N], mut part: impl FnMut(&[i32; N], f32)) -> Option<()> {
    let mut left = *x;
    for count in 0.. {
        let (largest, enough) = range(&left)?;
        if largest < SMALLEST {
            // Remainders this small do not matter.
            return (largest == 0.0 || count > 0).then_some(());
        }
        if count == MOST_PARTS {
            return None;
        }
        let unit = unit_of(largest);
        part(&take_integers(&mut left, unit), unit);
        if enough {
            break;
        }
    }
    Some(())
}

/// The largest magnitude, and whether one part is exact enough for these values. `None` if a value is not finite.
#[inline(always)]
fn range<const N: usize>(x: &[f32; N]) -> Option<(f32, bool)> {
    let largest = largest(x)?;
    let (most, mut count, mut clipped) = (largest * CLIP, [0f32; 8], [0f32; 8]);
    for x in x.as_chunks::<8>().0 {
        for lane in 0..8 {
            let x = x[lane].abs();
            count[lane] += if x > 0.0 { 1.0 } else { 0.0 };
            clipped[lane] += if x < most { x } else { most };
        }
    }
    let (count, clipped): (f32, f32) = (count.iter().sum(), clipped.iter().sum());
    Some((largest, clipped >= count * MEAN * largest))
}

/// The smallest power of two for which the largest value, divided by it, fits into three digits.
#[inline(always)]
fn unit_of(largest: f32) -> f32 {
    // The digits are at most 127, so this is slightly less than 2²³.
    const MOST: f32 = (127 * 65536 + 127 * 256 + 127) as f32;
    let unit = f32::from_bits((largest.to_bits() & 0x7f80_0000) - (22 << 23));
    if largest > MOST * unit { 2.0 * unit } else { unit }
}

/// Rounds values to integers times the unit, and replaces the values with the remainders.
#[inline(always)]
fn take_integers<const N: usize>(x: &mut [f32; N], unit: f32) -> [i32; N] {
    // Adding this to a float below 2⁵¹ leaves the nearest integer in the low bits.
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0;
    let inverse = 1.0 / f64::from(unit);
    let mut integers = [0; N];
    for (x, integer) in x.iter_mut().zip(&mut integers) {
        *integer = (f64::from(*x) * inverse + TO_INTEGER).to_bits() as i32;
        *x -= *integer as f32 * unit;
    }
    integers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(part: &Part<3>, i: usize) -> f64 {
        let digits = part.digits.iter().fold(0.0, |value, digit| 256.0 * value + f64::from(digit[i]));
        digits * f64::from(part.unit)
    }

    #[test]
    fn parts_add_up_to_the_values() {
        let wave = |i: usize| ((i * 37 % 101) as f32 - 50.3) / 7.0;
        for (size, count, most) in [(1.0, 0, 1), (1e3, 2, 2), (1e6, 1, 3), (1e12, 3, 4), (-1e30, 1, 4), (0.0, 250, 1)] {
            let mut x: Vec<f32> = (0..2 * SUPERBLOCK).map(wave).collect();
            x[..count].iter_mut().for_each(|x| *x *= size);
            let parts = exact_parts(&x).unwrap();
            assert!(parts.iter().filter(|part| part.block == 0).count() <= most, "{size}: {} parts", parts.len());
            assert_eq!(parts.iter().filter(|part| part.block == 1).count(), 1);
            for (i, x) in x.iter().enumerate() {
                let of_block = parts.iter().filter(|part| part.block == i / SUPERBLOCK);
                let sum: f64 = of_block.map(|part| value(part, i % SUPERBLOCK)).sum();
                assert!((sum - f64::from(*x)).abs() <= 1e-6, "{size}: {sum}, not {x}");
            }
            for run in 0..RUNS {
                let part = &parts[parts.len() - 1];
                assert!(part.only);
                let digits: i16 = part.digits[0][16 * run..][..16].iter().map(|x| i16::from(*x)).sum();
                assert_eq!(part.digit_sums[0][place(run)], digits);
            }
        }
    }

    #[test]
    fn rows_without_digits_are_refused() {
        for wrong in [f32::NAN, f32::INFINITY, 1e-40] {
            assert!(exact_parts(&[wrong; SUPERBLOCK]).is_none());
        }
        assert!(exact_parts(&[0.0; SUPERBLOCK]).unwrap().is_empty());
        assert_eq!(exact_parts(&[f32::MAX; SUPERBLOCK]).unwrap().len(), 1);
    }
}
