//! Code shared by the kernels of all instruction sets: the operands of a register tile, and the dispatch to tiles of
//! constant sizes.

/// Operands of one register tile.
///
/// Contract (checked by the callers, relied on by the kernels):
/// * `a` points to `rows` rows of `k` readable floats, `lda` apart;
/// * `b` points to `k` groups of `vectors * lanes` readable elements, `ldb` apart
///   (a packed panel, or whole vectors of B itself);
/// * `c` points to `rows` rows of `cols` writable floats, `ldc` apart, with
///   `cols` in `(vectors - 1) * lanes + 1 ..= vectors * lanes`;
/// * `bias` is null or points to `cols` readable floats.
#[derive(Clone, Copy)]
pub(crate) struct Tile<T = f32> {
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) b: *const T,
    pub(crate) ldb: usize,
    /// Prefetch distance ahead of the groups of B, in elements (any value); 0 for no prefetching.
    pub(crate) ahead: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) cols: usize,
    pub(crate) bias: *const f32,
    /// Whether to add to C instead of overwriting it.
    pub(crate) accumulate: bool,
}

/// Columns of B in one set of dot products.
pub(crate) const DOTS: usize = 4;

/// Calls `$kernel::<ROWS, VECTORS>($tile)` with the listed constants that equal `($rows, $vectors)`.
macro_rules! by_shape {
    ($kernel:ident($tile:expr), $rows:expr, $vectors:expr, [$($r:literal)*], $v:tt) => {
        match $rows {
            $($r => crate::micro_tile::by_shape!(@ $kernel::<$r>($tile), $vectors, $v),)*
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
