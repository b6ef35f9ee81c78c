//! Rows as integers of one or three 8-bit digits, in chunks of 256 values, for products with formats that have one
//! scale per 32 integers.

use super::blocks::{GROUP, SUPERBLOCK};
use super::digits::{exact_integers, take_digits};
use super::few_rows::Piece;
use super::groups::{GROUPS, PAIRS, place};
use super::rounding::{Rounding, rounded};

/// 256 values of a row: `x = scale * (256 * (256 * digit 0 + digit 1) + digit 2)`, with a scale per group of 32. A row
/// whose length is not a multiple of 256 is padded with zeros.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Chunk<const DIGITS: usize> {
    /// The digits of each pair of groups: the first 16 of both, and the last 16 of both.
    pub(crate) digits: [[[i8; 2 * GROUP]; PAIRS]; DIGITS],
    /// For each pair and each 32 bits of a vector, the sum of the eight integers whose products are added there, times
    /// a factor that depends on the weights.
    pub(crate) sums_of_eight: [[i32; 8]; PAIRS],
    /// The scale of each group, at its [`place`].
    pub(crate) scales: [f32; GROUPS],
    /// The sum of each group's values, at its [`place`], unless several chunks cover the same values.
    pub(crate) sums: [f32; GROUPS],
    /// Whether no other chunk covers the same values. In an exact row, chunks that cover the same values are summed,
    /// and they follow the chunks without others.
    pub(crate) only: bool,
    /// Index of the values that the chunk covers.
    number: usize,
}

impl<const DIGITS: usize> Chunk<DIGITS> {
    /// Makes a chunk of zeros.
    #[inline(always)]
    fn zeros(number: usize) -> Self {
        let digits = [[[0; 2 * GROUP]; PAIRS]; DIGITS];
        Self { digits, sums_of_eight: [[0; 8]; PAIRS], scales: [0.0; GROUPS], sums: [0.0; GROUPS], only: true, number }
    }

    /// Sets the values of a group. Sums of eight integers are multiplied by `sum_factor`.
    #[inline(always)]
    fn set(&mut self, group: usize, integers: &[i32; GROUP], scale: f32, sum_factor: i32) {
        self.scales[place(group)] = scale;
        let (pair, second) = (group / 2, group % 2);
        for (half, integers) in integers.as_chunks::<16>().0.iter().enumerate() {
            let mut left = *integers;
            for digits in self.digits.iter_mut().rev() {
                take_digits(&mut left, &mut digits[pair][GROUP * half + 16 * second..][..16]);
            }
            let to = &mut self.sums_of_eight[pair][4 * second..];
            for (integers, to) in integers.as_chunks::<4>().0.iter().zip(to) {
                *to += sum_factor * integers.iter().sum::<i32>();
            }
        }
    }
}

impl<const DIGITS: usize> Piece for Chunk<DIGITS> {
    fn number(&self) -> usize {
        self.number
    }
}

/// The values of each chunk; the last one is padded with zeros.
fn padded(x: &[f32]) -> impl Iterator<Item = [f32; SUPERBLOCK]> {
    x.chunks(SUPERBLOCK).map(|x| {
        let mut chunk = [0.0; SUPERBLOCK];
        chunk[..x.len()].copy_from_slice(x);
        chunk
    })
}

/// Rounds a row to 8 bits. `sum_factor`: see [`Chunk::sums_of_eight`].
#[inline(always)]
pub(crate) fn rounded_chunks(x: &[f32], rounding: Rounding, sum_factor: i32) -> Vec<Chunk<1>> {
    match rounding.block {
        SUPERBLOCK => round::<SUPERBLOCK>(x, rounding.half_sums, sum_factor),
        _ => round::<GROUP>(x, rounding.half_sums, sum_factor),
    }
}

#[inline(always)]
fn round<const N: usize>(x: &[f32], half_sums: bool, sum_factor: i32) -> Vec<Chunk<1>> {
    let mut row = Vec::with_capacity(x.len().div_ceil(SUPERBLOCK));
    for (number, x) in padded(x).enumerate() {
        let mut chunk = Chunk::zeros(number);
        for (block, x) in x.as_chunks::<N>().0.iter().enumerate() {
            let rounded = rounded(x);
            for (i, integers) in rounded.integers.as_chunks::<GROUP>().0.iter().enumerate() {
                let group = block * (N / GROUP) + i;
                chunk.set(group, &integers.map(i32::from), rounded.scale, sum_factor);
                chunk.sums[place(group)] = rounded.sum(integers, half_sums);
            }
        }
        row.push(chunk);
    }
    row
}

/// Converts a row for products as exact as in `f32`. `sum_factor`: see [`Chunk::sums_of_eight`]. `None` if a value is
/// not finite, or if the values of a group are too small or differ too much in magnitude.
#[inline(always)]
pub(crate) fn exact_chunks(x: &[f32], sum_factor: i32) -> Option<Vec<Chunk<3>>> {
    let mut row: Vec<Chunk<3>> = Vec::with_capacity(x.len().div_ceil(SUPERBLOCK));
    for (number, x) in padded(x).enumerate() {
        let first = row.len();
        for (group, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            let mut part = first;
            exact_integers(x, |integers, unit| {
                if part == row.len() {
                    row.push(Chunk::zeros(number));
                }
                row[part].set(group, integers, unit, sum_factor);
                part += 1;
            })?;
        }
        match &mut row[first..] {
            [] => {}
            [chunk] => {
                for (group, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                    chunk.sums[place(group)] = x.iter().sum();
                }
            }
            several => several.iter_mut().for_each(|chunk| chunk.only = false),
        }
    }
    row.sort_by_key(|chunk| !chunk.only);
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_its_own_unit() {
        let mut x = vec![1e-6; 300];
        x[..32].fill(1.0);
        x[40] = -1e3;
        let row = exact_chunks(&x, 0).unwrap();
        let numbers: Vec<usize> = row.iter().map(Piece::number).collect();
        assert_eq!(numbers, [1, 0, 0]);
        assert_eq!(row.iter().map(|chunk| chunk.only).collect::<Vec<_>>(), [true, false, false]);
        for (i, x) in x.iter().enumerate() {
            let (group, i_of_group) = (i % SUPERBLOCK / GROUP, i % GROUP);
            let at = GROUP * (i_of_group / 16) + 16 * (group % 2) + i_of_group % 16;
            let value = |chunk: &Chunk<3>| {
                let digits = chunk.digits.iter().map(|digits| f64::from(digits[group / 2][at]));
                digits.fold(0.0, |value, digit| 256.0 * value + digit) * f64::from(chunk.scales[place(group)])
            };
            let sum: f64 = row.iter().filter(|chunk| chunk.number == i / SUPERBLOCK).map(value).sum();
            assert!((sum - f64::from(*x)).abs() <= f64::from(x.abs()) * 2e-7, "{i}: {sum}, not {x}");
        }
    }
}
