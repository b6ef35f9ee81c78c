//! Element types of weight matrices: `f32`, or 16-bit floats that are widened as they are read.

use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// An element type of weight matrices.
pub trait Element: Copy + Default + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The value as `f32`, in code that the compiler can vectorize.
    fn widened(self) -> f32;

    /// Loads the lanes in the mask; the others are zero.
    ///
    /// # Safety
    /// `from` points to every element whose lane is set; the CPU has AVX-512 F, VL and BW.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load16(from: *const Self, lanes: __mmask16) -> __m512;

    /// Loads eight elements.
    ///
    /// # Safety
    /// `from` points to 8 elements; the CPU has AVX2 and F16C.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn load8(from: *const Self) -> __m256;
}

/// Two adjacent `bf16` along the inner axis, with the first in the low half. Only the bits matter; the `f32` value has
/// no meaning.
pub(crate) type Pair = f32;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// Loads the first `count` elements, followed by zeros.
///
/// # Safety
/// `from` points to at least `count` elements; the CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn load_first<T: Element>(from: *const T, count: usize) -> __m256 {
    let mut own = [T::default(); 8];
    // SAFETY: `from` has `count` elements (the contract), and at most 8 are written to `own`.
    unsafe { std::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), count.min(8)) };
    // SAFETY: eight elements; the contract guarantees the features.
    unsafe { T::load8(own.as_ptr()) }
}

impl Element for f32 {
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load16(from: *const Self, lanes: __mmask16) -> __m512 {
        // SAFETY: guaranteed by the contract.
        unsafe { _mm512_maskz_loadu_ps(lanes, from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load8(from: *const Self) -> __m256 {
        // SAFETY: guaranteed by the contract.
        unsafe { _mm256_loadu_ps(from) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load16(from: *const Self, lanes: __mmask16) -> __m512 {
        // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
        unsafe {
            let halves = _mm256_maskz_loadu_epi16(lanes, from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load8(from: *const Self) -> __m256 {
        // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
        unsafe {
            let halves = _mm_loadu_si128(from.cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, exponent, magnitude) = ((bits & 0x8000) << 16, bits & 0x7c00, bits & 0x7fff);
        // Rebias the exponent. Infinity and NaN keep the largest exponent.
        let bias = if exponent == 0x7c00 { 2 * (112 << 23) } else { 112 << 23 };
        let normal = (magnitude << 13) + bias;
        // Subnormal numbers: multiples of 2⁻²⁴.
        let small = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
        f32::from_bits(sign | if exponent == 0 { small } else { normal })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load16(from: *const Self, lanes: __mmask16) -> __m512 {
        // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from.cast())) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load8(from: *const Self) -> __m256 {
        // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = |ours: f32, theirs: f32| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
            assert!(same(half.widened(), half.to_f32()), "{bits:#06x}");
            assert!(same(brain.widened(), brain.to_f32()), "{bits:#06x}");
        }
    }
}
