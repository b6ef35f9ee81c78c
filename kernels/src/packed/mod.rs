//! Block-quantized weight matrices, as stored in quantized model files.

mod blocks;
#[cfg(target_arch = "x86_64")]
mod chunk_products;
#[cfg(target_arch = "x86_64")]
mod chunks;
#[cfg(target_arch = "x86_64")]
mod digits;
#[cfg(target_arch = "x86_64")]
mod eight_bits;
#[cfg(target_arch = "x86_64")]
mod few_rows;
#[cfg(target_arch = "x86_64")]
mod groups;
#[cfg(target_arch = "x86_64")]
mod inputs;
#[cfg(target_arch = "x86_64")]
mod integers;
#[cfg(target_arch = "x86_64")]
mod many_rows;
#[cfg(target_arch = "x86_64")]
mod planes;
mod products;
mod published;
mod rounding;
mod small;
#[cfg(target_arch = "x86_64")]
mod superblock_products;
mod superblocks;

use std::fmt;

use crate::isa::Isa;
use crate::tasks::each_item;
use blocks::Blocks;
#[cfg(target_arch = "x86_64")]
pub(crate) use inputs::{Converted, Inputs, Kind};
pub(crate) use rounding::Rounding;

pub use blocks::GROUP;
pub(crate) use products::{rounded_rows, tile};
pub use published::e4m3;

/// Block formats: ggml's, with its names and layouts, and formats to which other libraries' quantized tensors are
/// converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32 values of 4 bits, with a scale.
    Q4_0,
    /// 32 values of 4 bits, with a scale and a minimum.
    Q4_1,
    /// 32 values of 5 bits, with a scale.
    Q5_0,
    /// 32 values of 5 bits, with a scale and a minimum.
    Q5_1,
    /// 32 values of 8 bits, with a scale.
    Q8_0,
    /// 256 values of 2 bits, with a scale and a minimum per 16.
    Q2K,
    /// 256 values of 3 bits, with a scale per 16.
    Q3K,
    /// 256 values of 4 bits, with a scale and a minimum per 32.
    Q4K,
    /// 256 values of 5 bits, with a scale and a minimum per 32.
    Q5K,
    /// 256 values of 6 bits, with a scale per 16.
    Q6K,
    /// 32 values from a table of 16, with a scale.
    Iq4Nl,
    /// 256 values from a table of 16, with a scale per 32.
    Iq4Xs,
    /// 32 4-bit floats, with a power of two as the scale.
    Mxfp4,
    /// 32 values of 4 bits, with an `f32` scale and a zero point, as in GPTQ and AWQ.
    Zeroed4,
    /// 32 signed values of 8 bits, with an `f32` scale and a zero point.
    Zeroed8,
    /// 32 values from bitsandbytes' NF4 table, with an `f32` scale.
    Nf4,
    /// 32 values from bitsandbytes' FP4 table, with an `f32` scale.
    Fp4,
    /// 32 8-bit floats with four exponent bits, with an `f32` scale.
    E4m3,
}

/// Evaluates an expression with the block type of a format.
macro_rules! with_blocks {
    ($format:expr, $blocks:ident => $done:expr) => {
        with_blocks!(@ $format, $blocks, $done,
            Q4_0 small Q4_0, Q4_1 small Q4_1, Q5_0 small Q5_0, Q5_1 small Q5_1, Q8_0 small Q8_0,
            Iq4Nl small Iq4Nl, Mxfp4 small Mxfp4,
            Zeroed4 published Zeroed4, Zeroed8 published Zeroed8, Nf4 published Nf4, Fp4 published Fp4,
            E4m3 published E4m3,
            Q2K superblocks Q2K, Q3K superblocks Q3K, Q4K superblocks Q4K, Q5K superblocks Q5K,
            Q6K superblocks Q6K, Iq4Xs superblocks Iq4Xs)
    };
    (@ $format:expr, $blocks:ident, $done:expr, $($variant:ident $module:ident $type:ident),*) => {
        match $format {
            $($crate::packed::Format::$variant => {
                type $blocks = $crate::packed::$module::$type;
                $done
            })*
        }
    };
}
pub(crate) use with_blocks;

/// Evaluates an expression with the block type of one of the listed formats, or else another expression.
#[cfg(target_arch = "x86_64")]
macro_rules! match_format {
    ($format:expr, $blocks:ident, $done:expr, $other:expr, $($variant:ident $module:ident),*) => {
        match $format {
            $($crate::packed::Format::$variant => {
                type $blocks = $crate::packed::$module::$variant;
                $done
            })*
            _ => $other,
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use match_format;

/// Evaluates an expression with the block type of a format with blocks of 32 integers of at most five bits.
#[cfg(target_arch = "x86_64")]
macro_rules! with_narrow {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::match_format!($format, $blocks, $done, $other,
            Q4_0 small, Q4_1 small, Q5_0 small, Q5_1 small, Mxfp4 small)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_narrow;

/// Evaluates an expression with the block type of a format that stores integers of 8 bits, with a scale per 32 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_eight_bits {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::match_format!($format, $blocks, $done, $other, Q8_0 small, Zeroed8 published)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_eight_bits;

/// Evaluates an expression with the block type of a format that stores integers of more than five bits, with a scale
/// per 32 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_wide {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::with_eight_bits!($format, $blocks => $done, _ => {
            $crate::packed::match_format!($format, $blocks, $done, $other,
                Iq4Nl small, Zeroed4 published, Iq4Xs superblocks)
        })
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_wide;

/// Evaluates an expression with the block type of a format that stores integers, with a scale per 32 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_groups {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::with_narrow!($format, $blocks => $done, _ => {
            $crate::packed::with_wide!($format, $blocks => $done, _ => $other)
        })
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_groups;

/// Evaluates an expression with the block type of a format that stores superblocks of integers of at most five bits,
/// with a scale and a minimum per 32 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_affine {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::match_format!($format, $blocks, $done, $other, Q4K superblocks, Q5K superblocks)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_affine;

/// Evaluates an expression with the block type of a format that stores integers of at most five bits, with a scale per
/// 32 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_five_bits {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::with_narrow!($format, $blocks => $done, _ => {
            $crate::packed::with_affine!($format, $blocks => $done, _ => $other)
        })
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_five_bits;

/// Evaluates an expression with the block type of a format that stores integers, with a scale per 16 of them.
#[cfg(target_arch = "x86_64")]
macro_rules! with_sixteens {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::match_format!($format, $blocks, $done, $other,
            Q2K superblocks, Q3K superblocks, Q6K superblocks)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_sixteens;

/// Evaluates an expression with the block type of a format whose scales are integers, too.
#[cfg(target_arch = "x86_64")]
macro_rules! with_superblocks {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::with_affine!($format, $blocks => $done, _ => {
            $crate::packed::with_sixteens!($format, $blocks => $done, _ => $other)
        })
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_superblocks;

/// Evaluates an expression with the block type of a format that stores integers.
#[cfg(target_arch = "x86_64")]
macro_rules! with_integers {
    ($format:expr, $blocks:ident => $done:expr, _ => $other:expr) => {
        $crate::packed::with_superblocks!($format, $blocks => $done, _ => {
            $crate::packed::with_groups!($format, $blocks => $done, _ => $other)
        })
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_integers;

impl Format {
    /// Values per block.
    pub fn values(self) -> usize {
        with_blocks!(self, B => B::VALUES)
    }

    /// Bytes per block.
    pub fn bytes(self) -> usize {
        with_blocks!(self, B => B::BYTES)
    }

    /// The sixteen values of the format's codes, for formats with a table of floats.
    pub fn table(self) -> Option<&'static [f32; 16]> {
        match self {
            Format::Nf4 => Some(&published::NORMAL),
            Format::Fp4 => Some(&published::FLOATING),
            _ => None,
        }
    }

    /// Size of `values` values in bytes; `None` if they do not fill whole blocks.
    ///
    /// ```
    /// use hooklens_kernels::packed::Format;
    /// assert_eq!((Format::Q8_0.bytes_of(64), Format::Q8_0.bytes_of(40)), (Some(68), None));
    /// ```
    pub fn bytes_of(self, values: usize) -> Option<usize> {
        values.is_multiple_of(self.values()).then(|| values / self.values()).and_then(|n| n.checked_mul(self.bytes()))
    }
}

/// A matrix `[k, n]` whose columns are stored as rows of blocks.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    bytes: &'a [u8],
    format: Format,
    k: usize,
    order: Order,
    first: usize,
    cols: usize,
    rounding: Option<Rounding>,
    /// Rows of the other factor that were already converted, and the index among them of this product's first row.
    #[cfg(target_arch = "x86_64")]
    inputs: Option<(&'a Inputs, usize)>,
}

/// Mapping from columns to stored rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Column `j` is stored in row `j`.
    AsIs,
    /// Within each head of the given number of rows, rows of the first and second half alternate, as for rotary
    /// embeddings of adjacent pairs.
    Paired(usize),
    /// Every `step`-th row from `start` on, for files that interleave the rows of several matrices.
    Every {
        /// The first row.
        start: usize,
        /// Distance to the next row.
        step: usize,
    },
}

impl fmt::Debug for Packed<'_> {
    /// Shows format and sizes, but no bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Packed");
        shown
            .field("format", &self.format)
            .field("rows", &self.k)
            .field("cols", &self.cols)
            .field("order", &self.order);
        shown.finish_non_exhaustive()
    }
}

impl<'a> Packed<'a> {
    /// A matrix whose columns are the rows in `bytes`, with `k` values each.
    ///
    /// # Panics
    /// If the bytes are not whole rows, or the number of rows does not fit the order.
    pub fn new(bytes: &'a [u8], format: Format, k: usize, order: Order) -> Self {
        let row = format.bytes_of(k).unwrap_or(0);
        assert!(
            row > 0 && bytes.len().is_multiple_of(row),
            "{} bytes are not whole rows of {k} numbers in {format:?}",
            bytes.len()
        );
        let cols = bytes.len() / row;
        let cols = match order {
            Order::AsIs => cols,
            Order::Paired(head) => {
                assert!(
                    head > 0 && head.is_multiple_of(2) && cols.is_multiple_of(head),
                    "{cols} rows can't be divided into heads of an even size {head}"
                );
                cols
            }
            Order::Every { start, step } => {
                assert!(
                    start < step && cols.is_multiple_of(step),
                    "{cols} rows can't be taken in steps of {step} from {start}"
                );
                cols / step
            }
        };
        Self {
            bytes,
            format,
            k,
            order,
            first: 0,
            cols,
            rounding: None,
            #[cfg(target_arch = "x86_64")]
            inputs: None,
        }
    }

    /// Rounds the other factor of products to 8 bits, as llama.cpp does: per block of 32 values, or of 256 for formats
    /// with blocks of 256. Decoding the matrix is not affected.
    ///
    /// ```
    /// use hooklens_kernels::gemm::gemm;
    /// use hooklens_kernels::packed::{Format, Order, Packed};
    /// use hooklens_kernels::view::View2;
    /// let mut block = [0; 34];
    /// (block[1], block[2], block[3]) = (0x3c, 1, 2); // a scale of 1 in `f16`, then the numbers 1, 2, 0, ...
    /// let packed = Packed::new(&block, Format::Q8_0, 32, Order::AsIs).rounding_inputs();
    /// let mut a = [0.0; 32];
    /// (a[0], a[1]) = (127.0, 0.6);
    /// let mut c = [0.0];
    /// gemm(View2::row_major(&a, 1, 32), packed, None, &mut c, 1);
    /// assert_eq!(c, [127.0 + 2.0]); // 0.6 became 1
    /// ```
    pub fn rounding_inputs(self) -> Self {
        let half_sums = matches!(self.format, Format::Q4_1 | Format::Q5_1);
        Self { rounding: Some(Rounding::new(self.format.values(), half_sums)), ..self }
    }

    /// Rounds values as products with this matrix round the other factor. If they do not round it, copies the values.
    ///
    /// # Panics
    /// If the lengths differ, or are not whole rows.
    pub fn round(&self, x: &[f32], to: &mut [f32]) {
        assert!(x.len() == to.len() && x.len().is_multiple_of(self.k), "rows have {} numbers", self.k);
        match self.rounding {
            Some(rounding) => rounding.round(x, to),
            None => to.copy_from_slice(x),
        }
    }

    /// The same matrix, but its products do not round the other factor.
    pub(crate) fn exact(self) -> Self {
        Self { rounding: None, ..self }
    }

    /// The same matrix, set up so that its products use these already converted rows of the other factor.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_inputs(self, inputs: &'a Inputs) -> Self {
        Self { inputs: Some((inputs, 0)), ..self }
    }

    /// The same matrix, for a product with only the rows of the other factor from row `first` on.
    pub(crate) fn starting_at(self, first: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self { inputs: self.inputs.map(|(inputs, start)| (inputs, start + first)), ..self };
        #[cfg(not(target_arch = "x86_64"))]
        self
    }

    /// How products round the other factor; `None` if they do not round it.
    pub(crate) fn rounding(&self) -> Option<Rounding> {
        self.rounding
    }

    /// Columns `first..first + cols`.
    ///
    /// # Panics
    /// If there are fewer columns.
    pub fn columns(self, (first, cols): (usize, usize)) -> Self {
        assert!(first <= self.cols && cols <= self.cols - first);
        Self { first: self.first + first, cols, ..self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.k
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The block format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The blocks of column `j`.
    pub(crate) fn column(&self, j: usize) -> &'a [u8] {
        assert!(j < self.cols);
        let j = self.first + j;
        let row = match self.order {
            Order::AsIs => j,
            Order::Every { start, step } => start + step * j,
            Order::Paired(head) => {
                let (of_head, half) = (j % head, head / 2);
                j - of_head + of_head % half * 2 + of_head / half
            }
        };
        let bytes = self.k / self.format.values() * self.format.bytes();
        &self.bytes[row * bytes..][..bytes]
    }

    /// Decodes a column.
    ///
    /// # Panics
    /// If the length of `to` is not the number of rows.
    pub fn decode_column(&self, j: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.k, "`to` must have {} numbers", self.k);
        self.decode_with(Isa::current(), j, to);
    }

    fn decode_with(&self, isa: Isa, j: usize, to: &mut [f32]) {
        with_blocks!(self.format, B => blocks::decode::<B>(isa, self.column(j), 0, to));
    }

    /// Decodes all columns, in order: the transposed matrix `[n, k]`.
    ///
    /// # Panics
    /// If the length of `to` is not `n * k`.
    ///
    /// ```
    /// use hooklens_kernels::packed::{Format, Order, Packed};
    /// let mut block = [0; 34];
    /// block[1] = 0x3c; // a scale of 1 in `f16`, before the numbers
    /// block[2..].iter_mut().enumerate().for_each(|(i, x)| *x = i as u8);
    /// let mut numbers = [0.0; 32];
    /// Packed::new(&block, Format::Q8_0, 32, Order::AsIs).decode(&mut numbers);
    /// assert_eq!(numbers[31], 31.0);
    /// ```
    pub fn decode(&self, to: &mut [f32]) {
        assert_eq!(to.len(), self.k * self.cols, "`to` must have {}x{} numbers", self.k, self.cols);
        let isa = Isa::current();
        // Columns per task.
        let columns = (64 * 1024 / self.k.max(1)).max(1);
        each_item(to.chunks_mut(columns * self.k.max(1)).enumerate(), |(chunk, to)| {
            for (j, to) in to.chunks_exact_mut(self.k).enumerate() {
                self.decode_with(isa, chunk * columns + j, to);
            }
        });
    }
}
