//! Blocks for other published formats: 32 values, an `f32` scale, and the additional fields of each format.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array::from_fn;

use super::blocks::{Blocks, GROUP, Integers, Scales};
#[cfg(target_arch = "x86_64")]
use super::blocks::{named, nibbles};
#[cfg(target_arch = "x86_64")]
use super::groups::Groups;
use super::small::nibbles_of;

/// The scale at the start of a block.
#[inline(always)]
fn scale(block: &[u8]) -> f32 {
    f32::from_le_bytes(from_fn(|i| block[i]))
}

/// See [`Format`](super::Format), also for the other types here.
pub(crate) struct Zeroed4;

impl Integers for Zeroed4 {
    const VALUES: usize = 32;
    const BYTES: usize = 21;
    const RUN: usize = 32;
    const MINUS: bool = false;
    type Runs = [f32; 1];

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [scale(block)], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        nibbles_of(&block[5..]).map(|x| (x as i8).wrapping_sub(block[4] as i8))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 17 of a block's 21 bytes.
        unsafe {
            let zero = _mm256_set1_epi8(*block.wrapping_add(4) as i8);
            _mm256_sub_epi8(nibbles(block.wrapping_add(5)), zero)
        }
    }
}

pub(crate) struct Zeroed8;

impl Integers for Zeroed8 {
    const VALUES: usize = 32;
    const BYTES: usize = 38;
    const RUN: usize = 32;
    const MINUS: bool = true;
    type Runs = [f32; 1];

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        let zero = i16::from_le_bytes([block[4], block[5]]);
        Scales { scale: [scale(block)], minus: [scale(block) * f32::from(zero)] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        from_fn(|i| block[6 + i] as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 32 of a block's 38 bytes.
        unsafe { _mm256_loadu_si256(block.wrapping_add(6).cast()) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Groups for Zeroed4 {}

#[cfg(target_arch = "x86_64")]
impl Groups for Zeroed8 {}

/// The values of `NF4`: quantiles of a normal distribution.
pub(super) const NORMAL: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of `FP4`.
pub(super) const FLOATING: [f32; 16] = {
    let positive = [0.0, 0.005_208_333_5, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25];
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        all[i] = positive[i];
        // The ninth value is also zero, not negative zero.
        all[8 + i] = if i == 0 { 0.0 } else { -positive[i] };
        i += 1;
    }
    all
};

/// Defines blocks of a scale and 4-bit codes that index a table.
macro_rules! of_table {
    ($name:ident, $table:ident) => {
        pub(crate) struct $name;

        impl Blocks for $name {
            const VALUES: usize = 32;
            const BYTES: usize = 20;
            type Runs = [f32; 1];

            #[inline(always)]
            fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
                Scales { scale: [scale(block)], minus: [0.0] }
            }

            #[inline(always)]
            fn numbers(block: &[u8], scales: &Scales<Self::Runs>, _: usize) -> [f32; GROUP] {
                nibbles_of(&block[4..]).map(|code| $table[usize::from(code)] * scales.scale[0])
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
            unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2] {
                // SAFETY: the table, and the last 16 of a block's 20 bytes.
                unsafe {
                    let table = _mm512_mul_ps(_mm512_loadu_ps($table.as_ptr()), _mm512_set1_ps(scales.scale[0]));
                    named(block.wrapping_add(4), table)
                }
            }
        }
    };
}
of_table!(Nf4, NORMAL);
of_table!(Fp4, FLOATING);

pub(crate) struct E4m3;

/// 2¹²⁰, which corrects the exponent of an `E4M3` whose bits were shifted into place in an `f32`.
const RAISED: f32 = f32::from_bits(247 << 23);

/// Decodes an 8-bit float with four exponent and three mantissa bits, and scales it. NaN (all bits but the sign set)
/// stays NaN.
#[inline(always)]
pub fn e4m3(bits: u8, scale: f32) -> f32 {
    let bits = u32::from(bits);
    let number = f32::from_bits((bits & 0x80) << 24 | (bits & 0x7f) << 20) * RAISED;
    if bits & 0x7f == 0x7f { f32::NAN } else { number * scale }
}

impl Blocks for E4m3 {
    const VALUES: usize = 32;
    const BYTES: usize = 36;
    type Runs = [f32; 1];

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [scale(block)], minus: [0.0] }
    }

    #[inline(always)]
    fn numbers(block: &[u8], scales: &Scales<Self::Runs>, _: usize) -> [f32; GROUP] {
        from_fn(|i| e4m3(block[4 + i], scales.scale[0]))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2] {
        // SAFETY: the last 32 of a block's 36 bytes; the rest is arithmetic on registers.
        unsafe {
            let mut numbers = [_mm512_setzero_ps(); 2];
            for (half, numbers) in numbers.iter_mut().enumerate() {
                let bits = _mm512_cvtepu8_epi32(_mm_loadu_si128(block.wrapping_add(4 + 16 * half).cast()));
                let magnitude = _mm512_and_epi32(bits, _mm512_set1_epi32(0x7f));
                let sign = _mm512_slli_epi32::<24>(_mm512_and_epi32(bits, _mm512_set1_epi32(0x80)));
                let raised = _mm512_or_epi32(sign, _mm512_slli_epi32::<20>(magnitude));
                let number = _mm512_mul_ps(_mm512_castsi512_ps(raised), _mm512_set1_ps(RAISED));
                let none = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
                let scaled = _mm512_mul_ps(number, _mm512_set1_ps(scales.scale[0]));
                *numbers = _mm512_mask_mov_ps(scaled, none, _mm512_set1_ps(f32::NAN));
            }
            numbers
        }
    }
}
