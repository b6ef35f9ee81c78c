//! The register tile: C[m, n] (+)= A[m, k] · packed B[k, n], for small m and n.

use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::element::Pair;
use crate::isa::{Isa, Level};
use crate::micro_tile::{DOTS, Tile};

/// Dimensions of the register tile of one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Maximum number of rows of C in a tile.
    pub(crate) rows: usize,
    /// Floats per vector; panels are padded to a multiple of it.
    pub(crate) lanes: usize,
    /// Maximum number of columns of C in a tile, which is the width of a packed panel.
    pub(crate) cols: usize,
    /// Maximum number of rows of A for which reading contiguous rows of B in place pays off. Reading narrow panels in
    /// place uses few cache sets, so the narrower the panels, the fewer rows of A make packing worthwhile.
    pub(crate) direct: usize,
    /// Maximum number of rows of A for which having each thread read whole rows of B pays off.
    pub(crate) whole: usize,
    /// Rows and columns of B packed at once, chosen to stay in the second-level cache.
    pub(crate) block: (usize, usize),
}

/// The register tile of `isa`.
pub(crate) fn shape(isa: Isa) -> Shape {
    match isa.level() {
        Level::Portable => Shape { rows: 4, lanes: 4, cols: 8, direct: 8, whole: 8, block: (384, 192) },
        Level::Avx2 => Shape { rows: 6, lanes: 8, cols: 16, direct: 8, whole: 8, block: (768, 144) },
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

/// Like [`run`], for pairs of `bf16` in A and B: each step adds the products of both elements of a pair.
///
/// # Safety
/// As for [`run`], and the CPU has AVX-512 BF16 (`Isa::has_bf16`).
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn run_pairs(rows: usize, vectors: usize, tile: Tile<Pair>) {
    // SAFETY: forwarded contract.
    unsafe { crate::micro_avx512::run_pairs(rows, vectors, tile) }
}

/// Maximum number of rows of A in one set of dot products.
pub(crate) fn dot_rows(isa: Isa) -> usize {
    match isa.level() {
        Level::Portable => 1,
        Level::Avx2 => 2,
        Level::Avx512 => 4,
    }
}

/// Dot products of `M` slices with [`DOTS`] slices, all of length `k`: `result[i][d] = Σ_p a[i][p] * b[d][p]`.
/// Prefetches memory `ahead` elements (any value) after the elements of B.
///
/// # Panics
/// If a slice's length is not `k`.
pub(crate) fn dots<const M: usize, T: Element>(
    isa: Isa,
    k: usize,
    a: [&[f32]; M],
    b: [&[T]; DOTS],
    ahead: usize,
) -> [[f32; DOTS]; M] {
    assert!(a.iter().all(|a| a.len() == k) && b.iter().all(|b| b.len() == k));
    match isa.level() {
        // SAFETY: the level proves the CPU features, and the assertion proves the lengths.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { crate::micro_avx512::dots(k, a, b, ahead) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { crate::micro_avx2::dots(k, a, b, ahead) },
        _ => crate::micro_portable::dots(a, b),
    }
}
