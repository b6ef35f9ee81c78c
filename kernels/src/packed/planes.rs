//! A row of floats converted to 30-bit integers, for products with weights that are small integers.

use std::arch::x86_64::*;

use super::blocks::GROUP;

/// Bits of an integer without its sign.
const BITS: i32 = 29;
/// Bits of the low part.
pub(crate) const LOW: i32 = 15;
/// A value is comparable to the largest one if it is above this fraction of it. The rounding error of every value is at
/// most 2⁻³⁰ of the largest one.
const COMPARABLE: f32 = 1.0 / 2048.0;
/// At least one value in this many must be comparable to the largest one. With fewer, the rounding errors of small
/// values would matter wherever the large values are multiplied by weights of zero.
const ONE_IN: usize = 4;

/// A row `x` as integers: `x = unit * (high * 2^LOW + low)`, with rounding.
pub(crate) struct Planes {
    pub(crate) groups: Vec<Group>,
    /// A power of two.
    pub(crate) unit: f32,
    /// Sums of the floats, per group.
    pub(crate) sums: Vec<f32>,
}

/// The high and low parts of 32 values.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Group {
    high: [i16; GROUP],
    low: [i16; GROUP],
}

impl Planes {
    /// Converts a row whose length is a multiple of [`GROUP`]. `None` if integers of this size would not be exact
    /// enough: if the row has values that are not finite, only zeros, or a few values that are much larger than all
    /// others.
    #[target_feature(enable = "avx2")]
    pub(crate) fn new(x: &[f32]) -> Option<Self> {
        assert!(x.len().is_multiple_of(GROUP));
        let largest = lanes(x, |largest: f32, x| largest.max(x.abs())).into_iter().fold(0.0, f32::max);
        // `max` skips NaN, and the sum does not.
        let total: f32 = lanes(x, |total, x| total + x.abs()).iter().sum();
        let comparable = lanes(x, |count, x| if x.abs() > largest * COMPARABLE { count + 1.0 } else { count });
        let comparable: f32 = comparable.iter().sum();
        let fits = total.is_finite() && comparable as usize >= x.len() / ONE_IN;
        let exponent = (largest.to_bits() >> 23) as i32 - 126;
        // Powers of two that are normal floats, with a margin for the products.
        if !fits || !(-60..=120).contains(&exponent) {
            return None;
        }
        let power = |exponent: i32| f32::from_bits(((127 + exponent) as u32) << 23);
        let factor = _mm256_set1_ps(power(BITS - exponent));
        let mut groups = vec![Group { high: [0; GROUP], low: [0; GROUP] }; x.len() / GROUP];
        for (x, group) in x.as_chunks::<GROUP>().0.iter().zip(&mut groups) {
            for half in 0..2 {
                // Closures given to `map` would not be inlined here, because `map` lacks the CPU features.
                let eight = |at: usize| {
                    // SAFETY: eight floats of the group.
                    let x = unsafe { _mm256_loadu_ps(x[16 * half + at..][..8].as_ptr()) };
                    _mm256_cvtps_epi32(_mm256_mul_ps(x, factor))
                };
                let top = |x| _mm256_srai_epi32::<LOW>(_mm256_add_epi32(x, _mm256_set1_epi32(1 << (LOW - 1))));
                let rest = |x| _mm256_sub_epi32(x, _mm256_slli_epi32::<LOW>(top(x)));
                let (first, second) = (eight(0), eight(8));
                let (high, low) = (&mut group.high, &mut group.low);
                for (plane, first, second) in [(high, top(first), top(second)), (low, rest(first), rest(second))] {
                    // Packing works on halves of registers.
                    let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(first, second));
                    let to = plane[16 * half..][..16].as_mut_ptr();
                    // SAFETY: sixteen integers of 16 bits.
                    unsafe { _mm256_storeu_si256(to.cast(), packed) };
                }
            }
        }
        let sums = x.as_chunks::<GROUP>().0.iter().map(|x| lanes(x, |sum, x| sum + x).iter().sum()).collect();
        Some(Self { groups, unit: power(exponent - BITS), sums })
    }
}

/// Combines every eighth value, so that the compiler uses vectors.
#[inline(always)]
fn lanes(x: &[f32], with: impl Fn(f32, f32) -> f32) -> [f32; 8] {
    let mut lanes = [0.0; 8];
    for x in x.as_chunks::<8>().0 {
        lanes.iter_mut().zip(x).for_each(|(lane, x)| *lane = with(*lane, *x));
    }
    lanes
}
