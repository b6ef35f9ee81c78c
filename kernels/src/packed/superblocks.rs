//! Blocks of 256 values, with separate scales for runs of 16 or 32.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array::from_fn;

#[cfg(target_arch = "x86_64")]
use super::blocks::{COUNTED, look_up, named, nibbles, sixteen};
use super::blocks::{GROUP, Integers, Scales, half};
#[cfg(target_arch = "x86_64")]
use super::groups::Groups;
#[cfg(target_arch = "x86_64")]
use super::small::NONLINEAR_FLOATS;
use super::small::{NONLINEAR, nibbles_of};

/// A block format of 256 values, whose scales and minimums are integers times a factor.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Superblocks: Integers {
    /// The factors by which the block's integer scales and minimums are multiplied. The CPU must have F16C.
    fn factors(block: &[u8]) -> Scales<f32>;

    /// Scales of runs of 16 values, as 16-bit integers; even runs, then odd runs.
    ///
    /// # Safety
    /// `block` is a whole block; the CPU has AVX2.
    unsafe fn run_scales(block: &[u8]) -> __m256i;

    /// Minimums of runs of 16 values, in the same order; zeros if the format has no minimums.
    ///
    /// # Safety
    /// As for [`Superblocks::run_scales`].
    #[inline(always)]
    unsafe fn run_minimums(_block: &[u8]) -> __m256i {
        // SAFETY: the CPU has AVX2 (the contract).
        unsafe { _mm256_setzero_si256() }
    }

    /// Loads the integers of group `G` minus the smallest one; the results are at most 63.
    ///
    /// # Safety
    /// `block` points to a block that has a group `G`; the CPU has AVX2.
    #[inline(always)]
    unsafe fn unsigned<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: guaranteed by the contract.
        unsafe { Self::load::<G>(block) }
    }
}

/// Loads the integers of group `G`, as [`Integers::load`] does, with [`Superblocks::unsigned`].
///
/// # Safety
/// As for [`Superblocks::unsigned`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn signed<B: Superblocks, const G: usize>(block: *const u8) -> __m256i {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe { _mm256_add_epi8(B::unsigned::<G>(block), _mm256_set1_epi8(B::RANGE.0 as i8)) }
}

/// Sorts bytes: those with even indices, then those with odd indices.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn even_then_odd(bytes: __m128i) -> __m128i {
    // SAFETY: arithmetic on registers.
    unsafe { _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)) }
}

/// Repeats eight bytes, the scales or minimums of runs of 32 values, for sixteen runs of 16.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn doubled(eight: __m128i) -> __m256i {
    // SAFETY: arithmetic on registers.
    unsafe { _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(eight)) }
}

/// Implements [`Superblocks`] for formats whose blocks store 6-bit scales and minimums after the factors.
#[cfg(target_arch = "x86_64")]
macro_rules! affine_superblocks {
    ($($type:ident),*) => {
        $(impl Superblocks for $type {
            #[inline(always)]
            fn factors(block: &[u8]) -> Scales<f32> {
                Scales { scale: half::<true>(block, 0), minus: half::<true>(block, 2) }
            }

            #[inline(always)]
            unsafe fn run_scales(block: &[u8]) -> __m256i {
                // SAFETY: guaranteed by the contract.
                unsafe { doubled(unpacked(head(block))) }
            }

            #[inline(always)]
            unsafe fn run_minimums(block: &[u8]) -> __m256i {
                // SAFETY: guaranteed by the contract.
                unsafe { doubled(last_eight(unpacked(head(block)))) }
            }
        })*
    };
}
#[cfg(target_arch = "x86_64")]
affine_superblocks!(Q4K, Q5K);

/// The first 16 bytes of a block: two factors of type `f16`, and 12 bytes of 6-bit scales and minimums.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn head(block: &[u8]) -> __m128i {
    // SAFETY: 16 bytes of the slice.
    unsafe { _mm_loadu_si128(block[..16].as_ptr().cast()) }
}

/// Eight 6-bit scales and then eight 6-bit minimums, each as a byte, from the first bytes of a block. [`six_bits`] has
/// the same formula for other CPUs.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn unpacked(head: __m128i) -> __m128i {
    // SAFETY: arithmetic on registers.
    unsafe {
        // Words 1 to 3 are the `a`, `b` and `c` of `six_bits`; these are a, c, b, c.
        let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_setr_epi32(0, 0, 0, 4));
        let low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f));
        // The top two bits of each byte, for the second and fourth words: a, a, b, b.
        let top = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
        _mm_or_si128(low, _mm_and_si128(top, _mm_setr_epi32(0, 0x3030_3030, 0, 0x3030_3030)))
    }
}

/// Moves the last eight bytes to the front.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn last_eight(bytes: __m128i) -> __m128i {
    // SAFETY: arithmetic on registers.
    unsafe { _mm_unpackhi_epi64(bytes, bytes) }
}

/// The first eight bytes, as floats.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn floats(bytes: __m128i) -> __m256 {
    // SAFETY: arithmetic on registers.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)) }
}

/// Scales and minimums of a block's eight groups, as floats. `order` rearranges their bytes, eight scales and then eight
/// minimums.
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn affine_scales(block: &[u8], order: impl Fn(__m128i) -> __m128i) -> Scales<__m256> {
    // SAFETY: guaranteed by the contract.
    unsafe {
        let head = head(block);
        let factors = _mm_cvtph_ps(head);
        let bytes = order(unpacked(head));
        Scales {
            scale: _mm256_mul_ps(_mm256_broadcastss_ps(factors), floats(bytes)),
            minus: _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(factors)), floats(last_eight(bytes))),
        }
    }
}

/// Scales and minimums in the order of [`Groups::chunk_scales`].
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
unsafe fn chunk_scales(block: &[u8]) -> Scales<__m256> {
    // SAFETY: guaranteed by the contract.
    unsafe {
        affine_scales(block, |bytes| {
            _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15))
        })
    }
}

/// The low four bits of 16 bytes, and then their high four bits.
///
/// # Safety
/// `from` points to 16 bytes; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
unsafe fn low_and_high(from: *const u8) -> __m256i {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe {
        let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
        let shifted = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
        _mm256_and_si256(shifted, _mm256_set1_epi8(15))
    }
}

#[cfg(target_arch = "x86_64")]
impl Groups for Q4K {
    #[inline(always)]
    unsafe fn chunk_scales(chunk: &[u8]) -> Scales<__m256> {
        // SAFETY: a chunk is a block; the rest is guaranteed by the contract.
        unsafe { chunk_scales(chunk) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads with the same contract
    unsafe fn pair<const P: usize>(chunk: *const u8) -> [__m256i; 2] {
        let from = chunk.wrapping_add(16 + 32 * P);
        // SAFETY: 32 of the last 128 of a block's 144 bytes.
        unsafe { [low_and_high(from), low_and_high(from.wrapping_add(16))] }
    }
}

#[cfg(target_arch = "x86_64")]
impl Groups for Q5K {
    #[inline(always)]
    unsafe fn chunk_scales(chunk: &[u8]) -> Scales<__m256> {
        // SAFETY: a chunk is a block; the rest is guaranteed by the contract.
        unsafe { chunk_scales(chunk) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // four loads, then plain arithmetic on them
    unsafe fn pair<const P: usize>(chunk: *const u8) -> [__m256i; 2] {
        let (low, fifth) = (chunk.wrapping_add(48 + 32 * P), chunk.wrapping_add(16));
        // SAFETY: 32 of the last 128 of a block's 176 bytes, and the 32 bytes of fifth bits, of which a bit per group
        // is used; the rest is arithmetic on registers.
        unsafe {
            let high = |from: *const u8| {
                let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
                // Shift bits 2 * P and 2 * P + 1 to bit 4.
                let shifted = match P {
                    0 => _mm256_sllv_epi32(bytes, _mm256_setr_epi32(4, 4, 4, 4, 3, 3, 3, 3)),
                    1 => _mm256_sllv_epi32(bytes, _mm256_setr_epi32(2, 2, 2, 2, 1, 1, 1, 1)),
                    2 => _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
                    _ => _mm256_srlv_epi32(bytes, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)),
                };
                _mm256_and_si256(shifted, _mm256_set1_epi8(16))
            };
            [
                _mm256_or_si256(low_and_high(low), high(fifth)),
                _mm256_or_si256(low_and_high(low.wrapping_add(16)), high(fifth.wrapping_add(16))),
            ]
        }
    }
}

/// Decodes eight 6-bit scales and eight 6-bit minimums from 12 bytes.
#[inline(always)]
fn six_bits(bytes: &[u8]) -> [[u8; 8]; 2] {
    // Unpack four bytes at once.
    let [a, b, c] = from_fn(|i| u32::from_le_bytes(from_fn(|byte| bytes[4 * i + byte])));
    let (low, top) = (|word: u32| word & 0x3f3f_3f3f, |word: u32| (word >> 6 & 0x0303_0303) << 4);
    let (scales, least) = ([low(a), c & 0x0f0f_0f0f | top(a)], [low(b), c >> 4 & 0x0f0f_0f0f | top(b)]);
    [scales, least].map(|words| from_fn(|i| words[i / 4].to_le_bytes()[i % 4]))
}

/// Scales and minimums of runs of 32. In a block, they follow the two factors by which they are multiplied.
#[inline(always)]
fn affine<const F16C: bool>(block: &[u8]) -> Scales<[f32; 8]> {
    let mut all = Scales { scale: [0.0; 8], minus: [0.0; 8] };
    #[cfg(target_arch = "x86_64")]
    if F16C {
        // SAFETY: `F16C` implies that the CPU also has AVX2.
        let vectors = unsafe { affine_scales(block, |bytes| bytes) };
        for (to, vector) in [(&mut all.scale, vectors.scale), (&mut all.minus, vectors.minus)] {
            // SAFETY: eight floats.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), vector) };
        }
        return all;
    }
    let (d, dmin) = (half::<false>(block, 0), half::<false>(block, 2));
    let [scales, minus] = six_bits(&block[4..16]);
    for i in 0..8 {
        all.scale[i] = d * f32::from(scales[i]);
        all.minus[i] = dmin * f32::from(minus[i]);
    }
    all
}

/// Shifts each of 32 bytes to the right. Bits of a neighboring byte are shifted in, and the caller must mask them.
///
/// # Safety
/// `from` points to 32 bytes; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
unsafe fn shifted(from: *const u8, by: usize) -> __m256i {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe { _mm256_srl_epi16(_mm256_loadu_si256(from.cast()), _mm_cvtsi64_si128(by as i64)) }
}

/// See [`Format`](super::Format), also for the other types here.
pub(crate) struct Q2K;

impl Integers for Q2K {
    const VALUES: usize = 256;
    const BYTES: usize = 84;
    const RUN: usize = 16;
    type Runs = [f32; 16];
    const MINUS: bool = true;
    const RANGE: (i32, i32) = (0, 3);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        let (d, dmin) = (half::<F16C>(block, 80), half::<F16C>(block, 82));
        Scales { scale: from_fn(|i| d * f32::from(block[i] & 15)), minus: from_fn(|i| dmin * f32::from(block[i] >> 4)) }
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        let bytes = &block[16 + group / 4 * 32..][..32];
        from_fn(|i| (bytes[i] >> (group % 4 * 2) & 3) as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: 32 of the 64 bytes that follow the scales.
        unsafe {
            let bytes = shifted(block.wrapping_add(16 + G / 4 * 32), G % 4 * 2);
            _mm256_and_si256(bytes, _mm256_set1_epi8(3))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Superblocks for Q2K {
    #[inline(always)]
    fn factors(block: &[u8]) -> Scales<f32> {
        Scales { scale: half::<true>(block, 80), minus: half::<true>(block, 82) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn run_scales(block: &[u8]) -> __m256i {
        // SAFETY: the first 16 bytes of a block; the rest is arithmetic on registers.
        unsafe {
            let scales = _mm_and_si128(_mm_loadu_si128(block.as_ptr().cast()), _mm_set1_epi8(15));
            _mm256_cvtepu8_epi16(even_then_odd(scales))
        }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn run_minimums(block: &[u8]) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm_srli_epi16::<4>(_mm_loadu_si128(block.as_ptr().cast()));
            _mm256_cvtepu8_epi16(even_then_odd(_mm_and_si128(bytes, _mm_set1_epi8(15))))
        }
    }
}

pub(crate) struct Q3K;

/// The 6-bit scale of a run, from the 12 bytes of all runs.
#[inline(always)]
fn three_bit_scale(bytes: &[u8], run: usize) -> i8 {
    let low = bytes[run % 8] >> (run / 8 * 4) & 15;
    let high = bytes[8 + run % 4] >> (run / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

impl Integers for Q3K {
    const VALUES: usize = 256;
    const BYTES: usize = 110;
    const RUN: usize = 16;
    type Runs = [f32; 16];
    const MINUS: bool = false;
    const RANGE: (i32, i32) = (-4, 3);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        let (bytes, d) = (&block[96..108], half::<F16C>(block, 108));
        Scales { scale: from_fn(|run| d * f32::from(three_bit_scale(bytes, run))), minus: [0.0; 16] }
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        let bytes = &block[32 + group / 4 * 32..][..32];
        from_fn(|i| {
            let low = (bytes[i] >> (group % 4 * 2) & 3) as i8;
            if block[i] >> group & 1 == 0 { low - 4 } else { low }
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: guaranteed by the contract.
        unsafe { signed::<Self, G>(block) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Superblocks for Q3K {
    #[inline(always)]
    fn factors(block: &[u8]) -> Scales<f32> {
        Scales { scale: half::<true>(block, 108), minus: 0.0 }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // plain arithmetic
    unsafe fn run_scales(block: &[u8]) -> __m256i {
        let scales: [i8; 16] = from_fn(|run| three_bit_scale(&block[96..108], run));
        // SAFETY: 16 bytes; the rest is arithmetic on registers.
        unsafe { _mm256_cvtepi8_epi16(even_then_odd(_mm_loadu_si128(scales.as_ptr().cast()))) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn unsigned<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the 32 bytes of third bits, and 32 of the 64 bytes that follow them.
        unsafe {
            let low = _mm256_and_si256(shifted(block.wrapping_add(32 + G / 4 * 32), G % 4 * 2), _mm256_set1_epi8(3));
            let bit = _mm256_and_si256(shifted(block, G), _mm256_set1_epi8(1));
            _mm256_or_si256(low, _mm256_slli_epi16::<2>(bit))
        }
    }
}

/// Four bits of each of 32 bytes: the low bits for an even group, the high bits for an odd group.
///
/// # Safety
/// `from` points to 128 bytes; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
unsafe fn four_bits(from: *const u8, group: usize) -> __m256i {
    // SAFETY: guaranteed by the contract; the rest is arithmetic on registers.
    unsafe { _mm256_and_si256(shifted(from.wrapping_add(group / 2 * 32), group % 2 * 4), _mm256_set1_epi8(15)) }
}

pub(crate) struct Q4K;

impl Integers for Q4K {
    const VALUES: usize = 256;
    const BYTES: usize = 144;
    const RUN: usize = 32;
    type Runs = [f32; 8];
    const MINUS: bool = true;
    const RANGE: (i32, i32) = (0, 15);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        affine::<F16C>(block)
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        let bytes = &block[16 + group / 2 * 32..][..32];
        from_fn(|i| (bytes[i] >> (group % 2 * 4) & 15) as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: the last 128 of a block's 144 bytes.
        unsafe { four_bits(block.wrapping_add(16), G) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn numbers16<const G: usize>(block: *const u8, scales: &Scales<Self::Runs>) -> [__m512; 2] {
        // SAFETY: 32 of the last 128 of a block's 144 bytes.
        unsafe {
            let (from, table) = (block.wrapping_add(16 + G / 2 * 32), sixteen::<Self>(&COUNTED, scales, G));
            [named(from, table)[G % 2], named(from.wrapping_add(16), table)[G % 2]]
        }
    }
}

pub(crate) struct Q5K;

impl Integers for Q5K {
    const VALUES: usize = 256;
    const BYTES: usize = 176;
    const RUN: usize = 32;
    type Runs = [f32; 8];
    const MINUS: bool = true;
    const RANGE: (i32, i32) = (0, 31);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        affine::<F16C>(block)
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        let bytes = &block[48 + group / 2 * 32..][..32];
        from_fn(|i| (bytes[i] >> (group % 2 * 4) & 15 | (block[16 + i] >> group & 1) << 4) as i8)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: 32 bytes of fifth bits, and the last 128 of a block's 176.
        unsafe {
            let bit = _mm256_and_si256(shifted(block.wrapping_add(16), G), _mm256_set1_epi8(1));
            _mm256_or_si256(four_bits(block.wrapping_add(48), G), _mm256_slli_epi16::<4>(bit))
        }
    }
}

pub(crate) struct Q6K;

impl Integers for Q6K {
    const VALUES: usize = 256;
    const BYTES: usize = 210;
    const RUN: usize = 16;
    type Runs = [f32; 16];
    const MINUS: bool = false;
    const RANGE: (i32, i32) = (-32, 31);

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        let d = half::<F16C>(block, 208);
        let mut scale = [0.0; 16];
        #[cfg(target_arch = "x86_64")]
        if F16C {
            for (from, to) in block[192..208].as_chunks::<8>().0.iter().zip(scale.as_chunks_mut::<8>().0) {
                #[allow(clippy::multiple_unsafe_ops_per_block)] // one store after plain arithmetic
                // SAFETY: eight floats; `F16C` implies that the CPU also has AVX2.
                unsafe {
                    let bytes = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*from)));
                    _mm256_storeu_ps(to.as_mut_ptr(), _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(bytes)));
                }
            }
            return Scales { scale, minus: [0.0; 16] };
        }
        for (scale, byte) in scale.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(*byte as i8);
        }
        Scales { scale, minus: [0.0; 16] }
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        let (half, quarter) = (group / 4, group % 4);
        let low = &block[64 * half + quarter % 2 * 32..][..32];
        let high = &block[128 + 32 * half..][..32];
        from_fn(|i| {
            let (low, high) = (low[i] >> (quarter / 2 * 4) & 15, high[i] >> (quarter * 2) & 3);
            (low | high << 4) as i8 - 32
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: guaranteed by the contract.
        unsafe { signed::<Self, G>(block) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Superblocks for Q6K {
    #[inline(always)]
    fn factors(block: &[u8]) -> Scales<f32> {
        Scales { scale: half::<true>(block, 208), minus: 0.0 }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn run_scales(block: &[u8]) -> __m256i {
        // SAFETY: bytes 192 to 207 of 210; the rest is arithmetic on registers.
        unsafe { _mm256_cvtepi8_epi16(even_then_odd(_mm_loadu_si128(block[192..208].as_ptr().cast()))) }
    }

    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // two loads, then plain arithmetic on them
    unsafe fn unsigned<const G: usize>(block: *const u8) -> __m256i {
        let (half, quarter) = (G / 4, G % 4);
        // SAFETY: 32 of the first 128 bytes, and 32 of the 64 bytes that follow them.
        unsafe {
            let low = shifted(block.wrapping_add(64 * half + quarter % 2 * 32), quarter / 2 * 4);
            let high = shifted(block.wrapping_add(128 + 32 * half), quarter * 2);
            let low = _mm256_and_si256(low, _mm256_set1_epi8(15));
            let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, _mm256_set1_epi8(3)));
            _mm256_or_si256(low, high)
        }
    }
}

pub(crate) struct Iq4Xs;

impl Integers for Iq4Xs {
    const VALUES: usize = 256;
    const BYTES: usize = 136;
    const RUN: usize = 32;
    type Runs = [f32; 8];
    const MINUS: bool = false;
    #[cfg(target_arch = "x86_64")]
    const CODES: Option<(usize, &'static [f32; 16])> = Some((8, &NONLINEAR_FLOATS));

    #[inline(always)]
    fn scales<const F16C: bool>(block: &[u8]) -> Scales<Self::Runs> {
        let (d, high) = (half::<F16C>(block, 0), u16::from_le_bytes([block[2], block[3]]));
        let of_group = |group: usize| {
            let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
            d * f32::from((low | ((high >> (2 * group) & 3) << 4) as u8) as i8 - 32)
        };
        Scales { scale: from_fn(of_group), minus: [0.0; 8] }
    }

    #[inline(always)]
    fn integers(block: &[u8], group: usize) -> [i8; GROUP] {
        nibbles_of(&block[8 + 16 * group..]).map(|x| NONLINEAR[usize::from(x)])
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[allow(clippy::multiple_unsafe_ops_per_block)] // one load, then plain arithmetic on it
    unsafe fn load<const G: usize>(block: *const u8) -> __m256i {
        // SAFETY: 16 of the last 128 of a block's 136 bytes.
        unsafe { look_up(&NONLINEAR, nibbles(block.wrapping_add(8 + 16 * G))) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Groups for Iq4Xs {
    const STRIDE: usize = 16;
    const TABLE: Option<&'static [i8; 16]> = Some(&NONLINEAR);
}
