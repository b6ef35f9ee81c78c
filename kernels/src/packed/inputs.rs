//! Rows of A, converted once for all tasks of a product with quantized weights.

use super::digits::{Part, exact_parts, rounded_parts};
use super::eight_bits::{self, EightBits};
use super::many_rows::{ManyRows, RowsForm};
use super::planes::Planes;
use super::{Packed, Rounding, integers, superblock_products, with_groups, with_integers, with_superblocks};
use crate::gemv::MAX_ROWS;
use crate::isa::{Isa, Level};
use crate::operands::Bias;
use crate::tasks::each_item;
use crate::view::{OutTile, View2};

/// Converted rows.
pub(crate) enum Inputs {
    /// One row, not rounded, for formats with one scale per 32 values.
    Planes(Planes),
    /// Rounded rows, for formats with one scale per 32 values.
    EightBits(Vec<EightBits>),
    /// One row, not rounded, for superblocks.
    Exact(Vec<Part<3>>),
    /// Rounded rows, for superblocks.
    Rounded(Vec<Vec<Part<1>>>),
    /// Many rounded rows.
    Many(ManyRows),
    /// The product is computed in floats.
    Floats,
}

/// What the conversion depends on, besides the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One row, not rounded.
    Exact { superblocks: bool },
    /// A few rounded rows.
    Few { superblocks: bool, rounding: Rounding },
    /// Many rounded rows.
    Many { form: RowsForm, rounding: Rounding },
}

impl Kind {
    /// The kind for products of `rows` rows with `b`; `None` if these products are computed in floats.
    pub(crate) fn of(isa: Isa, rows: usize, b: &Packed) -> Option<Self> {
        let superblocks = with_superblocks!(b.format(), _B => true, _ => false);
        let form = with_integers!(b.format(), B => RowsForm::of::<B>(), _ => return None);
        match b.rounding() {
            // With AVX-512, products of many rows are faster in floats.
            Some(rounding) if rows > MAX_ROWS => (isa.level() == Level::Avx2).then_some(Self::Many { form, rounding }),
            Some(rounding) => (isa.level() >= Level::Avx2).then_some(Self::Few { superblocks, rounding }),
            // With AVX-512, floats are faster, because one instruction looks up the values of several weights.
            None => (isa.level() == Level::Avx2 && rows == 1).then_some(Self::Exact { superblocks }),
        }
    }
}

impl Inputs {
    pub(crate) fn new(a: View2, kind: Kind) -> Self {
        let row = |i: usize| a.row(i, 0, a.cols());
        match kind {
            // SAFETY: `Kind` is made for CPUs with AVX2, FMA and F16C.
            Kind::Exact { superblocks: true } => unsafe { exact_row(row(0)) }.map_or(Self::Floats, Self::Exact),
            // SAFETY: as above.
            Kind::Exact { superblocks: false } => unsafe { Planes::new(row(0)) }.map_or(Self::Floats, Self::Planes),
            // SAFETY: as above.
            Kind::Few { superblocks: true, .. } => Self::Rounded(each_row(a, |x| unsafe { rounded_row(x) })),
            Kind::Few { superblocks: false, rounding } => {
                // SAFETY: as above.
                Self::EightBits(each_row(a, |x| unsafe { eight_bits_row(x, rounding) }))
            }
            // SAFETY: as above.
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
                with_groups!(b.format(), B => integers::one_row::<B>(a, b, bias, c.row_mut(0)), _ => return false)
            }
            Self::EightBits(a) => {
                with_groups!(b.format(), B => eight_bits::rows::<B>(&a[rows], b, bias, c), _ => return false)
            }
            Self::Exact(a) => {
                with_superblocks!(b.format(), B => superblock_products::exact::<B>(a, b, bias, c), _ => return false)
            }
            Self::Rounded(a) => {
                with_superblocks!(b.format(), B => superblock_products::rounded::<B>(&a[rows], b, bias, c), _ => return false)
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
fn rounded_row(x: &[f32]) -> Vec<Part<1>> {
    rounded_parts(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn exact_row(x: &[f32]) -> Option<Vec<Part<3>>> {
    exact_parts(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn eight_bits_row(x: &[f32], rounding: Rounding) -> EightBits {
    EightBits::new(x, rounding)
}
