//! Rows as integers of one or three 8-bit digits, in octets of groups, for products with formats that have one scale
//! per 32 integers.

use super::blocks::{GROUP, SUPERBLOCK};
use super::digits::exact_integers;
use super::few_rows::Piece;
use super::groups::{OCTET, PAIRS};
use super::rounding::{Rounding, rounded};

/// 256 values of a row: `x = scale * (256 * (256 * digit 0 + digit 1) + digit 2)`. A row whose length is not a multiple
/// of 256 ends with zeros.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Octet<const DIGITS: usize> {
    /// The digits of each pair of groups: the first 16 of both, and the last 16 of both.
    pub(crate) digits: [[[i8; 2 * GROUP]; PAIRS]; DIGITS],
    /// For each pair and each 32 bits of a vector, the sum of the integers whose products are added there, times
    /// [`Groups::LEAST`](super::groups::Groups::LEAST).
    pub(crate) of_least: [[i32; 8]; PAIRS],
    /// The scale of each group.
    pub(crate) scales: [f32; OCTET],
    /// The sum of each group's values.
    pub(crate) sums: [f32; OCTET],
    /// Index of the octet. An exact row can have several for the same values, which are added up.
    pub(crate) number: usize,
}

impl<const DIGITS: usize> Octet<DIGITS> {
    /// Makes an octet without scales and sums. `least` is what was subtracted from weights.
    #[inline(always)]
    fn new(integers: &[i32; SUPERBLOCK], least: i32, number: usize) -> Self {
        let mut octet = Self {
            digits: [[[0; 2 * GROUP]; PAIRS]; DIGITS],
            of_least: [[0; 8]; PAIRS],
            scales: [0.0; OCTET],
            sums: [0.0; OCTET],
            number,
        };
        for (group, integers) in integers.as_chunks::<GROUP>().0.iter().enumerate() {
            let (pair, second) = (group % PAIRS, group / PAIRS);
            for (half, integers) in integers.as_chunks::<16>().0.iter().enumerate() {
                let mut left = *integers;
                for digits in octet.digits.iter_mut().rev() {
                    let to = &mut digits[pair][GROUP * half + 16 * second..][..16];
                    for (left, to) in left.iter_mut().zip(to) {
                        *to = *left as i8;
                        *left = (*left - i32::from(*to)) >> 8;
                    }
                }
                for (four, to) in integers.as_chunks::<4>().0.iter().zip(&mut octet.of_least[pair][4 * second..]) {
                    *to += least * four.iter().sum::<i32>();
                }
            }
        }
        octet
    }
}

impl<const DIGITS: usize> Piece for Octet<DIGITS> {
    fn number(&self) -> usize {
        self.number
    }
}

/// The values of each octet; the last one is filled up with zeros.
fn octets(x: &[f32]) -> impl Iterator<Item = [f32; SUPERBLOCK]> {
    x.chunks(SUPERBLOCK).map(|x| {
        let mut octet = [0.0; SUPERBLOCK];
        octet[..x.len()].copy_from_slice(x);
        octet
    })
}

/// Rounds a row to 8 bits.
#[inline(always)]
pub(crate) fn rounded_octets(x: &[f32], rounding: Rounding, least: i32) -> Vec<Octet<1>> {
    match rounding.block {
        SUPERBLOCK => round::<SUPERBLOCK>(x, rounding.half_sums, least),
        _ => round::<GROUP>(x, rounding.half_sums, least),
    }
}

#[inline(always)]
fn round<const N: usize>(x: &[f32], half_sums: bool, least: i32) -> Vec<Octet<1>> {
    let mut row = Vec::with_capacity(x.len().div_ceil(SUPERBLOCK));
    for (number, x) in octets(x).enumerate() {
        let (mut integers, mut scales, mut sums) = ([0; SUPERBLOCK], [0.0; OCTET], [0.0; OCTET]);
        for (block, x) in x.as_chunks::<N>().0.iter().enumerate() {
            let made = rounded(x);
            for (i, of_group) in made.integers.as_chunks::<GROUP>().0.iter().enumerate() {
                let group = block * (N / GROUP) + i;
                scales[group] = made.scale;
                sums[group] = made.sum(of_group, half_sums);
                for (to, integer) in integers[GROUP * group..].iter_mut().zip(of_group) {
                    *to = i32::from(*integer);
                }
            }
        }
        row.push(Octet { scales, sums, ..Octet::new(&integers, least, number) });
    }
    row
}

/// Converts a row for products as exact as in `f32`. `None` if a value is not finite, if values are too small, or if
/// values in an octet differ too much in magnitude. If `alone`, each octet must be exact enough as a single one.
#[inline(always)]
pub(crate) fn exact_octets(x: &[f32], least: i32, alone: bool) -> Option<Vec<Octet<3>>> {
    let mut row: Vec<Octet<3>> = Vec::with_capacity(x.len().div_ceil(SUPERBLOCK));
    for (number, x) in octets(x).enumerate() {
        let first = row.len();
        exact_integers(&x, |integers, unit| {
            row.push(Octet { scales: [unit; OCTET], ..Octet::new(integers, least, number) });
        })?;
        if alone && row.len() > first + 1 {
            return None;
        }
        if let Some(octet) = row.get_mut(first) {
            for (to, x) in octet.sums.iter_mut().zip(x.as_chunks::<GROUP>().0) {
                *to = x.iter().sum();
            }
        }
    }
    Some(row)
}
