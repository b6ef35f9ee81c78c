//! Code shared by the block formats: small integers, with a scale and an offset.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

/// Maximum number of values that share a scale. Rows are decoded in runs of this length.
pub const GROUP: usize = 32;
/// Number of values in a superblock.
pub(crate) const SUPERBLOCK: usize = 256;

/// Scales and offsets of a block's runs: value = `scale` · integer − `minus`.
#[derive(Clone, Copy)]
pub(crate) struct Scales<Runs> {
    pub(crate) scale: Runs,
    pub(crate) minus: Runs,
}

/// A block format. Byte slices passed to it are whole blocks.
pub(crate) trait Blocks: Sized + 'static {
    /// Values per block: 32 (one group) or 256 (eight groups).
    const VALUES: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// An array with one value per run.
    type Runs: Copy + AsRef<[f32]>;

    /// Scales and offsets of the block. `F16C`: whether the CPU has F16C and AVX2.
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs>;

    /// Decodes one group of values.
    fn numbers(block: &[u8], scales: &Scales<Self::Runs>, group: usize) -> [f32; GROUP];

    /// Decodes group `G` to vectors of 8.
    ///
    /// # Safety
    /// `block` points to a block that has a group `G`; the CPU has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn numbers8<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m256; 4] {
        // SAFETY: a whole block (the contract).
        let block = unsafe { std::slice::from_raw_parts(block, Self::BYTES) };
        // SAFETY: both are 32 floats, for which any bit pattern is valid.
        unsafe { std::mem::transmute(Self::numbers(block, scales, G)) }
    }

    /// Decodes group `G` to vectors of 16.
    ///
    /// # Safety
    /// As for [`Blocks::numbers8`]; the CPU has AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2];
}

/// A block format that stores small integers.
pub(crate) trait Integers: Sized + 'static {
    /// See [`Blocks::VALUES`].
    const VALUES: usize;
    /// See [`Blocks::BYTES`].
    const BYTES: usize;
    /// Values per run, which share a scale: 16 or 32.
    const RUN: usize;
    /// Whether values have an offset (`minus`).
    const MINUS: bool;
    /// The smallest and the largest integer that a block can contain.
    const RANGE: (i32, i32) = (i8::MIN as i32, i8::MAX as i32);
    /// See [`Blocks::Runs`].
    type Runs: Copy + AsRef<[f32]>;
    /// For formats that store 4-bit codes with one scale per group: byte offset of the first group's codes (16 bytes
    /// per group, consecutive), and the value of each code.
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = None;

    /// See [`Blocks::scales`].
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs>;

    /// The integers of a group of 32.
    fn integers(block: &[u8], group: usize) -> [i8; GROUP];

    /// Loads the integers of group `G`.
    ///
    /// # Safety
    /// As for [`Blocks::numbers8`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i;

    /// See [`Blocks::numbers16`].
    ///
    /// # Safety
    /// As for [`Blocks::numbers16`].
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2] {
        match Self::CODES {
            // SAFETY: the 16 bytes of a group of the block (the contract).
            Some((at, integers)) => unsafe {
                named(block.wrapping_add(at + 16 * G), sixteen::<Self>(integers, scales, G))
            },
            // SAFETY: guaranteed by the contract.
            None => unsafe { widened::<Self, G>(block, scales) },
        }
    }
}

impl<B: Integers> Blocks for B {
    const VALUES: usize = B::VALUES;
    const BYTES: usize = B::BYTES;
    type Runs = B::Runs;

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        B::scales::<F16C>(block)
    }

    #[inline(always)]
    fn numbers(block: &[u8], scales: &Scales<Self::Runs>, group: usize) -> [f32; GROUP] {
        let integers = B::integers(block, group);
        std::array::from_fn(|i| {
            let run = run_of::<B>(group, i / 16);
            scales.scale.as_ref()[run] * f32::from(integers[i]) - scales.minus.as_ref()[run]
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn numbers8<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m256; 4] {
        // SAFETY: guaranteed by the contract.
        unsafe { widened8::<B, G>(block, scales) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2] {
        // SAFETY: guaranteed by the contract.
        unsafe { <B as Integers>::numbers16::<G>(block, scales) }
    }
}

/// Evaluates `$each` for every group of a block format, with the group as a constant.
#[cfg(target_arch = "x86_64")]
macro_rules! each_group {
    ($blocks:ident, $group:ident => $each:expr) => {
        each_group!(@ 0, $group => $each);
        if $blocks::VALUES > $crate::packed::blocks::GROUP {
            each_group!(@ 1, $group => $each);
            each_group!(@ 2, $group => $each);
            each_group!(@ 3, $group => $each);
            each_group!(@ 4, $group => $each);
            each_group!(@ 5, $group => $each);
            each_group!(@ 6, $group => $each);
            each_group!(@ 7, $group => $each);
        }
    };
    (@ $number:literal, $group:ident => $each:expr) => {{
        const $group: usize = $number;
        $each
    }};
}
#[cfg(target_arch = "x86_64")]
pub(crate) use each_group;

/// Reads an `f16` at byte offset `at`. `F16C`: whether the CPU has that feature.
#[inline(always)]
pub(crate) fn half<const F16C: bool>(block: &[u8], at: usize) -> f32 {
    let bits = [block[at], block[at + 1]];
    #[cfg(target_arch = "x86_64")]
    if F16C {
        // SAFETY: arithmetic on registers, and the CPU has F16C (as the constant says).
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        return unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(u16::from_le_bytes(bits).into()))) };
    }
    crate::element::Element::widened(half::f16::from_le_bytes(bits))
}

/// Index of the run that contains half `half` of group `group`.
#[inline(always)]
const fn run_of<B: Integers>(group: usize, half: usize) -> usize {
    (GROUP * group + 16 * half) / B::RUN
}

/// Decodes values of a row of blocks, starting at value `start`. Start and count must be multiples of 32.
pub(crate) fn decode<B: Blocks>(isa: Isa, row: &[u8], start: usize, to: &mut [f32]) {
    assert!(start.is_multiple_of(GROUP) && to.len().is_multiple_of(GROUP));
    let blocks = &row[start / B::VALUES * B::BYTES..];
    assert!(blocks.len() / B::BYTES * B::VALUES >= start % B::VALUES + to.len(), "a row is too short");
    let mut skip = start % B::VALUES / GROUP;
    let mut to = to.as_chunks_mut::<GROUP>().0;
    for block in blocks.chunks_exact(B::BYTES) {
        let (now, later) = to.split_at_mut(to.len().min(B::VALUES / GROUP - skip));
        if now.is_empty() {
            return;
        }
        match isa.level() {
            // SAFETY: the level proves the CPU features; a whole block, and groups of it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { decode_avx512::<B>(block, skip, now) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { decode_avx2::<B>(block, skip, now) },
            _ => decode_portable::<B>(block, skip, now),
        }
        (skip, to) = (0, later);
    }
}

fn decode_portable<B: Blocks>(block: &[u8], skip: usize, to: &mut [[f32; GROUP]]) {
    let scales = B::scales::<false>(block);
    for (group, to) in to.iter_mut().enumerate() {
        *to = B::numbers(block, &scales, skip + group);
    }
}

/// # Safety
/// `block` is a whole block that has the requested groups; the CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_avx2<B: Blocks>(block: &[u8], skip: usize, to: &mut [[f32; GROUP]]) {
    let scales = B::scales::<true>(block);
    each_group!(B, G => if let Some(to) = G.checked_sub(skip).and_then(|group| to.get_mut(group)) {
        // SAFETY: a whole block and a group of it; the contract guarantees the features.
        let numbers = unsafe { B::numbers8::<G>(block.as_ptr(), &scales) };
        for (to, numbers) in to.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), numbers) };
        }
    });
}

/// # Safety
/// `block` is a whole block that has the requested groups; the CPU has AVX-512 F, VL, DQ and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")]
unsafe fn decode_avx512<B: Blocks>(block: &[u8], skip: usize, to: &mut [[f32; GROUP]]) {
    let scales = B::scales::<true>(block);
    each_group!(B, G => if let Some(to) = G.checked_sub(skip).and_then(|group| to.get_mut(group)) {
        // SAFETY: a whole block and a group of it; the contract guarantees the features.
        let numbers = unsafe { B::numbers16::<G>(block.as_ptr(), &scales) };
        for (to, numbers) in to.as_chunks_mut::<16>().0.iter_mut().zip(numbers) {
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), numbers) };
        }
    });
}

/// Decodes group `G` from its integers, to vectors of 8.
///
/// # Safety
/// As for [`Blocks::numbers8`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
unsafe fn widened8<B: Integers, const G: usize>(block: *const u8, scales: &Scales<B::Runs>) -> [__m256; 4] {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let integers = B::load::<G>(block);
        let halves = [_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers)];
        let mut numbers = [_mm256_setzero_ps(); 4];
        for (half, bytes) in halves.into_iter().enumerate() {
            let run = run_of::<B>(G, half);
            let (scale, minus) =
                (_mm256_set1_ps(scales.scale.as_ref()[run]), _mm256_set1_ps(scales.minus.as_ref()[run]));
            for (i, bytes) in [bytes, _mm_unpackhi_epi64(bytes, bytes)].into_iter().enumerate() {
                let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale);
                numbers[2 * half + i] = if B::MINUS { _mm256_sub_ps(scaled, minus) } else { scaled };
            }
        }
        numbers
    }
}

/// Decodes group `G` from its integers, to vectors of 16.
///
/// # Safety
/// As for [`Blocks::numbers16`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
unsafe fn widened<B: Integers, const G: usize>(block: *const u8, scales: &Scales<B::Runs>) -> [__m512; 2] {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let integers = B::load::<G>(block);
        let halves = [_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers)];
        let mut numbers = [_mm512_setzero_ps(); 2];
        for (half, bytes) in halves.into_iter().enumerate() {
            let run = run_of::<B>(G, half);
            let (scale, minus) =
                (_mm512_set1_ps(scales.scale.as_ref()[run]), _mm512_set1_ps(scales.minus.as_ref()[run]));
            let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale);
            numbers[half] = if B::MINUS { _mm512_sub_ps(scaled, minus) } else { scaled };
        }
        numbers
    }
}

/// The values of the sixteen 4-bit codes, computed from the integers they stand for.
///
/// # Safety
/// The CPU has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
pub(crate) unsafe fn sixteen<B: Integers>(integers: &[f32; 16], scales: &Scales<B::Runs>, run: usize) -> __m512 {
    // SAFETY: sixteen floats; the rest is arithmetic on registers.
    unsafe {
        let scaled = _mm512_mul_ps(_mm512_loadu_ps(integers.as_ptr()), _mm512_set1_ps(scales.scale.as_ref()[run]));
        if B::MINUS { _mm512_sub_ps(scaled, _mm512_set1_ps(scales.minus.as_ref()[run])) } else { scaled }
    }
}

/// Looks up the low four bits of 16 bytes in a table of sixteen values, and then the high four bits.
///
/// # Safety
/// `from` points to 16 bytes; the CPU has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
pub(crate) unsafe fn named(from: *const u8, table: __m512) -> [__m512; 2] {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        // The permutation uses only the low four bits of an index.
        [_mm512_permutexvar_ps(bytes, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), table)]
    }
}

/// Converts integers to floats.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn floats(integers: [i8; 16]) -> [f32; 16] {
    let mut floats = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        floats[i] = integers[i] as f32;
        i += 1;
    }
    floats
}

/// The integers 0 to 15.
#[cfg(target_arch = "x86_64")]
pub(crate) const COUNTED: [f32; 16] = floats([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// The low four bits of 16 bytes, then the high four.
///
/// # Safety
/// `from` points to 16 bytes; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
pub(crate) unsafe fn nibbles(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let bytes = _mm_loadu_si128(from.cast());
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(bytes), _mm_srli_epi16::<4>(bytes));
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// Looks up each byte, which must be below 16, in a table.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
pub(crate) unsafe fn look_up(table: &[i8; 16], bytes: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes; the rest is arithmetic on registers.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        _mm256_shuffle_epi8(table, bytes)
    }
}

/// A byte of 0xff for every set bit, and a zero byte for every other bit.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
pub(crate) unsafe fn spread(bits: u32) -> __m256i {
    // SAFETY: arithmetic on registers.
    unsafe {
        let of_byte = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), of_byte);
        let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask)
    }
}

/// Pointers to the first byte of each column.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn pointers<const C: usize>(columns: [&[u8]; C]) -> [*const u8; C] {
    let mut first = [columns[0].as_ptr(); C];
    for d in 1..C {
        first[d] = columns[d].as_ptr();
    }
    first
}

/// Prefetches the block of `bytes` bytes that is `at` bytes after the start of each column.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<const C: usize>(columns: [*const u8; C], at: usize, bytes: usize) {
    for first in columns {
        for line in (0..bytes).step_by(64) {
            // SAFETY: a hint, for which any address will do; every x86-64 CPU has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at + line).cast()) };
        }
    }
}

/// The sum of a vector's floats.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // arithmetic on registers
pub(crate) unsafe fn sum_of_lanes(vector: __m256) -> f32 {
    // SAFETY: arithmetic on registers; the CPU has AVX2 (the contract).
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}
