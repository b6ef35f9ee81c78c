//! Rows of A, converted once for all tasks of a product with quantized weights.

use super::blocks::GROUP;
use super::chunk_products::ChunkProducts;
use super::chunks::{Chunk, exact_chunks, rounded_chunks};
use super::digits::{Part, exact_parts, rounded_parts};
use super::eight_bits::EightBits;
use super::groups::Groups;
use super::many_rows::{ManyRows, RowsForm};
use super::planes::Planes;
use super::superblock_products::SuperblockProducts;
use super::{
    Packed, Rounding, eight_bits, few_rows, integers, with_eight_bits, with_five_bits, with_groups, with_integers,
    with_sixteens, with_superblocks, with_wide,
};
use crate::gemv::MAX_ROWS;
use crate::isa::{Isa, Level};
use crate::operands::Bias;
use crate::tasks::each_item;
use crate::view::{OutTile, View2};

/// Converted rows.
pub(crate) enum Inputs {
    /// One row, not rounded, for formats with one scale per 32 integers of more than five bits.
    Planes(Planes),
    /// Rows, not rounded, for formats with one scale per 32 integers of at most five bits, also in superblocks.
    ExactChunks(Vec<Vec<Chunk<3>>>),
    /// One rounded row, for formats with one scale per 32 integers of 8 bits.
    EightBits(EightBits),
    /// Rounded rows, for formats with one scale per 32 integers, except `Q4_K` and `Q5_K`.
    RoundedChunks(Vec<Vec<Chunk<1>>>),
    /// Rows, not rounded, for formats with one scale per 16 integers.
    ExactParts(Vec<Vec<Part<3>>>),
    /// Rounded rows, for `Q2_K` to `Q6_K`.
    RoundedParts(Vec<Vec<Part<1>>>),
    /// Many rounded rows.
    Many(ManyRows),
    /// The product is computed in floats.
    Floats,
}

/// What the conversion depends on, besides the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// See [`Inputs::Planes`].
    Planes,
    /// See [`Inputs::ExactChunks`] and [`Groups::SUM_FACTOR`].
    ExactChunks { sum_factor: i32 },
    /// See [`Inputs::EightBits`].
    EightBits,
    /// See [`Inputs::RoundedChunks`].
    RoundedChunks { sum_factor: i32, rounding: Rounding },
    /// See [`Inputs::ExactParts`].
    ExactParts,
    /// See [`Inputs::RoundedParts`].
    RoundedParts,
    /// See [`Inputs::Many`].
    Many { form: RowsForm, rounding: Rounding },
}

impl Kind {
    /// The kind for products of `rows` rows with `b`; `None` if these products are computed in floats.
    pub(crate) fn of(isa: Isa, rows: usize, b: &Packed) -> Option<Self> {
        match b.rounding() {
            Some(rounding) if rows > MAX_ROWS => {
                let form = with_integers!(b.format(), B => RowsForm::of::<B>(), _ => return None);
                // With AVX-512, products of many rows are faster in floats.
                (isa.level() == Level::Avx2).then_some(Self::Many { form, rounding })
            }
            Some(rounding) => {
                let several = with_groups!(
                    b.format(),
                    B => Self::RoundedChunks { sum_factor: B::OFFSET, rounding },
                    _ => with_superblocks!(b.format(), _B => Self::RoundedParts, _ => return None)
                );
                let kind = match rows {
                    1 => with_eight_bits!(b.format(), _B => Self::EightBits, _ => several),
                    _ => several,
                };
                (isa.level() >= Level::Avx2).then_some(kind)
            }
            // With AVX-512, floats are faster, because one instruction looks up the values of several weights.
            None if isa.level() != Level::Avx2 || rows > MAX_ROWS => None,
            None => with_five_bits!(
                b.format(),
                B => {
                    // With more rows, floats are as fast, except for superblocks.
                    let in_integers = rows < 4 || b.format().values() > GROUP;
                    in_integers.then_some(Self::ExactChunks { sum_factor: B::SUM_FACTOR })
                },
                _ => with_sixteens!(b.format(), _B => Some(Self::ExactParts), _ => {
                    with_wide!(b.format(), _B => (rows == 1).then_some(Self::Planes), _ => None)
                })
            ),
        }
    }
}

impl Inputs {
    pub(crate) fn new(a: View2, kind: Kind) -> Self {
        // SAFETY, for all calls: `Kind` is made for CPUs with AVX2, FMA and F16C.
        match kind {
            // SAFETY: see above.
            Kind::Planes => unsafe { Planes::new(a.row(0, 0, a.cols())) }.map_or(Self::Floats, Self::Planes),
            Kind::ExactChunks { sum_factor } => {
                // SAFETY: see above.
                let rows = each_row(a, |x| unsafe { exact_chunks_of(x, sum_factor) });
                rows.into_iter().collect::<Option<_>>().map_or(Self::Floats, Self::ExactChunks)
            }
            // SAFETY: see above.
            Kind::EightBits => Self::EightBits(unsafe { EightBits::new(a.row(0, 0, a.cols())) }),
            Kind::RoundedChunks { sum_factor, rounding } => {
                // SAFETY: see above.
                Self::RoundedChunks(each_row(a, |x| unsafe { rounded_chunks_of(x, rounding, sum_factor) }))
            }
            Kind::ExactParts => {
                // SAFETY: see above.
                let rows = each_row(a, |x| unsafe { exact_parts_of(x) });
                rows.into_iter().collect::<Option<_>>().map_or(Self::Floats, Self::ExactParts)
            }
            // SAFETY: see above.
            Kind::RoundedParts => Self::RoundedParts(each_row(a, |x| unsafe { rounded_parts_of(x) })),
            // SAFETY: see above.
            Kind::Many { form, rounding } => Self::Many(unsafe { ManyRows::new(a, rounding, form) }),
        }
    }

    /// `c = a · b (+ bias)` for the rows of A from `first` on. Returns `false`, without computing anything, if the
    /// product must be computed in floats.
    pub(crate) fn product(&self, first: usize, b: Packed, bias: Bias, c: &mut OutTile) -> bool {
        // SAFETY: rows are converted only for CPUs with AVX2, FMA and F16C.
        unsafe { self.product_avx2(first, b, bias, c) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn product_avx2(&self, first: usize, b: Packed, bias: Bias, c: &mut OutTile) -> bool {
        let rows = first..first + c.rows();
        match self {
            Self::Planes(a) => {
                with_wide!(b.format(), B => integers::one_row::<B>(a, b, bias, c.row_mut(0)), _ => return false)
            }
            Self::ExactChunks(a) => {
                with_five_bits!(
                    b.format(),
                    B => few_rows::rows::<ChunkProducts<B>, _>(&a[rows], b, bias, c),
                    _ => return false
                )
            }
            Self::EightBits(a) => with_eight_bits!(
                b.format(),
                B => eight_bits::one_row::<B>(a, b, bias, c.row_mut(0)),
                _ => return false
            ),
            Self::RoundedChunks(a) => {
                with_groups!(
                    b.format(),
                    B => few_rows::rows::<ChunkProducts<B>, _>(&a[rows], b, bias, c),
                    _ => return false
                )
            }
            Self::ExactParts(a) => {
                with_sixteens!(
                    b.format(),
                    B => few_rows::rows::<SuperblockProducts<B>, _>(&a[rows], b, bias, c),
                    _ => return false
                )
            }
            Self::RoundedParts(a) => {
                with_superblocks!(
                    b.format(),
                    B => few_rows::rows::<SuperblockProducts<B>, _>(&a[rows], b, bias, c),
                    _ => return false
                )
            }
            Self::Many(a) => {
                with_integers!(b.format(), B => a.product::<B>(first, b, bias, c), _ => return false)
            }
            Self::Floats => return false,
        }
        true
    }
}

/// The rows of A, in each form that some product needs.
pub(crate) struct Converted(Vec<(Kind, Inputs)>);

impl Converted {
    pub(crate) fn new<'b>(isa: Isa, a: View2, matrices: impl Iterator<Item = Packed<'b>>) -> Self {
        let mut converted: Vec<(Kind, Inputs)> = Vec::new();
        for kind in matrices.filter_map(|b| Kind::of(isa, a.rows(), &b)) {
            if converted.iter().all(|(other, _)| *other != kind) {
                converted.push((kind, Inputs::new(a, kind)));
            }
        }
        Self(converted)
    }

    /// The matrix `b`, set up so that its product uses the converted rows, if it needs them.
    pub(crate) fn given_to<'s>(&'s self, isa: Isa, rows: usize, b: Packed<'s>) -> Packed<'s> {
        let kind = Kind::of(isa, rows, &b);
        let inputs = self.0.iter().find(|(of, _)| Some(*of) == kind);
        inputs.map_or(b, |(_, inputs)| b.with_inputs(inputs))
    }
}

/// Converts every row, on all threads.
fn each_row<T: Default + Send>(a: View2, convert: impl Fn(&[f32]) -> T + Send + Sync) -> Vec<T> {
    let mut rows: Vec<T> = (0..a.rows()).map(|_| T::default()).collect();
    each_item(rows.iter_mut().enumerate(), |(i, to)| *to = convert(a.row(i, 0, a.cols())));
    rows
}

// The conversions are portable code, compiled here with wider vectors.

#[target_feature(enable = "avx2,fma,f16c")]
fn exact_chunks_of(x: &[f32], sum_factor: i32) -> Option<Vec<Chunk<3>>> {
    exact_chunks(x, sum_factor)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rounded_chunks_of(x: &[f32], rounding: Rounding, sum_factor: i32) -> Vec<Chunk<1>> {
    rounded_chunks(x, rounding, sum_factor)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn exact_parts_of(x: &[f32]) -> Option<Vec<Part<3>>> {
    exact_parts(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rounded_parts_of(x: &[f32]) -> Vec<Part<1>> {
    rounded_parts(x)
}
