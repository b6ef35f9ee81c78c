//! The register tile: C[m, n] (+)= A[m, k] · packed B[k, n], for small m and n.

use crate::element::Element;
use crate::isa::{Isa, Level};
#[cfg(target_arch = "x86_64")]
use crate::pairs::Pair;

/// Operands of one register tile.
///
/// Contract (checked by the callers, relied upon by the kernels):
/// * `a` points at `rows` rows of `k` readable floats, `lda` apart;
/// * `b` points at `k` groups of `vectors * lanes` readable elements, `ldb` apart
///   (a packed panel, or whole vectors of B itself);
/// * `c` points at `rows` rows of `cols` writable floats, `ldc` apart, with
///   `cols` in `(vectors - 1) * lanes + 1 ..= vectors * lanes`;
/// * `bias` is null or points at `cols` readable floats.
#[derive(Clone, Copy)]
pub(crate) struct Tile<T = f32> {
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) b: *const T,
    pub(crate) ldb: usize,
    /// How far ahead of the groups of B (in elements, any value) to prefetch; 0
    /// for not at all.
    pub(crate) ahead: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) cols: usize,
    pub(crate) bias: *const f32,
    /// Add to C instead of overwriting it.
    pub(crate) accumulate: bool,
}

/// Dimensions of the register tile of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Most rows of C in a tile.
    pub(crate) rows: usize,
    /// Floats in a vector: panels are padded to a multiple of it.
    pub(crate) lanes: usize,
    /// Most columns of C in a tile: the width of a packed panel.
    pub(crate) cols: usize,
    /// Up to this many rows of A it pays to read contiguous rows of B in place.
    /// Narrow panels use few cache sets that way, so they want packing sooner.
    pub(crate) direct: usize,
    /// Up to this many rows of A it pays that each thread reads whole rows of B.
    pub(crate) whole: usize,
    /// Rows and columns of B packed at once: they are to stay in the second-level cache.
    pub(crate) block: (usize, usize),
}

/// The register tile of `isa`.
pub(crate) fn shape(isa: Isa) -> Shape {
    match isa.level() {
        Level::Portable => Shape { rows: 4, lanes: 4, cols: 8, direct: 8, whole: 8, block: (384, 192) },
        Level::Avx2 => Shape { rows: 6, lanes: 8, cols: 16, direct: 12, whole: 8, block: (768, 144) },
        Level::Avx512 => Shape { rows: 8, lanes: 16, cols: 48, direct: 128, whole: 4, block: (384, 192) },
    }
}

/// Computes one tile of `rows` rows and `vectors * lanes` (padded) columns.
///
/// # Safety
/// The contract of [`Tile`] must hold, with `1 <= rows <= shape(isa).rows`.
pub(crate) unsafe fn run<T: Element>(isa: Isa, rows: usize, vectors: usize, tile: Tile<T>) {
    match isa.level() {
        // SAFETY: forwarded contract.
        Level::Portable => unsafe { crate::micro_portable::run(rows, vectors, tile) },
        // SAFETY: forwarded contract; the level proves the CPU features.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { crate::micro_avx2::run(rows, vectors, tile) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { crate::micro_avx512::run(rows, vectors, tile) },
        // SAFETY: forwarded contract.
        #[cfg(not(target_arch = "x86_64"))]
        _ => unsafe { crate::micro_portable::run(rows, vectors, tile) },
    }
}

/// [`run`] for pairs of `bf16` in A and in B, of which each product adds two.
///
/// # Safety
/// As for [`run`], and the CPU has AVX-512 BF16 (`Isa::has_bf16`).
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_pairs(rows: usize, vectors: usize, tile: Tile<Pair>) {
    // SAFETY: forwarded contract.
    unsafe { crate::micro_avx512::run_pairs(rows, vectors, tile) }
}

/// Columns of B in one set of dot products.
pub(crate) const DOTS: usize = 4;

/// Most rows of A in one set of dot products.
pub(crate) fn dot_rows(isa: Isa) -> usize {
    match isa.level() {
        Level::Portable => 1,
        Level::Avx2 => 2,
        Level::Avx512 => 4,
    }
}

/// The dot products of `M` slices with [`DOTS`] slices, all of length `k`:
/// `result[i][d] = Σ_p a[i][p] * b[d][p]`. Memory `ahead` elements (any value) after
/// the elements of B is prefetched.
///
/// # Panics
/// If a slice has another length.
pub(crate) fn dots<const M: usize, T: Element>(
    isa: Isa,
    k: usize,
    a: [&[f32]; M],
    b: [&[T]; DOTS],
    ahead: usize,
) -> [[f32; DOTS]; M] {
    assert!(a.iter().all(|a| a.len() == k) && b.iter().all(|b| b.len() == k));
    match isa.level() {
        // SAFETY: the level proves the CPU features, the assertion the lengths.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { crate::micro_avx512::dots(k, a, b, ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { crate::micro_avx2::dots(k, a, b, ahead) },
        _ => crate::micro_portable::dots(a, b),
    }
}

/// Calls `$kernel::<ROWS, VECTORS>($tile)` for the run-time pair
/// `($rows, $vectors)` among the listed constants.
macro_rules! by_shape {
    ($kernel:ident($tile:expr), $rows:expr, $vectors:expr, [$($r:literal)*], $v:tt) => {
        match $rows {
            $($r => crate::micro::by_shape!(@ $kernel::<$r>($tile), $vectors, $v),)*
            _ => unreachable!("tile of {} rows", $rows),
        }
    };
    (@ $kernel:ident::<$r:literal>($tile:expr), $vectors:expr, [$($v:literal)*]) => {
        match $vectors {
            $($v => $kernel::<$r, $v, _>($tile),)*
            _ => unreachable!("tile of {} vectors", $vectors),
        }
    };
}
pub(crate) use by_shape;
