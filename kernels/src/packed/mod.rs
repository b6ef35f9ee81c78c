//! Matrices of weights in blocks of a few bits a number, as quantized files hold them.

mod blocks;
mod products;
mod published;
mod small;
mod superblocks;

use std::fmt;

use crate::isa::Isa;
use crate::tasks::each_item;
use blocks::Blocks;

pub(crate) use products::tile;
pub use published::e4m3;

/// Numbers that share a scale at most; rows are decoded in runs of this many.
pub const GROUP: usize = 32;

/// How blocks hold numbers: names and layouts of ggml, and blocks that other libraries' tensors are brought into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32 numbers of 4 bits, a scale.
    Q4_0,
    /// 32 numbers of 4 bits, a scale and a least number.
    Q4_1,
    /// 32 numbers of 5 bits, a scale.
    Q5_0,
    /// 32 numbers of 5 bits, a scale and a least number.
    Q5_1,
    /// 32 numbers of 8 bits, a scale.
    Q8_0,
    /// 256 numbers of 2 bits, scales and least numbers of 16 each.
    Q2K,
    /// 256 numbers of 3 bits, scales of 16 each.
    Q3K,
    /// 256 numbers of 4 bits, scales and least numbers of 32 each.
    Q4K,
    /// 256 numbers of 5 bits, scales and least numbers of 32 each.
    Q5K,
    /// 256 numbers of 6 bits, scales of 16 each.
    Q6K,
    /// 32 numbers from a table of 16, a scale.
    Iq4Nl,
    /// 256 numbers from a table of 16, scales of 32 each.
    Iq4Xs,
    /// 32 floating-point numbers of 4 bits, a power of two.
    Mxfp4,
    /// 32 numbers of 4 bits, a scale in `f32` and the number that stands for zero: as of GPTQ and AWQ.
    Zeroed4,
    /// 32 numbers of 8 bits with a sign, a scale in `f32` and the number that stands for zero.
    Zeroed8,
    /// 32 numbers from bitsandbytes' table of a normal distribution, a scale in `f32`.
    Nf4,
    /// 32 numbers from bitsandbytes' table of small floating-point numbers, a scale in `f32`.
    Fp4,
    /// 32 floating-point numbers of 8 bits, four of them the exponent's, a scale in `f32`.
    E4m3,
}

/// The same expression for the type of a format's blocks.
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

impl Format {
    /// Numbers of a block.
    pub fn values(self) -> usize {
        with_blocks!(self, B => B::VALUES)
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        with_blocks!(self, B => B::BYTES)
    }

    /// The sixteen numbers that codes stand for, where they do for numbers of a table of floats.
    pub fn table(self) -> Option<&'static [f32; 16]> {
        published::table(self)
    }

    /// Bytes of so many numbers, if they make whole blocks.
    ///
    /// ```
    /// use hooklens_kernels::packed::Format;
    /// assert_eq!((Format::Q8_0.bytes_of(64), Format::Q8_0.bytes_of(40)), (Some(68), None));
    /// ```
    pub fn bytes_of(self, values: usize) -> Option<usize> {
        values.is_multiple_of(self.values()).then(|| values / self.values()).and_then(|n| n.checked_mul(self.bytes()))
    }
}

/// A matrix `[k, n]` whose columns are rows of packed blocks.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    bytes: &'a [u8],
    format: Format,
    k: usize,
    order: Order,
    first: usize,
    cols: usize,
}

/// Which packed row is which column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The rows in order.
    AsIs,
    /// Of each head of so many rows, pairs of its halves' rows lie side by side, as for rotations of neighbors.
    Paired(usize),
    /// Each so many rows the `start`-th, as where rows of two matrices alternate.
    Every {
        /// The first.
        start: usize,
        /// Rows to the next.
        step: usize,
    },
}

impl fmt::Debug for Packed<'_> {
    /// Format and sizes, never bytes.
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
    /// All of these rows of `k` numbers, as columns.
    ///
    /// # Panics
    /// If the bytes are not whole rows, or the order does not fit their number.
    pub fn new(bytes: &'a [u8], format: Format, k: usize, order: Order) -> Self {
        let row = format.bytes_of(k).unwrap_or(0);
        assert!(
            row > 0 && bytes.len().is_multiple_of(row),
            "{} bytes are no rows of {k} numbers of {format:?}",
            bytes.len()
        );
        let cols = bytes.len() / row;
        let cols = match order {
            Order::AsIs => cols,
            Order::Paired(head) => {
                assert!(
                    head > 0 && head.is_multiple_of(2) && cols.is_multiple_of(head),
                    "{cols} rows, heads of {head}"
                );
                cols
            }
            Order::Every { start, step } => {
                assert!(start < step && cols.is_multiple_of(step), "{cols} rows, every {step}");
                cols / step
            }
        };
        Self { bytes, format, k, order, first: 0, cols }
    }

    /// Columns `first..first + cols`.
    ///
    /// # Panics
    /// If there are not so many.
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

    /// How numbers are held.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The blocks of a column.
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

    /// Decodes a column's numbers.
    ///
    /// # Panics
    /// If `to` has not room for just these.
    pub fn decode_column(&self, j: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.k, "a column of {} numbers", self.k);
        self.decode_with(Isa::current(), j, to);
    }

    fn decode_with(&self, isa: Isa, j: usize, to: &mut [f32]) {
        with_blocks!(self.format, B => blocks::decode::<B>(isa, self.column(j), 0, to));
    }

    /// Decodes all columns, one behind the other: the transposed matrix `[n, k]`.
    ///
    /// # Panics
    /// If `to` has not room for just these.
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
        assert_eq!(to.len(), self.k * self.cols, "a matrix of {}x{} numbers", self.k, self.cols);
        let isa = Isa::current();
        // Enough for a task.
        let columns = (64 * 1024 / self.k.max(1)).max(1);
        each_item(to.chunks_mut(columns * self.k.max(1)).enumerate(), |(chunk, to)| {
            for (j, to) in to.chunks_exact_mut(self.k).enumerate() {
                self.decode_with(isa, chunk * columns + j, to);
            }
        });
    }
}
