//! Low-bit codes and their scales, which can be decoded or packed into blocks.

use std::ops::Range;

use hooklens_kernels::packed::{Format, GROUP};
use rayon::prelude::*;

use super::Parts;
use hooklens_model::error::{LoadError, load_errors};

/// Rows of quantization codes.
pub(super) struct Codes {
    pub(super) width: usize,
    /// Codes, `[row, width]`.
    pub(super) codes: Vec<u8>,
    /// Number of codes in a row that share a scale.
    pub(super) group: usize,
    /// Group of each column, if groups are not contiguous.
    pub(super) of_column: Option<Vec<usize>>,
    /// Scales, `[row, groups]`.
    pub(super) scales: Vec<f32>,
    /// Zero points, `[row, groups]`; empty if zero is always code 0.
    pub(super) zeros: Vec<i16>,
    pub(super) meaning: CodeBook,
}

/// How a code maps to a value, before scaling.
#[derive(Clone, Copy)]
pub(super) enum CodeBook {
    /// Unsigned integer minus the zero point.
    Unsigned,
    /// Signed integer minus the zero point.
    Signed,
    /// Signed integer times 1/127; the scale is the absolute maximum.
    Absmax,
    /// Index into a table.
    Table(&'static [f32; 16]),
    /// 8-bit float (E4M3).
    E4m3,
    /// 4-bit float (E2M1).
    E2m1,
}

/// Zero points of symmetric codes, which must equal `middle`. Accepts `zeros` if all of them differ from `middle` by
/// the same offset, one of `offsets`.
///
/// # Errors
/// [`LoadError::Quantized`] if the zero points contradict `setting`.
pub(super) fn symmetric(
    parts: &Parts<'_>,
    setting: &str,
    zeros: Vec<i16>,
    middle: i16,
    offsets: &[i16],
) -> Result<Vec<i16>, LoadError> {
    if offsets.iter().any(|offset| zeros.iter().all(|zero| *zero == middle + offset)) {
        return Ok(vec![middle; zeros.len()]);
    }
    let other = zeros.iter().find(|zero| **zero != middle).unwrap_or(&middle);
    Err(load_errors::bad_quantized(
        &parts.joined.name,
        format!("{setting}, but a zero point is {other} instead of {middle}"),
    ))
}

/// 1/127, rounded as in bitsandbytes.
const ONE_OF_127: f32 = 0.007_874_016;

/// All sixteen E2M1 values.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Codes {
    fn groups(&self) -> usize {
        match &self.of_column {
            Some(of_column) => of_column.iter().max().map_or(1, |most| most + 1),
            None => self.width.div_ceil(self.group.max(1)),
        }
    }

    /// Selects rows.
    pub(super) fn some(self, rows: Range<usize>) -> Self {
        let (width, groups) = (self.width, self.groups());
        let zeros = if self.zeros.is_empty() { 0..0 } else { rows.start * groups..rows.end * groups };
        Self {
            codes: self.codes[rows.start * width..rows.end * width].to_vec(),
            scales: self.scales[rows.start * groups..rows.end * groups].to_vec(),
            zeros: self.zeros[zeros].to_vec(),
            ..self
        }
    }

    /// Scale and zero point of a group.
    fn scale(&self, row: usize, group: usize, groups: usize) -> (f32, i16) {
        let at = row * groups + group;
        (self.scales[at], self.zeros.get(at).copied().unwrap_or(0))
    }

    /// Dequantizes all values, `[row, width]`.
    pub(super) fn decode(&self) -> Vec<f32> {
        let groups = self.groups();
        let mut numbers = vec![0.0; self.codes.len()];
        numbers.par_chunks_mut(self.width.max(1)).zip(self.codes.par_chunks(self.width.max(1))).enumerate().for_each(
            |(row, (numbers, codes))| {
                for (column, (number, code)) in numbers.iter_mut().zip(codes).enumerate() {
                    let group = self.of_column.as_ref().map_or(column / self.group, |of_column| of_column[column]);
                    let (scale, zero) = self.scale(row, group, groups);
                    *number = match self.meaning {
                        CodeBook::Unsigned => scale * f32::from(i16::from(*code) - zero),
                        CodeBook::Signed => scale * f32::from(i16::from(*code as i8) - zero),
                        CodeBook::Absmax => f32::from(*code as i8) * scale * ONE_OF_127,
                        CodeBook::Table(table) => table[usize::from(*code & 15)] * scale,
                        CodeBook::E4m3 => e4m3(*code) * scale,
                        CodeBook::E2m1 => E2M1[usize::from(*code & 15)] * scale,
                    };
                }
            },
        );
        numbers
    }

    /// Dequantizes all values, transposed to `[width, row]`.
    pub(super) fn turned(&self) -> Vec<f32> {
        let (numbers, rows) = (self.decode(), self.codes.len() / self.width.max(1));
        (0..numbers.len()).map(|i| numbers[i % rows * self.width + i / rows]).collect()
    }

    /// Packs the rows into blocks of a matching format.
    pub(super) fn pack(&self, format: Format) -> Vec<u8> {
        let groups = self.groups();
        let size = self.width / format.values() * format.bytes();
        let mut bytes = vec![0; self.codes.len() / self.width.max(1) * size];
        bytes.par_chunks_mut(size.max(1)).zip(self.codes.par_chunks(self.width.max(1))).enumerate().for_each(
            |(row, (bytes, codes))| {
                let blocks = bytes.chunks_exact_mut(format.bytes()).zip(codes.as_chunks::<GROUP>().0);
                for (number, (block, codes)) in blocks.enumerate() {
                    let (scale, zero) = self.scale(row, number * GROUP / self.group, groups);
                    self.fill(format, block, codes, scale, zero);
                }
            },
        );
        bytes
    }

    fn fill(&self, format: Format, block: &mut [u8], codes: &[u8; GROUP], scale: f32, zero: i16) {
        let nibbles = |to: &mut [u8]| {
            for (i, byte) in to.iter_mut().enumerate() {
                *byte = codes[i] & 15 | codes[i + GROUP / 2] << 4;
            }
        };
        let scale = if let CodeBook::Absmax = self.meaning { scale * ONE_OF_127 } else { scale };
        match format {
            Format::Mxfp4 => {
                // Exponent of a power of two, which may be subnormal.
                block[0] = match scale.to_bits() >> 23 & 0xff {
                    0 => 0,
                    exponent => exponent as u8,
                };
                nibbles(&mut block[1..]);
            }
            Format::Zeroed4 => {
                block[4] = zero as u8;
                nibbles(&mut block[5..]);
            }
            Format::Zeroed8 => {
                let off = if let CodeBook::Unsigned = self.meaning { 128 } else { 0 };
                block[4..6].copy_from_slice(&(zero - off).to_le_bytes());
                block[6..].iter_mut().zip(codes).for_each(|(to, code)| *to = code.wrapping_sub(off as u8));
            }
            Format::E4m3 => block[4..].copy_from_slice(codes),
            _ => nibbles(&mut block[4..]),
        }
        if format != Format::Mxfp4 {
            block[..4].copy_from_slice(&scale.to_le_bytes());
        }
    }
}

/// Decodes an 8-bit E4M3 float.
fn e4m3(bits: u8) -> f32 {
    let magnitude = match (bits >> 3 & 15, bits & 7) {
        (15, 7) => f32::NAN,
        (0, mantissa) => f32::from(mantissa) / 512.0,
        (exponent, mantissa) => f32::from(8 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Splits a word into fields of `bits` bits, lowest first.
pub(super) fn fields(word: u32, bits: usize) -> impl Iterator<Item = u8> {
    let mask = (1u64 << bits) as u32 - 1;
    (0..32 / bits).map(move |field| (word >> (field * bits) & mask) as u8)
}
