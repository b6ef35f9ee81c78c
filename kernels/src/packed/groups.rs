//! Block formats with one scale per 32 integers, in chunks of eight such groups.

use std::arch::x86_64::*;

use super::blocks::{Integers, SUPERBLOCK, Scales, look_up};

/// Pairs of groups in a chunk. Pair `p` consists of groups `2 * p` and `2 * p + 1`.
pub(crate) const PAIRS: usize = 4;
/// Groups of a chunk.
pub(crate) const GROUPS: usize = 2 * PAIRS;

/// Index of a group's scale in a vector of scales: even groups come first, so that the scale of each group of a pair is
/// in that group's half of the vector.
pub(crate) const fn place(group: usize) -> usize {
    group / 2 + group % 2 * PAIRS
}

/// Evaluates `$each` for every pair of a chunk, with the pair as a constant.
macro_rules! each_pair {
    ($pair:ident => $each:expr) => {
        each_pair!(@ 0, $pair => $each);
        each_pair!(@ 1, $pair => $each);
        each_pair!(@ 2, $pair => $each);
        each_pair!(@ 3, $pair => $each);
    };
    (@ $number:literal, $pair:ident => $each:expr) => {{
        const $pair: usize = $number;
        $each
    }};
}
pub(crate) use each_pair;

/// A block format with one scale per 32 integers.
pub(crate) trait Groups: Integers {
    /// Bytes of a chunk.
    const CHUNK_BYTES: usize = Self::BYTES * SUPERBLOCK / Self::VALUES;
    /// Bytes from the codes of one group to the codes of the next.
    const STRIDE: usize = Self::BYTES;
    /// Whether four products of an unsigned weight (minus [`Groups::OFFSET`]) and a digit fit in 16 bits, and eight
    /// products of such a weight and a number of three digits in 32.
    const NARROW: bool = Self::RANGE.1 - Self::RANGE.0 < 32;
    /// Offset subtracted from integers before they are multiplied.
    const OFFSET: i32 = if Self::NARROW { Self::RANGE.0 } else { 0 };
    /// Factor of [`Chunk::sums_of_eight`](super::chunks::Chunk::sums_of_eight) in exact rows; in rounded rows, it is
    /// [`Groups::OFFSET`].
    const SUM_FACTOR: i32 = if Self::MINUS { 1 } else { Self::OFFSET };

    /// Whether each block of 32 starts with a scale of type `f16`, followed by a minimum of this type if
    /// [`Integers::MINUS`].
    const F16_SCALES: bool = false;
    /// For formats that store 4-bit codes: the integer of each code minus [`Groups::OFFSET`]; `None` if that is the
    /// code itself.
    const TABLE: Option<&'static [i8; 16]> = None;

    /// The scales and offsets of a chunk's groups, at their [`place`]s.
    ///
    /// # Safety
    /// The CPU has AVX2 and F16C.
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // reads of checked bytes, then plain arithmetic on them
    unsafe fn chunk_scales(chunk: &[u8]) -> Scales<__m256> {
        if Self::F16_SCALES {
            // SAFETY: the CPU has F16C (the contract); the rest is arithmetic on registers.
            return unsafe {
                let zero = _mm256_setzero_ps();
                let minimum = if Self::MINUS { load_f16s(chunk, 2, Self::BYTES) } else { zero };
                Scales { scale: load_f16s(chunk, 0, Self::BYTES), minus: _mm256_sub_ps(zero, minimum) }
            };
        }
        let mut scales = Scales { scale: [0.0; GROUPS], minus: [0.0; GROUPS] };
        let runs = Self::VALUES / Self::RUN;
        for (block, bytes) in chunk.chunks_exact(Self::BYTES).enumerate() {
            let own = Self::scales::<true>(bytes);
            for (run, (scale, minus)) in own.scale.as_ref().iter().zip(own.minus.as_ref()).enumerate() {
                let at = place(block * runs + run);
                (scales.scale[at], scales.minus[at]) = (*scale, *minus);
            }
        }
        // SAFETY: eight floats each; the CPU has AVX2 (the contract).
        unsafe {
            Scales { scale: _mm256_loadu_ps(scales.scale.as_ptr()), minus: _mm256_loadu_ps(scales.minus.as_ptr()) }
        }
    }

    /// Loads the integers of the two groups of pair `P` and subtracts [`Groups::OFFSET`] from each. The first vector
    /// has the first 16 integers of each group, the second vector the last 16 of each.
    ///
    /// # Safety
    /// `chunk` points to a chunk, `P` is less than [`PAIRS`], and the CPU has AVX2.
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn pair<const P: usize>(chunk: *const u8) -> [__m256i; 2] {
        let group = |group: usize| chunk.wrapping_add(Self::STRIDE * group);
        // SAFETY: two groups of the chunk, and codes below 16; the rest is arithmetic on registers.
        unsafe {
            if let Some((at, _)) = Self::CODES {
                let codes = pair_of_nibbles(group(2 * P).wrapping_add(at), group(2 * P + 1).wrapping_add(at));
                return match Self::TABLE {
                    Some(table) => [look_up(table, codes[0]), look_up(table, codes[1])],
                    None => codes,
                };
            }
            let (first, second) = (Self::load::<0>(group(2 * P)), Self::load::<0>(group(2 * P + 1)));
            let halves =
                [_mm256_permute2x128_si256::<0x20>(first, second), _mm256_permute2x128_si256::<0x31>(first, second)];
            let offset = _mm256_set1_epi8(Self::OFFSET as i8);
            [_mm256_sub_epi8(halves[0], offset), _mm256_sub_epi8(halves[1], offset)]
        }
    }
}

/// Eight numbers of type `f16`, `stride` bytes apart, at their [`place`]s.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // eight reads, then plain arithmetic on them
unsafe fn load_f16s(chunk: &[u8], at: usize, stride: usize) -> __m256 {
    let first = chunk[at..][..7 * stride + 2].as_ptr();
    // SAFETY: 16 bits each, of the bytes checked above; the rest is arithmetic on registers.
    unsafe {
        let number = |i: usize| first.wrapping_add(stride * i).cast::<i16>().read_unaligned();
        _mm256_cvtph_ps(_mm_setr_epi16(
            number(0),
            number(2),
            number(4),
            number(6),
            number(1),
            number(3),
            number(5),
            number(7),
        ))
    }
}

/// The 4-bit codes of two groups: the first 16 codes of both, which are the low bits, and the last 16, which are the
/// high bits.
///
/// # Safety
/// Both point to 16 bytes; the CPU has AVX2.
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
unsafe fn pair_of_nibbles(first: *const u8, second: *const u8) -> [__m256i; 2] {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let bytes = _mm256_castsi128_si256(_mm_loadu_si128(first.cast()));
        let bytes = _mm256_inserti128_si256::<1>(bytes, _mm_loadu_si128(second.cast()));
        let mask = _mm256_set1_epi8(15);
        [_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask)]
    }
}
