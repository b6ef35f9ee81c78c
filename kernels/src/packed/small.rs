//! Blocks of 32 values with one scale.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array::from_fn;

#[cfg(target_arch = "x86_64")]
use super::blocks::{COUNTED, floats, look_up, nibbles, spread};
use super::blocks::{GROUP, Integers, Scales, half};
#[cfg(target_arch = "x86_64")]
use super::groups::Groups;

/// [`NONLINEAR`] as floats.
#[cfg(target_arch = "x86_64")]
pub(crate) const NONLINEAR_FLOATS: [f32; 16] = floats(NONLINEAR);

/// The table of `IQ4_NL` and `IQ4_XS`.
pub(crate) const NONLINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the 4-bit codes of `Q4_0`.
#[cfg(target_arch = "x86_64")]
const LESS_EIGHT: [f32; 16] = floats([-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]);

/// Twice the sixteen values of `MXFP4` (two exponent bits, one mantissa bit).
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The low four bits of 16 bytes, then the high four.
#[inline(always)]
pub(crate) fn nibbles_of(bytes: &[u8]) -> [u8; GROUP] {
    from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

/// Reads a little-endian `u32` of high bits.
#[inline(always)]
fn bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(from_fn(|i| block[at + i]))
}

/// [`E2M1`] as floats.
#[cfg(target_arch = "x86_64")]
const E2M1_FLOATS: [f32; 16] = floats(E2M1);

/// See [`Format`](super::Format), also for the other types here.
pub(crate) struct Q4_0;

impl Integers for Q4_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = false;
    const RANGE: (i32, i32) = (-8, 7);
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = Some((2, &LESS_EIGHT));

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        nibbles_of(&block[2..]).map(|x| x as i8 - 8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 16 of a block's 18 bytes.
        unsafe { _mm256_sub_epi8(nibbles(block.wrapping_add(2)), _mm256_set1_epi8(8)) }
    }
}

pub(crate) struct Q4_1;

impl Integers for Q4_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 20;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = true;
    const RANGE: (i32, i32) = (0, 15);
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = Some((4, &COUNTED));

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [-half::<F16C>(block, 2)] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        nibbles_of(&block[4..]).map(|x| x as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 16 of a block's 20 bytes.
        unsafe { nibbles(block.wrapping_add(4)) }
    }
}

/// Five-bit values: the low four bits start at `at`, and the fifth bits are stored in the 4 bytes before.
#[inline(always)]
fn five_bits(block: &[u8], at: usize) -> [i8; GROUP] {
    let (low, high) = (nibbles_of(&block[at..]), bits(block, at - 4));
    from_fn(|i| low[i] as i8 | ((high >> i & 1) << 4) as i8)
}

/// # Safety
/// `from` points to 20 bytes; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
unsafe fn load_five_bits(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the contract: 4 bytes, then 16; the rest is arithmetic on registers.
    unsafe {
        let high = spread(from.cast::<u32>().read_unaligned());
        _mm256_or_si256(nibbles(from.wrapping_add(4)), _mm256_and_si256(high, _mm256_set1_epi8(16)))
    }
}

pub(crate) struct Q5_0;

impl Integers for Q5_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 22;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = false;
    const RANGE: (i32, i32) = (-16, 15);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        five_bits(block, 6).map(|x| x - 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 20 of a block's 22 bytes.
        unsafe { _mm256_sub_epi8(load_five_bits(block.wrapping_add(2)), _mm256_set1_epi8(16)) }
    }
}

pub(crate) struct Q5_1;

impl Integers for Q5_1 {
    const VALUES: usize = 32;
    const BYTES: usize = 24;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = true;
    const RANGE: (i32, i32) = (0, 31);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [-half::<F16C>(block, 2)] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        five_bits(block, 8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 20 of a block's 24 bytes.
        unsafe { load_five_bits(block.wrapping_add(4)) }
    }
}

pub(crate) struct Q8_0;

impl Integers for Q8_0 {
    const VALUES: usize = 32;
    const BYTES: usize = 34;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = false;

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        from_fn(|i| block[2 + i] as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 32 of a block's 34 bytes.
        unsafe { _mm256_loadu_si256(block.wrapping_add(2).cast()) }
    }
}

pub(crate) struct Iq4Nl;

impl Integers for Iq4Nl {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = false;
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = Some((2, &NONLINEAR_FLOATS));

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        Scales { scale: [half::<F16C>(block, 0)], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        nibbles_of(&block[2..]).map(|x| NONLINEAR[usize::from(x)])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 16 of a block's 18 bytes.
        unsafe { look_up(&NONLINEAR, nibbles(block.wrapping_add(2))) }
    }
}

pub(crate) struct Mxfp4;

impl Integers for Mxfp4 {
    const VALUES: usize = 32;
    const BYTES: usize = 17;
    const RUN: usize = 32;
    type Runs = [f32; 1];
    const MINUS: bool = false;
    const RANGE: (i32, i32) = (-12, 12);
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = Some((1, &E2M1_FLOATS));

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        // Half of 2^(e - 127), because the table holds twice the values. The two smallest are subnormal.
        let scale = match block[0] {
            e @ 0..=1 => f32::from_bits(0x0020_0000 << e),
            e => f32::from_bits((u32::from(e) - 1) << 23),
        };
        Scales { scale: [scale], minus: [0.0] }
    }

    #[inline(always)]
    fn integers(block: &[u8], _: usize) -> [i8; GROUP] {
        nibbles_of(&block[1..]).map(|x| E2M1[usize::from(x)])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 16 of a block's 17 bytes.
        unsafe { look_up(&E2M1, nibbles(block.wrapping_add(1))) }
    }
}

/// [`E2M1`], minus the smallest value.
#[cfg(target_arch = "x86_64")]
const UNSIGNED_E2M1: [i8; 16] = {
    let mut unsigned = E2M1;
    let mut i = 0;
    while i < 16 {
        unsigned[i] -= Mxfp4::RANGE.0 as i8;
        i += 1;
    }
    unsigned
};

#[cfg(target_arch = "x86_64")]
macro_rules! groups {
    ($($type:ident)*) => {
        $(impl Groups for $type {
            const F16_SCALES: bool = true;
        })*
    };
}
#[cfg(target_arch = "x86_64")]
groups!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0);

#[cfg(target_arch = "x86_64")]
impl Groups for Iq4Nl {
    const F16_SCALES: bool = true;
    const TABLE: Option<&'static [i8; 16]> = Some(&NONLINEAR);
}

#[cfg(target_arch = "x86_64")]
impl Groups for Mxfp4 {
    const TABLE: Option<&'static [i8; 16]> = Some(&UNSIGNED_E2M1);
}
