//! Numbers of 16 bits to 32, and back.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::element::Element;
use crate::isa::{Isa, multiversion};
use crate::tasks::each_item;

/// Elements per task; shorter inputs stay on the calling thread.
const CHUNK: usize = 64 * 1024;

/// Runs `kernel` on chunks of both in parallel.
fn in_chunks<A: Sync, B: Send>(from: &[A], to: &mut [B], kernel: impl Fn(&[A], &mut [B]) + Send + Sync) {
    assert_eq!(from.len(), to.len(), "lengths differ");
    if from.len() <= CHUNK {
        return kernel(from, to);
    }
    each_item(from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)), |(from, to)| kernel(from, to));
}

#[inline(always)]
fn widen_body<const FMA: bool, T: Element>(from: &[T], to: &mut [f32]) {
    from.iter().zip(to).for_each(|(x, slot)| *slot = x.widened());
}
multiversion! { fn widen_kernel<T: Element>(from: &[T], to: &mut [f32]) = widen_body }

/// Every element in 32 bits.
///
/// # Panics
/// If the lengths differ.
pub fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    let isa = Isa::current();
    in_chunks(from, to, |from, to| widen_kernel(isa, from, to));
}

#[inline(always)]
fn narrow_body<const FMA: bool>(from: &[f32], to: &mut [bf16]) {
    for (x, slot) in from.iter().zip(to) {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // What is no number stays so: its first bit behind the point is set.
        let silent = bits >> 16 | 0x40;
        *slot = bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { silent } else { rounded } as u16);
    }
}
multiversion! { fn narrow_kernel(from: &[f32], to: &mut [bf16]) = narrow_body }

/// Every element rounded to `bf16`, halves to even.
///
/// # Panics
/// If the lengths differ.
pub fn to_bf16(from: &[f32], to: &mut [bf16]) {
    let isa = Isa::current();
    in_chunks(from, to, |from, to| narrow_kernel(isa, from, to));
}

/// Every element rounded to `f16`, halves to even.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(from: &[f32], to: &mut [f16]) {
    in_chunks(from, to, |from, to| to.convert_from_f32_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_half_rounds_them() {
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
    }
}
