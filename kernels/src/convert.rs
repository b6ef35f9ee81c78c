//! Conversion between 16-bit floats and `f32`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::Element;
use crate::isa::{Isa, Level, multiversion};
use crate::tasks::each_chunk;

/// Elements per task; shorter inputs stay on the calling thread.
const CHUNK: usize = 64 * 1024;

/// [`widen`] on the calling thread.
fn widen_kernel<T: Element>(isa: Isa, from: &[T], to: &mut [f32]) {
    match isa.level() {
        // SAFETY: the level proves the CPU features, and `each_chunk` ensures equal lengths.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::widen16(from, to) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::widen8(from, to) },
        _ => from.iter().zip(to).for_each(|(x, slot)| *slot = x.widened()),
    }
}

/// Converts every element to `f32`.
///
/// # Panics
/// If the lengths differ.
pub fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    let isa = Isa::current();
    each_chunk(from, to, CHUNK, |from, to| widen_kernel(isa, from, to));
}

#[inline(always)]
fn narrow_body<const FMA: bool>(from: &[f32], to: &mut [bf16]) {
    for (x, slot) in from.iter().zip(to) {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Set the first mantissa bit, so that a NaN stays a NaN.
        let silent = bits >> 16 | 0x40;
        *slot = bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { silent } else { rounded } as u16);
    }
}
multiversion! { fn narrow_kernel(from: &[f32], to: &mut [bf16]) = narrow_body }

/// Rounds every element to `bf16`, ties to even.
///
/// # Panics
/// If the lengths differ.
pub fn to_bf16(from: &[f32], to: &mut [bf16]) {
    let isa = Isa::current();
    each_chunk(from, to, CHUNK, |from, to| narrow_kernel(isa, from, to));
}

/// Rounds every element to `f16`, ties to even.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(from: &[f32], to: &mut [f16]) {
    let isa = Isa::current();
    each_chunk(from, to, CHUNK, |from, to| match isa.level() {
        // SAFETY: the level proves the CPU features, and `each_chunk` ensures equal lengths.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Avx2 => unsafe { x86::to_f16(from, to) },
        _ => to.convert_from_f32_slice(from),
    });
}

/// Conversions by CPU instructions. For `f16`, they are many times faster than bit arithmetic.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// # Safety
    /// The lengths agree; the CPU has AVX-512 F, VL and BW.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw")]
    pub(super) unsafe fn widen16<T: Element>(from: &[T], to: &mut [f32]) {
        for (from, to) in from.chunks(16).zip(to.chunks_mut(16)) {
            let lanes: __mmask16 = 0xffff >> (16 - from.len());
            // SAFETY: masked to the elements that exist in both.
            let wide = unsafe { T::load16(from.as_ptr(), lanes) };
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, wide) };
        }
    }

    /// # Safety
    /// The lengths agree; the CPU has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn widen8<T: Element>(from: &[T], to: &mut [f32]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
        for (from, to) in from.iter().zip(to) {
            // SAFETY: eight elements.
            let wide = unsafe { T::load8(from.as_ptr()) };
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), wide) };
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = from.widened());
    }

    /// # Safety
    /// The lengths agree; the CPU has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn to_f16(from: &[f32], to: &mut [f16]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
        for (from, to) in from.iter().zip(to) {
            // SAFETY: eight floats.
            let wide = unsafe { _mm256_loadu_ps(from.as_ptr()) };
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
            // SAFETY: eight 16-bit floats.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), halves) };
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = f16::from_f32(*from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_half_rounds_them() {
        Isa::available().iter().for_each(|isa| crate::isa::with_isa(*isa, check));
    }

    fn check() {
        let mut numbers: Vec<f32> = (0..100_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        numbers.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE]);
        numbers.extend((0..=u16::MAX).map(|i| f32::from_bits(u32::from(i) << 16 | 0x8000)));
        let (mut brain, mut half) = (vec![bf16::ZERO; numbers.len()], vec![f16::ZERO; numbers.len()]);
        to_bf16(&numbers, &mut brain);
        to_f16(&numbers, &mut half);
        for (i, x) in numbers.iter().enumerate() {
            assert!(brain[i] == bf16::from_f32(*x) || x.is_nan() && brain[i].is_nan(), "{x:e}");
            assert!(half[i] == f16::from_f32(*x) || x.is_nan() && half[i].is_nan(), "{x:e}");
        }
        let mut wide = vec![0.0; numbers.len()];
        widen(&brain, &mut wide);
        assert!(wide.iter().zip(&brain).all(|(wide, x)| *wide == x.to_f32() || x.is_nan()));
        widen(&half, &mut wide);
        assert!(wide.iter().zip(&half).all(|(wide, x)| *wide == x.to_f32() || x.is_nan()));
    }
}
